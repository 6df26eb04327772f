"""Regions over several stages: one checkpoint, or nested ones.

- Over an interval of a few stages: one checkpoint that saves nothing, or what a uniform multiplier
  on bytes chooses for each stage; and nested regions, which save nothing and whose inner regions
  are single stages with options chosen by multiplier.
- Over an iteration of a loop, or where what is recomputed comes late, over all stages; or all but
  the first or the last: one checkpoint that saves what a multiplier chooses, of what one stage
  leaves to the next as well.
"""

import itertools as it
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...graph import Graph
from ...plan import Region
from ..effects.candidate import Candidate
from ..effects.walker import Walker
from .multipliers import MULTIPLIERS, Bytes, Singles, by_multiplier, multipliers, seconds_per_byte
from .saved import inside, names, once, passed, saved_by, unique

# Lengths of intervals, most useful first, as many as keep within the two numbers below.
_LENGTHS = (2, 4, 3, 8, 6, 12, 16, 5, 24, 10, 7, 9, 11)
_MOST_CANDIDATES = 4000
# Stages of distinct intervals: each is walked a few times.
_MOST_WALKED = 400
# Multipliers for checkpoints of the whole step, and between which quantiles of the multipliers.
_WHOLE_MULTIPLIERS, _RANGE = 8, (0.1, 0.9)


def over_intervals(
    graph: Graph, walker: Walker, spaces: Sequence[Singles], nbytes: Bytes
) -> Iterator[list[Region]]:
    """For each interval of a few stages the regions over it.

    Arguments:
        graph: the step.
        walker: knows which intervals are isomorphic.
        spaces: candidates of single stages to choose from, each a space by itself.
        nbytes: bytes of a candidate that a multiplier applies to.
    """
    tables = []
    for singles in spaces:
        tables.append([min(some, key=_smallest_first(nbytes)) for some in singles])
        tables += [by_multiplier(singles, x, nbytes) for x in multipliers(singles, nbytes)]
    for first, last in _spans(graph, walker):
        yield list(dict.fromkeys(_over(graph, [table[first : last + 1] for table in tables])))


def _smallest_first(nbytes: Bytes) -> Callable[[Candidate], tuple[bool, int, float]]:
    return lambda x: (x.region.alone, nbytes(x), x.seconds)


def _spans(graph: Graph, walker: Walker) -> Iterator[tuple[int, int]]:
    """The first and last stages of the intervals that are tried."""
    n, count, walked = len(graph.stages), 0, set()
    work = 0
    for length in (x for x in _LENGTHS if x <= n):
        spans = [(first, first + length - 1) for first in range(n - length + 1)]
        spans = [(a, b) for a, b in spans if graph.units[a] == graph.units[b]]
        new = {walker.interval(*span).shape for span in spans} - walked
        count += len(spans) * (4 * MULTIPLIERS + 3)
        work += len(new) * length
        if length > 2 and (count > _MOST_CANDIDATES or work > _MOST_WALKED):
            return
        walked |= new
        yield from spans


def _over(graph: Graph, tables: Sequence[Sequence[Candidate]]) -> Iterator[Region]:
    """Regions over the stages of `tables`, which each choose one candidate a stage."""
    for table in tables:
        inner = tuple(x.region for x in table)
        first, last = inner[0].first, inner[-1].last
        must = once(graph, first, last)
        saved = it.chain(*(inside(graph, region) for region in inner[:-1]), inner[-1].saved)
        yield Region(first, last, saved=unique((*must, *saved)))
        yield Region(first, last, saved=unique(must), inner=inner)
        if graph.stages[last].may_be_alone:
            end = Region(last, last, alone=True)
            yield Region(first, last, saved=unique(must), inner=(*inner[:-1], end))


def over_iterations(
    graph: Graph, singles: Singles, spaces: Sequence[Singles], nbytes: Bytes
) -> Iterator[Region]:
    """Checkpoints of a whole iteration of a loop; where they come late, of the whole step.

    Arguments:
        graph: the step.
        singles: candidates of single stages, which say what multipliers there are.
        spaces, nbytes: as of `over_intervals`.
    """
    handed_on = passed(graph)
    rates = [seconds / size for _, size, seconds in handed_on if size]
    rates = [rate for rate in (*seconds_per_byte(singles, nbytes), *rates) if rate]
    if not rates:
        return
    spans = _whole_spans(graph)
    least, most = np.quantile(rates, _RANGE).tolist()
    for multiplier in np.geomspace(least, most, _WHOLE_MULTIPLIERS).tolist():
        kept = [i for i, size, seconds in handed_on if seconds > multiplier * size]
        for space in spaces:
            saved = [saved_by(graph, x) for x in by_multiplier(space, multiplier, nbytes)]
            for first, last in spans:
                own = (i for i in kept if first <= graph.forward_writer[i][0] < last)
                some = it.chain(*saved[first : last + 1], names(graph, own))
                yield Region(first, last, saved=unique((*once(graph, first, last), *some)))


def _whole_spans(graph: Graph) -> list[tuple[int, int]]:
    """The first and last stages of whole iterations, with or without their ends."""
    return [
        (a, b)
        for start, end in graph.spans
        if graph.recomputes_late or start in graph.looped
        for a in range(start, min(start + 2, end))
        for b in range(max(end - 2, start), end)
        if a < b
    ]
