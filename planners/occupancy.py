"""The bytes of `replay`, taken apart: which value is in memory when, and why.

`replay` says how much is live during each run; here is one `Occupant` for each time that a value is
written. The two share no arithmetic, so that each can check the other.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

from .graph import Graph, Op
from .plan import Plan, Region
from .runs import Run, first_forward, runs, spans_alone
from .schedules.steps import executions, lifetimes

#: Why bytes are in memory. `passing`: of the forward pass, and gone before the backward starts;
#: `saved`: waits from the forward for the backward; `compressed`: so does a compressed residual;
#: `gradient`: written in the backward.
Kind = Literal["passing", "saved", "compressed", "recomputed", "gradient", "workspace"]


@dataclasses.dataclass(frozen=True, slots=True)
class Occupant:
    """Bytes that are in memory from one run to another.

    Attributes:
        kind: why.
        value: index of the value; None for workspace, and for what a stage that is left alone
            keeps beside its values.
        stage, op: the stage and the name of the op that writes them; of the first one of a stage.
        start, stop: positions of runs in the schedule, both included.
        nbytes: in bytes, more than 0.
    """

    kind: Kind
    value: int | None
    stage: int
    op: str
    start: int
    stop: int
    nbytes: int


def occupants(graph: Graph, plan: Plan | Sequence[Region]) -> tuple[Occupant, ...]:
    """What is in memory during the runs of a plan that `replay` accepts, in order of `start`."""
    regions = plan.regions if isinstance(plan, Plan) else tuple(plan)
    schedule = runs(graph, regions)
    found = [*_of_values(graph, regions, schedule), *_alone(graph, regions, schedule)]
    for k, run in enumerate(schedule):
        op = run.of(graph)
        if op.workspace_bytes > 0:
            found.append(Occupant("workspace", None, run.stage, op.name, k, k, op.workspace_bytes))
    return tuple(sorted((x for x in found if x.nbytes), key=lambda x: (x.start, x.stop)))


def _of_values(
    graph: Graph, regions: Sequence[Region], schedule: Sequence[Run]
) -> Iterator[Occupant]:
    """Those that are values; two where an op writes its output over an input while it runs."""
    instances = list(lifetimes(graph, executions(graph, schedule)))
    stops = _stops(graph, regions, schedule, instances)
    over, end = _written_over(graph, schedule), first_forward(schedule)
    for (i, start, read), stop in zip(instances, stops, strict=True):
        run, value = schedule[start], graph.values[i]
        op, waits = run.of(graph), start < end <= read
        nbytes = value.waiting_bytes if waits else value.nbytes
        overlaid = over.get((start, i), 0)
        kind = _kind(run, op, waits)
        if overlaid:
            yield Occupant(kind, i, run.stage, op.name, start, start, nbytes - overlaid)
            start += 1
        if start <= stop:
            yield Occupant(kind, i, run.stage, op.name, start, stop, nbytes)


def _kind(run: Run, op: Op, waits: bool) -> Kind:
    if run.phase == "backward":
        return "gradient"
    if op.optional:
        return "compressed"
    if run.depth:
        return "recomputed"
    return "saved" if waits else "passing"


def _written_over(graph: Graph, schedule: Sequence[Run]) -> dict[tuple[int, int], int]:
    """For a run and a value that it writes, bytes that lie in the memory of one of its inputs."""
    found: dict[tuple[int, int], int] = {}
    for k, run in enumerate(schedule):
        op = run.of(graph)
        left = -op.workspace_bytes
        for i in op.outputs:
            if left > 0:
                found[k, i] = min(left, graph.values[i].nbytes)
                left -= found[k, i]
    return found


def _stops(
    graph: Graph,
    regions: Sequence[Region],
    schedule: Sequence[Run],
    instances: Sequence[tuple[int, int, int]],
) -> list[int]:
    """The last run during which each instance takes memory of its own."""
    end = first_forward(schedule)
    forward_read = {i: k for k in range(end) for i in schedule[k].of(graph).inputs}
    waiting: dict[int, list[int]] = collections.defaultdict(list)  # stage -> values
    for i, start, read in instances:
        if start < end <= read:
            waiting[schedule[start].stage].append(i)
    aliased: set[int] = set()
    for region in regions:
        own = [i for s in range(region.first, region.last + 1) for i in waiting[s]]
        aliased |= graph.aliased(region.first, own)
    return [
        forward_read.get(i, start) if start < end <= read and i in aliased else read
        for i, start, read in instances
    ]


def _alone(graph: Graph, regions: Sequence[Region], schedule: Sequence[Run]) -> Iterator[Occupant]:
    """What stages that are left alone keep beside their values."""
    for s, start, stop in spans_alone(regions, schedule):
        stage = graph.stages[s]
        yield Occupant("saved", None, s, stage.name, start, stop, stage.alone_bytes)
