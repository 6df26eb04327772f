"""A plan made faster, or smaller by a hair, without another integer program.

The integer program bounds the live bytes of a schedule. What a compiler makes of a schedule can
differ, and then plans that the program takes for equals do not fit equally. So options of single
stages are changed one by one, as long as the plan still fits; or a plan that fits does in part as
one that does not.
"""

import dataclasses
from collections.abc import Callable, Sequence

from .effects import Candidate
from .graph import Graph
from .plan import Region

#: Saved values below this share of their region's largest are its small change.
_CHANGE = 0.01


def without_change(graph: Graph, regions: Sequence[Region]) -> tuple[Region, ...]:
    """The plan, its leaves saving nothing that is small beside the largest value they save.

    Programs tuned by hand save products and nothing else; the sums of a normalization beside them
    can be what exceeds a budget.
    """
    nbytes = {value.name: value.nbytes for value in graph.values}

    def less(region: Region) -> Region:
        least = _CHANGE * max((nbytes[name] for name in region.saved), default=0)
        saved = tuple(name for name in region.saved if not 0 < nbytes[name] < least)
        return region if region.inner else dataclasses.replace(region, saved=saved)

    return tuple(map(less, regions))


def mixtures(
    graph: Graph, some: Sequence[Region], others: Sequence[Region]
) -> list[tuple[Region, ...]]:
    """Plans that do as one up to some stage and as another from there on, ever more as the first.

    They change between two stages only where both have a region begin, and outside of loops.
    """
    starts = {region.first for region in some} & {region.first for region in others}
    starts -= {s for loop in graph.loops for s in range(loop.first + 1, loop.stop)}
    return [
        (*(x for x in some if x.first < s), *(x for x in others if x.first >= s))
        for s in sorted(starts - {0})
    ]


def saved_bytes(graph: Graph, regions: Sequence[Region]) -> int:
    """Bytes of all values that a plan's regions save, inner ones included."""
    nbytes = {value.name: value.waiting_bytes for value in graph.values}
    return sum(nbytes[name] for region in regions for x in region.walk() for name in x.saved)


def polished(
    graph: Graph,
    regions: Sequence[Region],
    singles: Sequence[Sequence[Candidate]],
    fits: Callable[[tuple[Region, ...]], bool],
    *,
    trials: int,
) -> tuple[Region, ...]:
    """The plan after all changes of single stages that save time and still fit.

    What saves most time for a byte more comes first. Regions of several stages stay as they are.

    Arguments:
        graph: the step.
        regions: a plan that fits.
        singles: for each stage the regions that it may be by itself.
        fits: whether a plan fits.
        trials: times that `fits` is asked, at most.
    """
    known = {x.region: x for some in singles for x in some}
    plan, refused = list(regions), set[Region]()  # less fits once more is saved elsewhere
    for _ in range(trials):
        changes = [
            (_worth(graph, known[old], x), n, x.region)
            for n, old in enumerate(plan)
            if old in known
            for x in singles[old.first]
            if x.seconds < known[old].seconds and x.region not in refused
        ]
        if not changes:
            break
        _, n, new = max(changes, key=lambda change: change[:2])
        if fits((*plan[:n], new, *plan[n + 1 :])):
            plan[n] = new
        else:
            refused.add(new)
    return tuple(plan)


def _worth(graph: Graph, old: Candidate, new: Candidate) -> float:
    """Seconds saved for a byte more."""
    more = _retained_bytes(graph, new) - _retained_bytes(graph, old)
    return (old.seconds - new.seconds) / max(more, 1)


def _retained_bytes(graph: Graph, x: Candidate) -> int:
    """Of all values: where one that may be lodged does lie is what the search is to find out."""
    return x.alone_bytes + sum(graph.values[i].waiting_bytes for i in x.retained)
