"""Repairs fast plans that nearly fit: drops their small saved values, or crosses them over.

The bytes of a plan are known once it is compiled. A plan that takes a little too much is compiled
again without its small saved values. Where it is much faster than all that fit, crossovers of it
with the fastest of these are compiled.
"""

import math
from collections.abc import Sequence

import planners
from planners.plan import Region

from ..compiled_plans import CompiledPlan, CompiledPlans
from .uniform import with_regions

#: Plans are crossed over where that may save this share of the step's time.
FAR = 0.05


def try_without_change(compiled_plans: CompiledPlans, limit: int) -> None:
    """Compile the smallest faster plan that does not fit, if it may without small values."""
    near, graph = _nearest_over(compiled_plans, limit), compiled_plans.graph
    if near is None:
        return
    regions = planners.without_change(graph, near.decisions.regions)
    change = planners.saved_bytes(graph, near.decisions.regions)
    change -= planners.saved_bytes(graph, regions)
    if compiled_plans.temp_bytes(near) - limit <= change:
        _fits(compiled_plans, limit, regions, near.decisions)


def try_between(compiled_plans: CompiledPlans, limit: int, compilations: int) -> None:
    """Compile crossovers of the fastest plan that fits with a much faster one.

    All plans but the smallest may compile to more bytes than predicted. Then no other plan is
    predicted to fit, though some between the two do.

    Arguments:
        compiled_plans: of the function.
        limit: bytes for temporaries.
        compilations: how many plans may be compiled.
    """
    best, near = compiled_plans.fastest_within(limit), _nearest_over(compiled_plans, limit)
    if best is None or near is None:
        return
    fits, over = best.decisions, near.decisions
    if fits.seconds - over.seconds < FAR * compiled_plans.graph.seconds:
        return
    late = planners.crossovers(compiled_plans.graph, fits.regions, over.regions)
    early = planners.crossovers(compiled_plans.graph, over.regions, fits.regions)
    for crossovers in (late[::-1], early):
        _bisect(compiled_plans, limit, crossovers, over, compilations // 2)


def _bisect(
    compiled_plans: CompiledPlans,
    limit: int,
    crossovers: Sequence[tuple[Region, ...]],
    like: planners.Plan,
    compilations: int,
) -> None:
    """Compile crossovers, in order of rising bytes, until the last that fits is among them."""
    low, high = -1, len(crossovers)
    while high - low > 1 and compilations:
        middle, compilations = (low + high) // 2, compilations - 1
        is_low = _fits(compiled_plans, limit, crossovers[middle], like)
        low, high = (middle, high) if is_low else (low, middle)


def _fits(
    compiled_plans: CompiledPlans, limit: int, regions: tuple[Region, ...], like: planners.Plan
) -> bool:
    """Compile the plan of some regions, if there is one, and say whether it fits."""
    if planners.error_of(compiled_plans.graph, regions) > compiled_plans.graph.most_error:
        return False
    try:
        decisions = with_regions(compiled_plans.graph, like, regions)
    except planners.InvalidPlan:  # something has to be saved
        return False
    return compiled_plans.temp_bytes(compiled_plans.of(decisions)) <= limit


def _nearest_over(compiled_plans: CompiledPlans, limit: int) -> CompiledPlan | None:
    """The smallest of the plans that do not fit and are faster than all that do."""
    best = compiled_plans.fastest_within(limit)
    seconds = best.decisions.seconds if best else math.inf
    over = (
        x
        for x in compiled_plans
        if compiled_plans.temp_bytes(x) > limit and x.decisions.seconds < seconds
    )
    return min(over, key=compiled_plans.temp_bytes, default=None)
