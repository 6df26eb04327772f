"""The state of a search over grids: the schedules known, and the time spent."""

import dataclasses
from collections.abc import Iterable

from ...graph import Graph
from ...solver.deadline import Deadline
from ..steps import Execute, Schedule, certified_steps, with_frees

#: Seconds of a grid, and of the bound, at least: a share of the time limit.
_LEAST_SHARE = 0.04
#: Shares of the time that the grids took: of the local search on their schedule, and of the bound.
LATE_SHARE, BOUND_SHARE = 0.1, 0.2


@dataclasses.dataclass
class State:
    """One graph and budget.

    Attributes:
        graph, budget_bytes: the step, and the limit on its peak.
        time_limit: of the whole search, in seconds.
        gap: see `Gap`.
        is_automatic: whether the search chooses its grids itself.
        deadline: when `time_limit` is over.
        best: the fastest schedule known within the budget.
        shown: the schedule where the next grid starts.
    """

    graph: Graph
    budget_bytes: int
    time_limit: float
    gap: float
    is_automatic: bool
    deadline: Deadline
    best: Schedule | None = None
    shown: Schedule | None = None

    @property
    def is_best(self) -> bool:
        """Whether no schedule is faster than the best one known."""
        return self.best is not None and self.best.seconds <= self.graph.least_seconds

    @property
    def spent(self) -> float:
        """Seconds since the search began."""
        return self.time_limit - self.deadline.left

    @property
    def rest(self) -> float:
        """Seconds that are left for grids."""
        return self.time_limit / (1 + LATE_SHARE + BOUND_SHARE) - self.spent

    @property
    def least_seconds(self) -> float:
        """Seconds that a grid has at least, and the bound."""
        return _LEAST_SHARE * self.time_limit

    def keep(self, schedule: Schedule) -> bool:
        """Whether a schedule fits; if so, the next grid starts there, and it is the best one unless
        there is a better.
        """
        if schedule.peak_bytes > self.budget_bytes:
            return False
        self.shown = schedule
        if self.best is None or schedule.seconds < self.best.seconds:
            self.best = schedule
        return True

    def scheduled(self, order: Iterable[Execute]) -> Schedule:
        """The schedule that runs ops in an order."""
        steps = with_frees(self.graph, order)
        return certified_steps(self.graph, steps, bound_seconds=0.0, planner="Gap")
