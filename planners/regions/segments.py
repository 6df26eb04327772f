"""Plans that save nothing, in segments of stages that run again together.

They need no solver. Segments of equal memory are those of Chen et al., 2016 (arXiv:1604.06174),
algorithm 3, which tries some numbers of bytes as well; those of equal length are theirs, too. Then
single boundaries come and go.
"""

import functools
import itertools as it
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..graph import Graph
from ..plan import Region
from ..runs import loop_of
from .simple_plans import left_alone, minimal_region

#: Numbers of bytes that segments are made for.
SEGMENTATIONS = 24
#: Stages before which a segment begins.
type Boundaries = frozenset[int]


def smallest_segments(
    graph: Graph, nbytes_of: Callable[[tuple[Region, ...]], int], max_candidates: int
) -> tuple[Region, ...]:
    """The segments that take the fewest bytes of those that were tried.

    Arguments:
        graph: the step.
        nbytes_of: of a plan.
        max_candidates: segmentations to try beside the equal ones, at most.
    """

    @functools.cache
    def smallest(boundaries: Boundaries) -> tuple[Region, ...]:
        return min(_plans(graph, boundaries), key=nbytes_of)

    @functools.cache
    def taken(boundaries: Boundaries) -> int:
        return nbytes_of(smallest(boundaries))

    best = min(_equal(graph), key=taken)
    for places in it.islice(it.cycle(_movable(graph)), max_candidates):
        best = min(best, best ^ places, key=taken)
    return smallest(best)


def _plans(graph: Graph, boundaries: Boundaries) -> list[tuple[Region, ...]]:
    """Segments that save nothing: the last one left alone, and not."""
    starts = sorted(boundaries)
    stops = [*starts[1:], len(graph.stages)]
    regions = [minimal_region(graph, s, t - 1) for s, t in zip(starts, stops, strict=True)]
    return [(*regions[:-1], left_alone(graph, regions[-1])), tuple(regions)]


def _equal(graph: Graph) -> Iterator[Boundaries]:
    """Segments of as many stages as keep some bytes together, then of some number of stages."""
    kept = [graph.kept_bytes(s, s) for s in range(len(graph.stages))]
    least = min((x for x in kept if x), default=1)
    for nbytes in np.geomspace(least, max(least, sum(kept)), SEGMENTATIONS):
        yield _cut(graph, kept, float(nbytes))
    for stages in range(1, max(stop - start for start, stop in graph.spans) + 1):
        yield _cut(graph, [1] * len(kept), stages)


def _cut(graph: Graph, weights: Sequence[int], most: float) -> Boundaries:
    """Segments of stages of at most some weight together, or of one; iterations are cut alike."""
    boundaries = set[int]()
    for start, stop in graph.spans:
        if (loop := loop_of(graph, start)) is not None and start != loop.first:
            continue  # as the first iteration
        total = 0.0
        for s in range(start, stop):
            if s == start or total + weights[s] > most:
                boundaries |= _alike(graph, s)
                total = 0
            total += weights[s]
    return frozenset(boundaries)


def _movable(graph: Graph) -> list[Boundaries]:
    """Boundaries that come and go together, beside those that must be."""
    fixed = {start for start, _ in graph.spans}
    return list(dict.fromkeys(_alike(graph, s) for s in range(len(graph.stages)) if s not in fixed))


def _alike(graph: Graph, s: int) -> Boundaries:
    """A stage, and in a loop the same stage of all iterations."""
    loop = loop_of(graph, s)
    if loop is None:
        return frozenset({s})
    return frozenset(range(loop.first + (s - loop.first) % loop.length, loop.stop, loop.length))
