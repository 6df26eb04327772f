"""Copies to the host's memory and back: their bytes, and the seconds that a device waits for them.

Each copy out begins when its value is written and the copy before it is done. The forward of the
region waits for all of them when it ends; or, where they are fetched ahead, the forward of the
region behind it does when that ends. They come back while the device waits; or, ahead, while the
backward of the region behind runs.

Known limit: in a loop what is fetched ahead comes while all of the iteration behind runs, and
counts as hidden by the region directly behind; one region may hide more than another.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from .graph import Graph, Loop, Op
from .plan import Region
from .runs import backward_runs


def moved_bytes(graph: Graph, region: Region) -> int:
    """Bytes that a region moves to the host's memory."""
    return sum(graph.values[graph.index[name]].waiting_bytes for name in region.offloaded)


def fetched_bytes(graph: Graph, region: Region) -> int:
    """Bytes that come back for a region at once: for one iteration where it stands for several."""
    return sum(graph.values[graph.index[name]].nbytes for name in region.offloaded)


def most_host_bytes(graph: Graph, region: Region) -> int:
    """Bytes of the host's memory that a region takes, with its share of slots as in `host_bytes`.

    Where all iterations move the same, these are no fewer.
    """
    loop, moved = graph.loop_of(region.last), moved_bytes(graph, region)
    return moved if loop is None else -(-moved * (loop.trips + 1) // (loop.trips - 1))


def host_bytes(graph: Graph, regions: Sequence[Region]) -> int:
    """Bytes of the host's memory that a plan takes."""
    stacks = sum(_unused_bytes(graph, loop, regions) for loop in graph.loops)
    return stacks + sum(moved_bytes(graph, region) for region in regions)


def _unused_bytes(graph: Graph, loop: Loop, regions: Sequence[Region]) -> int:
    """Bytes of a loop's stacks in which no values of a graph wait.

    What is carried into the first iteration has a slot, too, but may be no value: an argument, say.
    And a stack has one slot more where values are fetched ahead.
    """
    inside = {x.first: x for x in regions if loop.first <= x.first < loop.stop and x.offloaded}
    sizes = {first: fetched_bytes(graph, region) for first, region in inside.items()}
    total = 0
    for first, size in sizes.items():
        before, behind = (sizes.get(first + n, 0) for n in (-loop.length, loop.length))
        is_second = loop.length <= first - loop.first < 2 * loop.length
        total += max(0, size - before) if is_second else 0
        total += size if inside[first].ahead and behind != size else 0
    return total


def keeps_host(graph: Graph, regions: Sequence[Region]) -> bool:
    """Whether a plan takes no more of the host's memory than it may."""
    return graph.link is None or host_bytes(graph, regions) <= graph.link.host_bytes


def waiting_seconds(graph: Graph, regions: Sequence[Region]) -> float:
    """Seconds in which the device waits for copies, in a whole plan."""
    if not any(region.offloaded for region in regions):
        return 0.0
    total = _out_seconds(graph, regions)
    for n, region in enumerate(regions):
        if region.offloaded:
            behind = regions[n + 1 : n + 2] if _are_hidden(graph, region) else ()
            runs = (run for x in behind for run in backward_runs(graph, x))
            total += back_seconds(graph, region, sum(run.of(graph).seconds for run in runs))
    return total


def _are_hidden(graph: Graph, region: Region) -> bool:
    """Whether copies back run behind another region: in a loop, one of the iteration behind."""
    loop = graph.loop_of(region.last)
    return region.ahead > 0 and (loop is None or region.last + loop.length < loop.stop)


def _out_seconds(graph: Graph, regions: Sequence[Region]) -> float:
    """Seconds in which the forward waits for copies to the host."""
    assert graph.link is not None
    kept = {graph.index[name] for region in regions for name in region.kept}
    now = waited = done = late = 0.0
    for region in regions:
        moved = {graph.index[name] for name in region.offloaded}
        ops = list(_forward(graph, region, kept))
        before = moved.difference(*(op.outputs for op in ops))
        size = sum(graph.values[i].waiting_bytes for i in before)
        done = max(done, now) + size / graph.link.out_bytes_per_second if before else done
        for op in ops:
            now += op.seconds
            for i in moved.intersection(op.outputs):
                size = graph.values[i].waiting_bytes
                done = max(done, now) + size / graph.link.out_bytes_per_second
        deadline = late if region.ahead else done  # what the region before left is due as well
        waited += max(0.0, deadline - now)
        now, late = max(now, deadline), done
    return waited + max(0.0, late - now)


def _forward(graph: Graph, region: Region, kept: set[int]) -> Iterable[Op]:
    """The ops that the first forward of a region runs."""
    for stage in graph.stages[region.first : region.last + 1]:
        yield from (op for op in stage.forward if not (op.optional and kept.isdisjoint(op.outputs)))


def out_seconds(graph: Graph, region: Region, hidden: float) -> float:
    """Seconds that the forward waits for the copies of one region, whatever the others are.

    Arguments:
        graph: the step.
        region: of it.
        hidden: seconds of the forward behind the region in which these copies go out; where they
            are 0, the copies begin when the region's own forward writes the values.
    """
    assert graph.link is not None
    if hidden > 0.0:  # by the region's end the copies of those before it are out
        seconds = moved_bytes(graph, region) / graph.link.out_bytes_per_second
        return max(0.0, seconds - hidden)
    return _out_seconds(graph, [dataclasses.replace(region, ahead=0)])


def back_seconds(graph: Graph, region: Region, hidden: float) -> float:
    """Seconds that a region's backward waits for its copies from the host.

    Arguments:
        graph: the step.
        region: of it.
        hidden: seconds that the device computes from when the copies begin.
    """
    assert graph.link is not None
    return max(0.0, moved_bytes(graph, region) / graph.link.back_bytes_per_second - hidden)


def hiding_seconds(graph: Graph, last: int) -> tuple[float, float]:
    """Seconds that hide the copies of a region that ends at stage `last`, out and back.

    They are those of the stage behind, without what it recomputes.
    """
    behind = graph.stages[last + 1 : last + 2]
    forward = (op.seconds for stage in behind for op in stage.forward if not op.optional)
    backward = (op.least_seconds for stage in behind for op in stage.backward)
    return sum(forward), sum(backward)
