"""MONeT's program finds the best schedule of the space that it describes."""

import dataclasses
import itertools as it

import graphs
import pytest
from schedule_spaces import (
    Space,
    budgets,
    fails_somewhere,
    found_seconds,
    is_same,
    quick,
    small_graph,
    varied_graphs,
)
from thinning import thinned

from planners import (
    Execute,
    Implementation,
    InfeasibleBudget,
    SolverStopped,
    cost_of,
    save_all,
    steps_of,
)
from planners.published import monet, monet_program
from planners.published.monet import Monet
from planners.solver.highs import Outcome

EXACT = Monet(time_limit=60.0, gap=1e-9)


class MonetSpace(Space):
    """The space of `planners.published.monet`, by looking at every schedule of it.

    A state is what is stored from a round into the next one.
    """

    def event(self, states, op, before, during):
        """What is stored after a round -> the least seconds so far."""
        found = {}
        for (state, seconds), runs, implementation in it.product(
            states.items(), self.runs(), op.implementations
        ):
            read = set(implementation.inputs) & set(self.own)
            given = (state | {i for o in runs for i in self.forward[o].outputs}) & set(self.needed)
            cost = seconds + implementation.seconds + sum(again.seconds for again in runs.values())
            for stored in map(set, graphs.subsets(sorted(given))):
                kept = stored | read
                fits = self.nbytes(kept) + during + implementation.workspace_bytes <= self.budget
                if fits and kept <= given and self.may_run(runs, state, kept, stored, before):
                    key = frozenset(stored)
                    found[key] = min(cost, found.get(key, cost))
        return found

    def may_run(self, runs, state, kept, stored, before):
        """Whether ops may run again between what was stored and what is kept."""
        written = {i for o in runs for i in self.forward[o].outputs}
        inputs = {i for implementation in runs.values() for i in implementation.inputs}
        lost = {i for implementation in runs.values() for i in implementation.overwrites}
        if not (inputs <= state | written and kept <= stored | written) or lost & kept:
            return False
        return all(
            before + self.nbytes(self.present(o, state, kept)) + implementation.workspace_bytes
            <= self.budget
            for o, implementation in runs.items()
        )

    def present(self, o, state, kept):
        """What is counted while a forward op runs again."""
        local = {i for i in self.own if self.written[i] < o <= self.reader[i]}
        ahead = {i for i in state if self.written[i] > o}
        behind = {i for i in kept if self.written[i] < o}
        return local | ahead | behind | set(self.forward[o].outputs)


def agrees(graph, budget):
    """Whether the planner finds what looking at all schedules finds."""
    return is_same(found_seconds(EXACT, graph, budget), MonetSpace(graph, budget).best())


@pytest.mark.parametrize("seed", thinned(quick(range(40)), *map(str, quick(range(18)))))
def test_it_agrees_with_looking_at_all_schedules(seed):
    graph = small_graph(seed)
    assert all(agrees(graph, budget) for budget in budgets(graph))


@pytest.mark.parametrize("part", thinned(range(3), "0"))
def test_with_variants_it_agrees_as_well(part):
    some = varied_graphs(range(20 * part, 20 * part + 20))
    assert len(some) > 6
    assert all(agrees(graph, budget) for graph in some for budget in budgets(graph))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_it_agrees_on_many_graphs(part):
    seeds = range(1000 * part + 1000, 1000 * part + 1150)
    some = [*map(small_graph, quick(seeds)), *varied_graphs(seeds)]
    assert len(some) > 100
    assert all(agrees(graph, budget) for graph in some for budget in budgets(graph))


@pytest.mark.parametrize(
    ("family", "seeds"),
    [
        ("runs", (0, 1)),
        ("forward_reads", (13,)),
        ("backward_reads", (3, 7)),
        ("stores", (3, 7)),
        ("products", (1, 4)),
        ("forward_memory", (0, 2)),
        ("recomputation_memory", (17,)),
        ("backward_memory", (1, 3)),
    ],
)
def test_without_any_family_of_constraints_it_does_not(family, seeds, monkeypatch):
    """On graphs on which it does with them; not every graph needs every family."""
    some = [small_graph(seed) for seed in seeds]
    assert not fails_somewhere(agrees, some)
    monkeypatch.setattr(monet_program, family, lambda _: [])
    assert fails_somewhere(agrees, some)


def test_without_rows_on_what_is_overwritten_it_does_not(monkeypatch):
    monkeypatch.setattr(monet_program, "overwritten", lambda _: [])
    assert fails_somewhere(agrees, varied_graphs(range(30)))


@pytest.mark.parametrize("seed", quick(range(100, 120)))
def test_its_space_is_part_of_gaps(seed):
    graph = small_graph(seed)
    for budget in budgets(graph):
        least, found = Space(graph, budget).best(), found_seconds(EXACT, graph, budget)
        assert found is None or (least is not None and found >= least - 1e-6)


def test_what_is_local_counts_though_it_is_not_there():
    """`z` runs again while `x`, which is read after it in the forward pass, is long gone."""
    make = graphs.Builder()
    forward = [
        make.op("f0", "", "x:8"),
        make.op("f1", "x", "y:1"),
        make.op("f2", "y", "z:4"),
        make.op("f3", "z x", "w:1"),
        make.op("f4", "w", "v:10"),
    ]
    backward = [make.op("b4", "v", "dv:2!"), make.op("b2", "z dv", "dz:1!")]
    graph = make.graph([forward], [backward])
    assert Space(graph, 14).best() == 8.0
    assert found_seconds(EXACT, graph, 14) is None
    assert found_seconds(EXACT, graph, 15) == pytest.approx(9.0)


def test_what_was_read_for_the_last_time_stays_into_the_next_event():
    """`y` counts while `x` runs again, after all that read it."""
    make = graphs.Builder()
    forward = [make.op("f0", "", "x:8"), make.op("f1", "x", "y:8"), make.op("f2", "y", "l:3")]
    backward = [make.op("b1", "y l", "dy:2!"), make.op("b0", "x dy", "dx:1!")]
    graph = make.graph([forward], [backward])
    assert Space(graph, 17).best() == 6.0
    assert found_seconds(EXACT, graph, 17) == pytest.approx(9.0)


def test_a_gradient_may_be_written_over():
    make = graphs.Builder()
    forward = [make.op("f0", "", "x:1")]
    first = make.op("b1", "x", "dy:4!")
    over = Implementation(first.outputs, 2.0, workspace_bytes=-4, overwrites=first.outputs)
    graph = make.graph([forward], [[first, make.op("b0", "dy", "dx:4!", alternatives=(over,))]])
    assert EXACT(graph, 8).seconds == pytest.approx(3.0)
    assert EXACT(graph, 5).seconds == pytest.approx(4.0)


def in_gibibytes(graph):
    """The graph with 2**30 bytes for each of its bytes."""
    values = (dataclasses.replace(value, nbytes=value.nbytes << 30) for value in graph.values)
    return dataclasses.replace(graph, values=tuple(values))


def test_a_byte_too_much_is_too_much(monkeypatch):
    """HiGHS allows itself a millionth of a row; the planner keeps the budget all the same."""
    graph = graphs.chain()
    budget = cost_of(graph, steps_of(graph, save_all(graph))).peak_bytes - 1
    nearly = ((budget + 1) << 30) - 1
    assert found_seconds(EXACT, in_gibibytes(graph), nearly) == EXACT(graph, budget).seconds
    monkeypatch.setattr(monet, "_MARGIN", 0.0)
    with pytest.raises(SolverStopped, match="take more than"):
        EXACT(in_gibibytes(graph), nearly)


def test_a_chain_is_recomputed_where_memory_is_short():
    graph = graphs.chain()
    enough = cost_of(graph, steps_of(graph, save_all(graph))).peak_bytes
    everything, less = EXACT(graph, enough), EXACT(graph, enough - 1)
    assert everything.seconds == graph.seconds and everything.gap == 0.0
    assert less.seconds > graph.seconds and less.gap == pytest.approx(0.0, abs=1e-6)
    assert less.planner == "Monet"
    assert sum(isinstance(step, Execute) for step in less.steps) > len(graph.ops)


def test_a_budget_below_the_largest_op_is_infeasible():
    graph = graphs.chain()
    with pytest.raises(InfeasibleBudget) as caught:
        EXACT(graph, 4)
    # `b3` reads `c` and `l` and writes `dc`.
    assert caught.value.minimum_bytes == 11


def test_without_time_it_says_so(monkeypatch):
    graph = graphs.chain()
    with pytest.raises(SolverStopped, match="being written"):
        Monet(time_limit=0.0)(graph, 100)
    monkeypatch.setattr(monet, "solve", lambda *_, **__: Outcome())
    with pytest.raises(SolverStopped, match="Raise `time_limit`"):
        EXACT(graph, 100)
