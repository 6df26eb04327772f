"""Does Checkmate's program find the best schedule of the space that its paper describes?"""

import heapq
import itertools as it

import graphs
import pytest

import planners
from planners import Execute, Free, InfeasibleBudget, cost_of
from planners.published import checkmate
from planners.published.checkmate import Checkmate

EXACT = Checkmate(time_limit=60.0, gap=1e-9)


def best_seconds(graph, budget):
    """The least seconds of any schedule of the space, by looking at all of them; None if none.

    Stage by stage: earlier ops may run again, in order, then the stage's own op runs for the first
    time. What is in memory may be freed at any time, an op's outputs together.
    """
    ops = graph.ops
    writer = {i: o for o, op in enumerate(ops) for i in op.outputs}
    reads = [frozenset(writer[i] for i in op.inputs) for op in ops]
    nbytes = [sum(graph.values[i].nbytes for i in op.outputs) for op in ops]
    seen, queue, barriers = set(), [(0.0, 0, 0, 0, frozenset())], it.count(1)
    while queue:
        seconds, _, t, k, live = heapq.heappop(queue)
        if t == len(ops):
            return seconds
        if (t, k, live) in seen:
            continue
        seen.add((t, k, live))

        def go(seconds, t, k, live):
            heapq.heappush(queue, (seconds, next(barriers), t, k, live))

        for o in live:
            go(seconds, t, k, live - {o})
        if k < t:
            go(seconds, t, k + 1, live)
        if k not in live and reads[k] <= live and (k == t or graph.may_rerun(k)):
            held = sum(nbytes[o] for o in live | {k})
            if held + ops[k].workspace_bytes <= budget:
                after = (t, k + 1) if k < t else (t + 1, 0)
                go(seconds + ops[k].seconds, *after, live | {k})
    return None


def small_graph(seed):
    return graphs.without_extras(graphs.random_graph(seed, n_stages=1 + seed % 2, n_forward=2))


def budgets(graph):
    """From a little less than any schedule needs to what keeping everything takes."""
    everything = cost_of(graph, [Execute(o) for o in range(len(graph.ops))]).peak_bytes
    return sorted({int(share * everything) for share in (0.45, 0.6, 0.75, 0.9, 1.0)})


def found_seconds(planner, graph, budget):
    """The planner's seconds, its schedule checked; None where it says that there is none."""
    try:
        schedule = planner(graph, budget)
    except InfeasibleBudget:
        return None
    assert schedule.peak_bytes <= budget
    assert schedule.bound_seconds <= schedule.seconds + 1e-9
    return schedule.seconds


def is_same(found, expected):
    """Whether both are the same seconds, or both None."""
    if found is None or expected is None:
        return found is expected
    return found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def agrees(graph, budget):
    """Whether the planner finds what looking at all schedules finds."""
    return is_same(found_seconds(EXACT, graph, budget), best_seconds(graph, budget))


def fails_somewhere(agrees, some=None):
    """Whether a planner disagrees, or its schedule is refused, on some small graph."""
    some = map(small_graph, range(200)) if some is None else some

    def fails(graph, budget):
        try:
            return not agrees(graph, budget)
        except (planners.InvalidPlan, planners.SolverStopped, AssertionError):
            return True

    return any(fails(g, b) for g in some for b in budgets(g))


@pytest.mark.parametrize("seed", range(60))
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
