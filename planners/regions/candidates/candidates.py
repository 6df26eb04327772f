"""All candidates of one graph: single stages first, then regions over several of them.

Outputs of ops that must run once are saved wherever they may be.
"""

import functools as ft
import itertools as it
import math
import time
from collections.abc import Callable, Iterator, Sequence

from ...graph import Graph
from ...plan import Region
from ..effects.candidate import Candidate
from ..effects.shapes import Shapes
from ..effects.walker import Walker
from ..iterations import neighbours
from ..simple_plans import minimal_region
from ..simple_plans import with_inputs_moved as moved
from .intervals import over_intervals, over_iterations
from .singles import needs_no_codes, single
from .solving import read_by_others, solve_moving, solve_stages

# Shares of the step's error that each stage may have.
_ERRORS = (1 / 4, 1 / 16, 1 / 64)


class Candidates:
    """The candidates of one graph.

    Attributes:
        singles: for each stage the candidates that it may be by itself.
    """

    def __init__(self, graph: Graph, shapes: Shapes, *, max_options: int, deadline: float):
        """Solves the stage programs.

        Arguments:
            graph: the step.
            shapes: what other graphs share with it.
            max_options: of one stage.
            deadline: stop solving at this reading of `time.monotonic`, in seconds.
        """
        self._graph, self._walker = graph, Walker(graph, shapes)
        self._free = read_by_others(graph)
        solved = solve_stages(graph, self._walker, max_options=max_options, deadline=deadline)
        moving = solve_moving(graph, self._walker, max_options=max_options, deadline=deadline)
        self.singles = [
            single(graph, self._walker, s, *some)
            for s, some in enumerate(zip(solved, moving, strict=True))
        ]
        for x in self._neighbours([x for some in self.singles for x in some]):
            self.singles[x.region.first].append(x)

    def intervals(self, deadline: float) -> list[Candidate]:
        """Candidates over several stages; stops at this reading of `time.monotonic`."""
        graph, spaces, nbytes = self._graph, self._spaces, self._retained_bytes
        over = over_intervals(graph, self._walker, spaces, nbytes)
        whole = ([region] for region in over_iterations(graph, self.singles, spaces, nbytes))
        found = []
        for regions in self._with_moves(it.chain(over, whole)):
            if time.monotonic() > deadline:
                break
            found += [x for x in map(self._walker.allowed, regions) if x is not None]
        return found + self._neighbours(found)

    def _with_moves(self, every: Iterator[list[Region]]) -> Iterator[list[Region]]:
        """The regions; and whole iterations of loops whose inputs move to the host's memory."""
        graph = self._graph
        if graph.link is None:
            return every
        whole = {(a, b - 1) for a, b in graph.spans if a in graph.looped and a < b - 1}
        least = [minimal_region(graph, first, last) for first, last in sorted(whole)]
        return (
            [*some, *(y for x in some if (x.first, x.last) in whole for y in moved(graph, x))]
            for some in it.chain([least], every)
        )

    @ft.cached_property
    def _spaces(self) -> list[list[list[Candidate]]]:
        """Candidates of each stage by itself: all, those of small errors, and those without codes.

        A space in which some stage has no candidate is left out.
        """
        most = self._graph.most_error
        limits = [most * share for share in _ERRORS] if math.isfinite(most) else [most]
        kinds: list[Callable[[Candidate], bool]] = [
            *(lambda x, limit=limit: x.error <= limit for limit in limits),
            ft.partial(needs_no_codes, self._graph),
        ]
        spaces = []
        for may in kinds:
            staying = ([x for x in some if not x.region.offloaded] for some in self.singles)
            space = [list(filter(may, some)) for some in staying]
            if all(space) and space not in spaces:
                spaces.append(space)
        return spaces or [self.singles]

    def _neighbours(self, some: Sequence[Candidate]) -> list[Candidate]:
        """The same in the iterations next to each, where iterations must be uniform."""
        known = {x.region for x in some}
        regions = it.chain.from_iterable(neighbours(self._graph, x.region) for x in some)
        new = (region for region in dict.fromkeys(regions) if region not in known)
        return [x for x in map(self._walker.allowed, new) if x is not None]

    def _retained_bytes(self, x: Candidate) -> int:
        waiting = x.retained - x.aliased - self._free
        return x.alone_bytes + sum(self._graph.values[i].waiting_bytes for i in waiting)
