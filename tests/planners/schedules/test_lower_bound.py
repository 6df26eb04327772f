"""No schedule of any kind takes less than the lower bound, and the bound is not trivial."""

import graphs
import pytest
from schedule_spaces import Space, best_seconds, budgets, small_graph, varied_graphs
from thinning import thinned

from planners.schedules import lower_bound
from planners.schedules.bound import rows

BROKEN = 1e-6  # of the optimum: what HiGHS may be off by


def bounds(seeds):
    """For each small graph and budget the bound, and the least seconds of any schedule."""
    for graph in map(small_graph, seeds):
        if any(len(op.outputs) > 1 for op in graph.ops):  # Checkmate frees these together
            continue
        for budget in budgets(graph):
            least = best_seconds(graph, budget)
            yield lower_bound.lower_bound(graph, budget), least, graph


@pytest.mark.slow
def test_no_schedule_takes_less():
    found = list(bounds(range(60)))
    assert len(found) > 80
    for bound, least, _ in found:
        assert least is None or bound <= least * (1 + BROKEN)


@pytest.mark.slow
def test_it_is_often_the_optimum():
    """So it is no bound that only holds because it is low."""
    recomputing = [x for x in bounds(range(160)) if x[1] is not None and x[1] > x[2].seconds]
    tight = [bound >= least * (1 - BROKEN) for bound, least, _ in recomputing]
    assert len(tight) > 10 and sum(tight) > len(tight) / 3


@pytest.mark.parametrize("part", thinned(range(3), "0"))
def test_no_schedule_of_variants_takes_less(part):
    some = varied_graphs(range(20 * part, 20 * part + 20))
    assert len(some) > 6
    for graph, budget in ((g, b) for g in some for b in budgets(g)):
        least = Space(graph, budget).best()
        bound = lower_bound.lower_bound(graph, budget)
        assert least is None or bound <= least * (1 + BROKEN)


def test_fewer_samples_bound_less():
    graph = graphs.without_extras(graphs.blocks(2, n_forward=6, seed=1))
    everything = sum(value.nbytes for value in graph.values)
    found = [lower_bound.lower_bound(graph, everything // 4, samples=n) for n in (2, 8, None)]
    assert found == sorted(found) and found[-1] > graph.seconds


@pytest.mark.parametrize(
    "family", ["held", "read_by_runs", "read_by_samples", "read_between", "memory"]
)
def test_each_family_of_constraints_raises_it_somewhere(family, monkeypatch):
    """Left out, it stays a bound; what is checked is that each is there for something."""
    graph = graphs.without_extras(graphs.blocks(2, n_forward=6, seed=1))
    budget = sum(value.nbytes for value in graph.values) // 4

    def found():
        return [lower_bound.lower_bound(graph, budget, samples=n) for n in (3, 8)]

    whole = found()
    monkeypatch.setattr(rows, family, lambda *_: [])
    assert found() < whole
