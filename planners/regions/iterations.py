"""Uniform iterations: plans whose loops have few different runs of iterations.

A planner decides for each iteration, and iterations are isomorphic: which of them recompute is
mostly arbitrary. Each run of iterations with the same regions compiles to one loop, so the regions
are permuted: the first iterations, which wait longest for their backward, keep least.
"""

import collections
import dataclasses
import itertools as it
from collections.abc import Hashable, Iterator, Mapping, Sequence

from ..graph import Graph, Loop
from ..plan import Region
from .simple_plans import movable_inputs, with_inputs_moved


def rolled(graph: Graph, regions: Sequence[Region]) -> tuple[Region, ...]:
    """The plan with its iterations in order; stages that are not isomorphic stay as they are."""
    found = {region.first: region for region in regions}
    for loop in graph.loops:
        for parts in _interchangeable(graph, loop, regions):
            starts = [part[0].first for part in parts]
            for part in parts:
                for region in part:
                    del found[region.first]
            ranks = [_rank(graph, part, starts[0]) for part in parts]
            order = sorted(range(len(parts)), key=ranks.__getitem__)
            for start, part in zip(starts, (parts[n] for n in order), strict=True):
                found |= {x.first: x for x in _moved(graph, part, start)}
    return tuple(found[first] for first in sorted(found))


def with_uniform_blocks(
    graph: Graph, regions: Sequence[Region], *, from_last: bool = False
) -> tuple[Region, ...]:
    """The plan with uniform iterations, no singleton runs: each equals the one before it.

    XLA inlines loops with trip count one. Other work then moves in between, and constants (the
    counters of random bits, say) stay live from its forward to its backward.

    Arguments:
        graph: of the plan.
        regions: of the plan.
        from_last: whether each equals the one after it. In a rolled plan that one keeps more.
    """
    found = {region.first: region for region in regions}
    for loop in graph.loops:
        iterations = _iterations(loop, regions)
        if from_last:
            iterations.reverse()
        start = 0
        while start < loop.trips:
            stop = start + 1
            while stop < loop.trips and _like(graph, iterations[stop], iterations[start]):
                stop += 1
            if stop - start == 1 and _copies(graph, iterations[start]) == 1:
                source, place = (start - 1, start) if start else (0, 1)
                stop = max(stop, place + 1)
                if _fits(graph, iterations[source], iterations[place][0].first):
                    moved = _moved(graph, iterations[source], iterations[place][0].first)
                    iterations[place] = tuple(moved)
            start = stop
        found = {first: x for first, x in found.items() if not loop.first <= first < loop.stop}
        found |= {x.first: x for some in iterations for x in some}
    return tuple(found[first] for first in sorted(found))


def written_last(graph: Graph) -> dict[int, int]:
    """Value of a loop -> how many values its stage's forward writes after it.

    So counted, it is the same in all iterations: what the first one computes for all comes first.
    """
    found = {}
    for s in graph.looped:
        written = (i for op in reversed(graph.stages[s].forward) for i in reversed(op.outputs))
        found |= {i: n for n, i in enumerate(written)}
    return found


def places_in_loops(
    graph: Graph, regions: Sequence[Region], numbers: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """For each stage in a loop: where its run of equal iterations begins, and its place in one.

    The numbers are by `written_last`.
    """
    found = {}
    for loop in graph.loops:
        iterations = _iterations(loop, regions)
        for _, same in it.groupby(iterations, lambda x: _signature(graph, numbers, x)):
            alike = list(same)
            for some in alike:
                stages = range(some[0].first, some[-1].last + 1)
                found |= {s: (alike[0][0].first, n) for n, s in enumerate(stages)}
    return found


def neighbours(graph: Graph, region: Region) -> list[Region]:
    """The same region in the iterations before and after its own.

    Empty where a region need equal none of them: outside of loops, in an iteration that stands for
    several, and where singleton runs are allowed (`Graph.uniform_blocks`).
    """
    loop = next((x for x in graph.loops if x.first <= region.first < x.stop), None)
    if not graph.uniform_blocks or loop is None or _copies(graph, [region]) > 1:
        return []
    places = (region.first - loop.length, region.first + loop.length)
    inside = [n for n in places if loop.first <= n < loop.stop and _fits(graph, [region], n)]
    found = [_moved(graph, [region], n)[0] for n in inside]
    if region.first >= loop.first + loop.length:
        return found
    # What is carried into the first iteration may be no value, but an argument, that cannot move.
    return found + [y for x in found for y in with_inputs_moved(graph, x)]


def _iterations(loop: Loop, regions: Sequence[Region]) -> list[tuple[Region, ...]]:
    """The regions of each iteration, in order."""
    inside = (x for x in regions if loop.first <= x.first < loop.stop)
    parts = it.groupby(inside, lambda x: (x.first - loop.first) // loop.length)
    return [tuple(some) for _, some in parts]


def _like(graph: Graph, some: Sequence[Region], others: Sequence[Region]) -> bool:
    """Whether two iterations have the same regions."""
    start = others[0].first
    return _fits(graph, some, start) and _moved(graph, some, start) == list(others)


def _signature(graph: Graph, numbers: Mapping[int, int], part: Sequence[Region]) -> Hashable:
    """What is the same for regions of two iterations that one body can run."""
    start = part[0].first

    def placed(names: Sequence[str]) -> list[tuple[int, int]]:
        values = [graph.index[name] for name in names]
        return [(graph.forward_writer[i][0] - start, numbers.get(i, -i)) for i in values]

    def signature(region: Region) -> Hashable:
        stages = region.first - start, region.last - start
        kept = tuple(placed(region.saved)), tuple(placed(region.offloaded))
        return stages, region.alone, kept, tuple(map(signature, region.inner)), region.ahead

    return tuple(map(signature, part))


def _fits(graph: Graph, part: Sequence[Region], start: int) -> bool:
    """Whether regions may as well begin at stage `start`, whose ops are the same forward.

    Costs may differ, unlike where parts change places.
    """
    first, last = part[0].first, part[-1].last
    return _ops(graph, first, last) == _ops(graph, start, start + last - first)


def _ops(graph: Graph, first: int, last: int) -> list[list[tuple[str, int]]]:
    """Names and counts of outputs of the forward ops of some stages."""
    stages = graph.stages[first : last + 1]
    return [[(op.name, len(op.outputs)) for op in stage.forward] for stage in stages]


def _copies(graph: Graph, part: Sequence[Region]) -> int:
    """How many iterations one stands for."""
    ops = (op for s in range(part[0].first, part[-1].last + 1) for op in graph.stages[s].forward)
    return max((graph.values[i].copies for op in ops for i in op.outputs), default=1)


def _interchangeable(
    graph: Graph, loop: Loop, regions: Sequence[Region]
) -> Iterator[list[tuple[Region, ...]]]:
    """Parts of iterations that may change places."""
    iterations = _iterations(loop, regions)
    covers = {tuple(x.first - some[0].first for x in some) for some in iterations}
    found: dict[Hashable, list[tuple[Region, ...]]] = collections.defaultdict(list)
    for some in iterations:
        # Where all iterations have regions of the same stages, each region moves by itself.
        for part in [(x,) for x in some] if len(covers) == 1 else [tuple(some)]:
            stages = graph.stages[part[0].first : part[-1].last + 1]
            keys = tuple(stage.key for stage in stages)
            if None not in keys:
                found[part[0].first - some[0].first, keys].append(part)
    yield from found.values()


def _rank(graph: Graph, part: Sequence[Region], start: int) -> tuple[int, str]:
    """The sort key of a part: the bytes that it keeps; equal parts stand next to each other."""
    kept = sum(_kept_bytes(graph, region) for region in part)
    return kept, repr(_moved(graph, part, start))


def _kept_bytes(graph: Graph, region: Region) -> int:
    """Bytes that a region keeps for its backward."""
    if not region.alone:
        return sum(graph.values[graph.index[name]].waiting_bytes for name in region.saved)
    beside = (stage.alone_bytes for stage in graph.stages[region.first : region.last + 1])
    return graph.kept_bytes(region.first, region.last) + sum(beside)


def _moved(graph: Graph, part: Sequence[Region], start: int) -> list[Region]:
    """Regions as they are from stage `start` on, in an isomorphic place."""
    shift = start - part[0].first
    names: dict[str, str] = {}
    for s in range(part[0].first, part[-1].last + 1):
        here = (i for op in graph.stages[s].forward for i in op.outputs)
        there = (i for op in graph.stages[s + shift].forward for i in op.outputs)
        pairs = zip(here, there, strict=True)
        names |= {graph.values[i].name: graph.values[j].name for i, j in pairs}
        names |= _moved_inputs(graph, s, shift) if graph.link else {}

    def moved(region: Region) -> Region:
        offloaded = tuple(names[name] for name in region.offloaded if name in names)
        return dataclasses.replace(
            region,
            first=region.first + shift,
            last=region.last + shift,
            saved=tuple(names[name] for name in region.saved),
            inner=tuple(map(moved, region.inner)),
            offloaded=offloaded,
            ahead=region.ahead if offloaded else 0,
        )

    return list(map(moved, part))


def _moved_inputs(graph: Graph, s: int, shift: int) -> dict[str, str]:
    """Names of the inputs of stage `s` that may move -> of those of the stage `shift` later.

    None where that stage has other ones: arguments, in a first iteration.
    """
    here, there = movable_inputs(graph, s), movable_inputs(graph, s + shift)
    if len(here) != len(there):
        return {}
    return {graph.values[i].name: graph.values[j].name for i, j in zip(here, there, strict=True)}
