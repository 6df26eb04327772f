"""Segments cover a step, save nothing that may run again, and are the smallest that were tried."""

import dataclasses
import itertools as it

import pytest
from graphs import random_graph

import planners
from planners.regions.segments import smallest_segments
from planners.regions.simple_plans import left_alone, minimal_region


@pytest.mark.parametrize("seed", range(20))
def test_no_equal_segments_are_smaller(seed):
    graph = random_graph(seed, n_stages=7)

    def taken(regions):
        return planners.replay(graph, regions).peak_bytes

    found = smallest_segments(graph, taken, 100)
    assert [s for x in found for s in range(x.first, x.last + 1)] == list(range(7))
    for region in found:
        minimal = minimal_region(graph, region.first, region.last)
        assert region in (minimal, left_alone(graph, minimal))
    for n in range(1, 8):
        starts = [*range(0, 7, n), 7]
        regions = [minimal_region(graph, s, t - 1) for s, t in it.pairwise(starts)]
        assert taken(found) <= taken(tuple(regions))


def test_iterations_of_a_loop_are_cut_alike():
    loop, tried = planners.Loop(1, 2, 3), []
    graph = dataclasses.replace(random_graph(3, n_stages=8), loops=(loop,))

    def taken(regions):
        tried.append(regions)
        return planners.replay(graph, regions).peak_bytes

    smallest_segments(graph, taken, 100)
    for regions in tried:
        cuts = {x.first for x in regions}
        assert cuts >= {start for start, _ in graph.spans}
        each = [
            {s - first for s in cuts if first <= s < first + loop.length}
            for first in range(loop.first, loop.stop, loop.length)
        ]
        assert each == each[:1] * len(each)
    assert len(set(tried)) > 1
