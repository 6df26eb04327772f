"""Does the program on backward events find the best schedule of the space that it describes?"""

import itertools as it

import graphs
import numpy as np
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
from planners.schedules import gap
from planners.schedules.grids import grid, memory, rows, solves
from planners.schedules.grids.program import GapProgram
from planners.solver.deadline import Deadline
from planners.solver.highs import Outcome

EXACT = gap.Gap((gap.Grid(),), time_limit=60.0, gap=1e-9)


class Space:
    """The space of `planners.schedules.grids.space`, by looking at every schedule of it."""

    def __init__(self, graph, budget):
        self.graph, self.budget = graph, budget
        self.forward = [op for stage in graph.stages for op in stage.forward]
        self.backward = [op for stage in reversed(graph.stages) for op in stage.backward]
        self.own = [i for op in self.forward for i in op.outputs]
        self.written = {i: o for o, op in enumerate(self.forward) for i in op.outputs}
        self.reader = {
            i: max([o for o, op in enumerate(self.forward) if i in read(op)] + [self.written[i]])
            for i in self.own
        }
        later = set()
        for op in self.backward:
            later |= read(op) & set(self.own)
        for op in reversed(self.forward):
            if later & set(op.outputs) and op.recomputable:
                later |= read(op)
        self.needed = sorted(later)
        self.again = [
            o for o, op in enumerate(self.forward) if op.recomputable and later & set(op.outputs)
        ]

    def nbytes(self, values):
        return sum(self.graph.values[i].nbytes for i in values)

    def implementations(self, o, again):
        """How a forward op may run."""
        return [
            implementation
            for implementation in self.forward[o].implementations
            if (again or not implementation.only_again)
            and all(self.reader[i] == o for i in implementation.overwrites)
        ]

    def best(self):
        """The least seconds; None where nothing fits."""
        states = dict(self.after_forward())
        alive = set()
        for b, op in enumerate(self.backward):
            before = self.nbytes(alive)
            during = self.nbytes(alive | set(op.outputs))
            states = self.event(states, op, before, during)
            rest = {i for later in self.backward[b + 1 :] for i in read(later)}
            alive = (alive | set(op.outputs)) & rest
        return min(states.values(), default=None)

    def after_forward(self):
        """What may wait for the backward pass, and the least seconds until then."""
        found = {}
        choices = [
            [*self.implementations(o, False), *([None] if op.optional else [])]
            for o, op in enumerate(self.forward)
        ]
        for implementations in it.product(*choices):
            seconds = sum(
                implementation.seconds for implementation in implementations if implementation
            )
            lost = {
                i
                for implementation in implementations
                if implementation
                for i in implementation.overwrites
            }
            lost |= {
                i
                for op, implementation in zip(self.forward, implementations, strict=True)
                if not implementation
                for i in op.outputs
            }
            for carried in graphs.subsets(sorted(set(self.needed) - lost)):
                if self.waits(carried, implementations):
                    key = frozenset(carried)
                    found[key] = min(seconds, found.get(key, seconds))
        return found

    def waits(self, carried, implementations):
        """Whether the forward pass fits where these values wait for the backward pass."""
        ran = [o for o, implementation in enumerate(implementations) if implementation]
        for o, implementation in enumerate(implementations):
            live = {i for i in self.own if self.written[i] <= o and self.reader[i] >= o}
            live = {i for i in live if self.written[i] in ran}
            waiting = {i for i in carried if self.written[i] <= o}
            workspace = implementation.workspace_bytes if implementation else 0
            if self.nbytes(live | waiting) + workspace > self.budget:
                return False
        return True

    def event(self, states, op, before, during):
        """Values held during an event -> the least seconds so far."""
        found = {}
        for state, seconds in states.items():
            for carried in map(set, graphs.subsets(sorted(state))):
                for runs in self.runs():
                    written = {i for o in runs for i in self.forward[o].outputs}
                    cost = seconds + sum(implementation.seconds for implementation in runs.values())
                    given = (carried | written) & set(self.needed)
                    for held in map(set, graphs.subsets(sorted(given))):
                        if not self.may_run(runs, carried, held, given, before):
                            continue
                        for implementation in op.implementations:
                            needs = set(implementation.inputs) & set(self.own)
                            peak = self.nbytes(held) + during + implementation.workspace_bytes
                            if needs <= held and peak <= self.budget:
                                key = frozenset(held)
                                found[key] = min(cost + implementation.seconds, found.get(key, 1e9))
        return found

    def runs(self):
        """Forward ops that run again, each with its way."""
        for some in graphs.subsets(self.again):
            for implementations in it.product(*(self.implementations(o, True) for o in some)):
                yield dict(zip(some, implementations, strict=True))

    def may_run(self, runs, carried, held, given, before):
        passed = {i for implementation in runs.values() for i in implementation.inputs} - held
        if not passed <= given or held & {
            i for implementation in runs.values() for i in implementation.overwrites
        }:
            return False
        for o in self.again:
            live = {i for i in carried if self.written[i] >= o}
            live |= {i for i in held if self.written[i] < o}
            live |= {i for i in passed if self.written[i] < o and self.reader[i] >= o}
            own = self.forward[o].outputs if o in runs else ()
            workspace = runs[o].workspace_bytes if o in runs else 0
            if before + self.nbytes(live) + self.nbytes(own) + workspace > self.budget:
                return False
        return True


def read(op):
    """What an op may read."""
    return {i for implementation in op.implementations for i in implementation.inputs}


def agrees(graph, budget):
    """Whether the planner finds what looking at all schedules finds."""
    return is_same(found_seconds(EXACT, graph, budget), Space(graph, budget).best())


def quick(seeds, most=8):
    """Seeds of small graphs with few enough schedules to look at them all."""
    return [seed for seed in seeds if len(small_graph(seed).ops) <= most]


@pytest.mark.parametrize("seed", quick(range(40)))
def test_it_agrees_with_looking_at_all_schedules(seed):
    graph = small_graph(seed)
    assert all(agrees(graph, budget) for budget in budgets(graph))


def varied_graphs(seeds):
    """Graphs of up to 7 ops that run in several ways."""
    found = (graphs.with_variants(small_graph(seed), seed) for seed in seeds)
    return [graph for graph in found if len(graph.ops) <= 7]


def test_with_variants_it_agrees_as_well():
    some = varied_graphs(range(60))
    assert len(some) > 20
    assert all(agrees(graph, budget) for graph in some for budget in budgets(graph))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_with_variants_it_agrees_on_many_graphs(part):
    some = varied_graphs(range(1000 * part + 1000, 1000 * part + 1300))
    assert len(some) > 100
    assert all(agrees(graph, budget) for graph in some for budget in budgets(graph))


def leave_out(family, monkeypatch):
    """Leaves one family of constraints out of the program."""
    module = rows if hasattr(rows, family) else memory
    monkeypatch.setattr(module, family, lambda *_: [])


@pytest.mark.parametrize("family", ["implementations", "overwritten"])
def test_without_any_family_of_variants_it_does_not(family, monkeypatch):
    leave_out(family, monkeypatch)
    assert fails_somewhere(agrees, varied_graphs(range(60)))


@pytest.mark.parametrize(
    ("family", "seeds"),
    [
        ("reads", (1, 4)),
        ("sources", (3, 7)),
        ("carries", (13, 16)),
        ("inputs", (55, 93)),
        ("forward_memory", range(5)),
        ("recomputation_memory", (70,)),
        ("backward_memory", range(5)),
    ],
)
def test_without_any_family_of_constraints_it_does_not(family, seeds, monkeypatch):
    """On graphs on which it does with them; not every graph needs every family."""
    some = [small_graph(seed) for seed in seeds]
    assert not fails_somewhere(agrees, some)
    leave_out(family, monkeypatch)
    assert fails_somewhere(agrees, some)


def test_no_schedule_beats_all_of_checkmates():
    """Where each op writes one value: Checkmate frees the outputs of an op together."""
    some = [small_graph(seed) for seed in quick(range(100, 140))]
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


def large_graph():
    return graphs.without_extras(graphs.blocks(12, n_forward=6, seed=3))


def test_without_a_backward_pass_it_searches_sequences():
    """As in Moccasin's graphs, where all ops are of one pass."""
    graph = large_graph()
    stage = planners.Stage("all", forward=graph.ops, backward=())
    forward = planners.Graph(graph.values, (stage,))
    budget = planners.SaveAll()(forward, 10**12).peak_bytes
    assert gap.Gap(time_limit=1.0)(forward, budget).seconds == pytest.approx(graph.seconds)
    found = gap.Gap(time_limit=1.0)(forward, int(0.9 * budget))
    assert planners.cost_of(forward, found.steps).peak_bytes <= 0.9 * budget


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_with_next_to_no_time_it_answers_or_says_so(seconds):
    graph = large_graph()
    most = planners.SaveAll()(graph, 10**12).peak_bytes
    assert gap.Gap(time_limit=seconds)(graph, most).seconds == pytest.approx(graph.seconds)
    with pytest.raises(planners.SolverStopped):
        gap.Gap((gap.Grid(),), time_limit=seconds)(graph, most // 2)


def test_where_the_solver_finds_nothing_no_wrong_answer_comes(monkeypatch):
    """CVXPY then has values of zero, or none."""
    monkeypatch.setattr(solves, "solve", lambda *args, **kwargs: Outcome())
    graph = large_graph()
    most = planners.SaveAll()(graph, 10**12).peak_bytes
    with pytest.raises(planners.SolverStopped):
        gap.Gap((gap.Grid(),), time_limit=5.0)(graph, most // 2)


def test_a_program_is_not_written_beyond_its_deadline():
    graph = large_graph()
    first = graph.forward_count
    groups = [range(b, b + 1) for b in range(first, len(graph.ops))]
    with pytest.raises(planners.SolverStopped, match="being written"):
        GapProgram(graph, groups, 10**9, deadline=Deadline.after(-1.0))


def is_point(graph, budget, groups, schedule):
    """Whether a schedule keeps all constraints of the program on some groups of backward ops."""
    order = planners.schedules.steps.runs_of(schedule)
    program = GapProgram(graph, groups, budget, 14, order)
    for variable, value in program.start(order).items():
        variable.value = value
    return all(np.max(c.violation(), initial=0) < 1e-6 for c in program.problem.constraints)


@pytest.mark.parametrize("seed", range(4))
def test_grids_round_a_schedule_have_it_among_their_points_and_cover_all_events(seed):
    graph = graphs.without_extras(graphs.blocks(3, n_forward=6, seed=seed))
    budget = int(0.8 * planners.SaveAll()(graph, 10**12).peak_bytes)
    schedule = gap.Gap((gap.Grid(reach=14),), time_limit=20.0)(graph, budget)
    assert schedule.seconds > graph.seconds
    count, begun = len(graph.ops) - graph.forward_count, set()
    for number in range(2 * grid.WINDOWS):
        groups = grid.groups_around(graph, schedule, number)
        begun |= {group.start for group in groups}
        assert len(groups) < count
        assert is_point(graph, budget, groups, schedule)
    assert len(begun) == count
    assert not is_point(graph, budget, grid.groups_of(graph, gap.Grid(1)), schedule)
