"""Steps that run by a stored plan, which is checked to be for them and to keep its budget here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..compiler.options import options_of
from ..compiler.targets import resolve_target
from ..planning.failures import target_to_verify, warn_if_outgrown
from ..planning.options import PlanOptions
from ..plans.record import PlanMismatch
from .call import StepCall
from .jit import PlannedStep
from .planning import applied, record_step, tracer_for
from .step_plan import StepPlan


class StoredPlan:
    """One plan for all calls, each of which is checked to be what it was made for."""

    def __init__(self, plan: StepPlan):
        self._plan, self._is_verified = plan, False

    def __call__(self, call: StepCall, options: PlanOptions) -> StepPlan:
        """The stored plan, once it is known to be for a call.

        Raises:
            PlanMismatch: it is for another step, or for other arguments; the message says which.
        """
        tracer = tracer_for(call, options, resolve_target(self._plan.target))
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
) -> PlannedStep:
    """A step that runs as a plan says.

    Arguments:
        plan: the plan.
        fun: the step as it was written, or as `monet_jax.jit` made it, with its options.
        argnums: as given to `apply`.
        jit_options: keyword arguments of `jax.jit`.

    Raises:
        TypeError: `argnums` were given, or options of `jax.jit` with a step that has its own.
    """
    given = {k: v for k, v in jit_options.items() if v != ()}
    has_own = isinstance(fun, PlannedStep)
    if argnums != 0 or (has_own and given):
        wrong = "`argnums`" if argnums != 0 else f"{sorted(given)}"
        raise TypeError(
            f"got {wrong} with the plan of a step. Leave it out: marks say what is differentiated, "
            "and a step of `monet_jax.jit` has options of its own."
        )
    step = fun if has_own else PlannedStep(fun, plan.options, given)
    return step.running_by(StoredPlan(plan), plan.options)


def _verify_again(plan: StepPlan, call: StepCall) -> None:
    """Warn where a plan of other versions or devices cannot be verified, or is too large."""
    target = target_to_verify(plan.jax_version, plan.target)
    if target is None:
        return
    step = applied(plan, call, plan.options) if plan.changes_the_step else None

    def taken_bytes() -> int:
        return call.compiled(step, target, options_of(target, plan.fingerprint)).total_bytes

    made = f"A plan made under JAX {plan.jax_version} for {plan.target}"
    warn_if_outgrown(made, plan.budget_bytes, target, taken_bytes)
