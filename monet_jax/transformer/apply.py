"""Applies a stored record to the function that it was made for."""

from collections.abc import Callable, Sequence
from typing import Any

from ..plans.record import PlanMismatch, PlanRecord
from ..tracing.nested_scans import as_nested_scans
from ..tracing.origins import origins_of
from ..tracing.trace import Traced, without_operators
from .transform import transform


def as_traced_for(traced: Traced, plan: PlanRecord) -> Traced:
    """The function as the plan is for it that was made of it: as it is, or without operators."""
    if plan.operators or not traced.terms.operators:
        return traced
    is_for_it = traced.fingerprint == plan.fingerprint
    return traced if is_for_it else without_operators(traced, plan.target)


def as_planned(
    traced: Traced, plan: PlanRecord
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """A traced function as a plan says that was made for it, and that leaves decisions to make.

    Raises:
        PlanMismatch: the plan is for other stages than the function has.
    """
    decisions = plan.decisions
    assert decisions is not None
    program = (
        traced.program if plan.chunks is None else as_nested_scans(traced.program, plan.chunks)
    )
    origins = origins_of(program, traced.derivative)
    planned, found = decisions.regions[-1].last + 1, len(origins.stages)
    if planned != found:
        raise PlanMismatch(
            f"The plan has {planned} stages, and the function is cut into {found}: the plan was "
            "made by another version of monet_jax. Plan again."
        )
    return transform(origins, decisions)
