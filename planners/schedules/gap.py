"""Retention and recomputation op by op: integer programs on grids of backward events.

A forward value is read at a few places of the backward pass; in each gap between two of them it is
either held in memory or computed again. Checkmate decides that for every value before every op;
here, the backward ops are grouped into *events*, and only before an event may forward ops run
again. This takes a row of memory for each backward op, and a short one for each op that may run
again before an event, where MONeT's and Checkmate's programs have one for each pair of ops.

A coarse grid whose recomputation does not reach far is solved in seconds and is already within a
percent or two of the best; its schedule is where the search on the next, finer grid starts
(`grids.search`). The space of each grid, its variables and its constraints are in `grids.space`. A
local search over sequences gives a first schedule at once, which near the smallest possible budgets
may stay the best one, and improves the last; it knows only the first implementation of each op. A
sixth of the time then goes to a lower bound on the seconds of *any* schedule that first runs the
graph's ops in their order (`lower_bound`), on the grids or not.

Known limit: nothing runs again during the forward pass, but where the local search finds that.
"""

import contextlib
import dataclasses

from ..errors import SolverStopped
from ..graph import Graph
from ..solver.deadline import Deadline
from .grids.grid import Grid as Grid
from .grids.grid import grids_for
from .grids.search import search_grids
from .grids.solves import search_sequences
from .grids.state import BOUND_SHARE, LATE_SHARE, State
from .lower_bound import lower_bound
from .planner import SchedulePlanner
from .sequence import improved
from .steps import Schedule, certified_steps

#: Seconds of the search over sequences before the grids; a share of the time limit where that is
#: less.
_EARLY_SECONDS, _EARLY_SHARE = 0.6, 0.4
#: Variables of the lower bound's program, about: more would leave too little time to branch. And
#: at most, where there is time: HiGHS may overrun its limit in a larger one.
_BOUND_VARIABLES, _MOST_VARIABLES = 12_000, 50_000


@dataclasses.dataclass(frozen=True)
class Gap(SchedulePlanner):
    """The planner: the fastest schedule that its grids show within a budget.

    Attributes:
        grids: in the order in which they are searched, each from the best schedule so far and all
            for as long. None chooses them by the number of ops, searches over sequences as well,
            and stops where it no longer pays; `(Grid(),)` is the whole space.
        time_limit: in seconds; most searches take less.
        gap: a grid is done within this share of the step's seconds of its own bound; one with less
            than half of all events, within more in proportion.
    """

    grids: tuple[Grid, ...] | None = None
    time_limit: float = 60.0
    gap: float = 5e-5

    def __call__(
        self, graph: Graph, budget_bytes: int, *, start: Schedule | None = None
    ) -> Schedule:
        """Plans a step.

        `bound_seconds` is what `lower_bound` proves.

        Arguments:
            start: a schedule that fits, if one is known: the result is never slower.

        Raises:
            InfeasibleBudget: no schedule of the last grid's space fits. `minimum_bytes` is the
                least peak that was found there, by replay.
            InvalidPlan: `start` is no schedule of the graph.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        grids = grids_for(graph) if self.grids is None else self.grids
        deadline = Deadline.after(self.time_limit)
        is_automatic = self.grids is None
        state = State(graph, budget_bytes, self.time_limit, self.gap, is_automatic, deadline)
        if start is not None:
            state.keep(certified_steps(graph, start.steps, bound_seconds=0.0, planner="Gap"))
        if is_automatic:
            search_sequences(state, _early_seconds(state, bool(grids)))
        if grids and not state.is_best:
            search_grids(state, grids)
        if state.best is None:
            raise SolverStopped(
                f"Found no schedule within {budget_bytes:,} bytes in {self.time_limit:g} s. "
                "Raise `time_limit` or the budget."
            )
        return _bounded(state, _improved(state, state.best))


def _early_seconds(state: State, has_grids: bool) -> float:
    """Seconds of the search over sequences before the grids."""
    if not has_grids:  # no backward pass, hence no events, and nothing but this search
        return state.time_limit
    return min(_EARLY_SECONDS, _EARLY_SHARE * state.time_limit)


def _improved(state: State, best: Schedule) -> Schedule:
    """A schedule made faster where a search over sequences finds how."""
    seconds = min(LATE_SHARE * state.spent, state.deadline.left)
    if not state.is_automatic or state.is_best or seconds <= 0:
        return best
    return improved(state.graph, best, state.budget_bytes, time_limit=seconds)


def _bounded(state: State, best: Schedule) -> Schedule:
    """A schedule with a proven bound, as far as there is time for one."""
    graph, bound = state.graph, state.graph.least_seconds
    seconds = min(max(BOUND_SHARE * state.spent, state.least_seconds), state.deadline.left)
    deadline = Deadline.after(seconds)
    forward = max(1, graph.forward_count)
    samples = max(4, _BOUND_VARIABLES // (2 * forward))
    most = min(len(graph.ops) - forward, _MOST_VARIABLES // (2 * forward))
    # A bound that is proven before its time is over leaves time for a stronger one.
    while best.seconds > bound and deadline.left > seconds / 4:
        with contextlib.suppress(SolverStopped):  # there is a weaker one
            left = deadline.left
            found = lower_bound(graph, state.budget_bytes, samples=samples, time_limit=left)
            bound = max(bound, found)
        if samples >= most:
            break
        samples *= 2
    return dataclasses.replace(best, bound_seconds=min(bound, best.seconds))
