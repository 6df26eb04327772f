"""Schedules: which op runs and which value is freed, one step at a time.

A `Plan` says what regions of stages do; a `Schedule` is a plain list of steps. Its JSON holds all
that its peak and its seconds follow from: add the bytes of a value when an op writes it, take them
away when it is freed, and look at the sum while each op runs.

Values may be freed and written again as often as the schedule says, but an op that is not
recomputable, and every op of the backward pass, runs once.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import InfeasibleBudget, InvalidPlan
from ..graph import FETCHED, Graph, Implementation
from ..plan import Certified, Plan, Region
from ..runs import Run, runs


@dataclasses.dataclass(frozen=True, slots=True)
class Execute:
    """An op runs: all that it reads is in memory, and nothing of what it writes.

    Attributes:
        op: its position in `Graph.ops`.
        implementation: the position in its `implementations`.
    """

    op: int
    implementation: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Free:
    """A value leaves memory.

    Attributes:
        value: its index in the graph.
    """

    value: int


Step = Execute | Free


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule(Certified):
    """The plan of a planner that decides op by op, with its certificate.

    Attributes:
        steps: in order.
        peak_bytes, seconds, flops: by `cost_of`.
        bound_seconds: no schedule of the planner's space within the budget takes less.
        planner: who made it.
    """

    steps: tuple[Step, ...]
    peak_bytes: int
    seconds: float
    flops: int
    bound_seconds: float
    planner: str


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of some steps.

    Attributes:
        peak_bytes: the largest of `live_bytes`.
        seconds, flops: of all runs.
        live_bytes: for each `Execute` the bytes in memory while it runs, workspace included.
    """

    peak_bytes: int
    seconds: float
    flops: int
    live_bytes: tuple[int, ...]


def cost_of(graph: Graph, steps: Iterable[Step]) -> Cost:
    """Runs steps on paper.

    Raises:
        InvalidPlan: an op reads what is not in memory, writes what is, must run once and does not,
            or a value is freed that is not in memory.
    """
    live: set[int] = set()
    nbytes, during = 0, []
    times: collections.Counter[Execute] = collections.Counter()
    before: set[int] = set()  # ops that have run
    for step in steps:
        if isinstance(step, Free):
            if step.value not in live:
                raise _misplaced(graph, step.value, "is freed, but not in memory")
            live.remove(step.value)
            nbytes -= graph.values[step.value].nbytes
            continue
        op = graph.ops[step.op]
        implementation = _implementation(graph, step)
        if implementation.only_again and step.op not in before:
            raise InvalidPlan(
                f"Op `{op.name}` runs first in an implementation that needs an earlier run."
            )
        for i in implementation.inputs:
            if i not in live:
                raise _misplaced(graph, i, f"is read by op `{op.name}`, but not in memory")
        for i in op.outputs:
            if i in live:
                raise _misplaced(graph, i, f"is written by `{op.name}`, but still in memory")
        live |= set(op.outputs)
        nbytes += sum(graph.values[i].nbytes for i in op.outputs)
        during.append(nbytes + implementation.workspace_bytes)
        live -= set(implementation.overwrites)
        nbytes -= sum(graph.values[i].nbytes for i in implementation.overwrites)
        before.add(step.op)
        times[step] += 1
    _check_times(graph, collections.Counter(run.op for run in times.elements()))
    # In the order of ops, so that the same runs sum to the same seconds in whatever order.
    ran = [(_implementation(graph, run), times[run]) for run in sorted(times, key=_number)]
    return Cost(
        max(during, default=0),
        sum(implementation.seconds * n for implementation, n in ran),
        sum(implementation.flops * n for implementation, n in ran),
        tuple(during),
    )


def _implementation(graph: Graph, run: Execute) -> Implementation:
    """The implementation that an op runs in."""
    if run.implementation == FETCHED:
        return Implementation((), 0.0)
    return graph.implementations[run.op][run.implementation]


def _number(run: Execute) -> tuple[int, int]:
    return run.op, run.implementation


def _misplaced(graph: Graph, value: int, what: str) -> InvalidPlan:
    return InvalidPlan(f"Value `{graph.values[value].name}` {what}.")


def _check_times(graph: Graph, times: Mapping[int, int]) -> None:
    for o, op in enumerate(graph.ops):
        count = times.get(o, 0)
        if count < (not op.optional) or (count > 1 and not graph.may_rerun(o)):
            raise InvalidPlan(f"Op {o} (`{op.name}`) runs {count} times; need once.")


def runs_of(schedule: Schedule) -> list[Execute]:
    """The runs of a schedule, in order."""
    return [step for step in schedule.steps if isinstance(step, Execute)]


def at_peak(graph: Graph, steps: Sequence[Step]) -> tuple[int, list[int]]:
    """The op that runs at the peak, and the values in memory then, largest first."""
    during = cost_of(graph, steps).live_bytes
    peak = during.index(max(during))
    live: set[int] = set()
    runs = 0
    for step in steps:
        if isinstance(step, Free):
            live.remove(step.value)
            continue
        op = graph.ops[step.op]
        live |= set(op.outputs)
        if runs == peak:
            return step.op, sorted(live, key=lambda i: (-graph.values[i].nbytes, i))
        live -= set(_implementation(graph, step).overwrites)
        runs += 1
    raise AssertionError("a schedule has a peak")


def infeasible(graph: Graph, smallest: Schedule, budget_bytes: int) -> InfeasibleBudget:
    """The error of a planner whose smallest schedule takes more than a budget."""
    op, values = at_peak(graph, smallest.steps)
    names = tuple(graph.values[i].name for i in values)
    return InfeasibleBudget(
        f"No schedule of {smallest.planner} was found within {budget_bytes:,} bytes. The smallest "
        f"takes {smallest.peak_bytes:,} bytes while op `{graph.ops[op].name}` runs, with "
        f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} in memory. "
        "Raise the budget to that, or use another planner.",
        minimum_bytes=smallest.peak_bytes,
        peak_values=names,
    )


def certified_steps(
    graph: Graph, steps: Iterable[Step], *, bound_seconds: float, planner: str
) -> Schedule:
    """A schedule whose figures come from `cost_of`."""
    steps = tuple(steps)
    cost = cost_of(graph, steps)
    bound = min(max(bound_seconds, graph.least_seconds), cost.seconds)
    return Schedule(steps, cost.peak_bytes, cost.seconds, cost.flops, bound, planner)


def steps_of(graph: Graph, plan: Plan | Sequence[Region]) -> tuple[Step, ...]:
    """The steps that a plan stands for: every value is freed once nothing reads it any more.

    Its peak equals `replay`'s where no stage takes bytes beside its values (`alone_bytes`) and no
    value reuses an output buffer (`result_bytes`): steps know of neither.
    """
    regions = plan.regions if isinstance(plan, Plan) else tuple(plan)
    return with_frees(graph, executions(graph, runs(graph, regions)))


def executions(graph: Graph, schedule: Iterable[Run]) -> list[Execute]:
    """The runs of a schedule, by the positions of their ops in `Graph.ops`."""
    number = graph.op_numbers
    return [Execute(number[run.phase, run.stage, run.op], run.implementation) for run in schedule]


def with_frees(graph: Graph, order: Iterable[Execute | int]) -> tuple[Step, ...]:
    """Steps that run ops in an order, each value freed after its last read before it is rewritten.

    A number stands for the op's first implementation. An op whose outputs are in memory already is
    run all the same; they are freed before it.
    """
    order = [Execute(run) if isinstance(run, int) else run for run in order]
    ends: dict[int, list[int]] = collections.defaultdict(list)  # position -> values to free
    for i, _, read in lifetimes(graph, order):
        last = order[read]
        if i not in _implementation(graph, last).overwrites:
            ends[read].append(i)
    found: list[Step] = []
    for k, run in enumerate(order):
        found.append(run)
        found += [Free(i) for i in ends[k]]
    return tuple(found)


def lifetimes(graph: Graph, order: Sequence[Execute]) -> Iterator[tuple[int, int, int]]:
    """Each instance of a value: where in an order of runs it is written, and where read last."""
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for n, run in enumerate(order):
        op = graph.ops[run.op]
        read.update(dict.fromkeys(_implementation(graph, run).inputs, n))
        for i in op.outputs:
            if i in written:
                yield i, written[i], read[i]
            written[i] = read[i] = n
    for i, n in written.items():
        yield i, n, read[i]


def steps_to_json(graph: Graph, schedule: Schedule) -> dict[str, Any]:
    """All that is needed to check a schedule, as plain data for `json.dumps`.

    Returns:
        `values` by name with their bytes, `ops` with their implementations and what they read and
        write by position in `values`, `steps` as `{"run": op, "implementation": number}` or
        `{"free": value}`, and the figures to find.
    """
    figures = dataclasses.asdict(schedule)
    figures["steps"] = [
        {"run": s.op, "implementation": s.implementation}
        if isinstance(s, Execute)
        else {"free": s.value}
        for s in schedule.steps
    ]
    ops = [
        {
            "name": op.name,
            "writes": list(op.outputs),
            "implementations": [
                {
                    "reads": list(implementation.inputs),
                    "overwrites": list(implementation.overwrites),
                    "seconds": implementation.seconds,
                    "flops": implementation.flops,
                    "workspace_bytes": implementation.workspace_bytes,
                }
                for implementation in op.implementations
            ],
        }
        for op in graph.ops
    ]
    values = [{"name": value.name, "nbytes": value.nbytes} for value in graph.values]
    return {"values": values, "ops": ops, **figures}
