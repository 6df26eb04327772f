"""The bytes of each plan of one program: predicted by a model, and as compiled.

Two programs calibrate the model. One is the unplanned program, which is the plan that saves all, or
differs from it by what the model says. The other is the calibration plan, which saves nothing
except in the last stage.
"""

import functools
from collections.abc import Iterator

import planners
from planners.graph import Graph
from planners.plan import Region

from ..compiler.compile import CompiledBytes
from .calibration import Model, all_saved_bytes, calibration_plan_of, shift_of
from .cap import Cap
from .judge import CompilationFailed, CompiledPlan, Judge

_Regions = tuple[Region, ...]

#: Corrections of the shift by a plan's bytes, on which the shift depends less than one to one.
CALIBRATION_ROUNDS = 3


class CompiledPlans[SomeJudge: Judge]:
    """The plans of one program that were compiled, each once, and what they say of others.

    Arguments:
        judge: compiles them.
        cap: on compilations, of all programs of the function together.
        verify: whether planned programs are compiled; if not, only those that calibrate are.
        like: plans of another program of the function, whose unplanned program these share.
        calibrates: whether it compiles a calibration plan of its own; if not, it shares that, too.
    """

    def __init__(
        self,
        judge: SomeJudge,
        cap: Cap | None = None,
        verify: bool = True,
        like: "CompiledPlans | None" = None,
        calibrates: bool = True,
    ):
        self.judge, self.verify, self.like, self.calibrates = judge, verify, like, calibrates
        self.cap = cap or Cap()
        self._made: dict[_Regions, CompiledPlan] = {}

    def of_program(self, judge: SomeJudge, calibrates: bool = False) -> "CompiledPlans[SomeJudge]":
        """Plans of another program of the function, under the same cap."""
        return CompiledPlans(judge, self.cap, self.verify, self, calibrates)

    def __iter__(self) -> Iterator[CompiledPlan]:
        return (x for x in self._made.values() if not x.has_failed)

    def compiled(self) -> list[CompiledPlan]:
        """The plans that were compiled, or on which the compiler failed."""
        return [x for x in self._made.values() if x.figures is not None or x.has_failed]

    def __contains__(self, decisions: planners.Plan) -> bool:
        return decisions.regions in self._made

    @functools.cached_property
    def unplanned(self) -> CompiledBytes:
        """The function as it is, XLA's own rematerialization off."""
        if self.like is not None:
            return self.like.unplanned
        self.cap.spend("the function as it is")
        figures = self.judge.unplanned_bytes()
        self.cap.note(figures.compile_seconds)
        return figures

    @property
    def fixed_bytes(self) -> int:
        """Bytes of arguments and results, which no plan changes."""
        return self.unplanned.total_bytes - self.unplanned.temp_bytes

    @functools.cached_property
    def model(self) -> Model:
        """The model of compiled bytes; what calibrates it is compiled if need be."""
        return self._model(self._calibration_shift)

    @functools.cached_property
    def uncalibrated(self) -> Model:
        """The model by the unplanned program alone."""
        return self._model(0)

    @property
    def is_calibrated(self) -> bool:
        """Whether the calibration plan has been compiled."""
        return "_calibration_shift" in vars(self)

    @property
    def graph(self) -> Graph:
        """The planning graph, by as much as is known so far."""
        return (self.model if self.is_calibrated else self.uncalibrated).graph

    @functools.cached_property
    def calibration_plan(self) -> planners.Plan:
        """The plan that saves nothing, its last stage left alone."""
        return calibration_plan_of(self.judge.graph)

    def of(self, decisions: planners.Plan) -> CompiledPlan:
        """A plan as compiled; it is compiled if it is new.

        Raises:
            CapReached: it is new, and nothing more may be compiled.
        """
        if decisions not in self:
            predicted = self.predicted_temp_bytes(decisions.regions)
            if decisions not in self:  # or else it is the one by which plans are predicted
                self._add(decisions, predicted, is_compiled=self.verify)
        return self._made[decisions.regions]

    def of_uncalibrated(self, decisions: planners.Plan) -> CompiledPlan:
        """A new plan as compiled, predicted without any calibration.

        Raises:
            CapReached: nothing more may be compiled.
        """
        predicted = self.uncalibrated.modelled(decisions.regions) // self.judge.devices
        return self._add(decisions, predicted, is_compiled=True)

    def temp_bytes(self, plan: CompiledPlan) -> int:
        """Bytes without arguments and results: as compiled where known, else as predicted."""
        if plan.figures is None:
            return plan.predicted_temp_bytes
        return plan.figures.total_bytes - self.fixed_bytes

    def smallest(self) -> CompiledPlan | None:
        """The plan with the least temporaries; seconds decide ties."""
        return min(self, key=lambda x: (self.temp_bytes(x), x.decisions.seconds), default=None)

    def fastest_within(self, limit: int) -> CompiledPlan | None:
        """The fastest plan whose temporaries take at most `limit` bytes; FLOPs decide ties."""
        fits = [x for x in self if self.temp_bytes(x) <= limit]
        return min(fits, key=lambda x: (seconds_of(self, x), x.decisions.flops), default=None)

    def predicted_temp_bytes(self, regions: _Regions) -> int:
        """Temporaries of a plan by the model, placed on the compiler's scale."""
        return self.model.scale.compiled_for(self.model.modelled(regions))

    def _model(self, shift: int) -> Model:
        return Model(self.judge, self.calibration_plan, self._all_saved_bytes, shift)

    @functools.cached_property
    def _all_saved_bytes(self) -> int:
        """Temporaries on all devices where nothing is recomputed, as compiled or as modelled."""
        return all_saved_bytes(self.judge, self.judge.devices * self.unplanned.temp_bytes)

    @functools.cached_property
    def _calibration_shift(self) -> int:
        """Compiled minus modelled temporaries of the calibration plan, on all devices."""
        if self.like is not None and not self.calibrates:
            return self.like._calibration_shift
        plan, devices = self.calibration_plan, self.judge.devices
        modelled = self.uncalibrated.modelled(plan.regions, self.judge.graph)
        figures = self._add(plan, modelled // devices, is_compiled=True).figures
        compiled = figures and devices * figures.temp_bytes
        return shift_of(modelled, compiled, self._all_saved_bytes)

    def _add(self, decisions: planners.Plan, predicted: int, is_compiled: bool) -> CompiledPlan:
        figures, has_failed = None, False
        if is_compiled:
            self.cap.spend(f"a plan of {self.judge.name}")
            try:
                figures = self.judge.planned_bytes(decisions)
                self.cap.note(figures.compile_seconds)
            except CompilationFailed:
                has_failed = True
        made = CompiledPlan(self.judge.name, decisions, predicted, figures, has_failed)
        self._made[decisions.regions] = made
        return made


def calibrate_by(plans: CompiledPlans, plan: CompiledPlan, excess: int) -> None:
    """Calibrate by a plan of a known excess, so that no calibration plan need be compiled.

    Arguments:
        plans: of one program.
        plan: one of them.
        excess: compiled minus predicted bytes of that plan, were the model calibrated.
    """
    if plan.figures is None or plans.is_calibrated:
        return
    shift, known = 0, plan.figures.temp_bytes - excess
    for _ in range(CALIBRATION_ROUNDS):
        model = plans._model(shift)
        predicted = model.scale.compiled_for(model.modelled(plan.decisions.regions))
        shift += plans.judge.devices * (known - predicted)
    vars(plans)["_calibration_shift"] = shift


def seconds_of(plans: CompiledPlans, plan: CompiledPlan) -> float:
    """Modelled seconds of a plan: of its ops, and of touching its temporaries."""
    touched = plans.judge.touch_seconds_per_byte * plans.temp_bytes(plan)
    return plan.decisions.seconds + touched


def excess_bytes(plans: CompiledPlans, plan: CompiledPlan) -> int:
    """Compiled minus predicted bytes of a plan, by what is known of the program by now."""
    return plans.temp_bytes(plan) - plans.predicted_temp_bytes(plan.decisions.regions)


def most_excess_bytes(plans: CompiledPlans) -> int:
    """The most of compiled minus predicted temporaries, over the compiled plans; at least 0.

    The calibration plan is left out: what it takes is what the prediction rests on.
    """
    some = (x for x in plans if x.decisions.regions != plans.calibration_plan.regions)
    return max([0, *(excess_bytes(plans, x) for x in some)])


def least_excess_bytes(plans: CompiledPlans) -> int:
    """The least of compiled minus predicted temporaries, over the compiled plans.

    It is negative where some plan takes less than predicted: so may others.
    """
    return min((excess_bytes(plans, x) for x in plans), default=0)
