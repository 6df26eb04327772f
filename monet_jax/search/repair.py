"""What becomes of a plan that is fast and nearly fits?

What a compiler makes of a plan is known once it is compiled. A plan that takes a little too much is
tried without what is small in it, and where it is much faster than all that fit, mixed with these.
"""

from collections.abc import Sequence

import planners
from planners.plan import Region

from .compiled_plans import Trials
from .proposals import with_regions

#: Plans are mixed where that may save this share of the step's time.
FAR = 0.05


def try_without_change(trials: Trials, room: int) -> None:
    """Compile the least of the faster plans that do not fit, if it may without small values."""
    near, graph = trials.nearest_over(room), trials.graph
    if near is None:
        return
    regions = planners.without_change(graph, near.decisions.regions)
    change = planners.saved_bytes(graph, near.decisions.regions)
    change -= planners.saved_bytes(graph, regions)
    if trials.temp_bytes(near) - room <= change:
        _fits(trials, room, regions, near.decisions)


def try_between(trials: Trials, room: int, rounds: int) -> None:
    """Compile plans that do in part as the fastest that fits, in part as a much faster one.

    A compiler may take more than is predicted of all plans but the smallest, and what is predicted
    to take as much less is then the smallest alone.

    Arguments:
        trials: of the function.
        room: bytes for temporaries.
        rounds: how many plans may be compiled.
    """
    best, near = trials.fastest_within(room), trials.nearest_over(room)
    if best is None or near is None:
        return
    fits, over = best.decisions, near.decisions
    if fits.seconds - over.seconds < FAR * trials.graph.seconds:
        return
    late = planners.mixtures(trials.graph, fits.regions, over.regions)
    early = planners.mixtures(trials.graph, over.regions, fits.regions)
    for mixtures in (late[::-1], early):
        _bisect(trials, room, mixtures, over, rounds // 2)


def _bisect(
    trials: Trials,
    room: int,
    mixtures: Sequence[tuple[Region, ...]],
    like: planners.Plan,
    rounds: int,
) -> None:
    """Compile mixtures, that take more and more, until the last that fits is among them."""
    low, high = -1, len(mixtures)
    while high - low > 1 and rounds:
        middle, rounds = (low + high) // 2, rounds - 1
        is_low = _fits(trials, room, mixtures[middle], like)
        low, high = (middle, high) if is_low else (low, middle)


def _fits(trials: Trials, room: int, regions: tuple[Region, ...], like: planners.Plan) -> bool:
    """Compile the plan of some regions, if there is one; whether it fits."""
    if planners.error_of(trials.graph, regions) > trials.graph.most_error:
        return False
    try:
        decisions = with_regions(trials.graph, like, regions)
    except planners.InvalidPlan:  # something has to be saved
        return False
    return trials.temp_bytes(trials.of(decisions)) <= room
