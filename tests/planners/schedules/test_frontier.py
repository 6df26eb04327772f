"""On a frontier more bytes never take longer, whatever a planner returns."""

import dataclasses
import itertools as it

import graphs
import pytest

import planners
from planners.schedules import frontier, gap

GRAPH = graphs.without_extras(graphs.blocks(3, n_forward=6, seed=1))
PEAK = planners.SaveAll()(GRAPH, 10**12).peak_bytes
LEAST = planners.Revolve()(GRAPH, 10**12).peak_bytes
BUDGETS = [LEAST + (PEAK - LEAST) * n // 9 for n in range(10)]


def unlucky(graph, budget_bytes):
    """Finds the best of chains, what fits into the least budget, or nothing, in turn."""
    turn = BUDGETS.index(budget_bytes) % 3
    if turn == 2:
        raise planners.SolverStopped("out of luck")
    return (planners.Revolve(), planners.Rotor())[turn](graph, budget_bytes)


def rises(planner):
    """Whether seconds rise from some budget to the next; no answer takes for ever."""
    seconds = []
    for budget in BUDGETS:
        try:
            schedule = planner(GRAPH, budget)
        except planners.PlanningError:
            seconds.append(float("inf"))
            continue
        cost = planners.cost_of(GRAPH, schedule.steps)
        assert cost.peak_bytes <= budget
        assert schedule.bound_seconds <= cost.seconds == schedule.seconds
        seconds.append(schedule.seconds)
    return any(later > earlier for earlier, later in it.pairwise(seconds))


def test_seconds_never_rise_with_the_budget():
    assert rises(unlucky)  # or this shows nothing
    assert not rises(frontier.Frontier(unlucky))


def test_a_bound_for_less_memory_is_not_claimed_for_more():
    def boastful(graph, budget_bytes):
        if budget_bytes > BUDGETS[0]:
            raise planners.SolverStopped("out of luck")
        found = planners.Revolve()(graph, budget_bytes)
        return dataclasses.replace(found, bound_seconds=found.seconds)

    asked = frontier.Frontier(boastful)
    assert asked(GRAPH, BUDGETS[0]).bound_seconds > GRAPH.seconds
    assert asked(GRAPH, BUDGETS[-1]).bound_seconds == GRAPH.seconds


def test_the_planners_error_is_raised_where_nothing_is_known():
    with pytest.raises(planners.InfeasibleBudget):
        frontier.Frontier(planners.Revolve())(GRAPH, 1)


def test_gap_is_never_slower_than_where_it_starts():
    """Even without time for anything."""
    start = planners.Revolve()(GRAPH, BUDGETS[5])
    found = gap.Gap(time_limit=0.0)(GRAPH, BUDGETS[5], start=start)
    assert found.seconds <= start.seconds and found.peak_bytes <= BUDGETS[5]
    with pytest.raises(planners.InvalidPlan):
        gap.Gap()(GRAPH, BUDGETS[5], start=dataclasses.replace(start, steps=start.steps[1:]))
