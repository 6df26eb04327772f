"""The programs of a function, which compute the same, and the spaces of their plans."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import planners
from planners.errors import SolverStopped
from planners.regions.planner import RegionPlanner
from planners.regions.solved import SolvedBudgets

from ..compiler.waiting import meanwhile
from .compiled_plans import CompiledPlans, seconds_of
from .free import solved_as_jax
from .judge import CompiledPlan
from .proposals import Proposals
from .spaces import Space, spaces_of, steps_ahead
from .worth import CLEARLY_FASTER, WORTH


@dataclasses.dataclass(frozen=True)
class Programs:
    """The plans of a function's programs, which share one unplanned program and one cap.

    Attributes:
        as_traced: of the function as it is traced.
        without_operators: of the function without operators; None where these change nothing
            unless a plan chooses them, and where they replace JAX's gradient of max pooling.
        make_nested: makes those of the function with nested scans, a last resort; None where these
            would save too little.
        planner: of regions.
        as_written_may_do: whether the function as it is is a plan, where it fits.
        least_gain: the share of its time that a plan must save to be taken where both fit; None
            where any plan may be taken.
    """

    as_traced: CompiledPlans
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
        self.as_traced.cap.check_seconds()
        return solved_as_jax(self.planner, self.as_traced.uncalibrated.graph)

    @functools.cached_property
    def free_seconds(self) -> float:
        """Seconds of the fastest plan, whatever memory it takes, before calibration.

        Raises:
            CapReached: there is no time left.
        """
        found, judge = self.uncalibrated.free_seconds, self.as_traced.judge
        if judge.plain is judge:
            return found
        # Operators may take longer than what they replace.
        return min(found, solved_as_jax(self.planner, judge.plain.graph).free_seconds)

    def beats_as_written(self, seconds: float) -> bool:
        """Whether a plan of so many seconds is to be taken rather than the function as it is.

        What a loop saves is written to memory and read again; to compute it again can take less.
        """
        as_written = planners.save_all(self.as_traced.judge.plain.graph).seconds
        return self.least_gain is None or seconds <= (1 - self.least_gain) * as_written

    @functools.cached_property
    def spaces(self) -> tuple[Space, ...]:
        """The spaces to search, in order; the model is calibrated for them."""
        every = [x for x in (self.as_traced, self.without_operators) if x is not None]
        with meanwhile(steps_ahead(every, self.planner)):
            _ = self.as_traced.model
        if self.without_operators is None:
            return spaces_of(self.as_traced, self.planner)
        others = spaces_of(self.without_operators, self.planner)
        return (*spaces_of(self.as_traced, self.planner, WORTH), *others[:1])

    @property
    def staying_spaces(self) -> list[Space]:
        """The spaces to search whose plans move nothing."""
        return [space for space in self.spaces if not space.moves]

    @property
    def moving_spaces(self) -> list[Space]:
        """The spaces to search whose plans move values to the host's memory."""
        return [space for space in self.spaces if space.moves]

    @functools.cached_property
    def nested(self) -> CompiledPlans | None:
        """The plans with nested scans, if there are any."""
        return self.make_nested()

    @functools.cached_property
    def nested_spaces(self) -> tuple[Space, ...]:
        """The spaces of nested scans."""
        return () if self.nested is None else spaces_of(self.nested, self.planner)

    def every_space(self) -> tuple[Space, ...]:
        """The spaces of all programs, nested scans included."""
        return (*self.spaces, *self.nested_spaces)

    def spaces_of_each(self, moves: bool = False) -> list[list[Space]]:
        """The spaces of each program: as it is traced, with nested scans, without operators.

        Arguments:
            moves: whether they are those whose plans move values to the host's memory, or the
                others.
        """
        plans = [self.as_traced, self.nested, self.without_operators]
        every = [x for x in self.every_space() if x.moves == moves]
        found = [[x for x in every if x.plans is y] for y in plans if y is not None]
        return [spaces for spaces in found if spaces]

    def every(self) -> Iterator[CompiledPlans]:
        """The plans of each program; nested scans are made when it comes to them."""
        yield from self.all_plans
        if self.nested is not None:
            yield self.nested

    @property
    def all_plans(self) -> list[CompiledPlans]:
        """The plans of each program that was needed so far."""
        every = (self.as_traced, self.without_operators, vars(self).get("nested"))
        return [plans for plans in every if plans is not None]

    def stopped(self) -> SolverStopped | None:
        """Why the planner had no answer at some point of the last search, if so."""
        return next((x.solved.stopped for x in self._models() if x.solved.stopped), None)

    def restart(self) -> None:
        """Count the planner's seconds from here."""
        for model in self._models():
            model.restart(self.as_traced.cap.seconds_left)

    @property
    def _known_spaces(self) -> list[Space]:
        """The spaces that were needed so far: nested scans are a last resort."""
        names = ("spaces", "nested_spaces")
        return [space for name in names for space in vars(self).get(name, ())]

    def _models(self) -> Iterator[Proposals]:
        return (model for space in self._known_spaces for model in space.models)


def fastest_within(programs: Programs, limit: int) -> tuple[CompiledPlans, CompiledPlan] | None:
    """The fastest compiled plan that fits; one with operators only where it is worth them."""
    fits = [(plans, plans.fastest_within(limit)) for plans in programs.all_plans]

    def seconds(found: tuple[CompiledPlans, CompiledPlan]) -> float:
        plans, plan = found
        has_handicap = plans is not programs.without_operators and programs.without_operators
        return seconds_of(plans, plan) / (1 - WORTH if has_handicap else 1)

    return min(((x, plan) for x, plan in fits if plan is not None), key=seconds, default=None)


def smallest_compiled(programs: Programs) -> tuple[CompiledPlans, CompiledPlan] | None:
    """The compiled plan with the least temporaries, of all programs that were needed so far."""
    found = ((plans, plans.smallest()) for plans in programs.all_plans)
    some = ((plans, plan) for plans, plan in found if plan is not None)
    return min(some, key=lambda x: x[0].temp_bytes(x[1]), default=None)
