"""The search for a program's smallest plan, where the models rank plans less well."""

import contextlib
import itertools as it
import math
from collections.abc import Iterator, Sequence

import planners
from planners.regions.simple_plans import left_alone, moving_inputs, saving_all
from planners.regions.uniform import with_regions
from planners.transfers import keeps_host

from ..candidates.compiled_plans import CompiledPlans, least_excess_bytes
from ..candidates.spaces import Space, propose

#: A plan may compile to this share of its predicted bytes.
MAY_BE_OFF = 0.75
#: Changes of the smallest plan: what becomes of which of its regions.
_CHANGED_ENDS = (
    (saving_all, (-1,)),
    (left_alone, (0,)),
    (left_alone, (-1,)),
    (left_alone, (0, -1)),
)
#: Shares of the way from the smallest plan to saving all, for plans that may compile to less.
LARGER = (0.05, 0.1)
#: The steps towards the minimum, until one finds nothing.
CLEARLY_LESS = 0.97


def compile_small_plans(programs: Sequence[Sequence[Space]], limit: int) -> None:
    """Compile plans with few bytes, until one fits; then those that should take clearly less.

    The programs take turns. The compiler's schedule decides whether recomputing the first or the
    last stage costs memory or saves it, and whether the last is better left alone or saved by name:
    a GPT-2 under a scan took 429 MiB by name and 576 otherwise.

    Arguments:
        programs: the spaces of each; the last space has all plans of the program.
        limit: bytes for temporaries.

    Raises:
        CapReached: nothing more may be compiled.
    """
    whole = [spaces[-1] for spaces in programs]
    every = [space.plans for space in whole]
    for turn in it.zip_longest(*map(_small_plans, whole)):
        for plans, decisions in zip(every, turn, strict=True):
            if decisions is not None and _may_be_smallest(plans, decisions, _least(every)):
                plans.of(decisions)
            if plans.fastest_within(limit) is not None:
                return
    for space in whole:
        _descend(space)


def _descend(space: Space) -> None:
    """Compile plans that should take clearly less than the smallest, until one does not."""
    plans, least = space.plans, space.plans.smallest()
    while least is not None:
        aim = int(CLEARLY_LESS * plans.temp_bytes(least)) - least_excess_bytes(plans)
        found = propose([space], aim)
        if found is None or found.decisions in plans:
            return
        plans.of(found.decisions)
        least = None if plans.smallest() is least else plans.smallest()


def _least(every: Sequence[CompiledPlans]) -> float:
    """Temporaries of the smallest plan of all programs."""
    return min((plans.temp_bytes(x) for plans in every for x in plans), default=math.inf)


def _small_plans(space: Space) -> Iterator[planners.Plan]:
    """Plans with few bytes, the most promising first, whatever the limit is."""
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


def _may_be_smallest(plans: CompiledPlans, decisions: planners.Plan, least: float) -> bool:
    """Whether a plan may be smaller than all that are known.

    The prediction rests on the calibration plan, of which the compiler may make less than of
    others.
    """
    predicted = plans.predicted_temp_bytes(decisions.regions) + least_excess_bytes(plans)
    return MAY_BE_OFF * predicted <= least
