"""Grids: how backward ops are grouped into events, and how far recomputation reaches."""

import dataclasses
import itertools as it

import numpy as np

from ...graph import Graph
from ..steps import Schedule, runs_of

#: How many ops before what an event reads may run again.
_REACH = 14
#: Graphs with no more backward ops are planned on the full grid at once; very small ones with any
#: reach.
_SMALL, _VERY_SMALL = 100, 24
#: Windows into which the events of small grids round a schedule are divided.
WINDOWS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """A space of schedules.

    Attributes:
        events: groups of backward ops, at most; None makes each op an event of its own.
        reach: how many ops before the one that wrote what an event reads may run again before it;
            None for all, and also for those that later events read.
    """

    events: int | None = None
    reach: int | None = None


def grids_for(graph: Graph) -> tuple[Grid, ...]:
    """A sixteenth of the backward ops as events, an eighth, a quarter, and all of them.

    From a quarter on, all events at once take hardly longer than half of them. Each grid splits
    the events of the last, so that a schedule that was found there is a start.

    Recomputation that reaches further hardly ever pays, and makes programs that take long to solve.
    """
    backward = len(graph.ops) - graph.forward_count
    if not backward:
        return ()
    if backward <= _SMALL:
        return (Grid(reach=_REACH if backward > _VERY_SMALL else None),)
    return tuple(Grid(n, _REACH) for n in (*(backward // 16 * 2**k for k in range(3)), backward))


def groups_of(graph: Graph, grid: Grid) -> list[range]:
    """Positions in `Graph.ops` of the backward ops of each event."""
    first = graph.forward_count
    count = len(graph.ops) - first
    number = min(grid.events or count, count)
    ends = [first + round(count * n / number) for n in range(number + 1)] if number else []
    return [range(a, b) for a, b in it.pairwise(ends) if b > a]


def groups_around(graph: Graph, known: Schedule, number: int) -> list[range]:
    """The positions of each event of a small grid that shows a schedule.

    The grid has the events before which the schedule runs something again, and others beside: by
    turns, all in a window, which lie side by side, and as many of all at random.

    Arguments:
        known: the schedule.
        number: counts the grids round schedules; it chooses the window or seeds the draws.
    """
    first, end = graph.forward_count, len(graph.ops)
    needed = _needed_events(graph, known)
    others = sorted(set(range(first + 1, end)) - needed)
    length = min(max(1, (end - first) // WINDOWS), len(others))
    if number % 2:
        chosen = np.random.default_rng(number).choice(others, length, replace=False).tolist()
    else:
        sweep, place = divmod(number // 2, max(1, -(-len(others) // max(1, length))))
        start = place * length + sweep % 2 * length // 2
        chosen = others[start : start + length]
    ends = sorted({first, end, *needed, *chosen})
    return [range(a, b) for a, b in it.pairwise(ends)]


def _needed_events(graph: Graph, known: Schedule) -> set[int]:
    """Backward ops before which a schedule runs something again, but for the first of all."""
    first, end = graph.forward_count, len(graph.ops)
    needed, before = set[int](), end
    for run in reversed(runs_of(known)):
        if run.op >= first:
            before = run.op
        elif first < before < end:
            needed.add(before)
    return needed
