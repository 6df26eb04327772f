"""The search for a program's smallest plan, where the models rank plans less well."""

import contextlib
from collections.abc import Iterator, Sequence

import planners
from planners.regions.simple_plans import left_alone, saving_all
from planners.regions.uniform import with_regions

from ..candidates.compiled_plans import CompiledPlans
from ..candidates.spaces import Space, propose
from .bisection import least_excess_bytes

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


def compile_small_plans(spaces: Sequence[Space], limit: int) -> None:
    """Compile plans with few bytes, until one fits; then those that should take clearly less.

    The compiler's schedule decides whether recomputing the first or the last stage costs memory or
    saves it, and whether the last is better left alone or saved by name: a GPT-2 under a scan took
    429 MiB by name and 576 otherwise.

    Arguments:
        spaces: of one program; the last has all its plans.
        limit: bytes for temporaries.

    Raises:
        CapReached: nothing more may be compiled.
    """
    plans = spaces[-1].plans
    for decisions in _small_plans(spaces[-1]):
        if _may_be_smallest(plans, decisions):
            plans.of(decisions)
        if plans.fastest_within(limit) is not None:
            return
    least = plans.smallest()
    while least is not None:
        aim = int(CLEARLY_LESS * plans.temp_bytes(least)) - least_excess_bytes(plans)
        found = propose(spaces, aim)
        if found is None or found.decisions in plans:
            return
        plans.of(found.decisions)
        if plans.smallest() is least:
            return
        least = plans.smallest()


def _small_plans(space: Space) -> Iterator[planners.Plan]:
    """Plans with few bytes, the most promising first, whatever the limit is."""
    plans, graph = space.plans, space.plans.graph
    yield plans.calibration_plan
    smallest = [model.smallest() for model in space.models]
    yield smallest[0]
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


def _may_be_smallest(plans: CompiledPlans, decisions: planners.Plan) -> bool:
    """Whether a plan may be smaller than all that are known.

    The prediction rests on the calibration plan, of which the compiler may make less than of
    others.
    """
    least = plans.smallest()
    predicted = plans.predicted_temp_bytes(decisions.regions) + least_excess_bytes(plans)
    return least is None or MAY_BE_OFF * predicted <= plans.temp_bytes(least)
