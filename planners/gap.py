"""Retention and recomputation op by op, on a grid of backward events: one integer program.

A forward value is read at a few places of the backward pass; in each gap between two of them it is
either held in memory or computed again. Checkmate asks that of every value before every op; here,
the backward ops are grouped into *events*, and only before an event may forward ops run again. That
is a row of memory for each event, and a short one for each op that may run again before it, where
MONeT's and Checkmate's programs have one for each pair of ops.

Known limits: nothing runs again during the forward pass, and `bound_seconds` is about this space.
"""

import dataclasses
import itertools as it

from ._highs import solve
from .errors import InfeasibleBudget, SolverStopped
from .gap_program import GapProgram
from .graph import Graph
from .steps import Schedule, certified_steps, with_frees


@dataclasses.dataclass(frozen=True)
class Gap:
    """The planner: the fastest schedule of its space within a budget.

    Attributes:
        events: groups of backward ops, at most; None makes each op an event of its own.
        time_limit: in seconds.
        gap: stop within this share of the step's seconds of the proven bound.
    """

    events: int | None = None
    time_limit: float = 60.0
    gap: float = 1e-4

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no schedule of the space fits.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        program = GapProgram(graph, _groups(graph, self.events), budget_bytes)
        if program.is_hopeless:
            raise self._infeasible(budget_bytes)
        bound = program.constant + program.unit * self._solved(program, budget_bytes)
        steps = with_frees(graph, program.order())
        return certified_steps(graph, steps, bound_seconds=bound, planner="Gap")

    def _solved(self, program: GapProgram, budget_bytes: int) -> float:
        """Solves the program; the bound on its objective."""
        if not program.width:  # the backward pass reads nothing of the forward
            return 0.0
        outcome = solve(program.problem, time_limit=self.time_limit, absolute_gap=self.gap)
        if outcome.infeasible:
            raise self._infeasible(budget_bytes)
        if not outcome.found:
            raise SolverStopped(
                f"HiGHS found no schedule within {budget_bytes:,} bytes in {self.time_limit:g} s. "
                "Raise `time_limit` or the budget, or take fewer `events`."
            )
        return outcome.bound

    def _infeasible(self, budget_bytes: int) -> InfeasibleBudget:
        message = f"No schedule with {self.events or 'all'} events fits in {budget_bytes:,} bytes."
        return InfeasibleBudget(message, minimum_bytes=budget_bytes + 1)


def _groups(graph: Graph, events: int | None) -> list[range]:
    """Positions in `Graph.ops` of the backward ops of each event."""
    first, count = graph.forward_count, len(graph.ops) - graph.forward_count
    number = min(events or count, count)
    ends = [first + round(count * n / number) for n in range(number + 1)] if number else []
    return [range(a, b) for a, b in it.pairwise(ends) if b > a]
