"""Compiles small plans, because the model does not rank the smallest ones well."""

import contextlib
from collections.abc import Sequence

import planners
from planners.regions.simple_plans import left_alone, saving_all

from ..compiled_plans import CompiledPlans
from .bisection import least_excess_bytes
from .proposals import Proposals
from .uniform import with_regions

#: A plan may compile to this share of its predicted bytes.
MAY_BE_OFF = 0.9
#: Changes of the smallest plan: what becomes of which of its regions.
_CHANGED_ENDS = (
    (left_alone, (-1,)),
    (left_alone, (0,)),
    (left_alone, (0, -1)),
    (saving_all, (-1,)),
)


def try_small_plans(compiled_plans: CompiledPlans, models: Sequence[Proposals]) -> None:
    """Compile plans with few bytes, and the smallest with its ends changed.

    The compiler's schedule decides whether recomputing the first or the last stage costs memory or
    saves it, and whether the last is better left alone or saved by name: a GPT-2 under a scan took
    429 MiB by name and 576 otherwise.
    """
    for proposals in models:
        for decisions in proposals.small():
            _try_for_less(compiled_plans, decisions)
    graph, least = compiled_plans.graph, compiled_plans.smallest().decisions
    for changed, ends in _CHANGED_ENDS:
        regions = list(least.regions)
        for n in ends:
            regions[n] = changed(graph, regions[n])
        with contextlib.suppress(planners.InvalidPlan):  # something cannot be saved
            _try_for_less(compiled_plans, with_regions(graph, least, tuple(regions)))


def _try_for_less(compiled_plans: CompiledPlans, decisions: planners.Plan) -> None:
    """Compile a plan, if it may be smaller than all that are known.

    The prediction rests on the calibration plan, of which the compiler may make less than of
    others.
    """
    predicted = compiled_plans.predicted_temp_bytes(decisions.regions)
    predicted += least_excess_bytes(compiled_plans)
    if MAY_BE_OFF * predicted <= compiled_plans.temp_bytes(compiled_plans.smallest()):
        compiled_plans.of(decisions)
