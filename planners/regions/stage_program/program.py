"""The integer program of one stage, compiled once and solved for many limits.

Variables, all 0 or 1, side by side in one vector `x`: `save[v]`, `rerun[o]`, `hold[u]`, `take[w]`,
`alias[v]`; the indices are in `needs`, and `w` is an implementation of a backward op, but its
first. A backward op that takes none of these runs in the first.

A saved value that is aliased reuses an output buffer and takes no memory (`Graph.aliased`); by
Hall's theorem that can be done if of each size no more values are as large than results are. One
that waits in the host's memory takes none either: `moving` has the variables and rows for that.
Bytes and seconds enter the model divided by the stage's totals, so that coefficients are of order
one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import cvxpy as cp
import numpy as np

from ...graph import Graph, Op
from ...solver.highs import solve
from .moving import Moves, Moving
from .needs import Needs
from .rows import dataflow, of_codes, optional_writers

# Tie-breaks: of proposals equally fast take fewer FLOPs, and then fewer bytes.
_FLOPS_WEIGHT, _BYTES_WEIGHT = 1e-3, 1e-4
# Values below this share of the stage's bytes are saved always: deciding costs more.
_NEGLIGIBLE = 1e-3
# Limits of a stage's error for which there are options, beside none at all.
_ERRORS = 4
# Errors over the step's are taken to be at least and at most as large.
_LEAST_ERROR, _TOO_MUCH = 1e-3, 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """A set of values to save.

    Attributes:
        saved: indices of the values, ascending.
        moved: of these, the ones that wait in the host's memory.
        retained_bytes: bytes that wait for the backward.
        cost: seconds and FLOPs, over the stage's.
        error: over the limit of the step's.
    """

    saved: tuple[int, ...]
    moved: tuple[int, ...]
    retained_bytes: int
    cost: float
    error: float

    def by_multiplier(self, multiplier: float) -> float:
        """Its cost, plus a multiplier on its bytes."""
        return self.cost + multiplier * self.retained_bytes


class StageProgram:
    """The integer program of one stage, compiled once and solved for many limits."""

    def __init__(
        self,
        graph: Graph,
        s: int,
        stage: Needs,
        free: Set[int],
        result_bytes: Sequence[int],
        moving: Moving | None = None,
    ):
        forward = graph.stages[s].forward
        self._stage, self._forward = stage, forward
        self._error = functools.partial(_error, graph)
        self._errors = np.array(of_codes(forward, stage, self._error))
        sizes = np.array([graph.values[i].nbytes for i in stage.values])
        is_negligible = sizes < _NEGLIGIBLE * sizes.sum()
        self._nbytes = _column_bytes(graph, stage, free, is_negligible)
        self.total_bytes = int(self._nbytes.clip(0).sum())
        self._x = x = cp.Variable(self._nbytes.size, boolean=True)
        self._limit, self._most_error = cp.Parameter(), cp.Parameter()
        self._multiplier = cp.Parameter(nonneg=True)
        seconds, flops = _costs(forward, stage)
        self._saving = saving = _saving(graph, stage, free) / _seconds_of_all(forward, stage)
        self._costs = seconds + saving + _FLOPS_WEIGHT * flops
        time_and_flops = self._costs @ x
        retained = (self._nbytes / max(self.total_bytes, 1)) @ x
        save, alias = x[: sizes.size], x[-sizes.size :]
        moves, self._moves = [], moving and Moves(moving, _seconds_of_all(forward, stage))
        if self._moves is not None:
            time_and_flops += cp.sum(self._moves.waits) - saving[: sizes.size] @ self._moves.move
            retained -= (self._nbytes[: sizes.size] / max(self.total_bytes, 1)) @ self._moves.move
            moves = [*self._moves.rows, save >= alias + self._moves.move]
        lower, upper = _bounds(graph, forward, stage, is_negligible)
        large, places = _aliasing(result_bytes, sizes)
        constraints = [
            lower <= x,
            x <= upper,
            *(rows @ x >= right for rows, right in dataflow(forward, stage)),
            self._errors @ save <= self._most_error,
            save >= alias,
            large @ alias <= places,
            *moves,
        ]
        self._fastest = cp.Problem(
            cp.Minimize(time_and_flops + _BYTES_WEIGHT * retained),
            [*constraints, retained <= self._limit],
        )
        self._cheapest = cp.Problem(
            cp.Minimize(time_and_flops + self._multiplier * retained), constraints
        )
        self._smallest = cp.Problem(
            cp.Minimize(retained + _BYTES_WEIGHT * time_and_flops), constraints
        )

    @property
    def error_limits(self) -> list[float]:
        """Limits on the error of all codes, over the step's, such that options differ."""
        errors = [x for x in map(self._error, self._forward) if x]
        if not errors:
            return [1.0]
        least, most = min(errors), min(sum(errors), 1.0)
        return [*np.geomspace(most, least, _ERRORS).tolist(), 0.0] if least <= most else [0.0]

    def fastest(self, limit_bytes: float, most_error: float, time_limit: float) -> Proposal | None:
        """The proposal of fewest seconds that retains `limit_bytes` or less, if there is one."""
        self._limit.value = (limit_bytes + 0.5) / max(self.total_bytes, 1)
        return self._solve(self._fastest, most_error, time_limit)

    def cheapest(self, multiplier: float, most_error: float, time_limit: float) -> Proposal | None:
        """The proposal of least cost plus a multiplier on the bytes that are retained."""
        self._multiplier.value = multiplier * max(self.total_bytes, 1)
        return self._solve(self._cheapest, most_error, time_limit)

    def smallest(self, most_error: float, time_limit: float) -> Proposal | None:
        """The proposal that retains fewest bytes, if there is one."""
        return self._solve(self._smallest, most_error, time_limit)

    def _solve(self, problem: cp.Problem, most_error: float, time_limit: float) -> Proposal | None:
        self._most_error.value = most_error
        outcome = solve(problem, time_limit=time_limit, absolute_gap=1e-7)
        if not outcome.found:
            return None
        x = np.asarray(self._x.value) > 0.5
        ops = np.array(self._stage.ops, dtype=int)[
            x[len(self._stage.values) :][: len(self._stage.ops)]
        ]
        is_saved = x[: len(self._stage.values)]
        saved = np.array(self._stage.values)[is_saved].tolist()
        used = self._stage.read(saved).union(*(self._forward[o].inputs for o in ops))
        saved = tuple(i for i in saved if i in used)
        error = float(self._errors[is_saved].sum())
        nbytes, cost = int(self._nbytes[x].sum()), float(self._costs[x].sum())
        if self._moves is None:
            return Proposal(saved, (), nbytes, cost, error)
        is_moved = self._moves.chosen
        moved = np.array(self._stage.values)[is_moved].tolist()
        nbytes -= int(self._nbytes[: is_moved.size][is_moved].sum())
        cost += self._moves.waiting - float(self._saving[: is_moved.size][is_moved].sum())
        return Proposal(saved, tuple(i for i in moved if i in used), nbytes, cost, error)


def _column_bytes(
    graph: Graph, stage: Needs, free: Set[int], is_negligible: np.ndarray
) -> np.ndarray:
    """Bytes that wait for the backward where a variable is 1: less, for a value that is aliased."""
    save = [0 if i in free else graph.values[i].nbytes for i in stage.values]
    hold = [0 if u in free else graph.values[u].nbytes for u in stage.outside]
    save = np.where(is_negligible, 0, save)
    return _columns(stage, save, hold, alias=-save).astype(np.int64)


def _saving(graph: Graph, stage: Needs, free: Set[int]) -> np.ndarray:
    """Seconds of saving where a variable is 1."""

    def seconds(values: Sequence[int]) -> list[float]:
        return [0.0 if i in free else graph.values[i].saving_seconds for i in values]

    nothing = [0.0] * len(stage.values)
    return _columns(stage, seconds(stage.values), seconds(stage.outside), alias=nothing)


def _columns(
    stage: Needs, save: Iterable[float], hold: Iterable[float], alias: Iterable[float]
) -> np.ndarray:
    """Figures of columns in their order, of which those of ops and implementations have none."""
    return np.array([*save, *[0] * len(stage.ops), *hold, *[0] * _count_taken(stage), *alias])


def _count_taken(stage: Needs) -> int:
    return sum(len(op.alternatives) for op in stage.choices)


def _bounds(
    graph: Graph, forward: Sequence[Op], stage: Needs, is_negligible: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that each variable may be."""
    savable = np.array([graph.values[i].savable for i in stage.values])
    may_alias = np.array([i not in graph.shared for i in stage.values]) & ~is_negligible
    optional = np.isin(stage.values, [*optional_writers(forward)])
    between = len(stage.ops) + len(stage.outside) + _count_taken(stage)
    lower = [is_negligible & savable & ~optional, np.zeros(between + len(stage.values))]
    return np.concatenate(lower), np.concatenate([savable, np.ones(between), may_alias])


def _costs(forward: Sequence[Op], stage: Needs) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and FLOPs of each column, over the sum of all that may run again."""

    def column(cost: Callable[[Any], float]) -> np.ndarray:
        save = of_codes(forward, stage, cost)
        rerun = [cost(forward[o]) for o in stage.ops]
        take = [
            cost(implementation) - cost(op)
            for op in stage.choices
            for implementation in op.alternatives
        ]
        columns = save, rerun, [0.0] * len(stage.outside), take, [0.0] * len(stage.values)
        return np.concatenate(columns) / (sum(rerun) + sum(save) or 1.0)

    return column(lambda x: x.seconds), column(lambda x: x.flops)


def _seconds_of_all(forward: Sequence[Op], stage: Needs) -> float:
    """Seconds of all that may run again, by which `_costs` divides."""
    saving = of_codes(forward, stage, lambda x: x.seconds)
    return sum(forward[o].seconds for o in stage.ops) + sum(saving) or 1.0


def _error(graph: Graph, op: Op) -> float:
    """The error of an op over the step's, as far as a solver can tell numbers apart."""
    if not op.error or not math.isfinite(graph.most_error):
        return 0.0
    share = op.error / graph.most_error if graph.most_error else math.inf
    return min(max(share, _LEAST_ERROR), _TOO_MUCH)


def _aliasing(result_bytes: Sequence[int], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each size which values are as large, and how many results are as large."""
    results, least = np.array(result_bytes), np.unique(sizes)[:, None]
    return (sizes >= least).astype(float), (results >= least).sum(axis=1)
