"""The two extremes of rematerialization: save everything, or nothing.

Every other planner is to be as fast as `SaveAll` where the budget allows it. `SaveNothing` is what
`jax.checkpoint` around the whole forward pass does; it is no planner of least memory, because
recomputed values stay in memory until the backward pass has read them.
"""

import dataclasses

from ..graph import Graph
from .orders import fastest_within, order_keeping
from .planner import SchedulePlanner
from .steps import Schedule


@dataclasses.dataclass(frozen=True)
class SaveAll(SchedulePlanner):
    """The planner that recomputes nothing: each value is freed after its last read."""

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: the step takes more without recomputation; `minimum_bytes` is what.
        """
        return fastest_within(graph, [range(len(graph.ops))], budget_bytes, planner="SaveAll")


@dataclasses.dataclass(frozen=True)
class SaveNothing(SchedulePlanner):
    """The planner that keeps nothing of the forward pass but what must run once.

    What the backward pass needs runs again once, just before the first op that needs it.
    """

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: the step takes more; `minimum_bytes` is what.
        """
        order = order_keeping(graph, frozenset())
        return fastest_within(graph, [order], budget_bytes, planner="SaveNothing")
