"""Searches the spaces of plans in order for the fastest whose compiled temporaries keep a limit."""

from collections.abc import Sequence

from ..compiled_plans import CompiledPlan, CompiledPlans
from .bisection import compile_proposals, hoped_for_bytes, max_compilations
from .repair import try_between
from .small_plans import try_small_plans
from .spaces import Models

#: Where a plan uses less than this share of its limit, the other model is searched as well.
FAIR_USE = 0.95
#: A budget is infeasible by no less than this: a search for this share of the minimum fails, too.
CLEARLY_LESS = 0.97
#: The steps towards the minimum, until one finds nothing; then they are of the former kind.
MUCH_LESS = 0.9


def fastest_or_smallest(
    compiled_plans: CompiledPlans, spaces: Sequence[Models], limit: int, outside: int
) -> CompiledPlan:
    """The fastest plan that fits; where none is found, the smallest, which does not fit.

    Arguments:
        compiled_plans: of the function.
        spaces: of its plans.
        limit: bytes for temporaries.
        outside: bytes of the budget for all else.
    """
    best = _searched(compiled_plans, spaces, limit)
    if compiled_plans.temp_bytes(best) > limit:
        best = _smallest(compiled_plans, spaces, best, outside)
    return best


def _smallest(
    compiled_plans: CompiledPlans, spaces: Sequence[Models], best: CompiledPlan, outside: int
) -> CompiledPlan:
    """The smallest plan, below which a search for clearly less finds nothing."""
    for share in (MUCH_LESS, CLEARLY_LESS):
        fits = True
        while fits:
            limit = int(share * (outside + compiled_plans.temp_bytes(best))) - outside
            found = _searched(compiled_plans, spaces, limit) if limit > 0 else best
            fits = compiled_plans.temp_bytes(found) <= limit
            best = min(best, found, key=compiled_plans.temp_bytes)
    return best


def _searched(compiled_plans: CompiledPlans, spaces: Sequence[Models], limit: int) -> CompiledPlan:
    """The fastest plan that fits, or else the smallest, after one search of the spaces."""
    for models in spaces:
        best = _best_of_space(compiled_plans, models, limit)
        if best is not None and _is_free(compiled_plans, best):
            break
    try_between(compiled_plans, limit, max_compilations(compiled_plans))
    return compiled_plans.fastest_within(limit) or compiled_plans.smallest()


def _best_of_space(
    compiled_plans: CompiledPlans, models: Models, limit: int
) -> CompiledPlan | None:
    """The fastest plan that fits, after a search of one more space; None where none fits."""
    best = None
    for proposals in models:
        compile_proposals(compiled_plans, proposals, limit)
        best = compiled_plans.fastest_within(limit)
        if best is not None and _is_final(compiled_plans, best, limit):
            return best
    if best is None or best.decisions.regions == compiled_plans.calibration_plan.regions:
        try_small_plans(compiled_plans, models)
        if hoped_for_bytes(compiled_plans, limit) > compiled_plans.modelled_for(limit):
            for proposals in models:
                compile_proposals(compiled_plans, proposals, limit)
            best = compiled_plans.fastest_within(limit)
    return best


def _is_free(compiled_plans: CompiledPlans, plan: CompiledPlan) -> bool:
    """Whether a plan takes no longer than recomputing nothing."""
    return plan.decisions.seconds <= compiled_plans.graph.seconds


def _is_final(compiled_plans: CompiledPlans, plan: CompiledPlan, limit: int) -> bool:
    """Whether a plan that fits is fast, or uses enough of the limit, not to look further."""
    enough = compiled_plans.temp_bytes(plan) >= FAIR_USE * limit
    is_planned = plan.decisions.regions != compiled_plans.calibration_plan.regions
    return is_planned and (enough or _is_free(compiled_plans, plan))
