"""Single attempts at a better schedule: one grid's program, or a local search over sequences."""

import contextlib

from ...errors import InfeasibleBudget
from ...solver.deadline import Deadline
from ...solver.highs import Outcome, solve
from ..sequence import Sequence
from ..steps import Schedule, runs_of
from .grid import Grid, groups_of
from .program import GapProgram
from .state import State

#: How often a grid is solved again whose schedule takes a few bytes too many.
_ATTEMPTS = 3


def search_sequences(state: State, seconds: float) -> None:
    """Keeps what a local search over sequences finds; that it finds none proves nothing."""
    with contextlib.suppress(InfeasibleBudget):
        state.keep(Sequence(time_limit=seconds)(state.graph, state.budget_bytes))
        state.shown = state.best


def attempt(
    state: State, groups: list[range], reach: int | None, seconds: float, full_count: int
) -> Outcome:
    """Looks for a better schedule on one grid, and keeps it.

    Arguments:
        groups: the backward ops of each event.
        reach: as in `Grid`.
        seconds: limit.
        full_count: events of the finest grid. A grid with less than half of them is done within a
            larger gap in proportion.
    """
    deadline = Deadline.after(seconds)
    budget, outcome = state.budget_bytes, Outcome()
    gap = state.gap * max(1.0, full_count / 2 / max(len(groups), 1))
    known = [] if state.shown is None else runs_of(state.shown)
    for _ in range(_ATTEMPTS):
        until = deadline.to_write()
        program = GapProgram(state.graph, groups, budget, reach, known, deadline=until)
        if program.is_hopeless:
            return Outcome(infeasible=True, bound=float("inf"))
        start = program.start(known) if known else None
        left = deadline.left
        outcome = solve(program.problem, time_limit=left, absolute_gap=gap, start=start)
        if not outcome.found:
            break
        schedule = state.scheduled(program.order())
        if state.keep(schedule):
            break
        # HiGHS allows itself a millionth of a row; a byte too much is too much.
        budget -= schedule.peak_bytes - state.budget_bytes
    return outcome


def smaller(state: State, grid: Grid, seconds: float) -> Schedule:
    """The schedule of least peak that is found on a grid, or any that fits the budget."""
    deadline = Deadline.after(seconds)
    program = GapProgram(
        state.graph,
        groups_of(state.graph, grid),
        state.budget_bytes,
        grid.reach,
        of_peak=True,
        deadline=deadline.to_write(),
    )
    plain = program.plain_order()
    outcome = solve(
        program.problem,
        time_limit=deadline.left,
        absolute_gap=state.gap,
        start=program.start(plain),
        enough=1.0 - state.gap,
    )
    return state.scheduled(program.order() if outcome.found else plain)
