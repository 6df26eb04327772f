"""The interface of planners of regions, and what makes a planner of a function.

A planner is prepared for one graph, and then asked for several budgets: what does not depend on the
budget is done once (as lineax's solvers, by `init` and `compute`).
"""

import abc
from collections.abc import Callable, Iterator, Sequence

from ..errors import PlanningError
from ..graph import Graph
from ..plan import Plan
from ..replay import replay
from .effects.candidate import Candidate
from .simple_plans import save_nothing


class PreparedPlanner(abc.ABC):
    """A planner of regions, prepared for one graph."""

    @abc.abstractmethod
    def fastest(self, budget_bytes: int) -> Plan:
        """The fastest plan of the planner's space.

        Arguments:
            budget_bytes: bounds the `peak_bytes` of the plan's replay.

        Raises:
            InfeasibleBudget: no plan of the space fits; says how many bytes do.
            SolverStopped: there was no time for a plan or a proof that there is none.
        """

    @abc.abstractmethod
    def smallest(self) -> Plan:
        """The plan of the space with the least peak.

        Raises:
            SolverStopped: there was no time for it.
        """

    def bound_seconds(self, budget_bytes: int) -> float:
        """No plan of the space within the budget takes less; found sooner than the fastest plan."""
        return 0.0

    @property
    def singles(self) -> Sequence[Sequence[Candidate]] | None:
        """For each stage the regions that it may be by itself; None where that is not known."""
        return None

    @property
    def of_single_stages(self) -> "PreparedPlanner | None":
        """The same planner, for plans whose regions are single stages; None where it has none."""
        return None


class RegionPlanner(abc.ABC):
    """A planner whose plans are regions of stages, which `monet_jax.remat` can emit.

    Attributes:
        time_limit: seconds for each plan.
    """

    time_limit: float = 10.0

    @abc.abstractmethod
    def prepare(self, graph: Graph) -> PreparedPlanner:
        """The planner of one graph, for several budgets."""

    def warm_up(self) -> None:
        """Begin, in a thread, what takes seconds and depends on no graph, such as an import."""
        return

    def steps_ahead(self, graph: Graph) -> Iterator[None]:
        """Find out, in steps of a second or so, what plans of a graph like this one will need."""
        return iter(())

    def __call__(self, graph: Graph, budget_bytes: int) -> Plan:
        """The fastest plan of one graph for one budget; see `PreparedPlanner.fastest`."""
        return self.prepare(graph).fastest(budget_bytes)


class BadPlanner(PlanningError, TypeError):
    """A user's planner does not return a plan."""

    __module__ = "planners"


class FunctionPlanner(RegionPlanner):
    """A function `(Graph, budget in bytes) -> Plan` as a planner; its plans are replayed.

    Raises:
        BadPlanner: it returns something else.
        InvalidPlan: its plan is none of the graph.
    """

    def __init__(self, function: Callable[[Graph, int], Plan], time_limit: float = 10.0):
        self.function, self.time_limit = function, time_limit

    def prepare(self, graph: Graph) -> PreparedPlanner:
        """The function of one graph."""
        return _PreparedFunction(self.function, graph)


class _PreparedFunction(PreparedPlanner):
    def __init__(self, function: Callable[[Graph, int], Plan], graph: Graph):
        self._function, self._graph = function, graph

    def fastest(self, budget_bytes: int) -> Plan:
        plan = self._function(self._graph, budget_bytes)
        if not isinstance(plan, Plan):
            raise BadPlanner(f"`planner` must return a `planners.Plan`; got {plan!r}.")
        replay(self._graph, plan)
        return plan

    def smallest(self) -> Plan:
        return save_nothing(self._graph)
