"""The meaning of regions: the exact list of op runs that they stand for.

First every forward op runs once, in order, but of the optional ones only those that write what a
region saves. Then the regions' backwards run, last region first, each op in the implementation
that its region and the regions round it select by what they save (`Op.implementation_by`):

- *alone*: the backward ops of its stages, last stage first.
- *checkpointed leaf*: the same, but what a backward op reads of the region's own forward, and
  which is not saved, is recomputed from saved values and values of other regions: just before it
  where the compiler recomputes late; else before the region's backward, since a compiler is free
  to run all of it then.
- *nested*: one run of the forward ops that its inner regions' saved values and inputs need, from
  the outer region's saved values; then the inner regions' backwards, last one first. What an outer
  region saves is there for the regions inside it, whether or not they save it too.

What a region has moved to the host's memory comes back before its backward begins, or before that
of the region behind it (`Region.ahead`): a run of the op that wrote it, as `FETCHED`. In a loop it
comes before the backward of its iteration begins, or before that of the iteration behind.
"""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Literal

from .errors import InvalidPlan
from .graph import FETCHED, Graph, Loop, Op
from .plan import Region


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One execution of an op.

    Attributes:
        stage, op: the stage, and the position of the op in its `forward` or `backward`.
        phase: which of the two lists.
        depth: how many regions it runs inside of: 0 in the first forward; 1 in the backward of
            a region, recomputation included; 2 in the backward of a region inside that; and on.
        implementation: position in its `implementations`; `FETCHED` where its results come back
            from the host's memory.
    """

    stage: int
    op: int
    phase: Literal["forward", "backward"]
    depth: int = 0
    implementation: int = 0

    def of(self, graph: Graph) -> Op:
        """The op that runs, with the figures of its implementation."""
        stage = graph.stages[self.stage]
        op = (stage.forward if self.phase == "forward" else stage.backward)[self.op]
        return op.in_implementation(self.implementation)

    def in_first_implementation(self) -> "Run":
        """The run in the op's first implementation."""
        return dataclasses.replace(self, implementation=0)


def runs(graph: Graph, regions: Sequence[Region]) -> tuple[Run, ...]:
    """Every op execution of the step, in order.

    Arguments:
        graph: the step.
        regions: cover its stages in order; `replay` checks that they do.

    Raises:
        InvalidPlan: an op that must run once would be recomputed.
    """
    saved = {graph.index[name] for region in regions for name in region.kept}
    found = [
        run
        for run, writes in _known(graph, None, lambda: _forward_runs(graph))
        if writes is None or not saved.isdisjoint(writes)
    ]
    fetched: dict[int, list[Region]] = collections.defaultdict(list)
    for region in regions:
        if region.offloaded:
            fetched[fetched_before(graph, region)].append(region)
    for region in reversed(regions):
        stages = range(region.last, region.first - 1, -1)
        for arriving in (x for s in stages for x in reversed(fetched[s])):
            found += fetches(graph, arriving)
        found += _known(graph, region, lambda x=region: backward_runs(graph, x))
    return tuple(found)


def _forward_runs(graph: Graph) -> list[tuple[Run, tuple[int, ...] | None]]:
    """Each op's run of the first forward; of an optional op, the values that it writes."""
    return [
        (Run(s, o, "forward"), op.outputs if op.optional else None)
        for s, stage in enumerate(graph.stages)
        for o, op in enumerate(stage.forward)
    ]


def _known[Result](graph: Graph, of: Hashable, make: Callable[[], Result]) -> Result:
    """What is known of a graph, made once and kept as long as it; plans differ in little."""
    known: dict[Hashable, Result] = vars(graph).setdefault("_known_runs", {})
    if of not in known:
        known[of] = make()
    return known[of]


def fetched_before(graph: Graph, region: Region) -> int:
    """The stage before whose backward it begins to come back what a region has moved."""
    loop = loop_of(graph, region.last)
    if loop is not None:
        iteration = (region.last - loop.first) // loop.length + region.ahead
        return loop.first + (min(iteration, loop.trips - 1) + 1) * loop.length - 1
    if not region.ahead or region.last == len(graph.stages) - 1:
        return region.last
    behind = loop_of(graph, region.last + 1)
    return region.last + 1 if behind is None else behind.stop - 1


def loop_of(graph: Graph, s: int) -> Loop | None:
    """The loop that a stage is in."""
    return next((x for x in graph.loops if x.first <= s < x.stop), None)


def fetches(graph: Graph, region: Region) -> list[Run]:
    """The runs by which what a region has moved to the host's memory comes back."""
    writers = (graph.forward_writer[i] for i in leaving(graph, region))
    return [Run(s, o, "forward", 1, FETCHED) for s, o in writers]


def leaving(graph: Graph, region: Region) -> list[int]:
    """The values that a region moves and that leave the device, in its order.

    In the last iteration of a loop they stay where iterations are fetched ahead: nothing could hide
    the copies.
    """
    loop = loop_of(graph, region.last)
    is_last = loop is not None and region.last >= loop.stop - loop.length
    moved = (graph.index[name] for name in region.offloaded)
    return [i for i in moved if not (is_last and region.ahead and graph.values[i].copies == 1)]


def first_forward(schedule: Sequence[Run]) -> int:
    """How many of the runs are of the first forward: those before the first backward."""
    return sum(run.depth == 0 for run in schedule)


def error_of(graph: Graph, regions: Iterable[Region]) -> float:
    """The errors of the optional ops that some regions run (`Op.error`), added up."""
    saved = {graph.index[name] for region in regions for x in region.walk() for name in x.kept}
    writers = {graph.forward_writer[i] for i in saved}
    return sum(graph.stages[s].forward[o].error for s, o in writers)


def spans_alone(
    regions: Iterable[Region], schedule: Sequence[Run]
) -> Iterator[tuple[int, int, int]]:
    """For each stage that is left alone, its first forward run there and its last backward run."""
    first: dict[tuple[int, int], int] = {}  # stage and depth -> its first forward run
    backward: dict[int, list[int]] = {}
    for k, run in enumerate(schedule):
        if run.phase == "forward":
            first.setdefault((run.stage, run.depth), k)
        else:
            backward.setdefault(run.stage, []).append(k)
    leaves = (x for region in regions for x in region.walk() if x.alone)
    for s in (s for x in leaves for s in range(x.first, x.last + 1) if s in backward):
        start, stop = backward[s][0], backward[s][-1]
        yield s, first.get((s, schedule[start].depth - 1), start), stop


def backward_runs(
    graph: Graph, region: Region, depth: int = 1, saved: tuple[str, ...] = ()
) -> list[Run]:
    """The op executions of one region's backward, recomputation included, in order.

    Those that bring back what it moved to the host come from `fetches`. `saved` are the names that
    regions round it save.
    """
    if region.inner:
        return _nested_runs(graph, region, depth, saved)
    held = {graph.index[name] for name in (*region.kept, *saved)}
    codes = frozenset(held)
    later = [
        Run(s, o, "backward", depth, op.implementation_by(codes))
        for s in range(region.last, region.first - 1, -1)
        for o, op in enumerate(graph.stages[s].backward)
    ]
    if region.alone:
        return later
    found = []
    if not graph.recomputes_late:
        # Nothing holds recomputation back until the first backward op has run.
        needed = (i for run in later for i in run.of(graph).inputs)
        found += _reruns(graph, region, needed, held, depth)
    for run in later:
        found += [*_reruns(graph, region, run.of(graph).inputs, held, depth), run]
    return found


def _nested_runs(graph: Graph, region: Region, depth: int, saved: tuple[str, ...]) -> list[Run]:
    saved = (*region.saved, *saved)
    backwards = [backward_runs(graph, inner, depth + 1, saved) for inner in region.inner]
    needed = [
        i
        for inner, found in zip(region.inner, backwards, strict=True)
        for i in _needed(graph, inner, found)
    ]
    held = {graph.index[name] for name in saved}
    forward = _reruns(graph, region, needed, held, depth)
    return forward + [run for found in reversed(backwards) for run in found]


def _needed(graph: Graph, region: Region, backward: Iterable[Run]) -> list[int]:
    """What must be in memory when the region's backward starts, as far as forwards write it."""
    read = [i for run in backward for i in run.of(graph).inputs if i in graph.forward_writer]
    outside = [i for i in read if region.alone or not _inside(graph, region, i)]
    return outside + [graph.index[name] for name in region.saved]


def _inside(graph: Graph, region: Region, value: int) -> bool:
    """Whether the region's own forward writes the value."""
    writer = graph.forward_writer.get(value)
    return writer is not None and region.first <= writer[0] <= region.last


def _reruns(
    graph: Graph, region: Region, needed: Iterable[int], held: set[int], depth: int
) -> list[Run]:
    """The region's forward ops that some values need beyond `held`, in order; adds to `held`."""
    pending = [i for i in needed if i not in held and _inside(graph, region, i)]
    if not pending:
        return []
    ops: set[tuple[int, int]] = set()
    while pending:
        value = pending.pop()
        writer = graph.forward_writer[value]
        if writer in ops:
            continue
        ops.add(writer)
        op = graph.stages[writer[0]].forward[writer[1]]
        if not op.recomputable:
            raise InvalidPlan(_must_run_once(graph, region, writer[0], op, value))
        pending += [i for i in op.inputs if i not in held and _inside(graph, region, i)]
    found = sorted(ops)
    held.update(i for s, o in found for i in graph.stages[s].forward[o].outputs)
    return [Run(s, o, "forward", depth) for s, o in found]


def _must_run_once(graph: Graph, region: Region, stage: int, op: Op, value: int) -> str:
    return (
        f"Region {region.first}-{region.last} recomputes op `{op.name}` of stage {stage} "
        f"(`{graph.stages[stage].name}`), which must run exactly once. "
        f"Save its output `{graph.values[value].name}`, or leave the region alone."
    )
