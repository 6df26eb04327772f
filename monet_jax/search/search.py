"""The search for the fastest plan of a function whose compiled program keeps a budget.

The function has up to three programs: as it is traced, as it is without operators, and with nested
scans. The first two are searched together, by a bisection each; where nothing fits, small plans of
all three are compiled.
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping

from ..candidates.cap import CapReached
from ..candidates.compiled_plans import CompiledPlans
from ..candidates.first_touch import fastest_limit
from ..candidates.free import compile_free_plan
from ..candidates.judge import CompiledPlan, Key
from ..candidates.programs import Programs, fastest_within, smallest_compiled
from ..candidates.small_plans import compile_faster_small_plans
from ..candidates.spaces import free_seconds_of
from ..candidates.worth import is_free
from .bisection import compile_proposals
from .crossover import compile_crossovers
from .smallest import compile_small_plans


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        plans: of the program that the plan is one of.
        plan: None for the function as it is.
        fits: whether it keeps the limit; if not, it is the smallest plan that was compiled.
        cut_short: why the search was cut short, in words; "" where it was not.
        step_seconds: by the clock, where programs were run: by `CompiledPlan.key`, and by None for
            the function as it is.
    """

    plans: CompiledPlans
    plan: CompiledPlan | None
    fits: bool
    cut_short: str
    step_seconds: Mapping[Key | None, float] = dataclasses.field(default_factory=dict)


def find(programs: Programs, limit: int) -> Found:
    """The fastest plan that was found to keep a limit; or else the smallest that was compiled.

    Where nothing fits, the cap on compilations is allowed once more to find the smallest.

    Arguments:
        programs: of the function.
        limit: bytes for arguments, results and temporaries.

    Raises:
        CapReached: nothing was compiled that could be returned.
    """
    plans, cap = programs.as_traced, programs.as_traced.cap
    fits_as_written = programs.as_written_may_do and plans.unplanned.total_bytes <= limit
    if fits_as_written and _stays_as_written(programs):
        return Found(plans, None, True, "")
    temps, some_fit = limit - plans.fixed_bytes, True
    with contextlib.suppress(CapReached):
        costs_memory = plans.judge.touch_seconds_per_byte > 0
        solved, free_seconds = programs.uncalibrated, programs.free_seconds
        if costs_memory or not compile_free_plan(plans, solved, free_seconds, temps):
            spaces = programs.staying_spaces
            programs.restart()
            some_fit = compile_proposals(spaces, fastest_limit(spaces, temps))
            if (best := fastest_within(programs, temps)) is not None:
                compile_crossovers(best[0], temps)
    cut_short = cap.reached
    fastest = fastest_within(programs, temps)
    if not fits_as_written and fastest is None:
        _compile_small(programs, temps)
    elif not fits_as_written and not some_fit:  # what fits was compiled for a smaller limit
        compile_faster_small_plans(programs, temps)
    _compile_moving(programs, temps)
    found = fastest_within(programs, temps)
    if fits_as_written and not (found and programs.beats_as_written(found[1].decisions.seconds)):
        return Found(plans, None, True, cut_short)
    if found is None and plans.judge.graph.link is not None:
        _compile_small(programs, temps, moves=True)
        found = fastest_within(programs, temps)
    if found is not None:
        return Found(*found, True, cut_short or cap.reached)
    return Found(*_smallest(programs), False, cut_short or cap.reached)


def _stays_as_written(programs: Programs) -> bool:
    """Whether no plan should be clearly faster than the function as it is."""
    try:
        return not programs.beats_as_written(programs.free_seconds)
    except CapReached:
        return True


def _compile_moving(programs: Programs, limit: int) -> None:
    """Compile plans that move values to the host, where they may be faster than all others.

    They come after the others, with as many compilations once more: so no plan is worse for them.
    """
    if programs.as_traced.judge.graph.link is None:
        return
    best = fastest_within(programs, limit)
    if best is not None and is_free(best[1].decisions, free_seconds_of(programs.spaces)):
        return
    programs.as_traced.cap.allow_again()
    with contextlib.suppress(CapReached):
        seconds = math.inf if best is None else best[1].decisions.seconds
        if spaces := programs.moving_spaces:
            programs.restart()
            compile_proposals(spaces, limit, seconds)


def _compile_small(programs: Programs, limit: int, moves: bool = False) -> None:
    """Compile small plans of all programs, and faster ones of the program where one fits.

    Arguments:
        programs: of the function.
        limit: bytes for temporaries.
        moves: whether to compile plans that move values to the host's memory, or others.
    """
    programs.as_traced.cap.allow_again()
    with contextlib.suppress(CapReached):
        compile_small_plans(programs.spaces_of_each(moves), limit)
        found = fastest_within(programs, limit)
        if found is not None:
            every = (x for x in programs.every_space() if x.moves == moves)
            compile_proposals([x for x in every if x.plans is found[0]], limit)


def _smallest(programs: Programs) -> tuple[CompiledPlans, CompiledPlan]:
    """The smallest compiled plan.

    Raises:
        CapReached: none was compiled.
    """
    found = smallest_compiled(programs)
    if found is None:
        raise CapReached(programs.as_traced.cap.reached or "no plan compiled")
    return found
