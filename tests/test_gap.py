"""Does the program on backward events find the best schedule of the space that it describes?"""

import graphs
import pytest
from test_checkmate import (
    best_seconds,
    budgets,
    fails_somewhere,
    found_seconds,
    is_same,
    small_graph,
)

import planners
from planners import gap, gap_program

EXACT = gap.Gap((gap.Grid(),), time_limit=60.0, gap=1e-9)


class Space:
    """The space of `planners.gap`, by looking at every schedule of it."""

    def __init__(self, graph, budget):
        self.graph, self.budget = graph, budget
        self.forward = [op for stage in graph.stages for op in stage.forward]
        self.backward = [op for stage in reversed(graph.stages) for op in stage.backward]
        self.own = [i for op in self.forward for i in op.outputs]
        self.written = {i: o for o, op in enumerate(self.forward) for i in op.outputs}
        self.reader = {
            i: max([o for o, op in enumerate(self.forward) if i in op.inputs] + [self.written[i]])
            for i in self.own
        }
        later = set()
        for op in self.backward:
            later |= set(op.inputs) & set(self.own)
        for op in reversed(self.forward):
            if later & set(op.outputs) and op.recomputable:
                later |= set(op.inputs)
        self.needed = sorted(later)
        self.again = [
            o for o, op in enumerate(self.forward) if op.recomputable and later & set(op.outputs)
        ]

    def nbytes(self, values):
        return sum(self.graph.values[i].nbytes for i in values)

    def best(self):
        """The least seconds; None where nothing fits."""
        states = {frozenset(c): 0.0 for c in graphs.subsets(self.needed) if self.waits(c)}
        alive = set()
        for b, op in enumerate(self.backward):
            before = self.nbytes(alive)
            during = self.nbytes(alive | set(op.outputs)) + op.workspace_bytes
            states = self.event(states, op, before, during)
            rest = {i for later in self.backward[b + 1 :] for i in later.inputs}
            alive = (alive | set(op.outputs)) & rest
        return min((s + self.graph.seconds for s in states.values()), default=None)

    def waits(self, carried):
        """Whether the forward pass fits where these values wait for the backward pass."""
        for o, op in enumerate(self.forward):
            live = {i for i in self.own if self.written[i] <= o and self.reader[i] >= o}
            waiting = {i for i in carried if self.written[i] <= o}
            if self.nbytes(live | waiting) + op.workspace_bytes > self.budget:
                return False
        return True

    def event(self, states, op, before, during):
        """Values held during an event -> the least seconds so far."""
        read = set(op.inputs) & set(self.own)
        found = {}
        for state, seconds in states.items():
            for carried in map(set, graphs.subsets(sorted(state))):
                for runs in graphs.subsets(self.again):
                    written = {i for o in runs for i in self.forward[o].outputs}
                    cost = seconds + sum(self.forward[o].seconds for o in runs)
                    given = (carried | written) & set(self.needed)
                    for held in map(set, graphs.subsets(sorted(given))):
                        fits = read <= held and self.nbytes(held) + during <= self.budget
                        if fits and self.may_run(runs, carried, held, given, before):
                            key = frozenset(held)
                            found[key] = min(cost, found.get(key, cost))
        return found

    def may_run(self, runs, carried, held, given, before):
        passed = {i for o in runs for i in self.forward[o].inputs} - held
        if not passed <= given:
            return False
        for o in self.again:
            live = {i for i in carried if self.written[i] >= o}
            live |= {i for i in held if self.written[i] < o}
            live |= {i for i in passed if self.written[i] < o and self.reader[i] >= o}
            own = self.forward[o].outputs if o in runs else ()
            workspace = self.forward[o].workspace_bytes if o in runs else 0
            if before + self.nbytes(live) + self.nbytes(own) + workspace > self.budget:
                return False
        return True


def agrees(graph, budget):
    """Whether the planner finds what looking at all schedules finds."""
    return is_same(found_seconds(EXACT, graph, budget), Space(graph, budget).best())


@pytest.mark.parametrize("seed", range(30))
def test_it_agrees_with_looking_at_all_schedules(seed):
    graph = small_graph(seed)
    assert all(agrees(graph, budget) for budget in budgets(graph))


@pytest.mark.parametrize(
    "family",
    [
        "_reads",
        "_sources",
        "_carries",
        "_inputs",
        "_forward_memory",
        "_recomputation_memory",
        "_backward_memory",
    ],
)
def test_without_any_family_of_constraints_it_does_not(family, monkeypatch):
    monkeypatch.setattr(gap_program.GapProgram, family, lambda self: iter(()))
    assert fails_somewhere(agrees)


def test_no_schedule_beats_all_of_checkmates():
    """Where each op writes one value: Checkmate frees the outputs of an op together."""
    some = [small_graph(seed) for seed in range(100, 140)]
    some = [graph for graph in some if all(len(op.outputs) == 1 for op in graph.ops)]
    assert len(some) > 10
    for graph, budget in ((g, b) for g in some for b in budgets(g)):
        least, found = best_seconds(graph, budget), found_seconds(EXACT, graph, budget)
        assert found is None or (least is not None and found >= least - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_fewer_events_are_a_smaller_space(seed):
    graph = graphs.without_extras(graphs.blocks(2, n_forward=6, seed=seed))
    peak = planners.cost_of(graph, planners.steps_of(graph, planners.save_all(graph))).peak_bytes
    found = [
        found_seconds(gap.Gap((gap.Grid(events),), time_limit=20.0), graph, int(0.8 * peak))
        for events in (None, 4)
    ]
    assert found[0] is not None and found[0] > graph.seconds
    assert found[1] is None or found[1] >= found[0] * (1 - 1e-3)
