"""Chooses among compiled plans by the clock: on this process's device, in turns.

The model of seconds adds ops up, and sees neither caches nor memory that is touched for the first
time. So plans that are smaller than the limit asks for are compiled as well, and the clock decides
between all that keep it, the function as it is included.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

from ..candidates.cap import CapReached
from ..candidates.compiled_plans import CompiledPlans
from ..candidates.judge import CompiledPlan
from ..candidates.programs import Programs
from ..seconds.clock import in_turns, ratio
from .bisection import compile_proposals
from .search import Found, find

#: Shares of the limit on temporaries that further candidates are made for.
SMALLER = (0.7, 0.45)
#: Candidates that are timed, at most: those that are fastest by the model.
MOST_CANDIDATES = 6
#: Turns in which each candidate runs once; the first is not counted.
TURNS = 8

#: A plan of a program; None for the function as it is.
type _Candidate = tuple[CompiledPlans, CompiledPlan | None]


def find_by_clock(programs: Programs, limit: int) -> Found:
    """The fastest program by the clock of those that a search compiles within a limit.

    Arguments:
        programs: of the function, whose judges can run them.
        limit: bytes for arguments, results and temporaries.

    Raises:
        CapReached: nothing was compiled that could be returned.
    """
    plans = programs.as_traced
    limit = min(limit, plans.unplanned.total_bytes)
    found = find(programs, limit)
    if not found.fits:
        return found
    _compile_smaller(programs, limit - plans.fixed_bytes)
    candidates = list(_within(programs, limit))
    plans.cap.announce(f"timing {len(candidates)} programs in turns")
    runs = [some.judge.runnable(plan and plan.decisions) for some, plan in candidates]
    timings = plans.judge.on_device(lambda: in_turns(runs, TURNS))
    ratios = [ratio(timing, timings[0]).median for timing in timings]
    some, plan = candidates[ratios.index(min(ratios))]
    pairs = zip(candidates, timings, strict=True)
    seconds = {x and x.key: timing.seconds for (_, x), timing in pairs}
    return dataclasses.replace(found, plans=some, plan=plan, step_seconds=seconds)


def _compile_smaller(programs: Programs, limit: int) -> None:
    """Compile plans for less than a limit on temporaries, as far as the cap allows."""
    programs.restart()
    with contextlib.suppress(CapReached):
        _ = programs.as_traced.model  # the plan that calibrates it saves little
        for share in SMALLER:
            compile_proposals(programs.spaces, int(share * limit))


def _within(programs: Programs, limit: int) -> Iterator[_Candidate]:
    """The function as it is and its compiled plans, where they keep a limit."""
    if programs.as_written_may_do and programs.as_traced.unplanned.total_bytes <= limit:
        yield programs.as_traced, None
    fits = (
        (plans, plan)
        for plans in programs.all_plans
        for plan in plans
        if plan.figures is not None and plan.figures.total_bytes <= limit
    )
    yield from sorted(fits, key=lambda x: x[1].decisions.seconds)[:MOST_CANDIDATES]
