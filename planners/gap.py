"""Retention and recomputation op by op: integer programs on grids of backward events, from coarse
to fine.

A forward value is read at a few places of the backward pass; in each gap between two of them it is
either held in memory or computed again. Checkmate asks that of every value before every op; here,
the backward ops are grouped into *events*, and only before an event may forward ops run again. That
is a row of memory for each backward op, and a short one for each op that may run again before an
event, where MONeT's and Checkmate's programs have one for each pair of ops.

A coarse grid whose recomputation does not reach far is solved in seconds and is already within a
percent or two of the best; its schedule is where the search on the next, finer grid starts. The
space of each grid, its variables and its constraints are in `gap_program`. Where ops run in one way
only, a local search over sequences gives an early answer, which near the smallest possible budgets
may stay the best one, and polishes the last.

What is left of the time goes to a lower bound on the seconds of *any* schedule that first runs the
graph's ops in their order (`lower_bound`), not only of those of the grids.

Known limit: nothing runs again during the forward pass.
"""

import contextlib
import dataclasses
import itertools as it
import time

from ._highs import Outcome, solve
from .errors import InfeasibleBudget, SolverStopped
from .gap_program import GapProgram
from .graph import Graph
from .lower_bound import lower_bound
from .sequence import Sequence, improved
from .steps import Execute, Schedule, certified_steps, infeasible, runs_of, with_frees

#: How many ops before what an event reads may run again.
_REACH = 14
#: Graphs with fewer backward ops are planned on the full grid at once.
_SMALL = 24
#: How often a grid is solved again whose schedule takes a few bytes too many.
_ATTEMPTS = 3
#: Shares of the time limit: of the search over sequences before the grids and after them, and of
#: the lower bound. The grids have the rest.
_EARLY_SHARE, _LATE_SHARE, _BOUND_SHARE = 0.15, 0.1, 0.25
#: Variables of the lower bound's program, about: more would leave too little time to branch.
_BOUND_VARIABLES = 9_000


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """A space of schedules.

    Attributes:
        events: groups of backward ops, at most; None makes each op an event of its own.
        reach: how many ops before the one that wrote what an event reads may run again before it;
            None for all, and also for those that later events read.
    """

    events: int | None = None
    reach: int | None = None


@dataclasses.dataclass(frozen=True)
class Gap:
    """The planner: the fastest schedule that its grids show within a budget.

    Attributes:
        grids: in the order in which they are searched, each from the best schedule so far. None
            chooses them by the number of ops; `(Grid(),)` is the whole space.
        time_limit: in seconds. A quarter is for the bound, and where ops run in one way, a quarter
            for searching over sequences. Building a program is not interrupted.
        gap: a grid is done within this share of the step's seconds of its own bound.
    """

    grids: tuple[Grid, ...] | None = None
    time_limit: float = 60.0
    gap: float = 1e-4

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        `bound_seconds` is what `lower_bound` proves.

        Raises:
            InfeasibleBudget: no schedule of the last grid's space fits. `minimum_bytes` is the
                least peak that was found there, by replay.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        grids = _grids(graph) if self.grids is None else self.grids
        return _Search(self, graph, budget_bytes).run(list(grids))


def _grids(graph: Graph) -> tuple[Grid, ...]:
    """From a sixteenth of the backward ops to all of them, each grid with all events of the last.

    Recomputation that reaches further hardly ever pays, and makes programs that take long to solve.
    """
    backward = len(graph.ops) - graph.forward_count
    if backward <= _SMALL:
        return (Grid(),)
    coarsest = max(_SMALL // 4, backward // 16)
    events = [coarsest * 2**k for k in range(10) if coarsest * 2**k < backward]
    return tuple(Grid(n, _REACH) for n in (*events, backward))


class _Search:
    """One graph and budget."""

    def __init__(self, planner: Gap, graph: Graph, budget_bytes: int):
        self.planner, self.graph, self.budget_bytes = planner, graph, budget_bytes
        self.deadline = time.monotonic() + planner.time_limit
        self.best: Schedule | None = None
        self.order: list[Execute] = []  # the runs of the last schedule of a grid, if any
        self.building = 0.0  # seconds that the last program took

    def run(self, grids: list[Grid]) -> Schedule:
        """The best schedule on any of the grids."""
        limit, is_infeasible = self.planner.time_limit, False
        if len(grids) > 1 and self._is_plain:
            self._search_sequences(_EARLY_SHARE * limit)
        for n, grid in enumerate(grids):
            left = self.left - (_LATE_SHARE * self._is_plain + _BOUND_SHARE) * limit
            if n and left <= 2 * self.building:  # a finer grid takes about twice as long to build
                break
            outcome = self._try(grid, left if n == len(grids) - 1 else left / 2)
            is_infeasible = outcome.infeasible and n == len(grids) - 1
            if not outcome.infeasible and self.best is None:
                # Any schedule that fits is a start for the next grid, and better than none.
                self._keep(self._smaller(grid, left / 4))
        if self.best is not None:
            return self._bounded(self._polished(self.best))
        if is_infeasible:
            raise infeasible(self.graph, self._smaller(grids[-1], self.left), self.budget_bytes)
        raise SolverStopped(
            f"HiGHS found no schedule within {self.budget_bytes:,} bytes in "
            f"{self.planner.time_limit:g} s. Raise `time_limit` or the budget."
        )

    def _search_sequences(self, seconds: float) -> None:
        """Takes what a search over sequences finds; that it finds none proves nothing."""
        with contextlib.suppress(InfeasibleBudget):
            self._keep(Sequence(time_limit=seconds)(self.graph, self.budget_bytes))

    @property
    def _is_plain(self) -> bool:
        """Whether ops run in one way each, which is all that the search over sequences knows."""
        return not any(op.variants or op.optional for op in self.graph.ops)

    def _polished(self, best: Schedule) -> Schedule:
        """A schedule made faster where a search over sequences finds how."""
        if not self._is_plain or best.seconds <= self.graph.seconds:
            return best
        seconds = _LATE_SHARE * self.planner.time_limit
        return improved(self.graph, best, self.budget_bytes, time_limit=seconds)

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return self.deadline - time.monotonic()

    def _bounded(self, best: Schedule) -> Schedule:
        """A schedule with a proven bound, as far as there is time for one."""
        bound = self.graph.least_seconds
        if best.seconds > bound and self.left > 0:
            samples = _BOUND_VARIABLES // (2 * max(1, self.graph.forward_count))
            bound = lower_bound(
                self.graph, self.budget_bytes, samples=max(4, samples), time_limit=self.left
            )
        return dataclasses.replace(best, bound_seconds=min(bound, best.seconds))

    def _try(self, grid: Grid, seconds: float) -> Outcome:
        """Looks for a better schedule on one grid."""
        end = time.monotonic() + seconds
        budget = self.budget_bytes
        for _ in range(_ATTEMPTS):
            begun = time.monotonic()
            groups, known = self._groups(grid), self.order
            program = GapProgram(self.graph, groups, budget, grid.reach, known)
            self.building = time.monotonic() - begun
            if program.is_hopeless:
                return Outcome(found=False, infeasible=True, bound=float("inf"))
            start = program.start(known) if known else None
            left = end - time.monotonic()
            gap = self.planner.gap
            outcome = solve(program.problem, time_limit=left, absolute_gap=gap, start=start)
            if not outcome.found:
                return outcome
            schedule = self._scheduled(program)
            if self._keep(schedule):
                self.order = runs_of(schedule)
                return outcome
            # HiGHS allows itself a millionth of a row; a byte too much is too much.
            budget -= schedule.peak_bytes - self.budget_bytes
        return Outcome(found=False, infeasible=False, bound=0.0)

    def _scheduled(self, program: GapProgram) -> Schedule:
        steps = with_frees(self.graph, program.order())
        return certified_steps(self.graph, steps, bound_seconds=0.0, planner="Gap")

    def _keep(self, schedule: Schedule) -> bool:
        """Whether a schedule fits; if so, it is the best one unless there is a better."""
        if schedule.peak_bytes > self.budget_bytes:
            return False
        if self.best is None or schedule.seconds < self.best.seconds:
            self.best = schedule
        return True

    def _groups(self, grid: Grid) -> list[range]:
        """Positions in `Graph.ops` of the backward ops of each event."""
        first = self.graph.forward_count
        count = len(self.graph.ops) - first
        number = min(grid.events or count, count)
        ends = [first + round(count * n / number) for n in range(number + 1)] if number else []
        return [range(a, b) for a, b in it.pairwise(ends) if b > a]

    def _smaller(self, grid: Grid, seconds: float) -> Schedule:
        """The schedule of least peak that is found on a grid, or any that fits the budget."""
        groups = self._groups(grid)
        program = GapProgram(self.graph, groups, self.budget_bytes, grid.reach, of_peak=True)
        start = program.start(program.plain_order())
        solve(
            program.problem,
            time_limit=max(seconds, 0.0),
            absolute_gap=self.planner.gap,
            start=start,
            enough=1.0 - self.planner.gap,
        )
        return self._scheduled(program)
