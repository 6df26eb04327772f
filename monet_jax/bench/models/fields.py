"""The fields of a row: the costs of a compiled program, and the figures of a plan."""

from typing import Any

import planners

from ...analyzer.step_costs import StepCosts
from ...candidates.compiled_plans import CompiledPlans
from ...compiler.compile import CompiledBytes, Estimate
from ...compiler.targets import TARGETS
from ...plans.record import PlanRecord
from ...seconds.attained import roofline_of
from ...seconds.compiled import credible, total_seconds


def cost_fields(figures: CompiledBytes, work: StepCosts, plain: StepCosts) -> dict[str, Any]:
    """The bytes and the work of a program.

    Arguments:
        figures: its compiled bytes.
        work: its work.
        plain: the work of the plain program.
    """
    sizes = {"total_bytes": figures.total_bytes, "temp_bytes": figures.temp_bytes}
    return sizes | work_fields(work, plain) | estimate_fields(figures, work)


def work_fields(work: StepCosts, plain: StepCosts) -> dict[str, Any]:
    """The work of a program, and its ratio to the work of the plain program."""
    return {
        "flops": work.flops,
        "seconds": work.seconds,
        "flops_ratio": work.flops / plain.flops,
        "seconds_ratio": work.seconds / plain.seconds,
    }


def estimate_fields(figures: CompiledBytes | None, work: StepCosts) -> dict[str, Any]:
    """The compiler's own seconds of a program; none where it estimates nothing.

    Arguments:
        figures: of the program as compiled.
        work: its work, by which is known how much of it the estimates are of.
    """
    if figures is None or not figures.estimates:
        return {}
    estimates = estimates_of(figures)
    flops = sum(estimate.flops * estimate.runs for estimate in estimates)
    share = flops / work.flops if work.flops else 1.0
    return {"estimated_seconds": total_seconds(estimates), "estimated_share": share}


def plan_fields(plan: PlanRecord, compiled_plans: CompiledPlans) -> dict[str, Any]:
    """The figures of a plan, one of `compiled_plans`."""
    assert plan.compiled_bytes is not None  # `CompiledPlans` verifies every plan
    temp = plan.compiled_bytes - compiled_plans.fixed_bytes
    predicted = plan.predicted_bytes - compiled_plans.fixed_bytes
    is_predicted = _is_predicted(plan, compiled_plans)
    return {
        "total_bytes": plan.compiled_bytes,
        "temp_bytes": temp,
        "used": plan.compiled_bytes / plan.budget_bytes,
        "planning_seconds": plan.planning_seconds,
        "compilations": plan.compilations,
        "overhead": plan.overhead,
        "gap": plan.gap,
        "next_faster_bytes": plan.next_faster and plan.next_faster[1],
        "predicted_temp_bytes": predicted,
        "prediction_error": abs(predicted - temp) / temp if is_predicted else None,
    }


def _is_predicted(plan: PlanRecord, compiled_plans: CompiledPlans) -> bool:
    """Whether the bytes were predicted: the plans that place the model are not."""
    graph = compiled_plans.graph
    known = planners.save_nothing(graph).regions, planners.save_all(graph).regions
    return plan.decisions is not None and plan.decisions.regions not in known


def estimates_of(figures: CompiledBytes) -> list[Estimate]:
    """The compiler's estimates of a program that are believed."""
    return credible(figures.estimates, roofline_of(TARGETS[figures.target]))
