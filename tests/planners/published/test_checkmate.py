"""Checkmate's program finds the best schedule of the space that its paper describes."""

import graphs
import pytest
from schedule_spaces import (
    best_seconds,
    budgets,
    fails_somewhere,
    found_seconds,
    is_same,
    small_graph,
)
from thinning import thinned

import planners
from planners import Execute, Free, cost_of
from planners.published import checkmate
from planners.published.checkmate import Checkmate

EXACT = Checkmate(time_limit=60.0, gap=1e-9)


def agrees(graph, budget):
    """Whether the planner finds what looking at all schedules finds."""
    return is_same(found_seconds(EXACT, graph, budget), best_seconds(graph, budget))


@pytest.mark.parametrize("seed", thinned(range(60), *map(str, range(12))))
def test_it_agrees_with_looking_at_all_schedules(seed):
    graph = small_graph(seed)
    assert all(agrees(graph, budget) for budget in budgets(graph))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_it_agrees_on_many_graphs(part):
    graphs_of_part = map(small_graph, range(1000 + 100 * part, 1100 + 100 * part))
    assert all(agrees(graph, b) for graph in graphs_of_part for b in budgets(graph))


@pytest.mark.parametrize(
    "family", ["_reads", "_keeps", "_frees", "_first_runs", "_single_runs", "_memory"]
)
def test_without_any_family_of_constraints_it_does_not(family, monkeypatch):
    monkeypatch.setattr(checkmate.CheckmateProgram, family, lambda self: iter(()))
    assert fails_somewhere(agrees)


def test_a_chain_is_recomputed_where_memory_is_short():
    graph = graphs.chain()
    enough = cost_of(graph, planners.steps_of(graph, planners.save_all(graph))).peak_bytes
    everything, less = EXACT(graph, enough), EXACT(graph, enough - 1)
    assert everything.seconds == graph.seconds and everything.gap == 0.0
    assert less.seconds > graph.seconds and less.peak_bytes < enough
    again = [step.op for step in less.steps if isinstance(step, Execute)]
    assert len(again) > len(graph.ops)
    assert any(isinstance(step, Free) for step in less.steps)
