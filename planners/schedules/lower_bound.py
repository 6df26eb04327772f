"""A lower bound on the seconds of any schedule within a budget, by an integer program.

The relaxation looks at the memory only while some of the backward ops run, the *samples*, and
demands of a schedule no more than follows from them. Let a schedule run the backward ops in the
graph's order, each once, and forward ops whenever and as often as it likes. Between one sample and
the next some forward ops run; count each of them once, in its fastest implementation. Then

- what a sample reads is in memory while it runs, beside the gradients that later ops read;
- what is in memory during a sample was so during the one before, or has been written since;
- what an op has read that has run since the last sample was in memory then, or has been written
  since, and so it is for what backward ops between the samples read.

Every schedule satisfies these rows, whatever it keeps, recomputes or frees in between, and takes no
less than the runs counted; hence no schedule takes less than the least of the program, nor than
HiGHS has proven of it when it stops. Before the first sample, nothing is counted but each op's
first run. Fewer samples give a smaller program and a weaker bound.

The variables are in `bound.space`, the rows in `bound.rows`.
"""

import cvxpy as cp
import numpy as np

from ..graph import Graph
from ..solver.deadline import NEVER, Deadline
from ..solver.highs import solve
from .bound import rows
from .bound.space import BoundSpace


def lower_bound(
    graph: Graph, budget_bytes: int, *, samples: int | None = None, time_limit: float = 60.0
) -> float:
    """Seconds that every schedule takes which fits the budget; infinite where none does.

    Arguments:
        samples: backward ops at which memory is looked at, at most; None for all.
        time_limit: in seconds.

    Raises:
        SolverStopped: the time was too short to write the program, or HiGHS failed for another
            reason.
    """
    deadline = Deadline.after(time_limit)
    program = BoundProgram(graph, _samples(graph, samples), budget_bytes, deadline.to_write())
    if program.is_hopeless:
        return float("inf")
    if not program.space.columns.width:
        return graph.least_seconds
    outcome = solve(program.problem, time_limit=deadline.left, absolute_gap=1e-6)
    found = program.constant + program.unit * outcome.bound
    return max(graph.least_seconds, float(found))


def _samples(graph: Graph, number: int | None) -> list[int]:
    """Backward ops, evenly spread."""
    first, count = graph.forward_count, len(graph.ops) - graph.forward_count
    number = min(number or count, count)
    return sorted({first + round((n + 0.5) * count / number - 0.5) for n in range(number)})


class BoundProgram:
    """The program; one vector `x` holds all variables.

    Arguments:
        graph, samples, budget_bytes: as in `BoundSpace`.
        deadline: until when it may be written.

    Raises:
        SolverStopped: the deadline has passed.
    """

    def __init__(
        self,
        graph: Graph,
        samples: list[int],
        budget_bytes: int,
        deadline: Deadline = NEVER,
    ):
        self.space = space = BoundSpace(graph, samples, budget_bytes, deadline)
        self.unit = graph.seconds or 1.0  # seconds enter as shares of the step's
        ops = enumerate(graph.ops)
        self.constant = sum(op.least_seconds for o, op in ops if not space.is_chosen(o))
        memory = rows.memory(space)
        self.is_hopeless = rows.is_hopeless(memory)
        x = cp.Variable(space.columns.width, boolean=True)
        constraints = [*rows.constraints(space, x), *rows.within(x, memory)]
        self.problem = cp.Problem(cp.Minimize(self._cost() @ x), constraints)

    def _cost(self) -> np.ndarray:
        """Seconds of every variable."""
        graph, columns = self.space.graph, self.space.columns
        cost = np.zeros(columns.width)
        for (o, w), column in columns.implementation.items():
            cost[column] = graph.implementations[o][w].seconds / self.unit
        for (o, _), column in columns.run.items():
            cost[column] = min(x.seconds for x in graph.implementations[o]) / self.unit
        return cost
