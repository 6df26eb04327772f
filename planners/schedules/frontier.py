"""Plans for one budget after another, such that more bytes never take longer.

A planner that stops at a time limit may be lucky at a small budget and not at a larger one, though
a schedule that fits the one fits the other.
"""

import dataclasses
from collections.abc import Callable

from ..errors import PlanningError
from ..graph import Graph
from .gap import Gap
from .steps import Schedule


class Frontier:
    """A planner for one graph that knows what it found before.

    A schedule is never slower than an earlier one that fits; for budgets from small to large,
    seconds never rise. `Gap` also begins its search there.

    Arguments:
        planner: plans for every budget.
    """

    def __init__(self, planner: Callable[[Graph, int], Schedule]):
        self.planner = planner
        self._known: list[Schedule] = []

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            PlanningError: the planner's, where nothing known fits.
        """
        fitting = [schedule for schedule in self._known if schedule.peak_bytes <= budget_bytes]
        start = min(fitting, key=lambda x: (x.seconds, x.peak_bytes), default=None)
        try:
            found = self._plan(graph, budget_bytes, start)
        except PlanningError:
            if start is None:
                raise
            # A bound for less memory does not hold for more.
            return dataclasses.replace(start, bound_seconds=graph.least_seconds)
        self._known.append(found)
        if start is None or found.seconds <= start.seconds:
            return found
        return dataclasses.replace(start, bound_seconds=min(found.bound_seconds, start.seconds))

    def _plan(self, graph: Graph, budget_bytes: int, start: Schedule | None) -> Schedule:
        if isinstance(self.planner, Gap):
            return self.planner(graph, budget_bytes, start=start)
        return self.planner(graph, budget_bytes)
