"""A plan made faster by local search, under any measure of its bytes.

The integer program bounds the live bytes of a schedule. What a compiler makes of a schedule can
differ, and then plans that the program takes for equals do not fit equally. So options of single
stages are changed one by one, as long as the plan still fits.
"""

from collections.abc import Callable, Sequence

from .effects import Candidate
from .graph import Graph
from .plan import Region


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
    return x.alone_bytes + sum(graph.values[i].nbytes for i in x.retained)
