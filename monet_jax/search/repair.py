"""What becomes of a plan that is fast and nearly fits?

What a compiler makes of a plan is known once it is compiled. A plan that takes a little too much is
tried without what is small in it, and where it is much faster than all that fit, mixed with these.
"""

from collections.abc import Sequence

import planners
from planners.plan import Region

from .compiled_plans import CompiledPlans
from .proposals import with_regions

#: Plans are mixed where that may save this share of the step's time.
FAR = 0.05


def try_without_change(compiled_plans: CompiledPlans, room: int) -> None:
    """Compile the least of the faster plans that do not fit, if it may without small values."""
    near, graph = compiled_plans.nearest_over(room), compiled_plans.graph
    if near is None:
        return
    regions = planners.without_change(graph, near.decisions.regions)
    change = planners.saved_bytes(graph, near.decisions.regions)
    change -= planners.saved_bytes(graph, regions)
    if compiled_plans.temp_bytes(near) - room <= change:
        _fits(compiled_plans, room, regions, near.decisions)


def try_between(compiled_plans: CompiledPlans, room: int, compilations: int) -> None:
    """Compile plans that do in part as the fastest that fits, in part as a much faster one.

    A compiler may take more than is predicted of all plans but the smallest, and what is predicted
    to take as much less is then the smallest alone.

    Arguments:
        compiled_plans: of the function.
        room: bytes for temporaries.
        compilations: how many plans may be compiled.
    """
    best, near = compiled_plans.fastest_within(room), compiled_plans.nearest_over(room)
    if best is None or near is None:
        return
    fits, over = best.decisions, near.decisions
    if fits.seconds - over.seconds < FAR * compiled_plans.graph.seconds:
        return
    late = planners.crossovers(compiled_plans.graph, fits.regions, over.regions)
    early = planners.crossovers(compiled_plans.graph, over.regions, fits.regions)
    for crossovers in (late[::-1], early):
        _bisect(compiled_plans, room, crossovers, over, compilations // 2)


def _bisect(
    compiled_plans: CompiledPlans,
    room: int,
    crossovers: Sequence[tuple[Region, ...]],
    like: planners.Plan,
    compilations: int,
) -> None:
    """Compile mixtures, that take more and more, until the last that fits is among them."""
    low, high = -1, len(crossovers)
    while high - low > 1 and compilations:
        middle, compilations = (low + high) // 2, compilations - 1
        is_low = _fits(compiled_plans, room, crossovers[middle], like)
        low, high = (middle, high) if is_low else (low, middle)


def _fits(
    compiled_plans: CompiledPlans, room: int, regions: tuple[Region, ...], like: planners.Plan
) -> bool:
    """Compile the plan of some regions, if there is one; whether it fits."""
    if planners.error_of(compiled_plans.graph, regions) > compiled_plans.graph.most_error:
        return False
    try:
        decisions = with_regions(compiled_plans.graph, like, regions)
    except planners.InvalidPlan:  # something has to be saved
        return False
    return compiled_plans.temp_bytes(compiled_plans.of(decisions)) <= room
