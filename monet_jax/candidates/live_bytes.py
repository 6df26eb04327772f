"""For how many live bytes to ask the planner, so that a plan takes at most so many temporaries."""

import dataclasses
from collections.abc import Callable, Sequence

import planners
from planners.graph import Graph, Op
from planners.regions.solved import SolvedBudgets
from planners.regions.uniform import Regions

from .worth import is_free

#: Corrections of the planner's budget by the model of the buffer assignment, for one limit.
MODEL_ROUNDS = 8
#: A plan that uses this share of its limit on modelled temporaries is good enough.
GOOD_USE = 0.98
#: The search ends when this share of the limit is all that is undecided.
ENOUGH = 0.01
#: A budget whose plan takes too much is lowered by this share of the limit at least.
STEP = 0.005


def fastest_within(
    solved: SolvedBudgets,
    modelled: Callable[[Regions], int],
    limit: int,
    budget: int,
) -> tuple[planners.Plan | None, int]:
    """The fastest of a planner's plans for fewer and fewer live bytes that keeps a limit.

    Arguments:
        solved: the planner's plans, by live bytes.
        modelled: a plan's regions -> its temporaries.
        limit: on modelled temporaries.
        budget: of live bytes, to begin with.

    Returns:
        The plan and its budget; None and the first budget where no plan keeps the limit.
    """
    best, low, high, budget = (None, budget), 0, None, max(budget, solved.floor)
    for _ in range(MODEL_ROUNDS):
        if solved.has_used(1.0):
            break
        decisions = solved.fastest(budget)
        if decisions is None:
            if solved.floor <= budget:
                break  # the solver stopped without an answer
            low, budget = max(low, budget), solved.floor
            if high is not None and budget >= high:
                break
            continue
        taken = modelled(decisions.regions)
        if taken <= limit:
            low = max(low, budget)
            if best[0] is None or decisions.seconds < best[0].seconds:
                best = decisions, budget
            if taken >= GOOD_USE * limit or is_free(decisions, solved.free_seconds):
                break
        else:  # and so does every plan for as much as this one takes
            high = min(budget, decisions.peak_bytes, high or budget)
        budget = max(_next_budget(budget, low, high, taken - limit, limit), solved.floor)
        if high is not None and high - low < ENOUGH * limit:
            break
    return best


def _next_budget(budget: int, low: int, high: int | None, over: int, limit: int) -> int:
    """As much less as the last plan was over, or the middle of what is undecided.

    Plans that are over by next to nothing would creep towards the limit.
    """
    guess = budget - (max(over, int(STEP * limit)) if over > 0 else over)
    return guess if high is None or low < guess < high else (low + high) // 2


def lending(graph: Graph, nbytes: Sequence[int]) -> tuple[Graph, int]:
    """A graph to plan where some live bytes lie in results, more of them early in the backward.

    In it live bytes exceed those with memory of their own by the same at every moment: ops need as
    much more workspace as less lies in results than at the best moment.

    Arguments:
        graph: of a program.
        nbytes: for each stage, live bytes that lie in results.

    Returns:
        The graph, and by how much live bytes exceed.
    """
    most = max(nbytes, default=0)
    stages = tuple(
        dataclasses.replace(
            stage,
            forward=tuple(_needing(op, most - n) for op in stage.forward),
            backward=tuple(_needing(op, most - n) for op in stage.backward),
        )
        for stage, n in zip(graph.stages, nbytes, strict=True)
    )
    return dataclasses.replace(graph, stages=stages), most


def _needing(op: Op, nbytes: int) -> Op:
    """The op with so many more bytes of workspace, however it is implemented."""
    alternatives = tuple(
        dataclasses.replace(x, workspace_bytes=x.workspace_bytes + nbytes) for x in op.alternatives
    )
    workspace = op.workspace_bytes + nbytes
    return dataclasses.replace(op, workspace_bytes=workspace, alternatives=alternatives)
