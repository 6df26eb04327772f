"""Errors of planning, as classes that a caller may branch on."""


class PlanningError(Exception):
    """Base of every error that a planner raises."""

    __module__ = "planners"


class InfeasibleBudget(PlanningError):
    """No plan of the planner's space fits the budget.

    Attributes:
        minimum_bytes: the smallest budget for which the planner found a plan.
        peak_values: names of the values live at the peak of that plan, largest first.
    """

    __module__ = "planners"

    def __init__(self, message: str, *, minimum_bytes: int, peak_values: tuple[str, ...] = ()):
        super().__init__(message)
        self.minimum_bytes = minimum_bytes
        self.peak_values = peak_values

    def __reduce__(self):
        return _rebuild_infeasible, (str(self), self.minimum_bytes, self.peak_values)


class SolverStopped(PlanningError):
    """The solver stopped without a result: a time limit or a numerical failure."""

    __module__ = "planners"


class InvalidPlan(PlanningError):
    """A plan does not fit its graph, or replays above its budget."""

    __module__ = "planners"


def _rebuild_infeasible(message: str, minimum_bytes: int, peak_values: tuple[str, ...]):
    return InfeasibleBudget(message, minimum_bytes=minimum_bytes, peak_values=peak_values)
