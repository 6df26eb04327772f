"""A step as it is now, to be compared with a plan that was made before."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..compiler.options import Options
from ..compiler.targets import resolve_target
from ..planning.options import PlanOptions
from .jit import PlannedStep
from .planning import RecordedStep, applied, record_step, tracer_for
from .step_plan import StepPlan


@dataclasses.dataclass(frozen=True)
class StepNow:
    """A step, traced for some arguments.

    Attributes:
        step: the step and its marks.
        options: of the step, for the target of a plan.
    """

    step: RecordedStep
    options: PlanOptions

    @staticmethod
    def of(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any], target: str) -> "StepNow":
        """The step for some arguments and a target.

        Raises:
            TypeError: it is no step that `monet_jax.jit` made.
        """
        if not isinstance(step, PlannedStep):
            raise TypeError(
                f"The plan is one of a step: give the step that `monet_jax.jit` made; got {step!r}."
            )
        options = dataclasses.replace(step.options, target=target)
        call = step.call_for(args, kwargs)
        return StepNow(
            record_step(call, tracer_for(call, options, resolve_target(target))), options
        )

    def mismatches(self, plan: StepPlan) -> Iterator[str]:
        """Why a plan is for another step."""
        devices = self.step.marks.tracer.devices
        if devices != plan.devices:
            yield (
                f"its arguments are sharded over {devices} devices, the plan's were over "
                f"{plan.devices}. Plan again, or give the arguments their shardings."
            )
        if self.step.fingerprint != plan.fingerprint:
            yield "the plan was made for another step, or for other arguments. Plan again."

    def compiled_bytes(self, plan: StepPlan | None) -> int:
        """Bytes of the step as planned, or as it is."""
        call, target = self.step.call, resolve_target(self.options.target)
        trace = applied(plan, call, self.options) if plan is not None and plan.plans else None
        return call.compiled(trace, target, Options(target)).total_bytes
