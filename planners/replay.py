"""The cost of a plan: its schedule run on paper, one op at a time.

This file checks every planner, so it shares no arithmetic with any of them. A write starts an
*instance* of a value, which lives until its last read before the value is written again; one that
is never read lives while it is written. A value that waits from the first forward for the backward
takes the memory of all its copies. While an op runs, the live instances, its outputs and its
workspace are in memory. A value that waits for a region's backward may reuse the output buffer of a
result that is not written yet (`Graph.aliased`): it takes nothing after the forward has read it.

Values that only one branch of a choice writes and reads are in memory where that branch runs;
outside of the choice, the branch with most bytes counts.

| index | means |
|---|---|
| `k` | a run: a position in the schedule |
| `i` | a value of the graph |
| `s` | a stage of the graph |
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from .errors import InvalidPlan
from .graph import Choice, Graph
from .plan import Plan, Region
from .region_checks import check_regions
from .runs import Run, first_forward, runs
from .transfers import host_bytes, waiting_seconds

#: By choice and branch, or None: for each run, and once more, the bytes that it adds or takes away.
Changes = dict[tuple[Choice, int] | None, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """The cost of a schedule.

    Attributes:
        peak_bytes: the largest of `live_bytes`.
        seconds: run time of the step, recomputation, saving and `waiting_seconds` included.
        flops: floating-point operations of the step, recomputation included.
        live_bytes: bytes of values and workspace in memory during each run.
        peak_run: the first run with `peak_bytes`.
        peak_values: names of the values in memory then, largest first.
        schedule: the runs.
        host_bytes: bytes that wait in the host's memory.
        waiting_seconds: in which the device waits for copies to the host or back.
    """

    peak_bytes: int
    seconds: float
    flops: int
    live_bytes: tuple[int, ...]
    peak_run: int
    peak_values: tuple[str, ...]
    schedule: tuple[Run, ...]
    host_bytes: int
    waiting_seconds: float


@dataclasses.dataclass(slots=True)
class _Instance:
    value: int
    written: int
    last_read: int
    gone: int = -1  # the last run during which it takes memory of its own
    readers: set[int] = dataclasses.field(default_factory=set)  # the stages of its reads

    def waits(self, end: int) -> bool:
        """Whether a run from `end` on reads what one before it wrote."""
        return self.written < end <= self.last_read


def replay(graph: Graph, plan: Plan | Sequence[Region]) -> Replay:
    """Runs a plan on paper.

    Arguments:
        graph: the step that the plan is for.
        plan: a plan, or its regions.

    Raises:
        InvalidPlan: the regions do not cover the stages, a saved name is unknown or not the
            region's to save, an op that must run once would run again, or an op reads a value
            that is not in memory.
    """
    regions = plan.regions if isinstance(plan, Plan) else tuple(plan)
    check_regions(graph, regions)
    schedule = runs(graph, regions)
    instances = _instances(graph, regions, schedule)
    _alias(graph, regions, schedule, instances)
    live = _live_bytes(graph, regions, schedule, instances)
    peak = int(live.argmax()) if len(live) else 0
    at_peak = {x.value for x in instances if x.written <= peak <= x.last_read}
    ops = [run.of(graph) for run in schedule]
    waiting = waiting_seconds(graph, regions)
    end = first_forward(schedule)
    saved = (graph.values[x.value] for x in instances if x.waits(end))
    saving = sum(x.saving_seconds for x in saved) + _alone_seconds(graph, regions)
    return Replay(
        peak_bytes=int(live.max(initial=0)),
        seconds=sum(op.seconds for op in ops) - graph.spared_seconds + saving + waiting,
        flops=sum(op.flops for op in ops),
        live_bytes=tuple(live.tolist()),
        peak_run=peak,
        peak_values=_names_by_size(graph, at_peak),
        schedule=schedule,
        host_bytes=host_bytes(graph, regions),
        waiting_seconds=waiting,
    )


def _names_by_size(graph: Graph, values: Iterable[int]) -> tuple[str, ...]:
    ordered = sorted((-graph.values[i].nbytes, graph.values[i].name) for i in values)
    return tuple(name for _, name in ordered)


def _live_bytes(
    graph: Graph, regions: Sequence[Region], schedule: Sequence[Run], instances: list[_Instance]
) -> np.ndarray:
    """Bytes in memory during each run."""
    changes: Changes = collections.defaultdict(lambda: np.zeros(len(schedule) + 1, np.int64))
    end = first_forward(schedule)
    for instance in instances:
        value = graph.values[instance.value]
        nbytes = value.waiting_bytes if instance.waits(end) else value.nbytes
        stages = {schedule[instance.written].stage, *instance.readers}
        change = changes[graph.branch_of_all(stages)]
        change[instance.written] += nbytes
        change[instance.gone + 1] -= nbytes
    _add_alone_bytes(graph, regions, schedule, changes)
    workspace = np.array([run.of(graph).workspace_bytes for run in schedule], dtype=np.int64)
    return in_memory(changes, np.array([run.stage for run in schedule])) + workspace


def in_memory(changes: Changes, stages: np.ndarray) -> np.ndarray:
    """Bytes in memory during each run, where one branch of each choice runs.

    Arguments:
        changes: from run to run; under None the bytes that are there whatever runs, and by branch
            those that are there only where it runs.
        stages: of the runs.
    """
    live = np.zeros(len(stages), np.int64)
    waiting: dict[Choice, list[np.ndarray]] = collections.defaultdict(list)
    for branch, change in changes.items():
        nbytes = np.cumsum(change)[: len(stages)]
        if branch is None:
            live += nbytes
            continue
        choice, b = branch
        first, stop = choice.branches[b]
        live += np.where((first <= stages) & (stages < stop), nbytes, 0)
        outside = (stages < choice.first) | (stages >= choice.stop)
        waiting[choice].append(np.where(outside, nbytes, 0))
    return live + sum(np.max(some, axis=0) for some in waiting.values())


def _alias(
    graph: Graph, regions: Sequence[Region], schedule: Sequence[Run], instances: list[_Instance]
) -> None:
    """Finds until when each instance takes memory of its own."""
    end = first_forward(schedule)
    forward_read = {i: k for k in range(end) for i in schedule[k].of(graph).inputs}
    for instance in instances:
        instance.gone = instance.last_read
    waiting: list[dict[int, _Instance]] = [{} for _ in graph.stages]  # by the stage that wrote it
    for instance in instances:
        if instance.waits(end):
            waiting[schedule[instance.written].stage][instance.value] = instance
    for region in regions:
        own = {i: x for some in waiting[region.first : region.last + 1] for i, x in some.items()}
        for i in graph.aliased(region.first, own):
            own[i].gone = forward_read.get(i, own[i].written)


def _add_alone_bytes(
    graph: Graph, regions: Sequence[Region], schedule: Sequence[Run], changes: Changes
) -> None:
    """Adds the bytes that stages which are left alone keep beside values."""
    alone = [x for region in regions for x in region.walk() if x.alone]
    stages = [s for x in alone for s in range(x.first, x.last + 1) if graph.stages[s].alone_bytes]
    own: dict[int, list[int]] = {s: [] for s in stages}
    for k, run in enumerate(schedule):
        if run.stage in own:
            own[run.stage].append(k)
    for s in stages:
        backward = [k for k in own[s] if schedule[k].phase == "backward"]
        if backward:
            depth = schedule[backward[0]].depth - 1
            forward = (k for k in own[s] if schedule[k].phase == "forward")
            kept = (k for k in forward if schedule[k].depth == depth)
            change = changes[graph.branch_of[s]]
            change[min(kept, default=backward[0])] += graph.stages[s].alone_bytes
            change[backward[-1] + 1] -= graph.stages[s].alone_bytes


def _alone_seconds(graph: Graph, regions: Sequence[Region]) -> float:
    """Seconds of saving what stages that are left alone keep beside values."""
    alone = (x for x in regions if x.alone)
    return sum(graph.stages[s].alone_seconds for x in alone for s in range(x.first, x.last + 1))


def _instances(graph: Graph, regions: Sequence[Region], schedule: Sequence[Run]) -> list[_Instance]:
    """Every instance; checks that each read finds one which the plan keeps that long."""
    chains = _chains(graph, regions)
    current: dict[int, _Instance] = {}
    found = []
    for k, run in enumerate(schedule):
        op = run.of(graph)
        for i in op.inputs:
            if i not in current:
                raise InvalidPlan(
                    f"{_where(graph, run)} reads `{graph.values[i].name}` before it is written."
                )
            _check_kept(graph, chains[run.stage], schedule, current[i], run)
            current[i].last_read = k
            current[i].readers.add(run.stage)
        for i in op.outputs:
            current[i] = _Instance(i, k, k)
            found.append(current[i])
    return found


def _chains(graph: Graph, regions: Sequence[Region]) -> list[list[Region]]:
    """For each stage the regions that it lies in, outermost first."""
    chains: list[list[Region]] = [[] for _ in graph.stages]
    for region in regions:
        for inside in region.walk():
            for s in range(inside.first, inside.last + 1):
                chains[s].append(inside)
    return chains


def _check_kept(
    graph: Graph, chain: list[Region], schedule: Sequence[Run], instance: _Instance, run: Run
) -> None:
    """Every region between the run that wrote the instance and the run that reads it keeps it."""
    i, writer = instance.value, schedule[instance.written]
    if writer.phase == "backward":
        return
    name, is_saved = graph.values[i].name, False
    for region in chain[writer.depth : run.depth]:
        inside = region.first <= writer.stage <= region.last
        is_saved = is_saved or name in region.kept
        if inside and not region.alone and not is_saved:
            raise InvalidPlan(
                f"{_where(graph, run)} reads `{name}`, but region {region.first}-{region.last} "
                f"neither saves nor recomputes it. Save it, or recompute it first."
            )


def _where(graph: Graph, run: Run) -> str:
    stage = graph.stages[run.stage]
    return f"Stage {run.stage} (`{stage.name}`), {run.phase} op `{run.of(graph).name}`:"
