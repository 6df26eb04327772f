"""The outcome of a search: the stored plan's record, or the error that says why there is none."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

import planners
from planners.plan import Region

from ..ir.fingerprint import describe_inputs
from ..operators import not_used
from ..plans.record import PlanRecord
from ..plans.tables import describe_values, stage_rows, value_rows
from ..plans.timeline import Timeline, timeline_of
from ..tracing.trace import context_for, without_rewrites
from .compiled_plans import CompiledPlan, CompiledPlans
from .failures import InfeasibleBudget

#: Operators stay where they save this share of the time: less than that a search leaves open, and
#: without them tangents may go forward.
WORTH = 1e-3


@dataclasses.dataclass(frozen=True)
class Effort:
    """What a search was given and what it took.

    Attributes:
        budget_bytes: the budget.
        reserved_bytes: the part of it for other things.
        seconds: wall time.
        compilations: compiled plans.
    """

    budget_bytes: int
    reserved_bytes: int
    seconds: float
    compilations: int


def record_of(
    original: CompiledPlans,
    before: Timeline | None,
    found: CompiledPlans,
    best: CompiledPlan | None,
    effort: Effort,
) -> PlanRecord:
    """The record of a plan.

    Arguments:
        original: plans of the function as it was traced.
        before: the unplanned timeline of these.
        found: plans of the function as it was planned: the same, or with nested scans.
        best: the plan, one of `found`; None for the function as it is.
        effort: of the search.
    """
    decisions = best.decisions if best else None
    return PlanRecord(
        decisions=decisions,
        budget_bytes=effort.budget_bytes,
        reserved_bytes=effort.reserved_bytes,
        planning_seconds=effort.seconds,
        compilations=effort.compilations,
        values=value_rows(found.staged, found.graph, decisions),
        stages=stage_rows(found.graph, decisions),
        next_faster=_next_faster(found, best),
        chunks=found.chunks,
        before=before if decisions else None,
        after=_timeline(found, decisions.regions) if decisions else before,
        fingerprint=found.staged.fingerprint,
        **_of_program(original),
        **_bytes_of(original, best),
    )


def _of_program(compiled_plans: CompiledPlans) -> dict[str, Any]:
    """The fields of a record that describe the function and its unplanned step."""
    traced, graph = compiled_plans.traced, compiled_plans.graph
    return {
        "inputs": describe_inputs(traced.program),
        "equations": len(traced.program.equations),
        "target": compiled_plans.target.name,
        "jax_version": jax.__version__,
        "base_seconds": graph.seconds,
        "base_flops": planners.save_all(graph).flops,
        "devices": compiled_plans.devices,
        "operators": traced.terms.operators,
        "checkpoints": traced.terms.checkpoints,
    }


def _bytes_of(compiled_plans: CompiledPlans, best: CompiledPlan | None) -> dict[str, Any]:
    """The fields of a record that are bytes, and the compiler that gave them."""
    unplanned, fixed_bytes = compiled_plans.unplanned, compiled_plans.fixed_bytes
    figures = best.figures if best else unplanned
    predicted = best.predicted_temp_bytes if best else unplanned.temp_bytes
    return {
        "compiler": (figures or unplanned).compiler,
        "predicted_bytes": fixed_bytes + predicted,
        "compiled_bytes": figures.total_bytes if figures else None,
        "unplanned_bytes": unplanned.total_bytes,
        "fixed_bytes": fixed_bytes,
    }


def unplanned_timeline(compiled_plans: CompiledPlans) -> Timeline | None:
    """Live bytes over the step where nothing is recomputed."""
    return _timeline(compiled_plans, planners.save_all(compiled_plans.graph).regions)


def _timeline(compiled_plans: CompiledPlans, regions: Sequence[Region]) -> Timeline | None:
    return timeline_of(compiled_plans.graph, compiled_plans.inverse.source_of, regions)


def _next_faster(
    compiled_plans: CompiledPlans, best: CompiledPlan | None
) -> tuple[float, int] | None:
    """Seconds and bytes of the next faster compiled plan, which broke the budget."""
    if best is None:
        return None
    seconds = best.decisions.seconds
    faster = (
        (x.decisions.seconds, compiled_plans.fixed_bytes + compiled_plans.temp_bytes(x))
        for x in compiled_plans
        if x.figures is not None and x.decisions.seconds < seconds
    )
    return max(faster, default=None)


def no_plan_fits(
    compiled_plans: CompiledPlans, least: CompiledPlan, limit: int, outside: int
) -> InfeasibleBudget:
    """The error for a budget that no plan keeps.

    Arguments:
        compiled_plans: of the function.
        least: the smallest plan that was found.
        limit: bytes that the budget leaves for temporaries.
        outside: bytes of the budget for all else.
    """
    staged = compiled_plans.staged
    minimum = outside + compiled_plans.temp_bytes(least)
    peak = planners.replay(compiled_plans.graph, least.decisions).peak_values
    named = [name for name in peak if name in staged.values][:4]
    message = (
        f"No plan fits in {outside + limit:,} bytes; the smallest one found takes {minimum:,} "
        f"bytes as compiled for {compiled_plans.target.name}, of which "
        f"{compiled_plans.fixed_bytes:,} are arguments and results. At its peak these values are "
        f"live: {describe_values(staged, named)}. Raise `budget` to {minimum:,}, or reduce the "
        "batch."
    )
    if others := _unused_operators(compiled_plans):
        message += f" With {others} in a list of `operators`, it may take less."
    return InfeasibleBudget(message, minimum)


def _unused_operators(compiled_plans: CompiledPlans) -> list[str]:
    """Operators that the options leave out, and with which the function could take less.

    None where the options name no operator, which keeps forward mode.
    """
    traced = compiled_plans.traced
    used = traced.terms.operators
    context = context_for(compiled_plans.target.name, traced.avals)
    return not_used(used, *without_rewrites(traced), context) if used else []


def better(
    found: PlanRecord | InfeasibleBudget, without: PlanRecord | InfeasibleBudget
) -> PlanRecord | InfeasibleBudget:
    """The plan with operators if they are worth it, else the plan without; with the time of both.

    Of two errors, it is the one with the lesser minimum.
    """
    if isinstance(found, InfeasibleBudget):
        is_less = isinstance(without, PlanRecord) or without.minimum_budget < found.minimum_budget
        return without if is_less else found
    if isinstance(without, InfeasibleBudget):
        return found
    best = found if found.seconds < (1 - WORTH) * without.seconds else without
    seconds = found.planning_seconds + without.planning_seconds
    return dataclasses.replace(
        best, planning_seconds=seconds, compilations=found.compilations + without.compilations
    )
