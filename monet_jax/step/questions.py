"""Questions about a step from outside: its plan for some arguments, and whether one still holds."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ..analyzer.step_costs import StepCosts, program_costs
from ..compiler.backend import backend_of
from ..compiler.compile import CompiledBytes
from ..compiler.options import Options
from ..compiler.targets import resolve_target
from ..planning.options import PlanOptions
from ..seconds.attained import modelled
from ..tracing.traced import Traced
from .context import Applying, StepTrace
from .jit import PlannedStep
from .marks import given_options
from .planning import (
    RecordedStep,
    applied,
    plan_step,
    plan_within,
    record_step,
    search_of,
    tracer_for,
)
from .share import StepSearch
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
    def of(
        step: Any, args: Sequence[Any], kwargs: Mapping[str, Any], target: str | None
    ) -> "StepNow":
        """The step for some arguments and a target; None for the step's own.

        Raises:
            TypeError: it is no step that `monet_jax.jit` made.
        """
        if not isinstance(step, PlannedStep):
            raise TypeError(
                f"The plan is one of a step: give the step that `monet_jax.jit` made; got {step!r}."
            )
        options = dataclasses.replace(step.options, target=target or step.options.target)
        call = step.call_for(args, kwargs)
        tracer = tracer_for(call, options, resolve_target(options.target))
        return StepNow(record_step(call, tracer), options)

    @functools.cached_property
    def search(self) -> StepSearch:
        """The search for its plans; what it compiles, it compiles once."""
        return search_of(self.step, self.options, resolve_target(self.options.target))

    def planned(self, budget_bytes: int) -> StepPlan:
        """The plan of the step for some bytes.

        Raises:
            InfeasibleBudget: no plan keeps them.
        """
        return plan_within(budget_bytes, self.step, self.search)

    def of_other(self, step: Callable[..., Any]) -> "StepNow":
        """Another step of the same arguments, jitted like this one, in which nothing is planned."""
        fun = getattr(step, "as_it_is", step)
        call = dataclasses.replace(self.step.call, fun=fun)
        return StepNow(dataclasses.replace(self.step, call=call), self.options)

    def under_checkpoint(self, policy: Callable[..., bool]) -> StepTrace:
        """A trace of the step in which each mark is one `jax.checkpoint` region."""

        def emission(traced: Traced, inputs: Sequence[Any]) -> Sequence[Any]:
            return jax.checkpoint(traced.flat, policy=policy)(inputs)

        marks = self.step.marks
        return Applying(marks.tracer, dict.fromkeys(marks.found, emission), (*marks.found,))

    def trace_of(self, plan: StepPlan | None) -> StepTrace | None:
        """The trace of the step in which its marks run as a plan says; None for none of them."""
        if plan is None or not plan.changes_the_step:
            return None
        return applied(plan, self.step.call, self.options)

    def costs(self, trace: StepTrace | None) -> StepCosts:
        """FLOPs and roofline seconds of the step in a trace."""
        target = resolve_target(self.options.target)
        jaxpr = self.step.call.traced(trace).jaxpr
        return program_costs(jaxpr, modelled(target), backend_of(target.name))

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
        return self.compiled(self.trace_of(plan)).total_bytes

    def compiled(self, trace: StepTrace | None) -> CompiledBytes:
        """The bytes of the step in a trace."""
        target = resolve_target(self.options.target)
        return self.step.call.compiled(trace, target, Options(target))


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
    own = step_options(step, budget, options, ["error"] * with_error)
    return plan_step(step.call_for(args, kwargs), own)


def step_options(
    step: PlannedStep,
    budget: int | float | str | None,
    options: PlanOptions,
    more: Sequence[str] = (),
) -> PlanOptions:
    """The options of a step, its budget and its target replaced by those that are given.

    Arguments:
        step: the step.
        budget: in the place of the step's own; None for that.
        options: as they were given; only a target may be.
        more: names of others that were given.

    Raises:
        ValueError: other options were given.
    """
    refuse_options(options, ("budget", "target"), more)
    changes: dict[str, Any] = {} if budget is None else {"budget": budget}
    if options.target is not None:
        changes["target"] = options.target
    return dataclasses.replace(step.options, **changes)


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
            f"`{name}` takes a function, not a step of `monet_jax.jit`: give it the loss. The step "
            "has a budget of its own."
        )
