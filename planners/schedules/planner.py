"""The interface of planners of schedules, which decide op by op."""

import abc

from ..graph import Graph
from .steps import Schedule


class SchedulePlanner(abc.ABC):
    """A planner whose schedules need not be regions of stages: mostly one of a paper."""

    @abc.abstractmethod
    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """The planner's schedule within a budget.

        Raises:
            InfeasibleBudget: the planner finds none; says how many bytes it needs.
            SolverStopped: there was no time for a schedule or a proof that there is none.
        """
