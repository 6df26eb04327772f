"""Plans of the chain heuristic, for several limits."""

import itertools as it
import time
from collections.abc import Iterator, Sequence

from ...graph import Graph
from ...plan import Region
from ..iterations import rolled, with_uniform_blocks
from .chain import ChainHeuristic
from .clock import Clock
from .replays import Replays

# Shares of the budget, tried as limits of the chain heuristic, which counts some values twice.
_FACTORS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0)
# From one limit to the next, and how often, where the smallest plan is sought.
_SHRINK, _SHRINKS = 0.93, 60
# Share of the time left for plans of the chain heuristic; and seconds where nothing is left.
_SHARE, _GRACE = 0.3, 0.3


class Guesses:
    """Plans of the chain heuristic for one graph, for some time from now on."""

    def __init__(self, graph: Graph, chain: ChainHeuristic, replays: Replays, clock: Clock):
        self._graph, self._chain, self._replays = graph, chain, replays
        # So that time is left for the rest.
        self._until = time.monotonic() + max(_SHARE * clock.left(), _GRACE)

    def fastest(self, budget_bytes: int) -> tuple[Region, ...] | None:
        """The fastest plan that is found in time, if one fits."""
        replays = self._replays
        limits = [int(budget_bytes * factor) for factor in _FACTORS]
        found = (x for x in self._chained(limits) if x is not None)
        every = it.chain(found, self.smaller())
        fits = (x for x in every if replays.peak_bytes(x) <= budget_bytes)
        guesses = list(it.islice(fits, len(_FACTORS)))
        if replays.save_nothing.peak_bytes <= budget_bytes:
            guesses.append(replays.save_nothing.regions)
        return min(guesses, key=replays.overhead, default=None)

    def smaller(self) -> Iterator[tuple[Region, ...]]:
        """Plans for less and less."""
        limit = self._replays.save_nothing.peak_bytes * max(_FACTORS)
        for regions in self._chained([int(limit * _SHRINK**k) for k in range(_SHRINKS)]):
            if regions is None:
                return
            yield regions

    def _chained(self, limits: Sequence[int]) -> Iterator[tuple[Region, ...] | None]:
        """The chain heuristic's plan for each limit, while there is time."""
        for limit in limits:
            if time.monotonic() > self._until:
                return
            found = self._chain.fastest(limit)
            yield found and self._in_space(found)

    def _in_space(self, regions: tuple[Region, ...]) -> tuple[Region, ...]:
        """Regions with uniform iterations, where the graph requires it."""
        if not self._graph.uniform_blocks:
            return regions
        return with_uniform_blocks(self._graph, rolled(self._graph, regions))
