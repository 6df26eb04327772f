"""The plans of one graph by budget, each found once, within a limit of seconds."""

import functools
import math
import time

from ..errors import InfeasibleBudget, SolverStopped
from ..graph import Graph
from ..plan import Plan
from .planner import PreparedPlanner, RegionPlanner
from .simple_plans import save_all
from .uniform import with_uniform_iterations

#: Time limits of the planner that the search for one budget may use up in all.
SOLVES = 4
#: The same where values may move to the host's memory: there are some four times the candidates,
#: and four solves were over before a bisection's second step.
MOVING_SOLVES = 12


class SolvedBudgets:
    """The planner's plans for one graph, by model budget.

    Arguments:
        planner: of regions.
        graph: to plan.
        prepared: the planner of this graph, where there is one already.

    Attributes:
        prepared: the planner of this graph.
        floor: model budgets below it are known to be infeasible.
        stopped: why the planner had no plan for some budget since `restart`, if so.
    """

    def __init__(
        self, planner: RegionPlanner, graph: Graph, prepared: PreparedPlanner | None = None
    ):
        self._planner, self._graph = planner, graph
        self._limit_seconds = (SOLVES if graph.link is None else MOVING_SOLVES) * planner.time_limit
        self._most_seconds = self._limit_seconds
        self._seconds = 0.0  # in the planner since `restart`
        self._known: dict[int, Plan | None] = {}
        self.floor = 0
        self.stopped: SolverStopped | None = None
        if prepared is not None:
            self.prepared = prepared

    @functools.cached_property
    def prepared(self) -> PreparedPlanner:
        """The planner of this graph."""
        return self._planner.prepare(self._graph)

    @functools.cached_property
    def of_single_stages(self) -> "SolvedBudgets | None":
        """The plans whose regions are single stages; None where the planner has no such space."""
        prepared = self.prepared.of_single_stages
        if prepared is None:
            return None
        found = SolvedBudgets(self._planner, self._graph, prepared)
        found.of_single_stages = found
        return found

    def of_graph(self, graph: Graph) -> "SolvedBudgets":
        """The same planner's plans for another graph: of single stages where these are."""
        found = SolvedBudgets(self._planner, graph)
        is_of_singles = vars(self).get("of_single_stages") is self
        return (found.of_single_stages or found) if is_of_singles else found

    @functools.cached_property
    def free_seconds(self) -> float:
        """Seconds of the fastest plan, whatever memory it takes."""
        graph = self._graph
        if not any(value.saving_seconds for value in graph.values):  # nothing is recomputed
            return graph.seconds
        enough = 2 * sum(value.waiting_bytes for value in graph.values)
        found = (self.of_single_stages or self).fastest(enough)
        return min(save_all(graph).seconds, found.seconds if found else math.inf)

    def restart(self, most_seconds: float) -> None:
        """Count the planner's seconds from here, and forget that it was stopped."""
        self._seconds, self.stopped = 0.0, None
        self._most_seconds = min(self._limit_seconds, most_seconds)
        singles = vars(self).get("of_single_stages")
        if singles is not None and singles is not self:
            singles.restart(most_seconds)

    def has_used(self, share: float) -> bool:
        """Whether the planner has used up a share of its seconds since `restart`."""
        return self._seconds > share * self._most_seconds

    def smallest(self, otherwise: Plan) -> Plan:
        """The planner's smallest plan; another one where the planner is stopped."""
        try:
            return self.prepared.smallest()
        except SolverStopped as error:
            self.stopped = error
            return otherwise

    def fastest(self, budget: int) -> Plan | None:
        """The planner's plan for a model budget; None where it has none.

        The plan for a larger budget is the plan for this one, too, where it fits. An infeasible
        budget raises the floor; a planner that was stopped does not.
        """
        for larger, plan in self._known.items():
            if plan is not None and plan.peak_bytes <= budget <= larger:
                return plan
        if budget not in self._known:
            started = time.perf_counter()
            try:
                found = self.prepared.fastest(budget)
                self._known[budget] = with_uniform_iterations(self._graph, found)
            except InfeasibleBudget as error:
                self._known[budget] = None
                self.floor = max(self.floor, error.minimum_bytes, budget + 1)
            except SolverStopped as error:
                self.stopped = error
                self._known[budget] = None
            self._seconds += time.perf_counter() - started
        return self._known[budget]

    def bound_seconds(self, budget: int) -> float:
        """The best lower bound at hand on the seconds of all plans within a model budget."""
        known = (x.bound_seconds for larger, x in self._known.items() if x and larger >= budget)
        return max(self._graph.seconds, self.prepared.bound_seconds(budget), *known)
