"""Plans of one traced function for several budgets, which share what was compiled."""

import dataclasses
import functools
import time
from collections.abc import Callable

import planners
from planners.regions.planner import RegionPlanner
from planners.regions.simple_plans import certified
from planners.regions.stages import one_function

from ..analyzer import pins
from ..candidates.calibration import pools_otherwise
from ..candidates.cap import CapReached
from ..candidates.compiled_plans import CompiledPlans
from ..candidates.programs import Programs, fastest_within, smallest_compiled
from ..candidates.worth import CLEARLY_FASTER
from ..plans.record import PlanRecord
from ..search.by_clock import find_by_clock
from ..search.search import Found, find
from ..tracing.passes.nested_scans import chunking
from .judge import OtherOptions, TracedPlans
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
        planner: of regions; None for ours, its time by how long the function takes to compile.
        renews_cap: whether the cap of the plans is for each budget, or for all of them together.
        by_clock: whether compiled plans are run, and the fastest is taken.
    """

    def __init__(
        self,
        compiled_plans: TracedPlans,
        planner: RegionPlanner | None = None,
        renews_cap: bool = True,
        by_clock: bool = False,
    ):
        self.compiled_plans, self.planner, self.renews_cap = compiled_plans, planner, renews_cap
        self.by_clock = by_clock
        self._task: _Task | None = None

    @property
    def stopped(self) -> planners.SolverStopped | None:
        """Why the planner had no answer at some point of the last search, if so."""
        return self.programs.stopped()

    @functools.cached_property
    def programs(self) -> Programs:
        """The plans of the function's programs."""
        plans = self.compiled_plans
        judge = plans.judge
        is_one = judge.bound is not None or pins.name_values(judge.staged, judge.pins)
        # The compiler comes first: the graphs that tell of pooling are analyzed meanwhile.
        planner = self.planner or _planner_for(plans.unplanned.compile_seconds)
        without = None if is_one else _without_operators(plans)
        make_nested = functools.partial(_nested, plans)
        # Without the user's checkpoints, or by the clock, any plan may be; what loops save has been
        # priced against the clocks of CPUs and GPUs only.
        is_open = judge.traced.program.inlines_checkpoints or self.by_clock
        known = CLEARLY_FASTER if judge.target.platform != "tpu" else 1.0
        least_gain = None if is_open else known
        return Programs(plans, without, make_nested, planner, not judge.pins, least_gain)

    def plan(
        self, budget: Budget, reserved_bytes: int = 0, known: PlanRecord | None = None
    ) -> PlanRecord:
        """The fastest plan found whose compiled program keeps a budget.

        Arguments:
            budget: unplanned bytes, by a function, -> total bytes.
            reserved_bytes: the part of the budget for other things.
            known: a plan of an earlier search, which is compiled first.

        Raises:
            InfeasibleBudget: no plan keeps it.
        """
        if self.renews_cap:
            self.compiled_plans.cap.renew()
        return self.comparable(lambda: self._planned(budget, reserved_bytes, known))

    def comparable[Result](self, search: Callable[[], Result]) -> Result:
        """What a search returns whose programs are compiled under the same options, all of them."""
        try:
            return search()
        except OtherOptions:  # only bytes under the same options can be compared
            self.compiled_plans = _anew(self.compiled_plans)
            vars(self).pop("programs", None)
            return search()

    def best_so_far(self) -> PlanRecord | None:
        """The fastest plan that the last search had found when it was interrupted, if any."""
        if self._task is None:
            return None
        limit = self._task.limit_bytes - self.compiled_plans.fixed_bytes
        best = fastest_within(self.programs, limit)
        return best and self._record(Found(*best, True, "it was interrupted"), self._task)

    def smallest(self) -> PlanRecord | None:
        """The smallest plan that the last search compiled, if any; its budget is what it takes."""
        best = smallest_compiled(self.programs)
        if self._task is None or best is None:
            return None
        plans, plan = best
        taken = plans.fixed_bytes + plans.temp_bytes(plan) + self._task.reserved_bytes
        task = dataclasses.replace(self._task, budget_bytes=taken)
        return self._record(Found(*best, True, "less was asked for"), task)

    def _planned(self, budget: Budget, reserved_bytes: int, known: PlanRecord | None) -> PlanRecord:
        started, compilations = time.perf_counter(), self.compiled_plans.cap.compilations
        (self.planner or planners.Stages()).warm_up()
        try:
            _ = self.compiled_plans.unplanned  # before there is a task: `best_so_far` needs it
            total = budget(lambda: self.compiled_plans.unplanned.total_bytes)
            task = self._task = _Task(total, reserved_bytes, started, compilations)
            _compile_again(self.programs, known)
            search = find_by_clock if self.by_clock else find
            found = search(self.programs, task.limit_bytes)
        except CapReached as error:
            unplanned = functools.partial(_unplanned_bytes, self.compiled_plans, reserved_bytes)
            raise cut_short(str(error), unplanned) from None
        if not found.fits:
            outside = self.compiled_plans.fixed_bytes + reserved_bytes
            raise no_plan_fits(found, total - outside, outside, self.compiled_plans.judge)
        return self._record(found, task)

    def _record(self, found: Found, task: "_Task") -> PlanRecord:
        effort = Effort(
            task.budget_bytes,
            task.reserved_bytes,
            time.perf_counter() - task.started,
            self.compiled_plans.cap.compilations - task.compilations,
            self.programs.all_plans,
        )
        return record_of(self.compiled_plans, found, effort)


@dataclasses.dataclass(frozen=True)
class _Task:
    """One budget to plan for.

    Attributes:
        budget_bytes: the budget.
        reserved_bytes: the part of it for other things.
        started: by `time.perf_counter`.
        compilations: programs that were compiled before.
    """

    budget_bytes: int
    reserved_bytes: int
    started: float
    compilations: int

    @property
    def limit_bytes(self) -> int:
        """Bytes for the program: arguments, results and temporaries."""
        return self.budget_bytes - self.reserved_bytes


def _compile_again(programs: Programs, known: PlanRecord | None) -> None:
    """Compile a plan of an earlier search, if it is one of these programs."""
    if known is None or known.decisions is None:
        return
    plans = next((x for x in programs.every() if x.judge.fingerprint == known.fingerprint), None)
    if plans is not None:
        regions, seconds = known.decisions.regions, plans.graph.seconds
        planner = known.decisions.planner
        plans.of(certified(plans.graph, regions, planner=planner, bound_seconds=seconds))


def _planner_for(compile_seconds: float) -> RegionPlanner:
    """Our planner, with time in proportion to what its plans take to compile."""
    most = planners.Stages().time_limit
    seconds = min(most, max(LEAST_SECONDS, SOLVER_SHARE * compile_seconds))
    return one_function(seconds)


def _unplanned_bytes(plans: TracedPlans, reserved_bytes: int) -> int:
    """Bytes of the function as it is, whatever the cap says."""
    return plans.judge.unplanned_bytes().total_bytes + reserved_bytes


def _without_operators(plans: TracedPlans) -> TracedPlans | None:
    """Plans of the function as it was before any operator, where these change it unasked.

    None where JAX's gradient of max pooling would be another: what it holds is in no calibration.
    """
    judge = plans.judge
    if judge.plain is judge or pools_otherwise(judge):
        return None
    return plans.of_program(judge.plain)


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
    return plans.of_program(judge.other(chunks=found.lengths), calibrates=True)


def _anew(plans: TracedPlans) -> TracedPlans:
    """The same with nothing compiled yet, by the options that are left."""
    judge = plans.judge
    judge.compiler.conditions = ""
    same = judge.other(bound=judge.bound, chunks=judge.chunks)
    return CompiledPlans(same, plans.cap, plans.verify)
