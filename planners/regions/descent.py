"""Descent to fewer bytes: what is at a plan's peak is changed, as long as that lowers the peak.

The integer program's smallest plan has the fewest live bytes. A finished plan has a closer model of
its bytes, in which much may lie in memory that is there anyway, and is judged by that.
"""

import dataclasses
import itertools as it
from collections.abc import Callable, Iterator, Sequence

from ..graph import Graph
from ..plan import Region
from .effects.candidate import Candidate
from .simple_plans import left_alone, minimal_region
from .uniform import Regions


def with_lower_peak(
    graph: Graph,
    regions: Regions,
    singles: Sequence[Sequence[Candidate]],
    peak_of: Callable[[Regions], tuple[float, int]],
    max_candidates: int,
) -> Regions:
    """The plan after changes at its peak, each the one that lowers the peak most.

    A change is another choice for the stage at the peak, an end of its region in front of it or
    behind it, or its region and a neighbour as one.

    Arguments:
        graph: the step.
        regions: a plan.
        singles: for each stage the regions that it may be by itself.
        peak_of: the bytes of a plan, and the stage at its peak.
        max_candidates: plans to try, at most; those of the last change are all tried.
    """
    best, (nbytes, stage), tried = regions, peak_of(regions), 0
    while tried < max_candidates:
        changed = [x for x in _changes(graph, best, stage, singles[stage]) if x != best]
        tried += len(changed)
        found = min(((*peak_of(x), x) for x in changed), key=lambda x: x[0], default=None)
        if found is None or found[0] >= nbytes:
            break
        nbytes, stage, best = found
    return best


def nested_but_last(graph: Graph) -> Regions:
    """The plan that keeps least for the last stage, and leaves that stage alone.

    Stages before it run again together, and each once more for its own backward; those of loops
    run again by themselves.
    """
    *others, last = (minimal_region(graph, s) for s in range(len(graph.stages)))
    kept = []
    for unit, some in it.groupby(others, key=lambda x: graph.units[x.first]):
        parts = tuple(some)
        kept += parts if unit in graph.looped else (_joined(graph, parts),)
    return (*kept, left_alone(graph, last))


def _changes(
    graph: Graph, regions: Regions, stage: int, singles: Sequence[Candidate]
) -> Iterator[Regions]:
    """Plans that are changed at a stage; none in a loop, whose iterations are to be alike."""
    if stage in graph.looped:
        return
    n = next(n for n, x in enumerate(regions) if x.first <= stage <= x.last)
    before, region, behind = regions[:n], regions[n], regions[n + 1 :]
    parts = _parts(graph, region)
    place = stage - region.first
    for single in singles:
        changed = (*parts[:place], single.region, *parts[place + 1 :])
        yield (*before, _joined(graph, changed), *behind)
    for cut in {place, place + 1} - {0, len(parts)}:
        yield (*before, _joined(graph, parts[:cut]), _joined(graph, parts[cut:]), *behind)
    if before and graph.units[before[-1].last] == graph.units[region.first]:
        yield (*before[:-1], _joined(graph, (*_parts(graph, before[-1]), *parts)), *behind)
    if behind and graph.units[behind[0].first] == graph.units[region.first]:
        yield (*before, _joined(graph, (*parts, *_parts(graph, behind[0]))), *behind[1:])


def _parts(graph: Graph, region: Region) -> Regions:
    """A region as regions of single stages."""
    stages = range(region.first, region.last + 1)
    if region.alone:
        return tuple(Region(s, s, alone=True) for s in stages)
    if region.first == region.last:
        return (region,)
    if len(region.inner) == len(stages):
        return region.inner
    return tuple(minimal_region(graph, s) for s in stages)


def _joined(graph: Graph, parts: Regions) -> Region:
    """Regions of single stages as one: left alone, or a checkpoint with each inside."""
    first, last = parts[0].first, parts[-1].last
    if first == last:
        return parts[0]
    minimal = minimal_region(graph, first, last)
    if minimal.alone or all(x.alone for x in parts):
        return Region(first, last, alone=True)
    return dataclasses.replace(minimal, inner=parts)
