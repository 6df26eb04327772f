"""Applies a stored record to the function that it was made for."""

from collections.abc import Callable, Sequence
from typing import Any

from ..ir.fingerprint import has_program_hash
from ..plans.mismatch import mismatch
from ..plans.record import PlanMismatch, PlanRecord
from ..tracing.trace import Traced, without_operators
from .transform import transform


def as_traced_for(traced: Traced, plan: PlanRecord) -> Traced:
    """The function as the plan is for it that was made of it: as it is, or without operators."""
    if plan.operators or not traced.terms.operators:
        return traced
    is_for_it = has_program_hash(plan.fingerprint, traced.program_hash)
    return traced if is_for_it else without_operators(traced, plan.target)


def as_planned(
    traced: Traced, plan: PlanRecord
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """A traced function as a plan says that was made for it, and that leaves decisions to make.

    Raises:
        PlanMismatch: the plan is for another function, or for other stages.
    """
    check_plan(traced, plan)
    decisions = plan.decisions
    assert decisions is not None
    return transform(traced.staged(plan.chunks), decisions)


def check_plan(traced: Traced, plan: PlanRecord) -> None:
    """Check that a plan was made for a traced function.

    Raises:
        PlanMismatch: it was not; the message says what differs.
    """
    if what := mismatch(traced, plan):
        raise PlanMismatch(f"The plan was made for {what}. Plan again.")
