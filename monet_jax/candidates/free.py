"""The plan that costs nothing, compiled before anything calibrates the model.

Where recomputing what is free keeps the budget, the search needs no calibration and no other plan.
The model alone has to be trusted so far, so the plan is made for less than the limit.
"""

import planners
from planners.graph import Graph
from planners.regions.planner import RegionPlanner
from planners.regions.solved import SolvedBudgets

from .compiled_plans import CompiledPlans
from .spaces import without_alternatives, without_host
from .worth import is_free

#: The share of a limit that such a plan may take by the model.
MODEL_SHARE = 0.9
#: Plans of the planner, for fewer and fewer live bytes.
ROUNDS = 3


def solved_as_jax(planner: RegionPlanner, graph: Graph) -> SolvedBudgets:
    """Plans of a graph in which derivatives read what JAX has them read."""
    return SolvedBudgets(planner, without_alternatives(without_host(graph)))


def compile_free_plan(
    plans: CompiledPlans, solved: SolvedBudgets, free_seconds: float, limit: int
) -> bool:
    """Compile a plan that costs nothing, if the planner has one; whether it keeps a limit.

    Nothing is done where the model is calibrated, or where plans are not verified.

    Arguments:
        plans: of the program, the unplanned one compiled.
        solved: `solved_as_jax` of the program, before calibration.
        free_seconds: of the fastest plan of all programs, whatever memory it takes.
        limit: bytes for temporaries.

    Raises:
        CapReached: nothing more may be compiled, or there is no time left.
    """
    if not plans.verify or plans.is_calibrated or plans.judge.devices > 1:
        return False
    decisions = _free_plan(plans, solved, free_seconds, int(MODEL_SHARE * limit))
    if decisions is None:
        return False
    compiled = plans.of_uncalibrated(decisions)
    return compiled.figures is not None and plans.temp_bytes(compiled) <= limit


def _free_plan(
    plans: CompiledPlans, solved: SolvedBudgets, free_seconds: float, aim: int
) -> planners.Plan | None:
    """A plan that takes at most `aim` bytes by the model and no time to speak of.

    Raises:
        CapReached: there is no time left.
    """
    model, budget = plans.uncalibrated, aim
    for _ in range(ROUNDS):
        plans.cap.check_seconds()
        decisions = solved.fastest(budget)
        if decisions is None or not is_free(decisions, free_seconds):
            return None
        modelled = model.modelled(decisions.regions)
        if modelled <= aim:
            return decisions
        budget = min(budget, decisions.peak_bytes) - (modelled - aim)
    return None
