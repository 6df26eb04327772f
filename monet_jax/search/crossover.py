"""Crosses a plan that fits over with a faster one that does not.

All plans but the smallest may compile to more bytes than predicted. Then no other plan is predicted
to fit, though some between the two do.
"""

from collections.abc import Sequence

import planners
from planners.plan import Region
from planners.regions.uniform import with_regions

from ..candidates.compiled_plans import CompiledPlans
from ..candidates.judge import CompiledPlan

#: Plans are crossed over where that may save this share of the step's time.
FAR = 0.05


def compile_crossovers(plans: CompiledPlans, limit: int) -> None:
    """Compile plans between the fastest that fits and a much faster one.

    Arguments:
        plans: of one program.
        limit: bytes for temporaries.

    Raises:
        CapReached: nothing more may be compiled.
    """
    best = plans.fastest_within(limit)
    faster = best and _steepest_over(plans, limit, best)
    if best is None or faster is None:
        return
    fits, over = best.decisions, faster.decisions
    # What a plan on the line between the two saves that takes all bytes there are.
    share = (limit - plans.temp_bytes(best)) / (plans.temp_bytes(faster) - plans.temp_bytes(best))
    if share * (fits.seconds - over.seconds) < FAR * plans.graph.seconds:
        return
    late = planners.crossovers(plans.graph, fits.regions, over.regions)
    early = planners.crossovers(plans.graph, over.regions, fits.regions)
    for crossed in (late[::-1], early):
        _bisect(plans, limit, crossed, over)


def _bisect(
    plans: CompiledPlans, limit: int, crossed: Sequence[tuple[Region, ...]], like: planners.Plan
) -> None:
    """Compile crossovers, in order of rising bytes, until the last that fits is among them."""
    low, high = -1, len(crossed)
    while high - low > 1:
        middle = (low + high) // 2
        is_low = _fits(plans, limit, crossed[middle], like)
        low, high = (middle, high) if is_low else (low, middle)


def _fits(
    plans: CompiledPlans, limit: int, regions: tuple[Region, ...], like: planners.Plan
) -> bool:
    """Compile the plan of some regions, if there is one, and say whether it fits."""
    if planners.error_of(plans.graph, regions) > plans.graph.most_error:
        return False
    try:
        decisions = with_regions(plans.graph, like, regions)
    except planners.InvalidPlan:  # something has to be saved
        return False
    compiled = plans.of(decisions)
    return not compiled.has_failed and plans.temp_bytes(compiled) <= limit


def _steepest_over(plans: CompiledPlans, limit: int, best: CompiledPlan) -> CompiledPlan | None:
    """Of the plans that do not fit and are faster than the best, that with most gain a byte."""
    bytes_of, seconds = plans.temp_bytes, best.decisions.seconds
    over = (x for x in plans if bytes_of(x) > limit and x.decisions.seconds < seconds)

    def gain(x: CompiledPlan) -> float:
        return (seconds - x.decisions.seconds) / (bytes_of(x) - bytes_of(best))

    return max(over, key=gain, default=None)
