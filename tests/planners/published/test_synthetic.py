"""Large steps: what is generated, what equal stages share, and plans within their time.

No test here reads a clock. A clock of its own says what time it is: it moves when it is looked at,
when a plan is asked or a program set up, and by all that a solver is given.
"""

import functools as ft
import itertools as it

import graphs
import pytest
from thinning import thinned

from planners import (
    InfeasibleBudget,
    InvalidPlan,
    Plan,
    Region,
    SolverStopped,
    Stages,
    replay,
    save_all,
    save_nothing,
)
from planners.published import synthetic
from planners.published.recorder import Recorder
from planners.regions.candidates import candidates, solving
from planners.regions.composition import program as composition
from planners.regions.effects.walker import Walker
from planners.regions.search import clock as clock_module
from planners.regions.search import guesses, replays, spaces
from planners.regions.search.chain import ChainHeuristic
from planners.regions.stage_program import options as options_module
from planners.regions.stage_program import program as stage_program
from planners.runs import backward_runs
from planners.solver.highs import Outcome


@ft.cache
def transformer():
    return synthetic.transformer(20, layers=1)


def share_of(graph, share: float) -> int:
    """A budget on the way from saving nothing to saving all."""
    least, most = save_nothing(graph).peak_bytes, save_all(graph).peak_bytes
    return int(least + share * (most - least))


# ------------------------------------------------------------------------------- what is generated


def test_a_layer_of_the_transformer_has_a_hundred_ops_and_blocks_are_equal():
    graph = transformer()
    embedding, *blocks, head = graph.stages
    assert {embedding.key, *(x.key for x in blocks), head.key} == {"embedding", "block", "head"}
    assert {len(x.forward) + len(x.backward) for x in blocks} == {100}
    assert (
        len({tuple((op.seconds, op.flops) for op in x.forward + x.backward) for x in blocks}) == 1
    )


def test_each_op_that_reads_what_has_a_gradient_hands_one_back():
    """Bits that are drawn have none; every other forward value has a gradient of its own size."""
    for graph in (transformer(), synthetic.irregular(300)):
        gradients = [i for x in graph.stages for op in x.backward for i in op.outputs]
        assert not any(graph.values[i].savable for i in gradients)
        read = {i for x in graph.stages for op in x.forward for i in op.inputs}
        drawn = [i for i in graph.forward_writer if "mask." in graph.values[i].name]
        sizes = {graph.values[i].nbytes for i in gradients}
        assert sizes >= {graph.values[i].nbytes for i in read if i not in drawn}


def test_the_derivative_of_a_product_reads_both_operands_and_of_a_sum_neither():
    recorder = Recorder()
    recorder.stage()
    a, b = recorder.op("a", [], 4), recorder.op("b", [], 8)
    both = recorder.product("ab", a, b, 16)
    recorder.add("sum", both, both)
    (stage,) = recorder.graph().stages
    start, doubled, by_a, by_b = stage.backward
    assert [x.inputs[1:] for x in (by_a, by_b)] == [(b,), (a,)]
    assert start.inputs == () and set(doubled.inputs) == set(start.outputs)


def test_nothing_repeats_in_the_irregular_graph():
    graph = synthetic.irregular(1000)
    assert 950 < len(graph.ops) < 1150
    assert {x.key for x in graph.stages} == {None}
    walker = Walker(graph)
    shapes = [walker.interval(s, s).shape for s in range(len(graph.stages))]
    assert len(set(shapes)) == len(shapes) > 20
    assert len(graph.shared) > len(shapes)  # what is handed on, and skips
    assert synthetic.irregular(1000) == graph != synthetic.irregular(1000, seed=1)


# ------------------------------------------------------------------------------------------- plans


@pytest.mark.slow
def test_a_transformer_is_planned_with_one_program_for_each_kind_of_stage(monkeypatch):
    solved, right = [], options_module.options
    monkeypatch.setattr(
        solving, "options", lambda *x, **more: solved.append(x[1]) or right(*x, **more)
    )
    graph, budget = transformer(), share_of(transformer(), 0.3)
    plan = Stages(time_limit=60.0)(graph, budget)
    assert replay(graph, plan).peak_bytes <= budget
    assert plan.gap <= 1e-3
    # Values wait in the memory of the results of the stage before, so the first block is a kind.
    kinds = {(a.key, b.key) for a, b in it.pairwise((graph.stages[-1], *graph.stages))}
    assert len(solved) == len(kinds) == 4


@pytest.mark.slow
def test_an_irregular_step_is_planned_with_a_gap():
    graph = synthetic.irregular(300)
    budget = share_of(graph, 0.3)
    plan = Stages(time_limit=60.0)(graph, budget)
    assert replay(graph, plan).peak_bytes <= budget
    assert graph.seconds < plan.bound_seconds <= plan.seconds < save_nothing(graph).seconds
    assert plan.gap < 0.01


# -------------------------------------------------------------------------------------------- time


class Clock:
    """Time as the planner sees it."""

    def __init__(self, right):
        self.now, self._right = 0.0, right

    def monotonic(self) -> float:
        self.now += 1e-4
        return self.now

    process_time = monotonic

    def charging(self, seconds: float, function):
        """The function, which takes so long."""

        def charged(*args, **more):
            self.now += seconds
            return function(*args, **more)

        return charged

    def solve(self, problem, *, time_limit: float, absolute_gap: float) -> Outcome:
        """Uses up the time that it is given."""
        assert time_limit < 60
        self.now += max(time_limit, 0.0)
        if self._right is None or time_limit <= 0:
            return Outcome(found=False, infeasible=False, bound=float("-inf"))
        return self._right(problem, time_limit=60.0, absolute_gap=absolute_gap)


@pytest.fixture(params=["nothing", "an answer"])
def clock(request, monkeypatch):
    """A clock for the planner, whose solver finds nothing, or an answer in the last second."""
    made = Clock(None if request.param == "nothing" else composition.solve)
    for module in (clock_module, guesses, replays, spaces, candidates, options_module):
        monkeypatch.setattr(module, "time", made)
    for module in (composition, stage_program):
        monkeypatch.setattr(module, "solve", made.solve)
    costs = {
        replays: {"certified": 0.2, "save_all": 0.2, "save_nothing": 0.2},
        spaces: {"Candidates": 0.8, "Composition": 0.1},
        options_module: {"StageProgram": 0.2},
        ChainHeuristic: {"fastest": 0.03},
    }
    for module, name, seconds in ((m, *x) for m, some in costs.items() for x in some.items()):
        monkeypatch.setattr(module, name, made.charging(seconds, getattr(module, name)))
    return made


@pytest.mark.parametrize(
    ("share", "limit"),
    thinned(
        it.product([-0.5, -0.02, 0.1, 0.6], [0.0, 0.1, 1.0, 10.0]),
        "-0.5-0.1",
        "-0.02-0.0",
        "-0.02-1.0",
        "0.1-0.0",
        "0.1-0.1",
        "0.1-1.0",
        "0.1-10.0",
        "0.6-0.1",
    ),
)
def test_a_plan_or_a_documented_error_comes_within_a_second_of_the_limit(clock, limit, share):
    graph = graphs.blocks(6, kinds=6)
    budget = share_of(graph, share)
    try:
        plan = Stages(time_limit=limit)(graph, budget)
    except (InfeasibleBudget, SolverStopped):
        assert share < 0
    else:
        assert replay(graph, plan).peak_bytes <= budget
        assert graph.seconds <= plan.bound_seconds <= plan.seconds
    assert clock.now <= limit + 1


@pytest.mark.parametrize("limit", [0.0, 0.1, 1.0, 10.0])
def test_the_smallest_plan_comes_within_a_second_of_the_limit(clock, limit):
    graph = graphs.blocks(6, kinds=6)
    plan = Stages(time_limit=limit).smallest(graph)
    assert replay(graph, plan).peak_bytes == plan.peak_bytes <= save_nothing(graph).peak_bytes
    assert clock.now <= limit + 1


def test_a_smallest_plan_that_was_cut_short_is_sought_again_with_more_time(clock):
    graph = graphs.blocks(6)
    found = Stages(time_limit=1.2).prepare(graph)
    first = found.smallest()
    found._clock.limit_seconds = 30.0
    assert found.smallest().peak_bytes <= first.peak_bytes
    assert clock.now > 3.0  # it did look


def test_a_replay_is_asked_once_for_each_plan(monkeypatch):
    asked: list[tuple[Region, ...]] = []
    right = replays.certified

    def certified(graph, regions, **more) -> Plan:
        asked.append(regions)
        return right(graph, regions, **more)

    monkeypatch.setattr(replays, "certified", certified)
    graph = graphs.blocks(6)
    found = Stages(time_limit=60.0).prepare(graph)
    for share in (0.0, 0.2, 0.2, 0.5):
        found.fastest(share_of(graph, share))
    assert len(asked) == len(set(asked))


def test_stages_without_time_for_a_solve_save_what_takes_long():
    graph = graphs.blocks(3)
    for s in range(1, 4):
        options = options_module.options_by_multiplier(graph, s, count=4)
        assert 2 <= len(options) == len(set(options)) <= 4
        seconds = [seconds_again(graph, s, some) for some in options]
        assert seconds == sorted(seconds) and seconds[0] == 0 < seconds[-1]


def test_an_option_by_multiplier_saves_what_must_run_once_and_nothing_that_is_not_read():
    for seed in range(30):
        graph = graphs.random_graph(seed, n_forward=8)
        for s in range(len(graph.stages)):
            for some in options_module.options_by_multiplier(graph, s, count=3):
                try:
                    runs = backward_runs(graph, region(graph, s, some))
                except InvalidPlan:  # what must run once may not be saved
                    continue
                assert set(some) <= {i for run in runs for i in run.of(graph).inputs}


def region(graph, s: int, saved) -> Region:
    return Region(s, s, saved=tuple(graph.values[i].name for i in saved))


def seconds_again(graph, s: int, saved) -> float:
    runs = backward_runs(graph, region(graph, s, saved))
    return sum(run.of(graph).seconds for run in runs if run.phase == "forward")


def test_without_time_for_solves_a_plan_still_saves_some_of_what_the_budget_allows(clock):
    graph = graphs.blocks(6)
    plan = Stages(time_limit=1.2)(graph, share_of(graph, 0.5))
    assert plan.seconds < save_nothing(graph).seconds
