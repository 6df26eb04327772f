"""Checkmate's approximation: its linear relaxation, rounded in two phases.

Jain et al., MLSys 2020, section 5. Checkmate's program (`checkmate`) is solved with variables from
0 to 1 and a little less than the budget, and only what is kept, S, is rounded, by a threshold. The
fewest runs R with which that can be kept follow in closed form (Algorithm 2): what is kept into a
stage and not into the one before runs in that one, and what a run reads that is not kept runs in
the same stage. As in the authors' code, a sweep tries several thresholds; here also several shares
epsilon of the budget to hold back. Replay says which schedule is the fastest within the budget.

Two schedules need no program: all kept is the threshold 0, nothing kept one above 1. What must run
once is kept for as long as anything reads it, whatever S says; what S keeps for nothing is freed.

`bound_seconds` is the relaxation's for the whole budget, where epsilon 0 was solved: no schedule of
Checkmate's space takes less. Else it is the step's own.

Known limit: the program grows with the square of the ops, as Checkmate's.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InfeasibleBudget, SolverStopped
from ..graph import Graph
from ..schedules.orders import fastest_within, schedule_of
from ..schedules.planner import SchedulePlanner
from ..schedules.steps import Schedule
from ..solver.deadline import Deadline

if TYPE_CHECKING:
    from .checkmate import CheckmateProgram

_NAME = "CheckmateRounding"


@dataclasses.dataclass(frozen=True)
class CheckmateRounding(SchedulePlanner):
    """The planner.

    Attributes:
        epsilons: shares of the budget to hold back, each a linear program. The paper's is 0.1.
        thresholds: what is kept to more than this share is kept.
        time_limit: in seconds, for all linear programs of a budget together, writing them included;
            not importing CVXPY, which takes some more once.
    """

    epsilons: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)
    thresholds: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    time_limit: float = 60.0

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no rounding fits. `minimum_bytes` is the least peak of those for this
                budget, if the planner keeps that as a budget; else of all or nothing kept.
            SolverStopped: `time_limit` passed before a program was solved, or before all were and
                nothing fits, or HiGHS failed.
        """
        deadline = Deadline.after(self.time_limit)
        everything = _order_of_all(graph, True)
        if (schedule := schedule_of(graph, everything, planner=_NAME)).peak_bytes <= budget_bytes:
            return schedule
        rounded = self._rounded(graph, budget_bytes, deadline)
        if not rounded.orders and not rounded.is_complete:
            raise self._stopped(budget_bytes)
        nothing = _order_of_all(graph, False)  # hundreds of thousands of runs of a thousand ops
        orders = [everything, nothing, *rounded.orders]
        bound = rounded.bound_seconds
        try:
            return fastest_within(graph, orders, budget_bytes, planner=_NAME, bound_seconds=bound)
        except InfeasibleBudget as error:
            if not rounded.is_complete:
                raise self._stopped(budget_bytes) from error
            if self._keeps(graph, error.minimum_bytes, deadline):
                raise
        return fastest_within(graph, [everything, nothing], budget_bytes, planner=_NAME)

    def _stopped(self, budget_bytes: int) -> SolverStopped:
        return SolverStopped(
            f"No rounding found in {self.time_limit:g} s fits in {budget_bytes:,} bytes. "
            "Raise `time_limit` or the budget, or use a planner for large graphs."
        )

    def _keeps(self, graph: Graph, budget_bytes: int, deadline: Deadline) -> bool:
        """Whether some rounding for a budget keeps it."""
        extremes = (_order_of_all(graph, kept) for kept in (True, False))
        orders = (*extremes, *self._rounded(graph, budget_bytes, deadline).orders)
        peaks = (schedule_of(graph, order, planner=_NAME).peak_bytes for order in orders)
        return min(peaks) <= budget_bytes

    def _rounded(self, graph: Graph, budget_bytes: int, deadline: Deadline) -> "_Rounded":
        """The relaxation for each epsilon, rounded at each threshold."""
        # Importing CVXPY takes seconds, and other planners need none of it.
        from ..solver.highs import solve
        from .checkmate import CheckmateProgram

        orders, bound, is_complete = [], 0.0, True
        for epsilon in self.epsilons:
            kept_bytes = int((1 - epsilon) * budget_bytes)
            try:
                program = CheckmateProgram(
                    graph, kept_bytes, boolean=False, deadline=deadline.to_write()
                )
            except SolverStopped:
                return _Rounded(tuple(orders), bound, is_complete=False)
            outcome = solve(program.problem, time_limit=deadline.left, absolute_gap=0.0)
            is_complete &= outcome.found or outcome.infeasible
            if outcome.found:
                kept = _kept(program)
                orders += [_order(graph, kept > threshold) for threshold in self.thresholds]
                bound = outcome.bound * program.unit if epsilon == 0.0 else bound
        return _Rounded(tuple(orders), bound, is_complete)


@dataclasses.dataclass(frozen=True, slots=True)
class _Rounded:
    """What the relaxations of one budget say.

    Attributes:
        orders: of ops; whether they keep the budget is for replay to say.
        bound_seconds: no schedule of Checkmate's space within the budget takes less.
        is_complete: whether each program was solved, or proven infeasible, in time.
    """

    orders: tuple[list[int], ...]
    bound_seconds: float
    is_complete: bool


def _kept(program: "CheckmateProgram") -> np.ndarray:
    """`kept[t, i]`: the share to which the outputs of op `i` are kept into stage `t`."""
    found = np.zeros((program.n, program.n))
    x: Any = program.x.value
    for (t, i), column in program.keep.items():
        found[t, i] = x[column]
    return found


def _order_of_all(graph: Graph, kept: bool) -> list[int]:
    """The order where all is kept, or where nothing is."""
    return _order(graph, np.full((len(graph.ops),) * 2, kept))


def _order(graph: Graph, kept: np.ndarray) -> list[int]:
    """The ops of Algorithm 2's closed form, stage by stage, for `kept[t, i]` true or false."""
    count, writer = len(graph.ops), graph.forward_writer_number
    kept = kept.copy()
    kept[:, [o for o in range(count) if not graph.may_rerun(o)]] = True
    runs = np.eye(count, dtype=bool)
    # What is kept into a stage and not into the one before ran in that one.
    runs[:-1] |= np.tril(kept[1:] & ~kept[:-1])
    order: list[int] = []
    for t in range(count):
        stage = runs[t].tolist()
        for k in range(t, -1, -1):
            for i in graph.ops[k].inputs if stage[k] else ():
                # Gradients have no writer here: their ops run once.
                if i in writer and not kept[t, writer[i]]:
                    stage[writer[i]] = True
        order += (k for k in range(t + 1) if stage[k])
    return order
