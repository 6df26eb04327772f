"""Descents keep to the meaning of regions, never raise the peak, and pass where segments stop."""

import dataclasses

import pytest
from graphs import random_graph

import planners
from planners.regions.descent import nested_but_last, with_lower_peak
from planners.regions.segments import smallest_segments


def descended(graph, start, most=200):
    """The plan after the descent by replay, and all that it tried."""
    tried = []

    def peak_of(regions):
        tried.append(regions)
        found = planners.replay(graph, regions)
        return found.peak_bytes, found.schedule[found.peak_run].stage

    singles = planners.Stages().prepare(graph).singles
    return with_lower_peak(graph, start, singles, peak_of, most), tried


def peak_bytes(graph, regions):
    return planners.replay(graph, regions).peak_bytes


def starts_of(graph):
    return nested_but_last(graph), planners.save_nothing(graph).regions


@pytest.mark.parametrize("seed", range(20))
def test_a_descent_never_raises_the_peak_and_tries_only_plans(seed):
    graph = random_graph(seed, n_stages=6)
    for start in starts_of(graph):
        found, tried = descended(graph, start)
        assert peak_bytes(graph, found) == min(peak_bytes(graph, x) for x in tried)
        for regions in tried:
            assert [s for x in regions for s in range(x.first, x.last + 1)] == list(range(6))


def test_descents_pass_where_segments_stop():
    graphs = [random_graph(seed, n_stages=6) for seed in range(20)]
    smaller = 0
    for graph in graphs:
        segments = smallest_segments(graph, lambda x, graph=graph: peak_bytes(graph, x), 100)
        found = (peak_bytes(graph, descended(graph, start)[0]) for start in starts_of(graph))
        smaller += min(found) < peak_bytes(graph, segments)
    assert smaller >= 2


def test_a_descent_stops_after_the_change_that_was_the_last_one():
    tried = []
    for seed in range(10):
        graph = random_graph(seed, n_stages=6)
        start = planners.save_nothing(graph).regions
        assert descended(graph, start, most=0) == (start, [start])
        tried.append([len(descended(graph, start, most)[1]) for most in (1, 200)])
    assert all(1 < once <= all_tried for once, all_tried in tried)
    assert any(once < all_tried for once, all_tried in tried)


def test_stages_of_a_loop_stay_as_they_are_and_no_region_leaves_it():
    loop = planners.Loop(1, 2, 3)
    graph = dataclasses.replace(random_graph(3, n_stages=9), loops=(loop,))
    for start in starts_of(graph):
        inside = {x for x in start if x.first in graph.looped}
        _, tried = descended(graph, start)
        for regions in tried:
            assert inside <= {*regions}
            assert all(graph.units[x.first] == graph.units[x.last] for x in regions)
