"""Plans of one program with few bytes, whatever the limit is: the most promising first."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import left_alone, minimal_region, moving_inputs, saving_all
from planners.regions.uniform import with_regions
from planners.transfers import keeps_host

from .compiled_plans import CompiledPlans
from .spaces import Space

#: Changes of the smallest plan: what becomes of which of its regions.
_CHANGED_ENDS = (
    (saving_all, (-1,)),
    (left_alone, (0,)),
    (left_alone, (-1,)),
    (left_alone, (0, -1)),
)
#: Shares of the way from the smallest plan to saving all, for plans that may compile to less.
LARGER = (0.05, 0.1)


def small_plans(space: Space) -> Iterator[planners.Plan]:
    """The small plans of a space that has all plans of its program."""
    plans, graph = space.plans, space.plans.graph
    yield plans.calibration_plan
    smallest = space.models[0].smallest()
    yield smallest
    known = plans.calibration_plan, smallest
    if (segmented := space.models[0].segmented(known)) is not None:
        yield segmented
    if space.moves and keeps_host(graph, moving := moving_inputs(space.models[0].graph)):
        yield with_regions(graph, smallest, moving)
    changed = list(_with_changed_ends(plans, smallest))
    yield from changed[:1]
    if graph.loops:
        yield space.models[0].checked(planners.whole_iterations(graph))
    yield from (model.smallest() for model in space.models[1:])
    yield from changed[1:]
    with contextlib.suppress(planners.InvalidPlan):
        yield with_regions(graph, smallest, _with_minimal_inner(graph, smallest.regions))
    least, most = smallest.peak_bytes, planners.save_all(graph).peak_bytes
    for share in LARGER:
        decisions = space.models[0].solved.fastest(int(least + share * (most - least)))
        if decisions is not None:
            yield space.models[0].checked(decisions)


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
