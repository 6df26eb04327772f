"""Occupancy lists all bytes that replay counts, each under its reason."""

import importlib
import random

import graphs
import pytest
from emission import random_regions

from planners import Graph, Region, occupants, replay

OCCUPANCY = importlib.import_module("planners.occupancy")
SEEDS = range(60)


def added_up(graph: Graph, regions) -> list[int]:
    """Bytes during each run, by adding up what is there."""
    found = [0] * len(replay(graph, regions).schedule)
    for x in occupants(graph, regions):
        assert x.nbytes > 0
        for k in range(x.start, x.stop + 1):
            found[k] += x.nbytes
    return found


def disagreements() -> list[int]:
    """Seeds of random graphs and regions for which the parts are not replay's sum."""
    wrong = []
    for seed in SEEDS:
        graph = graphs.random_graph(seed, n_forward=4)
        regions = random_regions(graph, random.Random(seed))
        if added_up(graph, regions) != list(replay(graph, regions).live_bytes):
            wrong.append(seed)
    return wrong


def test_parts_add_up_to_what_replay_counts():
    assert not disagreements()


@pytest.mark.parametrize("part", ["_alone", "_stops"])
def test_parts_that_are_forgotten_are_noticed(part, monkeypatch):
    """Of stages left alone what they keep; of saved values that they may lie in results' memory."""

    def without_aliasing(graph, regions, schedule, instances):
        return [read for _, _, read in instances]

    forgetful = {"_alone": lambda *_: iter(()), "_stops": without_aliasing}
    monkeypatch.setattr(OCCUPANCY, part, forgetful[part])
    assert disagreements()


def parts(graph: Graph, regions) -> list[tuple[str, str, int, int, int]]:
    """Kind, name, first and last run, and bytes of all that is ever in memory."""
    return [
        (x.kind, "" if x.value is None else graph.values[x.value].name, x.start, x.stop, x.nbytes)
        for x in occupants(graph, regions)
    ]


def test_kinds_and_times_are_those_of_a_step_counted_by_hand():
    regions = (Region(0, 0), Region(1, 1, saved=("c",)))  # f0 f1 f2 f3 f3 b3 b2 f0 b1 b0
    assert parts(graphs.chain(), regions) == [
        ("passing", "a", 0, 1, 4),
        ("saved", "b", 1, 6, 3),
        ("saved", "c", 2, 5, 5),
        ("passing", "l", 3, 3, 1),
        ("recomputed", "l", 4, 5, 1),
        ("gradient", "dc", 5, 6, 5),
        ("gradient", "db", 6, 8, 3),
        ("recomputed", "a", 7, 8, 4),
        ("gradient", "da", 8, 9, 4),
        ("gradient", "dx", 9, 9, 2),
    ]


def test_workspace_and_what_a_stage_left_alone_keeps_have_no_value():
    make = graphs.Builder()
    forward = [[make.op("f", "", "a:4", workspace_bytes=7)]]
    graph = make.graph(forward, [[make.op("b", "a", "d:2!")]], alone_bytes=[5])
    assert sorted(parts(graph, [Region(0, 0, alone=True)])) == [
        ("gradient", "d", 1, 1, 2),
        ("saved", "", 0, 1, 5),
        ("saved", "a", 0, 1, 4),
        ("workspace", "", 0, 0, 7),
    ]


def test_an_output_that_lies_over_an_input_takes_no_memory_until_the_input_is_gone():
    make = graphs.Builder()
    forward = [make.op("f", "", "a:4")]
    backward = [
        make.op("b2", "a", "d:6!"),
        make.op("b1", "d", "e:6!", workspace_bytes=-4),
        make.op("b0", "e", "g:1!"),
    ]
    graph = make.graph([forward], [backward])
    regions = [Region(0, 0, alone=True)]
    assert parts(graph, regions)[2:] == [
        ("gradient", "e", 2, 2, 2),
        ("gradient", "e", 3, 3, 6),
        ("gradient", "g", 3, 3, 1),
    ]
    assert added_up(graph, regions) == list(replay(graph, regions).live_bytes) == [4, 10, 8, 7]
