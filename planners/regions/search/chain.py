"""A quick plan for a budget: dynamic programming over the stages, as if they were a chain.

Rotor's recursion (Beaumont et al.) without its optimality: a region's bytes are its own and those
of the values of earlier regions that it reads, so a value with several readers counts several
times, and retained bytes are rounded to a grid. Replay says what the plan really takes.

| index | means |
|---|---|
| `t` | a stage: regions before it are decided |
| `k` | a point of the grid: so many bytes are retained by the regions before `t` |
"""

from collections.abc import Sequence

import numpy as np

from ...graph import Graph
from ...plan import Region
from ..effects.candidate import Candidate

_GRID = 1000


class ChainHeuristic:
    """The candidates of one graph, reduced to the figures of the recursion."""

    def __init__(self, graph: Graph, candidates: Sequence[Candidate]):
        self._stages = len(graph.stages)
        self._candidates = sorted(candidates, key=lambda x: x.region.first)
        sizes = np.array([value.waiting_bytes for value in graph.values], dtype=np.int64)
        saving = np.array([value.saving_seconds for value in graph.values])
        passed = ([*x.reads, *(x.retained & graph.shared)] for x in self._candidates)
        self._seconds = [
            x.seconds + saving[some].sum() for x, some in zip(self._candidates, passed, strict=True)
        ]
        held = [sizes[list(x.reads)].sum() if x.reads else 0 for x in self._candidates]
        own = [
            x.alone_bytes + sizes[list(x.retained - x.aliased)].sum(dtype=np.int64)
            for x in self._candidates
        ]
        self._after = np.array(held) + np.array(own)
        self._during = np.array(held) + np.array(
            [max(m.nbytes for some in x.samples for m in some) for x in self._candidates]
        )

    def fastest(self, limit_bytes: int) -> tuple[Region, ...] | None:
        """The regions of least seconds that keep `limit_bytes` by the chain's own count."""
        step = max(limit_bytes, 1) / _GRID
        seconds = np.full((self._stages + 1, _GRID + 1), np.inf)
        chosen = np.zeros((self._stages + 1, _GRID + 1), dtype=int)
        seconds[0, 0] = 0.0
        after = np.rint(self._after / step).astype(int)
        slack = np.floor((limit_bytes - self._during) / step).astype(int)
        for c, x in enumerate(self._candidates):
            most = min(slack[c], _GRID - after[c])
            if most < 0:
                continue
            target = slice(after[c], after[c] + most + 1)
            new = seconds[x.region.first, : most + 1] + self._seconds[c]
            old = seconds[x.region.last + 1, target]
            chosen[x.region.last + 1, target] = np.where(
                new < old, c, chosen[x.region.last + 1, target]
            )
            np.minimum(new, old, out=old)
        return self._trace(seconds, chosen, after)

    def _trace(
        self, seconds: np.ndarray, chosen: np.ndarray, after: np.ndarray
    ) -> tuple[Region, ...] | None:
        t, k = self._stages, int(seconds[-1].argmin())
        if not np.isfinite(seconds[t, k]):
            return None
        found = []
        while t > 0:
            c = chosen[t, k]
            found.append(self._candidates[c].region)
            t, k = found[-1].first, k - after[c]
        return tuple(found[::-1])
