"""The options of all stages; isomorphic stages share a solve."""

import itertools as it
import math
import time
from collections.abc import Hashable, Mapping

from ...graph import Graph
from ...transfers import hiding_seconds
from ..effects.walker import Walker
from ..stage_program.options import moving_options, options, options_by_multiplier

# Solves for all distinct stages together, beyond which each gets fewer options.
_MOST_SOLVES = 360
# Options of a stage for which there was no time to solve.
_BY_MULTIPLIER = 4
# Stages have options in common if their codes' errors are the same to such a factor.
_SAME_MAGNITUDE = 8.0

_Option = tuple[int, ...]


def solve_stages(
    graph: Graph, walker: Walker, *, max_options: int, deadline: float
) -> list[list[_Option]]:
    """For each stage its options: sets of values that it may save.

    Arguments:
        graph: the step.
        walker: knows which stages are isomorphic.
        max_options: of one stage.
        deadline: stop solving at this reading of `time.monotonic`, in seconds.
    """
    # What others may read as codes is in memory for them, or it is not.
    frees = read_by_others(graph), read_by_others(graph, in_every_implementation=True)
    stages = [walker.interval(s, s) for s in range(len(graph.stages))]
    keys = [
        (x.shape, *(tuple(i in free for i in x.values[0]) for free in frees), _magnitudes(graph, s))
        for s, x in enumerate(stages)
    ]
    count = max(min(max_options, _MOST_SOLVES // max(len(set(keys)), 1)), 3)
    solved: dict[Hashable, list[_Option]] = {}
    for s, (stage, key) in enumerate(zip(stages, keys, strict=True)):
        known = key, graph.most_error, count
        if known in walker.shapes.options:
            solved[key] = walker.shapes.options[known]
        elif key not in solved:
            distinct = {free.intersection(stage.values[0]): free for free in frees}
            found = (
                options(graph, s, free=free, count=count, deadline=deadline)
                for free in distinct.values()
            )
            some = list(dict.fromkeys(it.chain.from_iterable(found)))
            some = some or options_by_multiplier(graph, s, count=_BY_MULTIPLIER)
            number = {i: k for k, i in enumerate(stage.values[0])}
            solved[key] = [tuple(number[i] for i in o) for o in some]
            if time.monotonic() < deadline:
                walker.shapes.options[known] = solved[key]
    return [
        [tuple(stage.values[0][k] for k in o) for o in solved[key]]
        for stage, key in zip(stages, keys, strict=True)
    ]


def solve_moving(
    graph: Graph, walker: Walker, *, max_options: int, deadline: float
) -> list[list[tuple[_Option, _Option]]]:
    """For each stage options that move something to the host: what it saves, and what moves of it.

    Arguments:
        graph, walker, max_options, deadline: as of `solve_stages`.
    """
    if graph.link is None:
        return [[] for _ in graph.stages]
    free = read_by_others(graph)
    stages = [walker.interval(s, s) for s in range(len(graph.stages))]
    keys = [
        (x.shape, tuple(i in free for i in x.values[0]), hiding_seconds(graph, s))
        for s, x in enumerate(stages)
    ]
    count = max(min(max_options, _MOST_SOLVES // max(len(set(keys)), 1)), 3)
    solved: dict[Hashable, list[tuple[_Option, _Option]]] = {}
    for s, (stage, key) in enumerate(zip(stages, keys, strict=True)):
        if key not in solved:
            number = {i: k for k, i in enumerate(stage.values[0])}
            found = moving_options(graph, s, free=free, count=count, deadline=deadline)
            solved[key] = [_mapped(number, pair) for pair in found]
    return [
        [_mapped(dict(enumerate(stage.values[0])), pair) for pair in solved[key]]
        for stage, key in zip(stages, keys, strict=True)
    ]


def _mapped(number: Mapping[int, int], pair: tuple[_Option, _Option]) -> tuple[_Option, _Option]:
    """The options by other numbers."""
    saved, moved = (tuple(number[i] for i in some) for some in pair)
    return saved, moved


def _magnitudes(graph: Graph, s: int) -> tuple[int, ...]:
    """How large the errors of a stage's codes are, roughly, where errors are limited."""
    ops = graph.stages[s].forward if math.isfinite(graph.most_error) else ()
    return tuple(round(math.log(op.error, _SAME_MAGNITUDE)) for op in ops if op.error)


def read_by_others(graph: Graph, in_every_implementation: bool = False) -> frozenset[int]:
    """Forward values that the backward of another stage reads, whatever is recomputed there.

    Arguments:
        graph: the step.
        in_every_implementation: whether it does so in every implementation, or in its first.
    """
    return frozenset(
        i
        for s, stage in enumerate(graph.stages)
        for op in stage.backward
        for i in (op.always_reads if in_every_implementation else op.inputs)
        if graph.forward_writer.get(i, (s,))[0] != s
    )
