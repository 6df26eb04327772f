"""The search for a plan of one traced function whose compiled program keeps a budget.

`within_limit` finds the fastest plan for one limit on temporaries, `compiled_plans` has the bytes
of each plan, and `outcome` records the plan that was found.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import planners

from ..plans.record import PlanRecord
from ..plans.timeline import Timeline
from .compiled_plans import CompiledPlan, CompiledPlans, OtherOptions
from .failures import InfeasibleBudget
from .outcome import Effort, better, no_plan_fits, record_of, unplanned_timeline
from .within_limit.fastest import fastest_or_smallest
from .within_limit.proposals import Proposals
from .within_limit.spaces import Models, spaces_of

#: Nested scans are tried where they may save more than this share of the smallest plan's bytes.
CLEARLY_MORE = 1 - 0.97

#: A function from a function that returns the unplanned bytes to the budget in bytes.
Budget = Callable[[Callable[[], int]], int]


class PlanSearch:
    """The search for plans of one traced function on one target.

    Budgets share the plans that were compiled for earlier ones. Where no plan keeps a budget, and
    loops carry much, a search of its own plans the function with nested scans
    (`tracing/passes/nested_scans`). Another one plans it without operators, where these change the
    function whatever a plan decides, and the plan takes longer than recomputing nothing: operators
    then never make a plan slower.

    Arguments:
        compiled_plans: of the function, on the target.
        planner: `(Graph, int) -> planners.Plan`.
    """

    def __init__(self, compiled_plans: CompiledPlans, planner: Any):
        self.compiled_plans, self.planner = compiled_plans, planner

    @property
    def stopped(self) -> planners.SolverStopped | None:
        """Why the planner had no answer at some point of the last search, if so."""
        stopped = (proposals.solved.stopped for proposals in self._all_proposals)
        return next((error for error in stopped if error is not None), None)

    @functools.cached_property
    def proposals(self) -> tuple[Models, ...]:
        """The planner's proposals, for each space of plans by each model."""
        return spaces_of(self.compiled_plans, self.planner)

    def plan(self, budget: Budget, reserved_bytes: int = 0) -> PlanRecord:
        """The fastest plan found whose compiled program keeps a budget.

        Arguments:
            budget: unplanned bytes, by a function, -> total bytes.
            reserved_bytes: the part of the budget for other things.

        Raises:
            InfeasibleBudget: no plan keeps it.
        """
        try:
            return self._searched(budget, reserved_bytes)
        except OtherOptions:  # only bytes under the same options can be compared
            self.__dict__ = vars(PlanSearch(self.compiled_plans.anew(), self.planner))
            return self._searched(budget, reserved_bytes)

    def _searched(self, budget: Budget, reserved_bytes: int) -> PlanRecord:
        """The same, as long as all its programs are compiled under the same options.

        Raises:
            OtherOptions: they are not.
        """
        found = self._outcome(budget, reserved_bytes)
        if isinstance(found, Exception) or found.overhead > 0:
            other = self._without_operators
            if other is not None:
                found = better(found, other._outcome(budget, reserved_bytes))
        if isinstance(found, Exception):
            raise found
        return found

    def _outcome(self, budget: Budget, reserved_bytes: int) -> PlanRecord | InfeasibleBudget:
        """The plan with the operators of the options, or the error that there is none."""
        try:
            return self._found(budget, reserved_bytes)
        except InfeasibleBudget as error:
            return error

    def _found(self, budget: Budget, reserved_bytes: int) -> PlanRecord:
        started = time.perf_counter()
        for proposals in self._all_proposals:
            proposals.solved.restart()
        known = self._compilations
        total = budget(lambda: self.compiled_plans.unplanned.total_bytes)
        try:
            by, best = self, self._best(total - reserved_bytes, reserved_bytes)
        except InfeasibleBudget as error:
            by, best = self._best_nested(total - reserved_bytes, reserved_bytes, error)
        seconds, compilations = time.perf_counter() - started, self._compilations - known
        effort = Effort(total, reserved_bytes, seconds, compilations)
        return record_of(
            self.compiled_plans, self._unplanned_timeline, by.compiled_plans, best, effort
        )

    def _best(self, limit: int, reserved_bytes: int) -> CompiledPlan | None:
        """The plan that keeps a limit on all bytes; None for the function as it is.

        A plan through the user's checkpoints need not recompute what they recompute, so it may be
        faster even where the function fits as it is.
        """
        unplanned_bytes = self.compiled_plans.unplanned.total_bytes
        is_enough = not self.compiled_plans.pins and unplanned_bytes <= limit
        if is_enough and not self.compiled_plans.traced.program.inlines_checkpoints:
            return None
        try:
            return _fastest(self, limit, reserved_bytes)
        except InfeasibleBudget:
            if is_enough:
                return None
            raise

    def _best_nested(
        self, limit: int, reserved_bytes: int, error: InfeasibleBudget
    ) -> tuple["PlanSearch", CompiledPlan]:
        """The search with nested scans, and its plan that keeps a limit on all bytes.

        Raises:
            InfeasibleBudget: there is none; `error` where its minimum is the lesser.
        """
        search = self._nested
        if search is None:
            raise error
        try:
            return search, _fastest(search, limit, reserved_bytes)
        except InfeasibleBudget as other:
            raise min(error, other, key=lambda x: x.minimum_budget) from None

    @functools.cached_property
    def _without_operators(self) -> "PlanSearch | None":
        """The search for plans of the function as it was before any operator."""
        compiled_plans = self.compiled_plans.without_operators()
        return None if compiled_plans is None else PlanSearch(compiled_plans, self.planner)

    @functools.cached_property
    def _nested(self) -> "PlanSearch | None":
        """The search for plans with nested scans; None where these save too little."""
        nested = _nested_plans(self.compiled_plans)
        return None if nested is None else PlanSearch(nested, self.planner)

    @functools.cached_property
    def _unplanned_timeline(self) -> Timeline | None:
        return unplanned_timeline(self.compiled_plans)

    @property
    def _searches(self) -> list["PlanSearch"]:
        """This search, and the others that were needed so far."""
        others = (self.__dict__.get(name) for name in ("_without_operators", "_nested"))
        return [self, *(search for search in others if search is not None)]

    @property
    def _all_proposals(self) -> Iterator[Proposals]:
        for search in self._searches:
            for models in search.proposals:
                yield from models

    @property
    def _compilations(self) -> int:
        return sum(len(search.compiled_plans) for search in self._searches)


def _fastest(search: PlanSearch, limit: int, reserved_bytes: int) -> CompiledPlan:
    """The fastest plan of a search that keeps a limit on all bytes.

    Raises:
        InfeasibleBudget: none does.
    """
    compiled_plans = search.compiled_plans
    outside, limit = compiled_plans.fixed_bytes + reserved_bytes, limit - compiled_plans.fixed_bytes
    best = fastest_or_smallest(compiled_plans, search.proposals, limit, outside)
    if compiled_plans.temp_bytes(best) > limit:
        raise no_plan_fits(compiled_plans, best, limit, outside)
    return best


def _nested_plans(compiled_plans: CompiledPlans) -> CompiledPlans | None:
    """Plans of the function with nested scans; None where these save too little."""
    found = compiled_plans.as_nested_scans()
    if found is None:
        return None
    nested, saved_bytes = found
    smallest = compiled_plans.temp_bytes(compiled_plans.smallest())
    least = compiled_plans.fixed_bytes + smallest
    return nested if saved_bytes > CLEARLY_MORE * least else None
