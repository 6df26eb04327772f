"""Plans of one program with few bytes, whatever the limit is: the most promising first."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.descent import nested_but_last, with_lower_peak
from planners.regions.segments import smallest_segments
from planners.regions.simple_plans import (
    certified,
    left_alone,
    minimal_region,
    moving_inputs,
    saving_all,
    saving_least,
)
from planners.regions.uniform import Regions, with_regions
from planners.transfers import keeps_host

from .cap import CapReached
from .compiled_plans import CompiledPlans
from .programs import Programs, fastest_within
from .proposals import Proposals
from .spaces import Space
from .worth import WORTH

#: Changes of the smallest plan: what becomes of which of its regions.
_CHANGED_ENDS = (
    (saving_all, (-1,)),
    (saving_least, (-1,)),
    (left_alone, (0,)),
    (left_alone, (-1,)),
    (left_alone, (0, -1)),
)
#: Segmentations that are tried for the smallest plan, and plans in each descent from one.
SEGMENTATIONS, DESCENT_CANDIDATES = 60, 100
#: A plan of this share of another's bytes is clearly smaller: compilers differ by less.
CLEARLY_LESS = 0.97
#: Shares of the way from the smallest plan to saving all, for plans that may compile to less.
LARGER = (0.05, 0.1)


def small_plans(space: Space, limit: int) -> Iterator[planners.Plan | None]:
    """The small plans of a space that has all plans of its program.

    Arguments:
        space: the space.
        limit: bytes for temporaries. Of plans that should keep it the fastest comes first.
    """
    plans, graph = space.plans, space.plans.graph
    yield plans.calibration_plan
    model = space.models[0]

    def nbytes(plan: planners.Plan) -> int:
        return model.modelled(plan.regions)

    least_live, *found = _of_least_bytes(space)
    yield _fastest_within(plans, (least_live, *found), limit)
    smallest = min(found, key=nbytes)
    if nbytes(smallest) > min(CLEARLY_LESS * nbytes(plans.calibration_plan), nbytes(least_live)):
        smallest = least_live
    yield smallest
    if space.moves and keeps_host(graph, moving := moving_inputs(model.graph)):
        yield with_regions(graph, smallest, moving)
    changed = list(_with_changed_ends(plans, smallest))
    yield from changed[:1]
    yield least_live
    if graph.loops:
        yield model.checked(planners.whole_iterations(graph))
    yield from (other.smallest() for other in space.models[1:])
    yield from changed[1:]
    for plan in (smallest, least_live):
        with contextlib.suppress(planners.InvalidPlan):
            yield with_regions(graph, plan, _with_minimal_inner(graph, plan.regions))
    least, most = least_live.peak_bytes, planners.save_all(graph).peak_bytes
    for share in LARGER:
        decisions = model.solved.fastest(int(least + share * (most - least)))
        if decisions is not None:
            yield model.checked(decisions)


def compile_faster_small_plans(programs: Programs, limit: int) -> None:
    """Compile the fastest small plan of each program that should fit, if it beats what fits so far.

    Arguments:
        programs: of the function.
        limit: bytes for temporaries.
    """
    known = fastest_within(programs, limit)
    seconds = math.inf if known is None else (1 - WORTH) * known[1].decisions.seconds
    whole = {space.plans: space for space in programs.staying_spaces}
    with contextlib.suppress(CapReached):
        for plans, space in whole.items():
            fits = _fastest_within(plans, _of_least_bytes(space), limit)
            if fits is not None and fits.seconds < seconds:
                plans.of(fits)


def _of_least_bytes(space: Space) -> list[planners.Plan]:
    """The planner's smallest plan, and those that are found without its solver."""
    model, calibration = space.models[0], space.plans.calibration_plan
    least_live = model.smallest()
    return [least_live, *_found_without_solver(model, space.plans, (calibration, least_live))]


def _fastest_within(
    plans: CompiledPlans, some: Sequence[planners.Plan], limit: int
) -> planners.Plan | None:
    """The fastest of some plans that should keep a limit; None where none should."""
    fits = (x for x in some if plans.predicted_temp_bytes(x.regions) <= limit)
    return min(fits, key=lambda x: x.seconds, default=None)


def _found_without_solver(
    model: Proposals, plans: CompiledPlans, known: Sequence[planners.Plan]
) -> list[planners.Plan]:
    """The smallest plan of segments, and what descents from it and from known plans end at.

    The planner's own smallest plan has the fewest live bytes, not the fewest bytes by this model.
    """
    graph, singles = model.graph, model.solved.prepared.singles

    def peak_of(regions: Regions) -> tuple[float, int]:
        return plans.model.peak(regions, graph) if model.is_right(regions) else (math.inf, 0)

    segments = smallest_segments(graph, model.modelled, SEGMENTATIONS)
    names = {segments: "segments"}
    for start in (segments, nested_but_last(graph), *(x.regions for x in known)):
        if singles is not None:
            end = with_lower_peak(graph, start, singles, peak_of, DESCENT_CANDIDATES)
            names.setdefault(end, "descent")
    found = [
        certified(graph, regions, planner=name, bound_seconds=graph.seconds)
        for regions, name in names.items()
    ]
    return [model.checked(x) for x in found]


def _with_minimal_inner(graph: Graph, regions: Sequence[Region]) -> tuple[Region, ...]:
    """The regions, where those inside of others save nothing: a compiler may make less of them."""
    return tuple(
        dataclasses.replace(x, inner=tuple(minimal_region(graph, y.first) for y in x.inner))
        if all(y.first == y.last for y in x.inner)
        else x
        for x in regions
    )


def _with_changed_ends(plans: CompiledPlans, smallest: planners.Plan) -> Iterator[planners.Plan]:
    for changed, ends in _CHANGED_ENDS:
        regions = list(smallest.regions)
        for n in ends:
            regions[n] = changed(plans.graph, regions[n])
        with contextlib.suppress(planners.InvalidPlan):  # something cannot be saved
            yield with_regions(plans.graph, smallest, tuple(regions))
