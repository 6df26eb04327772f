"""Retention and recomputation op by op: integer programs on grids of backward events, from coarse
to fine.

A forward value is read at a few places of the backward pass; in each gap between two of them it is
either held in memory or computed again. Checkmate asks that of every value before every op; here,
the backward ops are grouped into *events*, and only before an event may forward ops run again. That
is a row of memory for each backward op, and a short one for each op that may run again before an
event, where MONeT's and Checkmate's programs have one for each pair of ops.

A coarse grid whose recomputation does not reach far is solved in seconds and is already within a
percent or two of the best; its schedule is where the search on the next, finer grid starts. The
space of each grid, its variables and its constraints are in `gap_program`. A local search over
sequences gives a first answer at once, which near the smallest possible budgets may stay the best
one, and polishes the last; it knows only the first way of each op.

Each grid may take as long as all before it, coarse ones twice as long. Where the last is not solved
in that time, small grids follow that contain the events of the best schedule and some others, all
in a window or at random, until several in a row bring nothing. Where a grid has brought little for
the time spent, the search is over after a few of those, unless its own bound is far off: the next
hardly ever brings more. A sixth of the time then goes to a lower bound on the seconds of *any*
schedule that first runs the graph's ops in their order (`lower_bound`), not only of those of the
grids.

Known limit: nothing runs again during the forward pass, but where the local search finds that.
"""

import contextlib
import dataclasses
import itertools as it
from collections.abc import Iterable

import numpy as np

from ..errors import InfeasibleBudget, SolverStopped
from ..graph import Graph
from ..solver.deadline import Deadline
from ..solver.highs import Outcome, solve
from .gap_program import GapProgram
from .lower_bound import lower_bound
from .sequence import Sequence, improved
from .steps import Execute, Schedule, certified_steps, infeasible, runs_of, with_frees

#: How many ops before what an event reads may run again.
_REACH = 14
#: Graphs with no more backward ops are planned on the full grid at once; very small ones with any
#: reach.
_SMALL, _VERY_SMALL = 100, 24
#: How often a grid is solved again whose schedule takes a few bytes too many.
_ATTEMPTS = 3
#: Seconds of the search over sequences before the grids; where that is too much, and of a grid at
#: least, a share of the time limit.
_EARLY_SECONDS, _EARLY_SHARE, _LEAST_SHARE = 0.6, 0.4, 0.04
#: Shares of the time that the grids took: of polishing their answer, and of the lower bound.
_LATE_SHARE, _BOUND_SHARE = 0.1, 0.2
#: A grid with a quarter of all events, or all, is the last where it saves less than this share of
#: the seconds, times the share of the time limit that is spent.
_WORTH = 3e-3
#: It is not where more than this share of the seconds may still be to gain on it.
_OPEN = 2e-4
#: Small grids round the best schedule: windows; how many in a row may bring little; and how
#: long each may take, as a share of the time since the search began.
_WINDOWS, _FRUITLESS, _ROUND_SHARE = 8, 8, 0.15
#: After one that was not solved in that time, the next ones have so many times more.
_MORE_PATIENCE = 1.5
#: The share of the time limit up to which they are tried even where all events brought little.
_SOON = 1 / 9
#: Variables of the lower bound's program, about: more would leave too little time to branch. And
#: at most, where there is time: HiGHS may overrun its limit in a larger one.
_BOUND_VARIABLES, _MOST_VARIABLES = 12_000, 50_000


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
        grids: in the order in which they are searched, each from the best schedule so far and all
            for as long. None chooses them by the number of ops, searches over sequences as well,
            and stops where it no longer pays; `(Grid(),)` is the whole space.
        time_limit: in seconds; most answers take less.
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
            start: a schedule that fits, if one is known: the answer is never slower.

        Raises:
            InfeasibleBudget: no schedule of the last grid's space fits. `minimum_bytes` is the
                least peak that was found there, by replay.
            InvalidPlan: `start` is no schedule of the graph.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        return _Search(self, graph, budget_bytes).run(start)


def _grids(graph: Graph) -> tuple[Grid, ...]:
    """A sixteenth of the backward ops as events, an eighth, a quarter, and all of them.

    From a quarter on, all events at once take hardly longer than half of them. Each grid splits
    the events of the last, so that a schedule that was found there is a start.

    Recomputation that reaches further hardly ever pays, and makes programs that take long to solve.
    """
    backward = len(graph.ops) - graph.forward_count
    if not backward:
        return ()
    if backward <= _SMALL:
        return (Grid(reach=_REACH if backward > _VERY_SMALL else None),)
    return tuple(Grid(n, _REACH) for n in (*(backward // 16 * 2**k for k in range(3)), backward))


class _Search:
    """One graph and budget."""

    def __init__(self, planner: Gap, graph: Graph, budget_bytes: int):
        self.planner, self.graph, self.budget_bytes = planner, graph, budget_bytes
        self.grids = list(_grids(graph) if planner.grids is None else planner.grids)
        # From here on a grid may be the last, as soon as it brings little.
        self.fine = len(self.grids) - (2 if planner.grids is None else 0)
        self.deadline = Deadline.after(planner.time_limit)
        self.best: Schedule | None = None
        self.shown: Schedule | None = None  # where the next grid starts

    def run(self, start: Schedule | None) -> Schedule:
        """The best schedule on any of the grids."""
        if start is not None:
            self._begin_with(start)
        if self.planner.grids is None:
            self._search_sequences(self._early_seconds)
        if self.grids and not self._is_best:
            self._search_grids()
        if self.best is None:
            raise SolverStopped(
                f"Found no schedule within {self.budget_bytes:,} bytes in "
                f"{self.planner.time_limit:g} s. Raise `time_limit` or the budget."
            )
        return self._bounded(self._polished(self.best))

    def _begin_with(self, start: Schedule) -> None:
        known = certified_steps(self.graph, start.steps, bound_seconds=0.0, planner="Gap")
        self._keep(known)

    @property
    def _early_seconds(self) -> float:
        """For the search over sequences before the grids."""
        if not self.grids:  # no backward pass, hence no events, and nothing but this search
            return self.planner.time_limit
        return min(_EARLY_SECONDS, _EARLY_SHARE * self.planner.time_limit)

    def _search_sequences(self, seconds: float) -> None:
        """Takes what a search over sequences finds; that it finds none proves nothing."""
        with contextlib.suppress(InfeasibleBudget):
            found = Sequence(time_limit=seconds)(self.graph, self.budget_bytes)
            self._keep(found)
            self.shown = self.best

    @property
    def _is_best(self) -> bool:
        """Whether no schedule is faster than the best one known."""
        return self.best is not None and self.best.seconds <= self.graph.least_seconds

    def _search_grids(self) -> None:
        """Goes from grid to grid, and on where the last one is not solved to the end.

        Raises:
            InfeasibleBudget: nothing of the last grid's space fits, and no other schedule is known.
        """
        last = self.grids[-1]
        for n, grid in enumerate(self.grids):
            seconds, before = self._seconds_of_grid(n), self.shown
            if seconds <= 0:
                return
            try:
                outcome = self._try(self._groups(grid), grid.reach, seconds)
                self._accept_any(grid, outcome)
            except SolverStopped:
                if self.best is None:
                    raise
                return
            if grid is last and (outcome.infeasible or outcome.proven):
                return
            if n >= self.fine and outcome.slack < _OPEN and not self._has_gained(before):
                self._search_around(last, _SOON)
                return
        if self.shown is None:
            self._accept_any(last, self._try(self._groups(last), last.reach, self._rest))
        else:
            self._search_around(last)

    def _search_around(self, grid: Grid, share: float = 1.0) -> None:
        """Improves the best schedule on small grids round it, until a few in a row bring little.

        Or until that share of the time limit is spent.

        Such a grid has the events before which that schedule runs something again, and some others:
        the schedule is one of its points, and it is solved much faster than all events.
        """
        fruitless, patience, numbers = 0, 1.0, it.count()
        rest = min(self._rest, share * self.planner.time_limit - self._spent)
        deadline = Deadline.after(rest)
        while fruitless < _FRUITLESS and deadline.left > 0 and self.best is not None:
            before = self.shown = self.best
            seconds = patience * max(_ROUND_SHARE * self._spent, self._least_seconds)
            outcome = Outcome()
            with contextlib.suppress(SolverStopped):
                groups = self._groups_around(before, next(numbers))
                outcome = self._try(groups, grid.reach, min(deadline.left, seconds))
            gain = before.seconds - self.best.seconds
            fruitless = 0 if gain > self.planner.gap * before.seconds else fruitless + 1
            patience *= 1 if outcome.proven else _MORE_PATIENCE

    def _groups_around(self, known: Schedule, number: int) -> list[range]:
        """The positions of each event of a grid that shows a schedule, and others beside.

        By turns, these are all in a window, which lie side by side, and as many of all at random.
        """
        first, end = self.graph.forward_count, len(self.graph.ops)
        needed, before = set[int](), end
        for run in reversed(runs_of(known)):
            if run.op >= first:
                before = run.op
            elif first < before < end:
                needed.add(before)
        others = sorted(set(range(first + 1, end)) - needed)
        length = min(max(1, (end - first) // _WINDOWS), len(others))
        if number % 2:
            chosen = np.random.default_rng(number).choice(others, length, replace=False).tolist()
        else:
            sweep, place = divmod(number // 2, max(1, -(-len(others) // max(1, length))))
            start = place * length + sweep % 2 * length // 2
            chosen = others[start : start + length]
        ends = sorted({first, end, *needed, *chosen})
        return [range(a, b) for a, b in it.pairwise(ends)]

    def _accept_any(self, grid: Grid, outcome: Outcome) -> None:
        """Looks for any schedule that fits where none is known: a start for the next grid.

        Raises:
            InfeasibleBudget: none does on the last grid.
        """
        if self.shown is not None or (outcome.infeasible and grid is not self.grids[-1]):
            return
        if self.planner.grids is None and not outcome.infeasible:
            self._search_sequences(self._rest / 8)
            if self.shown is not None:
                return
        smallest = self._smaller(grid, self._rest / (1 if outcome.infeasible else 4))
        if not self._keep(smallest) and outcome.infeasible:
            raise infeasible(self.graph, smallest, self.budget_bytes)

    def _has_gained(self, before: Schedule | None) -> bool:
        """Whether a grid has shown a better schedule than the one before by enough to go on.

        One that is slower than the best known is still on its way.
        """
        if before is None or self.shown is None or self.best is None:
            return True
        if self.shown.seconds > self.best.seconds:
            return True
        worth = _WORTH * self._spent / self.planner.time_limit
        return before.seconds - self.shown.seconds >= worth * self.shown.seconds

    def _seconds_of_grid(self, n: int) -> float:
        """As many as all before took, or a share of the limit; the same for all that are given.

        Twice as many for a coarse one: it is mostly solved in less, and what it misses is hard to
        find on a finer one.
        """
        if self.planner.grids is not None or len(self.grids) == 1:
            return self._rest / max(len(self.grids) - n, 1)
        taken = self._spent * (1 if n >= self.fine else 2)
        return min(self._rest, max(taken, self._least_seconds))

    @property
    def _least_seconds(self) -> float:
        """That a grid has, and the bound."""
        return _LEAST_SHARE * self.planner.time_limit

    @property
    def _rest(self) -> float:
        """Seconds that are left for grids."""
        return self.planner.time_limit / (1 + _LATE_SHARE + _BOUND_SHARE) - self._spent

    @property
    def _spent(self) -> float:
        """Seconds since the search began."""
        return self.planner.time_limit - self.deadline.left

    def _polished(self, best: Schedule) -> Schedule:
        """A schedule made faster where a search over sequences finds how."""
        seconds = min(_LATE_SHARE * self._spent, self.deadline.left)
        if self.planner.grids is not None or self._is_best or seconds <= 0:
            return best
        return improved(self.graph, best, self.budget_bytes, time_limit=seconds)

    def _bounded(self, best: Schedule) -> Schedule:
        """A schedule with a proven bound, as far as there is time for one."""
        bound = self.graph.least_seconds
        seconds = min(max(_BOUND_SHARE * self._spent, self._least_seconds), self.deadline.left)
        deadline = Deadline.after(seconds)
        forward = max(1, self.graph.forward_count)
        samples = max(4, _BOUND_VARIABLES // (2 * forward))
        most = min(len(self.graph.ops) - forward, _MOST_VARIABLES // (2 * forward))
        # One that is proven before its time is over leaves time for a stronger one.
        while best.seconds > bound and deadline.left > seconds / 4:
            with contextlib.suppress(SolverStopped):  # there is a weaker one
                left = deadline.left
                found = lower_bound(self.graph, self.budget_bytes, samples=samples, time_limit=left)
                bound = max(bound, found)
            if samples >= most:
                break
            samples *= 2
        return dataclasses.replace(best, bound_seconds=min(bound, best.seconds))

    def _try(self, groups: list[range], reach: int | None, seconds: float) -> Outcome:
        """Looks for a better schedule on one grid."""
        deadline = Deadline.after(seconds)
        budget, outcome = self.budget_bytes, Outcome()
        half = len(self._groups(self.grids[-1])) / 2
        gap = self.planner.gap * max(1.0, half / max(len(groups), 1))
        known = [] if self.shown is None else runs_of(self.shown)
        for _ in range(_ATTEMPTS):
            program = GapProgram(
                self.graph,
                groups,
                budget,
                reach,
                known,
                deadline=deadline.to_write(),
            )
            if program.is_hopeless:
                return Outcome(infeasible=True, bound=float("inf"))
            start = program.start(known) if known else None
            left = deadline.left
            outcome = solve(program.problem, time_limit=left, absolute_gap=gap, start=start)
            if not outcome.found:
                break
            schedule = self._scheduled(program.order())
            if self._keep(schedule):
                break
            # HiGHS allows itself a millionth of a row; a byte too much is too much.
            budget -= schedule.peak_bytes - self.budget_bytes
        return outcome

    def _scheduled(self, order: Iterable[Execute]) -> Schedule:
        steps = with_frees(self.graph, order)
        return certified_steps(self.graph, steps, bound_seconds=0.0, planner="Gap")

    def _keep(self, schedule: Schedule) -> bool:
        """Whether a schedule fits; if so, the next grid starts there, and it is the best one unless
        there is a better.
        """
        if schedule.peak_bytes > self.budget_bytes:
            return False
        self.shown = schedule
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
        deadline = Deadline.after(seconds)
        program = GapProgram(
            self.graph,
            self._groups(grid),
            self.budget_bytes,
            grid.reach,
            of_peak=True,
            deadline=deadline.to_write(),
        )
        plain, gap = program.plain_order(), self.planner.gap
        outcome = solve(
            program.problem,
            time_limit=deadline.left,
            absolute_gap=gap,
            start=program.start(plain),
            enough=1.0 - gap,
        )
        return self._scheduled(program.order() if outcome.found else plain)
