"""A step that runs by a stored plan, which is checked to be for it and to keep its budget here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..compiler.budget import format_bytes
from ..compiler.options import options_of
from ..compiler.targets import TargetUnavailable, resolve_target
from ..planning.failures import warn
from ..plans.record import PlanMismatch
from .call import StepCall
from .jit import PlannedStep
from .planning import applied, record_step, tracer_for
from .step_plan import StepPlan


class StoredStep(PlannedStep):
    """A step that runs by one plan, for whatever arguments; it plans nothing."""

    def __init__(self, plan: StepPlan, fun: Callable[..., Any], jit_options: Mapping[str, Any]):
        super().__init__(fun, plan.options, jit_options)
        self._plan, self._is_verified = plan, False

    def plan_for(self, call: StepCall) -> StepPlan:
        """The stored plan, once it is known to be for a call.

        Raises:
            PlanMismatch: it is for another step, or for other arguments; the message says which.
        """
        tracer = tracer_for(call, self.options, resolve_target(self._plan.target))
        what = record_step(call, tracer).mismatch(self._plan)
        tracer.forget()
        if what:
            raise PlanMismatch(f"The plan was made for {what}. Plan again.")
        if not self._is_verified:
            _verify_again(self._plan, call)
            self._is_verified = True
        return self._plan


def stored_step(
    plan: StepPlan,
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    jit_options: Mapping[str, Any],
) -> StoredStep:
    """A step that runs as a plan says.

    Arguments:
        plan: the plan.
        fun: the step as it was written, or as `monet_jax.jit` made it, with its options.
        argnums: as given to `apply`.
        jit_options: keyword arguments of `jax.jit`.

    Raises:
        TypeError: `argnums` were given.
    """
    if argnums != 0:
        raise TypeError(
            f"got `argnums={argnums}` with the plan of a step, whose marks say what is "
            "differentiated: leave it out."
        )
    given = {k: v for k, v in jit_options.items() if v != ()}
    if isinstance(fun, PlannedStep):
        return StoredStep(plan, fun.fun, {**fun.jit_options, **given})
    return StoredStep(plan, fun, given)


def _verify_again(plan: StepPlan, call: StepCall) -> None:
    """Warn where a plan of other versions or devices cannot be verified, or is too large."""
    here = resolve_target(None).name
    target = resolve_target(here if here != "cpu" else plan.target)
    if plan.jax_version == jax.__version__ and plan.target == target.name:
        return
    made = f"A plan made under JAX {plan.jax_version} for {plan.target}"
    step = applied(plan, call, plan.options) if plan.changes_the_step else None
    try:
        options = options_of(target, plan.fingerprint)
        taken = call.compiled(step, target, options).total_bytes
    except (TargetUnavailable, NotImplementedError, RuntimeError) as error:
        warn(f"{made} could not be verified here: {error}")
        return
    if taken > plan.budget_bytes:
        warn(
            f"{made} takes {format_bytes(taken)} as compiled here for {target.name}, more than the "
            f"{format_bytes(plan.budget_bytes)} it was made for. Plan again."
        )
