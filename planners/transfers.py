"""Copies to the host's memory and back: their bytes, and the seconds that a device waits for them.

Each copy out begins when its value is written and the copy before it is done. The forward of the
region waits for all of them when it ends; or, where they are fetched ahead, the forward of the
region behind it does when that ends. They come back while the device waits; or, ahead, while the
backward of the region behind runs.

In a loop it is the forward of an iteration, or of the one behind, that waits for all of the
iteration's copies when it ends, and the backward of the iteration behind that hides them.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from .graph import Graph, Op
from .plan import Region
from .runs import backward_runs, fetched_before, leaving, loop_of


def moved_bytes(graph: Graph, region: Region) -> int:
    """Bytes that a region moves to the host's memory and back."""
    return sum(graph.values[i].waiting_bytes for i in leaving(graph, region))


def fetched_bytes(graph: Graph, region: Region) -> int:
    """Bytes that come back for a region at once: for one iteration where it stands for several."""
    return sum(graph.values[i].nbytes for i in leaving(graph, region))


def region_host_bytes(graph: Graph, region: Region) -> int:
    """Bytes of the host's memory that a region takes, by itself in a plan that takes `host_bytes`.

    Where all iterations of a loop move the same, its share of the first one's slots is in them.
    """
    loop, size = loop_of(graph, region.last), _slot_bytes(graph, region)
    return size if loop is None else -(-size * loop.trips // max(1, loop.trips - 1))


def host_bytes(graph: Graph, regions: Sequence[Region]) -> int:
    """Bytes of the host's memory that a plan takes.

    A loop's stacks have slots for all iterations. What is carried into the first one may be no
    value of the graph, but an argument; and what the last one has may stay on the device.
    """
    total = sum(_slot_bytes(graph, region) for region in regions)
    by_first = {region.first: region for region in regions}
    for loop in graph.loops:
        for first in range(loop.first, loop.first + loop.length):
            pair = (by_first.get(first + n) for n in (0, loop.length))
            sizes = [_slot_bytes(graph, x, 1) if x else 0 for x in pair]
            total += max(0, sizes[1] - sizes[0])
    return total


def _slot_bytes(graph: Graph, region: Region, slots: int | None = None) -> int:
    """Bytes of the slots of a region's values: `slots`, or one for each iteration it stands for."""
    is_looped = loop_of(graph, region.last) is not None  # then all iterations have one stack
    least = 1 if graph.link is None or is_looped else graph.link.least_slots
    values = (graph.values[graph.index[name]] for name in region.offloaded)
    return sum(value.nbytes * (slots or max(value.copies, least)) for value in values)


def keeps_host(graph: Graph, regions: Sequence[Region]) -> bool:
    """Whether a plan takes no more of the host's memory than it may."""
    return graph.link is None or host_bytes(graph, regions) <= graph.link.host_bytes


def waiting_seconds(graph: Graph, regions: Sequence[Region]) -> float:
    """Seconds in which the device waits for copies, in a whole plan."""
    moving = [region for region in regions if region.offloaded]
    if not moving or graph.link is None:
        return 0.0
    copied: dict[tuple[int, int], float] = collections.defaultdict(float)  # by what hides them
    for region in moving:
        before = fetched_before(graph, region)
        own = fetched_before(graph, dataclasses.replace(region, ahead=0))
        seconds = moved_bytes(graph, region) / graph.link.back_bytes_per_second
        copied[own, before] += seconds
    total = _out_seconds(graph, regions)
    for (own, before), seconds in copied.items():
        behind = (x for x in regions if own < x.first <= before)
        runs = (run for x in behind for run in backward_runs(graph, x))
        total += max(0.0, seconds - sum(run.of(graph).seconds for run in runs))
    return total


def _out_seconds(graph: Graph, regions: Sequence[Region]) -> float:
    """Seconds in which the forward waits for copies to the host."""
    assert graph.link is not None
    kept = {graph.index[name] for region in regions for name in region.kept}
    now = waited = done = 0.0
    due: list[tuple[int, float]] = []  # by the stage at whose end they are due, copies are done
    for region in regions:
        moved = {*leaving(graph, region)}
        ops = list(_forward(graph, region, kept))
        before = moved.difference(*(op.outputs for op in ops))
        size = sum(graph.values[i].waiting_bytes for i in before)
        done = max(done, now) + size / graph.link.out_bytes_per_second if before else done
        for op in ops:
            now += op.seconds
            for i in moved.intersection(op.outputs):
                size = graph.values[i].waiting_bytes
                done = max(done, now) + size / graph.link.out_bytes_per_second
        due += [(fetched_before(graph, region), done)] if moved else []
        deadline = max((time for s, time in due if s <= region.last), default=0.0)
        waited += max(0.0, deadline - now)
        now = max(now, deadline)
    return waited + max([0.0, *(time - now for _, time in due)])


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

    They are those of the stage behind, or in a loop of the iteration behind, without what is
    recomputed.
    """
    loop, first, stop = loop_of(graph, last), last + 1, last + 2
    if loop is not None:  # iterations take the same
        first = last - (last - loop.first) % loop.length
        stop = first + loop.length
    behind = graph.stages[first:stop]
    forward = (op.seconds for stage in behind for op in stage.forward if not op.optional)
    backward = (op.least_seconds for stage in behind for op in stage.backward)
    return sum(forward), sum(backward)
