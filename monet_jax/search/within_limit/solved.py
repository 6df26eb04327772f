"""The planner's plans for one graph: each model budget is solved once."""

import functools
import time
from collections.abc import Callable
from typing import Any

import planners
from planners.graph import Graph

from .uniform import with_uniform_iterations

#: Time limits of the solver that the search for one budget may use up in all.
SOLVES = 4


class SolvedBudgets:
    """The planner's plans for one graph, by model budget.

    Arguments:
        planner: `(Graph, int) -> planners.Plan`.
        graph: to plan.

    Attributes:
        floor: model budgets below it are known to be infeasible.
        stopped: why the planner had no plan for some budget since `restart`, if so.
    """

    def __init__(self, planner: Any, graph: Graph):
        self._planner, self._graph = planner, graph
        self._most_seconds = SOLVES * getattr(planner, "time_limit", 10.0)
        self._seconds = 0.0  # in the planner since `restart`
        self._known: dict[int, planners.Plan | None] = {}
        self.floor = 0
        self.stopped: planners.SolverStopped | None = None

    @functools.cached_property
    def _space(self) -> Any:
        return _prepared(self._planner, self._graph)

    @property
    def singles(self) -> Any:
        """The planner's regions of one stage, for local search; None where it has none."""
        return getattr(self._space, "singles", None)

    def restart(self) -> None:
        """Count the planner's seconds from here, and forget that it was stopped."""
        self._seconds, self.stopped = 0.0, None

    def has_used(self, share: float) -> bool:
        """Whether the planner has used up a share of its seconds since `restart`."""
        return self._seconds > share * self._most_seconds

    def smallest(self, otherwise: planners.Plan) -> planners.Plan:
        """The planner's smallest plan; another one where the planner is stopped."""
        try:
            return self._space.smallest()
        except planners.SolverStopped as error:
            self.stopped = error
            return otherwise

    def fastest(self, budget: int) -> planners.Plan | None:
        """The planner's plan for a model budget; None where it has none.

        An infeasible budget raises the floor; a planner that was stopped does not.
        """
        if budget not in self._known:
            started = time.perf_counter()
            try:
                found = self._space.fastest(budget)
                self._known[budget] = with_uniform_iterations(self._graph, found)
            except planners.InfeasibleBudget as error:
                self._known[budget] = None
                self.floor = max(self.floor, error.minimum_bytes, budget + 1)
            except planners.SolverStopped as error:
                self.stopped = error
                self._known[budget] = None
            self._seconds += time.perf_counter() - started
        return self._known[budget]

    def bound_seconds(self, budget: int) -> float:
        """The solver's lower bound on the seconds of all plans within a model budget."""
        found = self.fastest(budget)
        return found.bound_seconds if found else self._graph.seconds


class _Unprepared:
    """A plain planner function behind the interface of a prepared search."""

    def __init__(self, planner: Callable[[Graph, int], planners.Plan], graph: Graph):
        self.planner, self.graph = planner, graph

    def fastest(self, budget_bytes: int) -> planners.Plan:
        return self.planner(self.graph, budget_bytes)

    def smallest(self) -> planners.Plan:
        return planners.save_nothing(self.graph)


def _prepared(planner: Any, graph: Graph) -> Any:
    """A planner whose preparation is shared between budgets, where it can share it."""
    return planner.prepare(graph) if hasattr(planner, "prepare") else _Unprepared(planner, graph)
