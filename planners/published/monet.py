"""MONeT's planner (Shah et al., ICLR 2021), for reference.

Time is cut into rounds. Round 0 is the forward pass. Round `k` runs some forward ops again, each
at most once and in order, and then the `k`-th backward op. What waits in memory from round to
round, what runs again, and in which implementation every op runs: one program decides it all
(`monet_program`).

The space is part of `Gap`'s on the full grid, which counts what is in memory exactly. Only here, a
backward op may also write over a gradient.

Beside the published program, an op may write several values, and gradients of parameters are values
like others. A convolution's algorithm, writing over an input, and a batch norm whose statistics are
known are implementations of an op. What is local and also read by the backward op counts once. The
rows on memory between two runs are left out, since they follow from those on the runs, and so are
variables for what is still there (P) after something was written over it.

Known limit: there are as many rows on memory as forward ops times backward ops, each with most of
a round's variables. Some hundred ops are practical.
"""

import dataclasses

from ..errors import SolverStopped
from ..graph import Graph
from ..schedules.planner import SchedulePlanner
from ..schedules.steps import Schedule, certified_steps, with_frees
from ..solver.deadline import Deadline
from ..solver.highs import require_found, solve
from .monet_program import MonetProgram

#: The share of the budget that is left free where HiGHS, which allows itself a millionth of a row,
#: has found a schedule of a few bytes too many.
_MARGIN = 1e-5


@dataclasses.dataclass(frozen=True)
class Monet(SchedulePlanner):
    """The planner: the fastest schedule of its space within a budget.

    Attributes:
        time_limit: in seconds.
        gap: stop within this share of the step's seconds of the proven bound.
    """

    time_limit: float = 60.0
    gap: float = 1e-4

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no schedule of the space fits, or none that HiGHS can tell from one
                that does not; `minimum_bytes` is the least that any schedule needs, for the op that
                takes most by itself.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        deadline = Deadline.after(self.time_limit)
        bound = float("inf")
        for margin in (0.0, _MARGIN):
            program = MonetProgram(graph, (1 - margin) * budget_bytes, deadline.to_write())
            outcome = solve(program.problem, time_limit=deadline.left, absolute_gap=self.gap)
            require_found(
                outcome,
                budget_bytes,
                whose="MONeT's",
                least_bytes=_largest_op(graph),
                time_limit=self.time_limit,
            )
            bound = min(bound, program.unit * outcome.bound)  # the whole budget's is less
            steps = with_frees(graph, program.order())
            schedule = certified_steps(graph, steps, bound_seconds=bound, planner="Monet")
            if schedule.peak_bytes <= budget_bytes:
                return schedule
        raise SolverStopped(f"HiGHS failed: its schedules take more than {budget_bytes:,} bytes.")


def _largest_op(graph: Graph) -> int:
    """Bytes in memory while one op runs, at least, in any implementation."""
    least = (
        min(
            sum(graph.values[i].nbytes for i in {*x.inputs, *op.outputs}) + x.workspace_bytes
            for x in op.implementations
        )
        for op in graph.ops
        if not op.optional
    )
    return max(least, default=0)
