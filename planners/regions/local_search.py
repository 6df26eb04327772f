"""Local search on plans: crossover, and changes of single stages.

The integer program bounds the live bytes of a schedule. What a compiler makes of a schedule can
differ, and then plans that the program takes for equals do not fit equally. So options of single
stages are changed one by one, as long as the plan still fits; or a plan that fits takes over a part
of one that does not (crossover).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from ..graph import Graph
from ..plan import Region
from .effects.candidate import Candidate


def crossovers(
    graph: Graph, some: Sequence[Region], others: Sequence[Region]
) -> list[tuple[Region, ...]]:
    """Plans that take one plan's regions up to some stage and another's from there on.

    The first plan's part grows. Plans change over where both have a region begin, outside of loops.
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
    max_candidates: int,
) -> tuple[Region, ...]:
    """The plan after all changes of single stages that save time and still fit.

    What saves most time for a byte more comes first. Regions of several stages stay as they are.

    Arguments:
        graph: the step.
        regions: a plan that fits.
        singles: for each stage the regions that it may be by itself.
        fits: whether a plan fits.
        max_candidates: calls of `fits`, at most.
    """
    changes = _Changes(graph, singles)
    plan, calls = _furthest(changes.path(tuple(regions)), fits, max_candidates)
    for _ in range(max_candidates - calls):
        change = changes.best(plan)
        if change is None:
            break
        changed, new = change
        if fits(changed):
            plan = changed
        else:
            changes.refuse(new)
    return plan


def _furthest(
    path: Iterator[tuple[Region, ...]],
    fits: Callable[[tuple[Region, ...]], bool],
    max_candidates: int,
) -> tuple[tuple[Region, ...], int]:
    """The last plan of a path that fits, as the first does, by strides that double until one is
    too long; and the number of calls of `fits`.
    """
    known, low, high, stride, calls = [next(path)], 0, None, 1, 0
    while calls < max_candidates:
        if high is None:
            known += itertools.islice(path, low + stride + 1 - len(known))
        middle = len(known) - 1 if high is None else (low + high) // 2
        if middle == low:
            break
        calls += 1
        if fits(known[middle]):
            low, stride = middle, 2 * stride
        else:
            high = middle
    return known[low], calls


class _Changes:
    """Changes of single stages that save time, what saves most for a byte more first.

    Of equal ones the last stage's comes first.
    """

    def __init__(self, graph: Graph, singles: Sequence[Sequence[Candidate]]):
        self._graph, self._singles = graph, singles
        self._known = {x.region: x for some in singles for x in some}
        self._refused = set[Region]()  # less fits once more is saved elsewhere
        self._after: dict[Region, tuple[float, Region] | None] = {}

    def best(self, plan: tuple[Region, ...]) -> tuple[tuple[Region, ...], Region] | None:
        """The plan after the best change, and the region that is new; None if none saves time."""
        changes = ((n, self._change(old)) for n, old in enumerate(plan))
        found = [(x[0], n, x[1]) for n, x in changes if x is not None]
        if not found:
            return None
        _, n, new = max(found, key=lambda x: x[:2])
        return (*plan[:n], new, *plan[n + 1 :]), new

    def path(self, plan: tuple[Region, ...]) -> Iterator[tuple[Region, ...]]:
        """The plan, and after one change, and after two, until nothing saves time."""
        yield plan
        while change := self.best(plan):
            plan, _ = change
            yield plan

    def refuse(self, new: Region) -> None:
        """Do not change to a region any more."""
        self._refused.add(new)
        self._after = {k: x for k, x in self._after.items() if x is None or x[1] != new}

    def _change(self, old: Region) -> tuple[float, Region] | None:
        """The best for a region, and the seconds per byte that it saves."""
        if old not in self._after:
            self._after[old] = self._found(old)
        return self._after[old]

    def _found(self, old: Region) -> tuple[float, Region] | None:
        if old not in self._known:
            return None
        now = self._known[old]
        faster = [
            (self._worth(now, x), x.region)
            for x in self._singles[old.first]
            if x.seconds < now.seconds and x.region not in self._refused
        ]
        return max(faster, key=lambda x: x[0], default=None)

    def _worth(self, old: Candidate, new: Candidate) -> float:
        """Seconds saved for a byte more."""
        more = self._nbytes(new) - self._nbytes(old)
        return (old.seconds - new.seconds) / max(more, 1)

    def _nbytes(self, x: Candidate) -> int:
        """Bytes that are retained, in the memory of a result or not: that is for `fits` to say."""
        return x.alone_bytes + sum(self._graph.values[i].waiting_bytes for i in x.retained)
