"""The search from coarse grids to fine ones, each from the best schedule so far.

Each grid may take as long as all before it, coarse ones twice as long. Where the last is not solved
in that time, small grids follow that contain the events of the best schedule and some others, all
in a window or at random, until several in a row bring nothing. Where a grid has brought little for
the time spent, the search is over after a few of those, unless its own bound is far off: the next
hardly ever brings more.
"""

import contextlib
import itertools as it
from collections.abc import Sequence

from ...errors import SolverStopped
from ...solver.deadline import Deadline
from ...solver.highs import Outcome
from ..steps import Schedule, infeasible
from .grid import Grid, groups_around, groups_of
from .solves import attempt, search_sequences, smaller
from .state import State

#: A grid with a quarter of all events, or all, is the last where it saves less than this share of
#: the seconds, times the share of the time limit that is spent.
_WORTH = 3e-3
#: It is not where more than this share of the seconds may still be to gain on it.
_OPEN = 2e-4
#: Small grids round the best schedule: how many in a row may bring little; and how long each may
#: take, as a share of the time since the search began.
_FRUITLESS, _ROUND_SHARE = 8, 0.15
#: After one that was not solved in that time, the next ones have so many times more.
_MORE_PATIENCE = 1.5
#: The share of the time limit up to which they are tried even where all events brought little.
_SOON = 1 / 9


def search_grids(state: State, grids: Sequence[Grid]) -> None:
    """Goes from grid to grid, and on where the last one is not solved to the end.

    Arguments:
        grids: coarse ones first; at least one.

    Raises:
        InfeasibleBudget: nothing of the last grid's space fits, and no other schedule is known.
        SolverStopped: no schedule was found in time, or HiGHS failed.
    """
    last = grids[-1]
    for n, grid in enumerate(grids):
        seconds, before = _seconds_of_grid(state, grids, n), state.shown
        if seconds <= 0:
            return
        try:
            outcome = _attempt(state, grids, grid, seconds)
            _accept_any(state, grids, grid, outcome)
        except SolverStopped:
            if state.best is None:
                raise
            return
        if grid is last and (outcome.infeasible or outcome.proven):
            return
        if n >= _fine(state, grids) and outcome.slack < _OPEN and not _has_gained(state, before):
            _search_around(state, last, _SOON)
            return
    if state.shown is None:
        _accept_any(state, grids, last, _attempt(state, grids, last, state.rest))
    else:
        _search_around(state, last)


def _attempt(state: State, grids: Sequence[Grid], grid: Grid, seconds: float) -> Outcome:
    full_count = len(groups_of(state.graph, grids[-1]))
    return attempt(state, groups_of(state.graph, grid), grid.reach, seconds, full_count)


def _search_around(state: State, grid: Grid, share: float = 1.0) -> None:
    """Improves the best schedule on small grids round it, until a few in a row bring little.

    Or until that share of the time limit is spent.

    Such a grid has the events before which that schedule runs something again, and some others:
    the schedule is one of its points, and it is solved much faster than all events.
    """
    fruitless, patience, numbers = 0, 1.0, it.count()
    full_count = len(groups_of(state.graph, grid))
    deadline = Deadline.after(min(state.rest, share * state.time_limit - state.spent))
    while fruitless < _FRUITLESS and deadline.left > 0 and state.best is not None:
        before = state.shown = state.best
        seconds = patience * max(_ROUND_SHARE * state.spent, state.least_seconds)
        outcome = Outcome()
        with contextlib.suppress(SolverStopped):
            groups = groups_around(state.graph, before, next(numbers))
            seconds = min(deadline.left, seconds)
            outcome = attempt(state, groups, grid.reach, seconds, full_count)
        gain = before.seconds - state.best.seconds
        fruitless = 0 if gain > state.gap * before.seconds else fruitless + 1
        patience *= 1 if outcome.proven else _MORE_PATIENCE


def _accept_any(state: State, grids: Sequence[Grid], grid: Grid, outcome: Outcome) -> None:
    """Looks for any schedule that fits where none is known: a start for the next grid.

    Raises:
        InfeasibleBudget: none does on the last grid.
    """
    if state.shown is not None or (outcome.infeasible and grid is not grids[-1]):
        return
    if state.is_automatic and not outcome.infeasible:
        search_sequences(state, state.rest / 8)
        if state.shown is not None:
            return
    smallest = smaller(state, grid, state.rest / (1 if outcome.infeasible else 4))
    if not state.keep(smallest) and outcome.infeasible:
        raise infeasible(state.graph, smallest, state.budget_bytes)


def _has_gained(state: State, before: Schedule | None) -> bool:
    """Whether a grid has shown a better schedule than the one before by enough to go on.

    One that is slower than the best known is still on its way.
    """
    if before is None or state.shown is None or state.best is None:
        return True
    if state.shown.seconds > state.best.seconds:
        return True
    worth = _WORTH * state.spent / state.time_limit
    return before.seconds - state.shown.seconds >= worth * state.shown.seconds


def _fine(state: State, grids: Sequence[Grid]) -> int:
    """The number of the first grid that may be the last, as soon as it brings little."""
    return len(grids) - (2 if state.is_automatic else 0)


def _seconds_of_grid(state: State, grids: Sequence[Grid], n: int) -> float:
    """As many as all before took, or a share of the limit; given grids share the time equally.

    Twice as many for a coarse one: it is mostly solved in less, and what it misses is hard to
    find on a finer one.
    """
    if not state.is_automatic or len(grids) == 1:
        return state.rest / max(len(grids) - n, 1)
    taken = state.spent * (1 if n >= _fine(state, grids) else 2)
    return min(state.rest, max(taken, state.least_seconds))
