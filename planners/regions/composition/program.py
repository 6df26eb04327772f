"""The integer program that chooses candidates: the fastest plan within a budget.

Exactly one chosen candidate covers each stage. While the backward stands at stage `t`, in memory
are the covering candidate's own bytes, the bytes that the regions before it retained, and *shared*
values, which ops of more than one stage read: each counts once, however many regions wait for it.
The variables are in `variables`, the rows in `rows`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from ...graph import Graph
from ...plan import Region
from ...solver.highs import Outcome, solve
from ...solver.sparse import matrix
from ..effects.candidate import Candidate
from . import memory, rows
from .variables import Variables

# Tie-breaks: of plans equally fast take fewer FLOPs, and then fewer retained bytes.
_FLOPS_WEIGHT, _BYTES_WEIGHT = 1e-6, 1e-7
_TIE_BREAKS = _FLOPS_WEIGHT + _BYTES_WEIGHT
#: Times the error that a plan may have: candidates with more are taken to have this.
_TOO_MUCH = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Relaxation:
    """What the linear relaxation proves, in seconds of recomputation and of saving.

    Attributes:
        infeasible: no plan keeps the budget.
        bound: no plan takes less.
        least_seconds: for each candidate, no plan that has it takes less.
    """

    infeasible: bool
    bound: float
    least_seconds: np.ndarray


class Composition:
    """The integer program over one set of candidates, compiled once for every budget."""

    def __init__(self, graph: Graph, candidates: Sequence[Candidate]):
        self._candidates = tuple(candidates)
        self._seconds = graph.seconds or 1.0
        self._variables = variables = Variables(graph, self._candidates)
        self._error, self._moved = (
            _error_shares(graph, candidates),
            _moved_shares(graph, candidates),
        )
        known, waiting = len(variables.definitions), rows.waiting(variables)
        terms, constants = memory.memory(variables)  # which may add columns and definitions
        self._memory = matrix(terms, variables.width), np.array(constants)
        definitions = variables.definitions
        self._kept = [*definitions[:known], *waiting, *definitions[known:]]
        self._uniform = rows.uniform(variables)
        self._costs = _costs(variables, self._seconds)
        self._budget, peak = cp.Parameter(), cp.Variable()
        self._choose = choose = cp.Variable(len(candidates), boolean=True)
        plan, in_memory, cost = self._constraints(choose)
        self._fastest = cp.Problem(cp.Minimize(cost), [*plan, in_memory <= self._budget])
        self._smallest = cp.Problem(
            cp.Minimize(peak + _TIE_BREAKS * cost), [*plan, in_memory <= peak]
        )
        share = cp.Variable(len(candidates))
        plan, in_memory, cost = self._constraints(share)
        self._unused = share >= 0
        self._relaxed = cp.Problem(
            cp.Minimize(cost), [*plan, in_memory <= self._budget, self._unused]
        )

    def _constraints(self, choose: cp.Variable) -> tuple[list[Any], Any, Any]:
        """What makes a choice a plan, the bytes in memory at each sample, and the cost."""
        variables, n = self._variables, len(self._candidates)
        x = cp.hstack([choose, cp.Variable(variables.width - n, nonneg=True)])
        cover = matrix([dict.fromkeys(some, 1.0) for some in variables.covering], n)
        earlier = matrix(rows.earlier(variables), variables.width)
        constraints = [cover @ choose == 1, earlier @ x == 0]
        if self._kept:
            constraints.append(matrix(self._kept, variables.width) @ x >= 0)
        if self._uniform:
            constraints.append(matrix(self._uniform, n) @ choose <= 0)
        if self._error is not None:
            constraints.append(self._error @ choose <= 1)
        if self._moved is not None:
            constraints.append(self._moved @ choose <= 1)
        terms, constants = self._memory
        return constraints, terms @ x + constants, self._costs @ x

    def fastest(self, budget_bytes: int, *, time_limit: float, gap: float) -> Outcome:
        """Solves for the least seconds within a budget.

        Arguments:
            budget_bytes: may not be exceeded.
            time_limit: in seconds.
            gap: stop within this share of the step's seconds of the bound.

        Returns:
            The outcome; its bound is in seconds of recomputation and of saving. `regions` has the
            plan.
        """
        self._limit(budget_bytes)
        outcome = solve(self._fastest, time_limit=time_limit, absolute_gap=gap)
        return dataclasses.replace(outcome, bound=self._in_seconds(outcome.bound))

    def relaxed(self, budget_bytes: int, *, time_limit: float) -> Relaxation:
        """Solves the linear relaxation for the least seconds within a budget."""
        self._limit(budget_bytes)
        outcome = solve(self._relaxed, time_limit=time_limit, absolute_gap=0.0)
        if not outcome.found:
            nothing = np.zeros(len(self._candidates))
            return Relaxation(outcome.infeasible, 0.0, nothing)
        bound = self._in_seconds(outcome.bound)
        reduced_cost = np.asarray(self._unused.dual_value, dtype=float) * self._seconds
        return Relaxation(False, bound, bound + reduced_cost)

    def smallest(self, *, time_limit: float) -> Outcome:
        """Solves for the least peak; the outcome's bound is in bytes."""
        outcome = solve(self._smallest, time_limit=time_limit, absolute_gap=1e-7)
        return dataclasses.replace(outcome, bound=outcome.bound * self._variables.scale)

    def _limit(self, budget_bytes: int) -> None:
        # A quarter of a byte, so that rounding does not rule out a plan that just fits.
        self._budget.value = (budget_bytes + 0.25) / self._variables.scale

    def _in_seconds(self, objective: float) -> float:
        """A bound on seconds of recomputation and of saving from one on the objective."""
        return max(objective - _TIE_BREAKS, 0.0) * self._seconds

    def regions(self) -> tuple[Region, ...]:
        """The plan that the last solve found."""
        chosen = np.flatnonzero(np.asarray(self._choose.value) > 0.5)
        found = [self._candidates[c].region for c in chosen]
        return tuple(sorted(found, key=lambda region: region.first))


def _error_shares(graph: Graph, candidates: Sequence[Candidate]) -> np.ndarray | None:
    """The error of each candidate, over the limit of a plan; None where there is no limit."""
    if not math.isfinite(graph.most_error):
        return None
    errors = np.array([c.error for c in candidates])
    # What is too much by itself need not be known any better.
    limit = np.maximum(graph.most_error, errors / _TOO_MUCH)
    return np.divide(errors, limit, out=np.zeros_like(errors), where=errors > 0)


def _moved_shares(graph: Graph, candidates: Sequence[Candidate]) -> np.ndarray | None:
    """The host's bytes of each candidate, over those of a plan; None where nothing is moved."""
    if graph.link is None:
        return None
    return np.array([c.host_bytes for c in candidates]) / max(graph.link.host_bytes, 1)


def _costs(variables: Variables, seconds: float) -> np.ndarray:
    """The cost of each column: a share of the step's seconds, and tie-breaks.

    Saving a shared value costs as much as it is kept, however many regions wait for it.
    """
    found = np.zeros(variables.width)
    for i in variables.shared:
        for column, share in variables.kept_at(i, variables.last + 1).items():
            found[column] += share * variables.graph.values[i].saving_seconds
    found[: variables.count] += [c.seconds for c in variables.candidates]
    found /= seconds
    found[: variables.count] += _tie_breaks(variables)
    return found


def _tie_breaks(variables: Variables) -> np.ndarray:
    """Weights that sum to less than `_TIE_BREAKS` over any plan."""
    found = np.zeros(variables.count)
    flops = np.array([float(c.flops) for c in variables.candidates])
    nbytes = np.array([float(x) for x in variables.own_bytes])
    for weight, amounts in ((_FLOPS_WEIGHT, flops), (_BYTES_WEIGHT, nbytes)):
        most = sum(amounts[some].max() for some in variables.covering)
        found += weight * amounts / (most or 1.0)
    return found
