"""Plans of one program with few bytes, whatever the limit is: the most promising first."""

import contextlib
from collections.abc import Iterator

import planners
from planners.regions.simple_plans import left_alone, moving_inputs, saving_all
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
    smallest = [model.smallest() for model in space.models]
    yield smallest[0]
    known = plans.calibration_plan, smallest[0]
    if (segmented := space.models[0].segmented(known)) is not None:
        yield segmented
    if space.moves and keeps_host(graph, moving := moving_inputs(space.models[0].graph)):
        yield with_regions(graph, smallest[0], moving)
    changed = list(_with_changed_ends(plans, smallest[0]))
    yield from changed[:1]
    if graph.loops:
        yield space.models[0].checked(planners.whole_iterations(graph))
    yield from smallest[1:]
    yield from changed[1:]
    least, most = smallest[0].peak_bytes, planners.save_all(graph).peak_bytes
    for share in LARGER:
        decisions = space.models[0].solved.fastest(int(least + share * (most - least)))
        if decisions is not None:
            yield space.models[0].checked(decisions)


def _with_changed_ends(plans: CompiledPlans, smallest: planners.Plan) -> Iterator[planners.Plan]:
    for changed, ends in _CHANGED_ENDS:
        regions = list(smallest.regions)
        for n in ends:
            regions[n] = changed(plans.graph, regions[n])
        with contextlib.suppress(planners.InvalidPlan):  # something cannot be saved
            yield with_regions(plans.graph, smallest, tuple(regions))
