"""The program on backward events finds the best schedule of the space that it describes."""

import graphs
import numpy as np
import pytest
from schedule_spaces import (
    Space,
    best_seconds,
    budgets,
    fails_somewhere,
    found_seconds,
    is_same,
    quick,
    small_graph,
    varied_graphs,
)
from thinning import thinned

import planners
from planners.schedules import gap
from planners.schedules.grids import grid, memory, rows, solves
from planners.schedules.grids.program import GapProgram
from planners.solver.deadline import Deadline
from planners.solver.highs import Outcome

EXACT = gap.Gap((gap.Grid(),), time_limit=60.0, gap=1e-9)


def agrees(graph, budget):
    """Whether the planner finds what looking at all schedules finds."""
    return is_same(found_seconds(EXACT, graph, budget), Space(graph, budget).best())


@pytest.mark.parametrize("seed", thinned(quick(range(40)), *map(str, quick(range(4, 11)))))
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
def test_with_variants_it_agrees_on_many_graphs(part):
    some = varied_graphs(range(1000 * part + 1000, 1000 * part + 1300))
    assert len(some) > 100
    assert all(agrees(graph, budget) for graph in some for budget in budgets(graph))


def leave_out(family, monkeypatch):
    """Leaves one family of constraints out of the program."""
    module = rows if hasattr(rows, family) else memory
    monkeypatch.setattr(module, family, lambda *_: [])


@pytest.mark.parametrize("family", thinned(["implementations", "overwritten"], "implementations"))
def test_without_any_family_of_variants_it_does_not(family, monkeypatch):
    leave_out(family, monkeypatch)
    assert fails_somewhere(agrees, varied_graphs(range(60)))


@pytest.mark.parametrize(
    ("family", "seeds"),
    thinned(
        [
            pytest.param("reads", (1, 4), id="reads"),
            pytest.param("sources", (3, 7), id="sources"),
            pytest.param("carries", (13, 16), id="carries"),
            pytest.param("inputs", (55, 93), id="inputs"),
            pytest.param("forward_memory", range(5), id="forward_memory"),
            pytest.param("recomputation_memory", (70,), id="recomputation_memory"),
            pytest.param("backward_memory", range(5), id="backward_memory"),
        ],
        *("reads", "carries", "recomputation_memory"),
    ),
)
def test_without_any_family_of_constraints_it_does_not(family, seeds, monkeypatch):
    """On graphs on which it does with them; not every graph needs every family."""
    some = [small_graph(seed) for seed in seeds]
    assert not fails_somewhere(agrees, some)
    leave_out(family, monkeypatch)
    assert fails_somewhere(agrees, some)


@pytest.mark.slow
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


@pytest.mark.parametrize("seed", thinned(range(4), "1"))
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
