"""Plans of one traced function for several budgets, which share what was compiled."""

import functools
import math
import time
from collections.abc import Callable

import planners
from planners.regions.planner import RegionPlanner

from ..candidates.cap import CapReached
from ..candidates.compiled_plans import CompiledPlans
from ..plans.record import PlanRecord
from ..search.search import Programs, find
from ..tracing.nested_scans import chunking
from .judge import OtherOptions, TracedJudge, TracedPlans
from .outcome import Effort, cut_short, no_plan_fits, record_of

#: Nested scans are tried where they may save more than this share of the function's bytes.
CLEARLY_MORE = 1 - 0.97

#: Seconds of the solver for a plan: so many times what the function takes to compile, but at least
#: the second.
SOLVER_SHARE, LEAST_SECONDS = 1.0, 1.0

#: A function from a function that returns the unplanned bytes to the budget in bytes.
Budget = Callable[[Callable[[], int]], int]


class PlanSearch:
    """The search for plans of one traced function on one target.

    Arguments:
        compiled_plans: of the function as it is traced.
        planner: of regions; None for ours, with as much time as the function takes to compile.
        max_compilations: for each budget, the unplanned program and calibration included; and again
            as many to find the minimum where no plan keeps it.
        max_seconds: for each budget.
    """

    def __init__(
        self,
        compiled_plans: TracedPlans,
        planner: RegionPlanner | None = None,
        max_compilations: float = math.inf,
        max_seconds: float = math.inf,
    ):
        self.compiled_plans, self.planner = compiled_plans, planner
        self.max_compilations, self.max_seconds = max_compilations, max_seconds

    @property
    def stopped(self) -> planners.SolverStopped | None:
        """Why the planner had no answer at some point of the last search, if so."""
        return self.programs.stopped()

    @functools.cached_property
    def programs(self) -> Programs:
        """The plans of the function's programs."""
        plans = self.compiled_plans
        judge = plans.judge
        inlines = judge.traced.program.inlines_checkpoints
        without = None if judge.bound is not None else _without_operators(plans)
        planner = self.planner or _planner_for(plans.unplanned.compile_seconds)
        return Programs(plans, without, _nested(plans), planner, not judge.pins, not inlines)

    def plan(self, budget: Budget, reserved_bytes: int = 0) -> PlanRecord:
        """The fastest plan found whose compiled program keeps a budget.

        Arguments:
            budget: unplanned bytes, by a function, -> total bytes.
            reserved_bytes: the part of the budget for other things.

        Raises:
            InfeasibleBudget: no plan keeps it.
        """
        cap = self.compiled_plans.cap
        cap.started, cap.max_seconds = cap.clock(), self.max_seconds
        cap.allow(self.max_compilations)
        try:
            return self._planned(budget, reserved_bytes)
        except OtherOptions:  # only bytes under the same options can be compared
            self.compiled_plans = _anew(self.compiled_plans)
            vars(self).pop("programs", None)
            return self._planned(budget, reserved_bytes)

    def _planned(self, budget: Budget, reserved_bytes: int) -> PlanRecord:
        cap, started = self.compiled_plans.cap, time.perf_counter()
        known = cap.compilations
        try:
            total = budget(lambda: self.compiled_plans.unplanned.total_bytes)
            found = find(self.programs, total - reserved_bytes, self.max_compilations)
        except CapReached as error:
            unplanned = functools.partial(_unplanned_bytes, self.compiled_plans, reserved_bytes)
            raise cut_short(str(error), unplanned) from None
        if not found.fits:
            outside = self.compiled_plans.fixed_bytes + reserved_bytes
            raise no_plan_fits(found, total - outside, outside)
        seconds, compilations = time.perf_counter() - started, cap.compilations - known
        programs = self.programs.all_plans
        effort = Effort(total, reserved_bytes, seconds, compilations, programs)
        return record_of(self.compiled_plans, found, effort)


def _planner_for(compile_seconds: float) -> RegionPlanner:
    """Our planner, with time in proportion to what its plans take to compile."""
    most = planners.Stages().time_limit
    seconds = min(most, max(LEAST_SECONDS, SOLVER_SHARE * compile_seconds))
    return planners.Stages(time_limit=seconds)


def _unplanned_bytes(plans: TracedPlans, reserved_bytes: int) -> int:
    """Bytes of the function as it is, whatever the cap says."""
    plans.cap.allow(1)
    return plans.unplanned.total_bytes + reserved_bytes


def _without_operators(plans: TracedPlans) -> TracedPlans | None:
    """Plans of the function as it was before any operator, where these change it unasked."""
    judge = plans.judge
    if judge.plain is judge:
        return None
    return CompiledPlans(judge.plain, plans.cap, plans.verify, like=plans, calibrates=False)


def _nested(plans: TracedPlans) -> TracedPlans | None:
    """Plans with nested scans.

    None where these save too little; where pins name values, for nested scans have other values;
    and where errors are limited, for they are known for the loops as they are.
    """
    judge = plans.judge
    if judge.pins or judge.bound is not None:
        return None
    found = chunking(judge.traced.program, judge.traced.derivative)
    if found.spared_bytes <= CLEARLY_MORE * plans.unplanned.total_bytes:
        return None
    return CompiledPlans(judge.other(chunks=found.lengths), plans.cap, plans.verify, like=plans)


def _anew(plans: TracedPlans) -> TracedPlans:
    """The same with nothing compiled yet, by the options that are left."""
    judge = plans.judge
    judge.compiler.conditions = ""
    same = {"bound": judge.bound, "chunks": judge.chunks, "compiler": judge.compiler}
    anew = TracedJudge(judge.traced, judge.target, judge.pins, **same)
    return CompiledPlans(anew, plans.cap, plans.verify)
