"""Replay agrees with peaks counted by hand and refuses plans that cannot run."""

import dataclasses
import importlib

import graphs
import numpy as np
import pytest

from planners import Choice, InvalidPlan, Region, Run, replay, runs, save_all, save_nothing

# `planners.replay` is the function; the module has to be asked for.
REPLAY = importlib.import_module("planners.replay")

ALONE = (Region(0, 0, alone=True), Region(1, 1, alone=True))
LEAVES = (Region(0, 0), Region(1, 1))
MERGED = (Region(0, 1),)
NESTED = (Region(0, 1, inner=LEAVES),)


def names(graph, regions) -> str:
    return " ".join(run.of(graph).name for run in runs(graph, regions))


@pytest.mark.parametrize(
    ("regions", "schedule", "live_bytes"),
    [
        (ALONE, "f0 f1 f2 f3 b3 b2 b1 b0", [4, 7, 12, 13, 18, 15, 11, 6]),
        (
            LEAVES,
            "f0 f1 f2 f3 f2 f3 b3 b2 f0 b1 b0",
            [4, 7, 8, 9, 8, 9, 14, 11, 7, 11, 6],
        ),
        (
            (Region(0, 0), Region(1, 1, saved=("c",))),
            "f0 f1 f2 f3 f3 b3 b2 f0 b1 b0",
            [4, 7, 8, 9, 9, 14, 11, 7, 11, 6],
        ),
        (
            MERGED,
            "f0 f1 f2 f3 f0 f1 f2 f3 b3 b2 b1 b0",
            [4, 7, 8, 6, 4, 7, 12, 13, 18, 15, 11, 6],
        ),
        (
            NESTED,
            "f0 f1 f2 f3 f0 f1 f2 f3 b3 b2 f0 b1 b0",
            [4, 7, 8, 6, 4, 7, 8, 9, 14, 11, 7, 11, 6],
        ),
    ],
)
def test_schedule_and_live_bytes_are_those_counted_by_hand(regions, schedule, live_bytes):
    graph = graphs.chain()
    found = replay(graph, regions)
    assert names(graph, regions) == schedule
    assert list(found.live_bytes) == live_bytes
    assert found.peak_bytes == max(live_bytes)
    assert found.peak_run == live_bytes.index(max(live_bytes))


def test_a_compiler_that_recomputes_late_holds_less_in_regions_of_several_stages():
    regions = [Region(0, 1, saved=("c",))]
    early = graphs.chain()
    late = dataclasses.replace(early, recomputes_late=True)
    assert names(early, regions) == "f0 f1 f2 f3 f0 f1 f3 b3 b2 b1 b0"
    assert names(late, regions) == "f0 f1 f2 f3 f3 b3 f0 f1 b2 b1 b0"
    assert list(replay(late, regions).live_bytes) == [4, 7, 8, 6, 6, 11, 9, 12, 15, 11, 6]


def test_it_holds_less_in_regions_of_one_stage_too():
    make = graphs.Builder()
    forward = [make.op("f0", "", "a:4"), make.op("f1", "a", "b:3"), make.op("f2", "b", "l:1")]
    backward = [make.op("b2", "b l", "db:3!"), make.op("b0", "a db", "da:4!")]
    early = make.graph([forward], [backward])
    late = dataclasses.replace(early, recomputes_late=True)
    regions = [Region(0, 0, saved=("b", "l"))]
    assert names(early, regions) == "f0 f1 f2 f0 b2 b0"
    assert names(late, regions) == "f0 f1 f2 b2 f0 b0"
    assert list(replay(early, regions).live_bytes) == [4, 7, 4, 8, 11, 11]
    assert list(replay(late, regions).live_bytes) == [4, 7, 4, 7, 7, 11]


def test_replay_sums_seconds_and_flops_of_all_runs():
    graph = graphs.chain()
    assert replay(graph, ALONE).seconds == graph.seconds == 14
    assert replay(graph, LEAVES).seconds == graph.seconds + 3 + 4 + 1
    assert replay(graph, LEAVES).flops == 30 + 20


def test_replay_names_what_is_live_at_the_peak_largest_first():
    assert replay(graphs.chain(), ALONE).peak_values == ("c", "dc", "a", "b", "l")


def test_workspace_counts_only_while_its_op_runs():
    graph = graphs.chain(workspace_bytes=100)
    assert list(replay(graph, ALONE).live_bytes) == [4, 7, 112, 13, 18, 15, 11, 6]


@pytest.mark.parametrize(
    ("regions", "added"),
    [
        (ALONE, [50, 50, 50, 50, 50, 50, 50, 50]),
        (LEAVES, [0] * 11),
        ([Region(0, 0), Region(1, 1, alone=True)], [0] * 9),
        ([Region(0, 1, inner=(Region(0, 0, alone=True), Region(1, 1)))], [0] * 4 + [50] * 8),
    ],
)
def test_alone_bytes_count_from_the_forward_to_the_backward_of_a_stage(regions, added):
    graph = graphs.chain()
    first = dataclasses.replace(graph.stages[0], alone_bytes=50)
    kept = dataclasses.replace(graph, stages=(first, graph.stages[1]))
    found = np.subtract(replay(kept, regions).live_bytes, replay(graph, regions).live_bytes)
    assert found.tolist() == added


def test_of_a_choice_the_branch_for_which_most_waits_counts():
    make = graphs.Builder()
    forward = [
        [make.op("f0", "", "x:1")],
        [make.op("f1", "x", "a:6")],
        [make.op("f2", "x", "b:10")],
        [make.op("f3", "x", "l:1")],
    ]
    last = [make.op("b3", "l", "d:1!")]
    branches = [make.op("b2", "b d", "db:1!")], [make.op("b1", "a d", "da:1!")]
    graph = make.graph(forward, [[make.op("b0", "x", "dx:1!")], *branches[::-1], last])
    regions = [Region(s, s, alone=True) for s in range(4)]
    assert replay(graph, regions).live_bytes == (1, 7, 17, 18, 19, 19, 9, 2)
    chosen = dataclasses.replace(graph, choices=(Choice((1, 2), 3),))
    assert replay(chosen, regions).live_bytes == (1, 7, 11, 12, 13, 13, 9, 2)
    crossing = [Region(0, 0, alone=True), Region(1, 2), Region(3, 3, alone=True)]
    with pytest.raises(InvalidPlan, match="crosses the ends of"):
        replay(chosen, crossing)


def test_what_waits_in_the_memory_of_results_takes_none():
    # The second stage saves `c` (5 bytes), and the first one's backward writes results later.
    graph = graphs.chain()
    first = dataclasses.replace(graph.stages[0], result_bytes=(4, 6))
    roomy = dataclasses.replace(graph, stages=(first, graph.stages[1]))
    regions = (Region(0, 0), Region(1, 1, saved=("c",)))
    freed_bytes = np.subtract(replay(graph, regions).live_bytes, replay(roomy, regions).live_bytes)
    assert freed_bytes.tolist() == [0, 0, 0, 0, 5, 5, 0, 0, 0, 0]
    assert graph.aliased(1, [2]) == frozenset()
    assert roomy.aliased(1, [2]) == {2} and roomy.aliased(1, [1, 2]) == {2}  # others read `b`
    assert roomy.aliased(0, [0, 2]) == frozenset()
    late = dataclasses.replace(roomy, recomputes_late=True)
    assert late.aliased(0, [0, 2]) == {2}


def test_a_recomputed_pair_replaces_the_saved_one_of_its_values():
    # Recomputing `b` writes `a` again: the saved `a` is dead from there on, not twice in memory.
    graph = graphs.pair()
    assert names(graph, [Region(0, 0, saved=("a", "c"))]) == "f0 f1 f0 b1 b0"
    assert list(replay(graph, [Region(0, 0, saved=("a", "c"))]).live_bytes) == [9, 3, 10, 11, 4]


def test_depth_counts_the_regions_that_a_run_is_inside_of():
    depths = [run.depth for run in runs(graphs.chain(), NESTED)]
    assert depths == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2]


def test_nested_regions_nest_again():
    graph = graphs.skip()
    pairs = (
        Region(0, 1, inner=(Region(0, 0), Region(1, 1))),
        Region(2, 3, inner=(Region(2, 2), Region(3, 3))),
    )
    regions = (Region(0, 3, inner=pairs),)
    assert names(graph, regions).split()[8:14] == ["f0", "f1", "f2", "f3", "f4", "f5"]
    assert replay(graph, regions).peak_bytes <= save_nothing(graph).peak_bytes


def test_trivial_planners():
    graph = graphs.chain()
    assert save_all(graph).regions == ALONE
    assert save_nothing(graph).regions == LEAVES
    assert save_all(graph).gap == 0.0


def test_save_nothing_saves_what_must_run_once():
    graph = graphs.chain(recomputable=False)
    assert save_nothing(graph).regions == (Region(0, 0), Region(1, 1, saved=("c",)))


def test_save_nothing_leaves_alone_what_can_be_neither_saved_nor_run_again():
    graph = graphs.chain(recomputable=False)
    values = [dataclasses.replace(x, savable=x.name != "c" and x.savable) for x in graph.values]
    graph = dataclasses.replace(graph, values=tuple(values))
    assert save_nothing(graph).regions == (Region(0, 0), Region(1, 1, alone=True))


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ([Region(0, 0)], "got none for stages 1-1"),
        ([Region(1, 1)], "got 1-1 where stage 0 comes next"),
        ([Region(0, 1), Region(1, 1)], "got 1-1 where"),
        ([Region(0, 0), Region(1, 0)], "got 1-0 where"),
        ([Region(0, 2)], "the last stage is 1"),
        ([Region(0, 1, saved=("nope",))], "`nope`, which the graph does not have"),
        ([Region(0, 1, saved=("dc",))], "`dc`, which no forward op writes"),
        ([Region(0, 0, saved=("c",)), Region(1, 1)], "`c`, which stage 1 .`s1`. writes"),
        ([Region(0, 1, saved=("a",), alone=True)], "neither `saved` .got .'a',.. nor inner"),
        ([Region(0, 1, inner=(Region(0, 0),))], "got none for stages 1-1"),
        ([Region(0, 1, inner=(Region(0, 0), Region(1, 1, saved=("a",))))], "stage 0 .`s0`."),
    ],
)
def test_a_plan_that_does_not_fit_its_graph_is_refused(regions, message):
    with pytest.raises(InvalidPlan, match=message):
        replay(graphs.chain(), regions)


def test_a_value_that_is_not_savable_is_refused():
    graph = graphs.chain()
    values = tuple(dataclasses.replace(x, savable=False) for x in graph.values)
    with pytest.raises(InvalidPlan, match=r"`a` of stage 0 .`s0`.: it is not savable"):
        replay(dataclasses.replace(graph, values=values), [Region(0, 1, saved=("a",))])


def test_an_op_that_must_run_once_is_not_run_again():
    with pytest.raises(InvalidPlan, match=r"op `f2` of stage 1 .`s1`.*Save its output `c`"):
        replay(graphs.chain(recomputable=False), LEAVES)


@pytest.mark.parametrize("regions", [LEAVES, MERGED, NESTED])
def test_replay_notices_a_schedule_that_forgets_to_recompute(monkeypatch, regions):
    graph = graphs.chain()
    right = runs(graph, regions)
    again = [k for k, run in enumerate(right) if run.phase == "forward" and run.depth]
    for forgotten in again:
        wrong = right[:forgotten] + right[forgotten + 1 :]
        monkeypatch.setattr(REPLAY, "runs", lambda *_, wrong=wrong: wrong)
        with pytest.raises(InvalidPlan, match=r"Stage .* op `.*: reads `.*neither saves nor"):
            replay(graph, regions)


def test_replay_notices_a_read_before_the_write(monkeypatch):
    monkeypatch.setattr(REPLAY, "runs", lambda *_: (Run(0, 1, "forward"),))
    with pytest.raises(InvalidPlan, match="op `f1`: reads `a` before it is written"):
        replay(graphs.chain(), ALONE)
