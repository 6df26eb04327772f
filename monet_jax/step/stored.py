"""Is a stored plan for this call of a step, and does it keep its budget on this device?"""

import jax

from ..compiler.budget import format_bytes
from ..compiler.options import Options
from ..compiler.targets import TargetUnavailable, resolve_target
from ..planning.failures import warn
from ..plans.record import PlanMismatch
from .call import StepCall
from .context import StepTrace
from .planning import record_step, tracer_for
from .step_plan import StepPlan, options_of


def check_stored(plan: StepPlan, call: StepCall) -> None:
    """Check that a plan was made for a call of a step.

    Raises:
        PlanMismatch: it was not; the message says what differs.
    """
    tracer = tracer_for(call, options_of(plan), resolve_target(plan.target))
    found = record_step(call, tracer)
    tracer.forget()
    if what := found.mismatch(plan):
        raise PlanMismatch(f"The plan was made for {what}. Plan again.")


def verify_again(plan: StepPlan, call: StepCall, step: StepTrace | None) -> None:
    """Warn where a plan of other versions or devices cannot be verified, or is too large.

    Arguments:
        plan: the plan.
        call: the call that it was made for.
        step: the trace in which the step runs as planned.
    """
    here = resolve_target(None).name
    target = resolve_target(here if here != "cpu" else plan.target)
    if plan.jax_version == jax.__version__ and plan.target == target.name:
        return
    made = f"A plan made under JAX {plan.jax_version} for {plan.target}"
    try:
        taken = call.compiled(step, target, Options()).total_bytes
    except (TargetUnavailable, NotImplementedError, RuntimeError) as error:
        warn(f"{made} could not be verified here: {error}")
        return
    if taken > plan.budget_bytes:
        warn(
            f"{made} takes {format_bytes(taken)} as compiled here for {target.name}, more than the "
            f"{format_bytes(plan.budget_bytes)} it was made for. Plan again."
        )
