"""Questions about a step from outside: its plan for some arguments, and whether one still holds."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..compiler.options import Options
from ..compiler.targets import resolve_target
from ..planning.options import PlanOptions
from .jit import PlannedStep
from .marks import given_options
from .planning import RecordedStep, applied, plan_step, record_step, tracer_for
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
        if what := self.step.mismatch(plan):
            yield f"the plan was made for {what}. Plan again."

    def compiled_bytes(self, plan: StepPlan | None) -> int:
        """Bytes of the step as planned, or as it is."""
        call, target = self.step.call, resolve_target(self.options.target)
        trace = applied(plan, call, self.options) if plan is not None and plan.plans else None
        return call.compiled(trace, target, Options(target)).total_bytes


def plan_of_step(
    step: PlannedStep,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    budget: int | float | str | None,
    options: PlanOptions,
    with_error: bool,
) -> StepPlan:
    """The plan of a step for some arguments, within its own options.

    Arguments:
        step: the step.
        args, kwargs: its arguments.
        budget: in the place of the step's own; None for that.
        options: as given to `plan`; only the target may be.
        with_error: whether an error, or a sample for one, was given, too.

    Raises:
        ValueError: other options were given.
    """
    refuse_options(options, ("budget", "target"), ["error"] * with_error)
    changes: dict[str, Any] = {} if budget is None else {"budget": budget}
    if options.target is not None:
        changes["target"] = options.target
    return plan_step(step.call_for(args, kwargs), dataclasses.replace(step.options, **changes))


def refuse_options(options: PlanOptions, without: Sequence[str], more: Sequence[str] = ()) -> None:
    """Refuse options that are given with a step.

    Arguments:
        options: as they were given.
        without: names of those that may be given.
        more: names of others that were given.

    Raises:
        ValueError: there are some.
    """
    if wrong := [*given_options(options, without), *more]:
        raise ValueError(
            f"{wrong} cannot be given with a step of `monet_jax.jit`: the step's own options, and "
            "what is marked in it, say what is planned."
        )


def refuse_step(fun: Any, name: str) -> None:
    """Refuse a step where only a function can be planned.

    Raises:
        TypeError: it is a step.
    """
    if isinstance(fun, PlannedStep):
        raise TypeError(
            f"`{name}` takes a function, not a step of `monet_jax.jit`: give it the loss, or ask "
            "`monet_jax.plan` about the step, with one budget after another."
        )
