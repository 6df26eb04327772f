"""Plans and regions that need no search: everything saved, nothing saved, minimal regions."""

import dataclasses
from collections.abc import Iterator

from ..graph import Graph
from ..plan import Plan, Region
from ..replay import replay


def save_all(graph: Graph) -> Plan:
    """The plan that recomputes nothing: every stage is left alone."""
    regions = tuple(Region(s, s, alone=True) for s in range(len(graph.stages)))
    return certified(graph, regions, planner="save all", bound_seconds=graph.seconds)


def save_nothing(graph: Graph) -> Plan:
    """The plan that saves only what crosses stages, and what must not run again."""
    regions = tuple(minimal_region(graph, s) for s in range(len(graph.stages)))
    return certified(graph, regions, planner="save nothing", bound_seconds=graph.seconds)


def certified(
    graph: Graph, regions: tuple[Region, ...], *, planner: str, bound_seconds: float
) -> Plan:
    """A plan whose figures come from replay."""
    cost = replay(graph, regions)
    return Plan(
        regions=regions,
        peak_bytes=cost.peak_bytes,
        seconds=cost.seconds,
        flops=cost.flops,
        bound_seconds=min(max(bound_seconds, graph.seconds), cost.seconds),
        planner=planner,
        host_bytes=cost.host_bytes,
        waiting_seconds=cost.waiting_seconds,
    )


def left_alone(graph: Graph, region: Region) -> Region:
    """A region whose stages are left alone; the same where one of them may not be."""
    stages = graph.stages[region.first : region.last + 1]
    if not all(stage.may_be_alone for stage in stages):
        return region
    return Region(region.first, region.last, alone=True)


def saving_least(graph: Graph, region: Region) -> Region:
    """A region that saves only what must run once."""
    return minimal_region(graph, region.first, region.last)


def saving_all(graph: Graph, region: Region) -> Region:
    """A region that saves by name what its backward reads of its forward, as far as it may."""
    kept = graph.kept(region.first, region.last)
    return Region(region.first, region.last, tuple(value.name for value in kept if value.savable))


def saving_codes(graph: Graph) -> tuple[Region, ...]:
    """Regions that save the codes of optional ops and outputs of ops that must run once, only."""
    regions = []
    for s, stage in enumerate(graph.stages):
        values = (graph.values[i] for op in stage.forward if op.optional for i in op.outputs)
        codes = tuple(value.name for value in values if value.nbytes)
        region = minimal_region(graph, s)
        regions.append(region if region.alone else Region(s, s, (*region.saved, *codes)))
    return tuple(regions)


def whole_iterations(graph: Graph) -> Plan:
    """The plan that saves nothing, each iteration of a loop in one region.

    It is what `jax.checkpoint` round the body of a loop does.
    """
    regions = tuple(_by_iteration(graph))
    return certified(graph, regions, planner="whole iterations", bound_seconds=graph.seconds)


def _by_iteration(graph: Graph) -> Iterator[Region]:
    """Regions that save nothing: iterations of loops, and single stages elsewhere."""
    for first, stop in graph.spans:
        whole = minimal_region(graph, first, stop - 1)
        is_one = first in graph.looped and not whole.alone
        yield from [whole] if is_one else [minimal_region(graph, s) for s in range(first, stop)]


def moving_inputs(graph: Graph) -> tuple[Region, ...]:
    """Regions that save nothing, their inputs in the host's memory where they may be.

    They are iterations of loops, and single stages elsewhere.
    """
    pairs = ((x, with_inputs_moved(graph, x)) for x in _by_iteration(graph))
    return tuple(moved[0] if moved else region for region, moved in pairs)


def movable_inputs(graph: Graph, s: int) -> tuple[int, ...]:
    """The inputs of stage `s` that may move to the host's memory, for its backward."""
    ops = graph.stages[s].forward + graph.stages[s].backward
    read = {i for op in ops for i in op.may_read if graph.values[i].reader == s}
    return tuple(sorted(i for i in read if graph.forward_writer[i][0] < s))


def with_inputs_moved(graph: Graph, region: Region) -> list[Region]:
    """A region that moves its inputs to the host's memory as well, as far as they may move.

    Once they come back when it needs them, once ahead. Empty where there are none.
    """
    if region.alone or region.inner:
        return []
    stages = range(region.first, region.last + 1)
    inputs = {i for s in stages for i in movable_inputs(graph, s)}
    outside = (i for i in sorted(inputs) if graph.forward_writer[i][0] < region.first)
    more = [x for i in outside if (x := graph.values[i].name) not in region.offloaded]
    aheads = (region.ahead,) if region.offloaded else (0, 1)
    moved = (*region.offloaded, *more)
    return [dataclasses.replace(region, offloaded=moved, ahead=n) for n in aheads if more]


def minimal_region(graph: Graph, first: int, last: int | None = None) -> Region:
    """A region that saves only outputs of ops that must run once; alone where that is not enough.

    It has the stages from `first` to `last`, or only that one.
    """
    last = first if last is None else last
    forward = [op for stage in graph.stages[first : last + 1] for op in stage.forward]
    backward = [op for stage in graph.stages[first : last + 1] for op in stage.backward]
    writer = {i: op for op in forward for i in op.outputs}
    pending = [i for op in backward for i in op.inputs if i in writer]
    seen, saved = set(pending), set()
    while pending:
        i = pending.pop()
        if not writer[i].recomputable:
            saved.add(i)
            continue
        new = {u for u in writer[i].inputs if u in writer} - seen
        seen |= new
        pending += new
    if not all(graph.values[i].savable for i in saved):
        return Region(first, last, alone=True)
    return Region(first, last, saved=tuple(graph.values[i].name for i in sorted(saved)))
