"""Applies a stored record to the function that it was made for."""

from collections.abc import Sequence
from typing import Any

from ..ir.fingerprint import has_program_hash
from ..ir.gradient import FlatFunction
from ..plans.mismatch import mismatch
from ..plans.record import PlanMismatch, PlanRecord
from ..tracing.trace import without_operators
from ..tracing.traced import Traced
from .transform import transform


def outputs_as_planned(traced: Traced, record: PlanRecord, inputs: Sequence[Any]) -> Sequence[Any]:
    """Flat outputs of a traced function, run as a plan says that was made for it.

    Raises:
        PlanMismatch: the plan is for another function, or for other stages.
    """
    traced, function = as_planned(traced, record)
    return function(inputs, traced.constants)


def as_planned(traced: Traced, record: PlanRecord) -> tuple[Traced, FlatFunction]:
    """A traced function as a plan says that was made for it.

    Returns:
        the trace that the plan is of, whose constants the function takes, and the function.

    Raises:
        PlanMismatch: the plan is for another function, or for other stages.
    """
    if record.decisions is None:  # it fits the budget as it is, which includes what is inside it
        return traced, traced.flat
    traced = as_traced_for(traced, record)
    check_plan(traced, record)
    return traced, transform(traced.staged(record.chunks), record.decisions)


def as_traced_for(traced: Traced, record: PlanRecord) -> Traced:
    """The function as the plan is for it that was made of it: as it is, or without operators."""
    if record.operators or not traced.terms.operators:
        return traced
    is_for_it = has_program_hash(record.fingerprint, traced.program_hash)
    return traced if is_for_it else without_operators(traced, record.target)


def check_plan(traced: Traced, record: PlanRecord) -> None:
    """Check that a plan was made for a traced function.

    Raises:
        PlanMismatch: it was not; the message says what differs.
    """
    if what := mismatch(traced, record):
        raise PlanMismatch(f"The plan was made for {what}. Plan again.")
