"""The search for the fastest plan of a function whose compiled program keeps a budget.

The function has up to three programs: as it is traced, as it is without operators, and with nested
scans. The first two are searched together, by a bisection each; where nothing fits, small plans of
all three are compiled.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import planners
from planners.errors import SolverStopped
from planners.regions.planner import RegionPlanner
from planners.regions.solved import SolvedBudgets

from ..candidates.cap import CapReached
from ..candidates.compiled_plans import CompiledPlans, seconds_of
from ..candidates.free import compile_free_plan, solved_as_jax
from ..candidates.judge import CompiledPlan, Key
from ..candidates.proposals import Proposals
from ..candidates.spaces import Space, free_seconds_of, spaces_of, steps_ahead
from ..candidates.worth import CLEARLY_FASTER, WORTH, is_free
from ..compiler.waiting import meanwhile
from .bisection import compile_proposals
from .crossover import compile_crossovers
from .first_touch import fastest_limit
from .smallest import compile_small_plans


@dataclasses.dataclass(frozen=True)
class Programs:
    """The plans of a function's programs, which share one unplanned program and one cap.

    Attributes:
        traced: of the function as it is traced.
        without_operators: of the function without operators; None where these change nothing
            unless a plan chooses them.
        make_nested: makes those of the function with nested scans, a last resort; None where these
            would save too little.
        planner: of regions.
        as_written_may_do: whether the function as it is is a plan, where it fits.
        least_gain: the share of its time that a plan must save to be taken where both fit; None
            where any plan may be taken.
    """

    traced: CompiledPlans
    without_operators: CompiledPlans | None
    make_nested: Callable[[], CompiledPlans | None]
    planner: RegionPlanner
    as_written_may_do: bool = True
    least_gain: float | None = CLEARLY_FASTER

    @functools.cached_property
    def uncalibrated(self) -> SolvedBudgets:
        """Plans of the function as it is traced, before anything calibrates its model.

        Raises:
            CapReached: there is no time left.
        """
        self.traced.cap.check_seconds()
        return solved_as_jax(self.planner, self.traced.uncalibrated.graph)

    @functools.cached_property
    def free_seconds(self) -> float:
        """Seconds of the fastest plan, whatever memory it takes, before calibration.

        Raises:
            CapReached: there is no time left.
        """
        found, judge = self.uncalibrated.free_seconds, self.traced.judge
        if judge.plain is judge:
            return found
        # Operators may take longer than what they replace.
        return min(found, solved_as_jax(self.planner, judge.plain.graph).free_seconds)

    def beats_as_written(self, seconds: float) -> bool:
        """Whether a plan of so many seconds is to be taken rather than the function as it is.

        What a loop saves is written to memory and read again; to compute it again can take less.
        """
        as_written = planners.save_all(self.traced.judge.plain.graph).seconds
        return self.least_gain is None or seconds <= (1 - self.least_gain) * as_written

    @functools.cached_property
    def spaces(self) -> tuple[Space, ...]:
        """The spaces to search, in order; the model is calibrated for them."""
        every = [x for x in (self.traced, self.without_operators) if x is not None]
        with meanwhile(steps_ahead(every, self.planner)):
            _ = self.traced.model
        if self.without_operators is None:
            return spaces_of(self.traced, self.planner)
        others = spaces_of(self.without_operators, self.planner)
        return (*spaces_of(self.traced, self.planner, WORTH), *others[:1])

    @property
    def moving_spaces(self) -> list[Space]:
        """The spaces to search whose plans move values to the host's memory."""
        return [space for space in self.spaces if space.moves]

    @functools.cached_property
    def nested_spaces(self) -> tuple[Space, ...]:
        """The spaces of nested scans."""
        nested = self.make_nested()
        return () if nested is None else spaces_of(nested, self.planner)

    def every_space(self) -> tuple[Space, ...]:
        """The spaces of all programs, nested scans included."""
        return (*self.spaces, *self.nested_spaces)

    def spaces_of_each(self, moves: bool = False) -> list[list[Space]]:
        """The spaces of each program: as it is traced, with nested scans, without operators.

        Arguments:
            moves: whether they are those whose plans move values to the host's memory, or the
                others.
        """
        plans = [self.traced, *(x.plans for x in self.nested_spaces[:1]), self.without_operators]
        every = [x for x in self.every_space() if x.moves == moves]
        found = [[x for x in every if x.plans is y] for y in plans if y is not None]
        return [spaces for spaces in found if spaces]

    @property
    def all_plans(self) -> list[CompiledPlans]:
        """The plans of each program that was needed so far."""
        every = (self.traced, self.without_operators, *(x.plans for x in self._known_spaces))
        return list(dict.fromkeys(plans for plans in every if plans is not None))

    def stopped(self) -> SolverStopped | None:
        """Why the planner had no answer at some point of the last search, if so."""
        return next((x.solved.stopped for x in self._models() if x.solved.stopped), None)

    def restart(self) -> None:
        """Count the planner's seconds from here."""
        for model in self._models():
            model.solved.restart(self.traced.cap.seconds_left)

    @property
    def _known_spaces(self) -> list[Space]:
        """The spaces that were needed so far: nested scans are a last resort."""
        names = ("spaces", "nested_spaces")
        return [space for name in names for space in vars(self).get(name, ())]

    def _models(self) -> Iterator[Proposals]:
        return (model for space in self._known_spaces for model in space.models)


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
    plans, cap = programs.traced, programs.traced.cap
    fits_as_written = programs.as_written_may_do and plans.unplanned.total_bytes <= limit
    if fits_as_written and _stays_as_written(programs):
        return Found(plans, None, True, "")
    temps = limit - plans.fixed_bytes
    try:
        costs_memory = plans.judge.touch_seconds_per_byte > 0
        solved, free_seconds = programs.uncalibrated, programs.free_seconds
        if costs_memory or not compile_free_plan(plans, solved, free_seconds, temps):
            spaces = [space for space in programs.spaces if not space.moves]
            programs.restart()
            compile_proposals(spaces, fastest_limit(spaces, temps))
            if (best := fastest_within(programs, temps)) is not None:
                compile_crossovers(best[0], temps)
    except CapReached:
        pass
    cut_short = cap.reached
    if not fits_as_written and fastest_within(programs, temps) is None:
        _compile_small(programs, temps)
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
    if programs.traced.judge.graph.link is None:
        return
    best = fastest_within(programs, limit)
    if best is not None and is_free(best[1].decisions, free_seconds_of(programs.spaces)):
        return
    programs.traced.cap.allow_again()
    with contextlib.suppress(CapReached):
        spaces = programs.moving_spaces
        programs.restart()
        seconds = math.inf if best is None else best[1].decisions.seconds
        if spaces:
            compile_proposals(spaces, limit, seconds)


def _compile_small(programs: Programs, limit: int, moves: bool = False) -> None:
    """Compile small plans of all programs, and faster ones of the program where one fits.

    Arguments:
        programs: of the function.
        limit: bytes for temporaries.
        moves: whether to compile plans that move values to the host's memory, or others.
    """
    programs.traced.cap.allow_again()
    with contextlib.suppress(CapReached):
        compile_small_plans(programs.spaces_of_each(moves), limit)
        found = fastest_within(programs, limit)
        if found is not None:
            every = (x for x in programs.every_space() if x.moves == moves)
            compile_proposals([x for x in every if x.plans is found[0]], limit)


def fastest_within(programs: Programs, limit: int) -> tuple[CompiledPlans, CompiledPlan] | None:
    """The fastest compiled plan that fits; one with operators only where it is worth them."""
    fits = [(plans, plans.fastest_within(limit)) for plans in programs.all_plans]

    def seconds(found: tuple[CompiledPlans, CompiledPlan]) -> float:
        plans, plan = found
        has_handicap = plans is not programs.without_operators and programs.without_operators
        return seconds_of(plans, plan) / (1 - WORTH if has_handicap else 1)

    return min(((x, plan) for x, plan in fits if plan is not None), key=seconds, default=None)


def _smallest(programs: Programs) -> tuple[CompiledPlans, CompiledPlan]:
    """The smallest compiled plan.

    Raises:
        CapReached: none was compiled.
    """
    found = ((plans, plans.smallest()) for plans in programs.all_plans)
    some = [(plans, plan) for plans, plan in found if plan is not None]
    if not some:
        raise CapReached(programs.traced.cap.reached or "no plan compiled")
    return min(some, key=lambda x: x[0].temp_bytes(x[1]))
