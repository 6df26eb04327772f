"""Copies to the host's memory and back: their bytes, and the seconds that a device waits for them.

A region's forward ends when what it moves has been copied out: each copy begins when the value is
written and the copy before it is done. What it moved is copied back while the backward of the
region behind it runs, or, where nothing is fetched ahead, while the device waits.
"""

from collections.abc import Sequence

from .graph import Graph
from .plan import Region
from .runs import backward_runs


def moved_bytes(graph: Graph, region: Region) -> int:
    """Bytes that a region moves to the host's memory."""
    return sum(graph.values[graph.index[name]].nbytes for name in region.offloaded)


def waiting_seconds(graph: Graph, regions: Sequence[Region]) -> float:
    """Seconds in which the device waits for copies, in a whole plan."""
    total = 0.0
    for n, region in enumerate(regions):
        if region.offloaded:
            behind = regions[n + 1 : n + 2] if region.ahead else ()
            runs = (run for x in behind for run in backward_runs(graph, x))
            hidden = sum(run.of(graph).seconds for run in runs)
            total += out_seconds(graph, region) + back_seconds(graph, region, hidden)
    return total


def out_seconds(graph: Graph, region: Region) -> float:
    """Seconds that a region's forward waits until its copies to the host are done."""
    assert graph.link is not None
    bandwidth = graph.link.out_bytes_per_second
    moved = {graph.index[name] for name in region.offloaded}
    kept = {graph.index[name] for name in region.kept}
    stages = graph.stages[region.first : region.last + 1]
    ops = [op for stage in stages for op in stage.forward]
    own = {i for op in ops for i in op.outputs}
    now = 0.0
    done = sum(graph.values[i].nbytes for i in moved - own) / bandwidth
    for op in ops:
        if op.optional and kept.isdisjoint(op.outputs):
            continue
        now += op.seconds
        for i in moved.intersection(op.outputs):
            done = max(done, now) + graph.values[i].nbytes / bandwidth
    return max(0.0, done - now)


def back_seconds(graph: Graph, region: Region, hidden: float) -> float:
    """Seconds that a region's backward waits for its copies from the host.

    Arguments:
        graph: the step.
        region: of it.
        hidden: seconds that the device computes from when the copies begin.
    """
    assert graph.link is not None
    return max(0.0, moved_bytes(graph, region) / graph.link.back_bytes_per_second - hidden)
