"""The schedules on one grid of backward events, and the variables that tell them apart.

Forward ops run once, in order. Then, event by event, some of them run again, each at most once and
in order, and then the event's backward ops run. What is in memory while they run was *carried* from
the event before or has just run again. A value that only other recomputations read (*passed*)
leaves once the last forward op that could read it is reached; all else stays to the end of the
event. Where an op runs again of which one output is carried and another lost, the carried one
counts twice while it runs. An implementation that writes over a forward value is open to the last
forward op that reads it.

| index | means |
|---|---|
| `k` | an event |
| `i` | a forward value that the backward ops of event `k`, or what runs again for them, may touch |
| `o`, `w` | a forward op that writes one of those, and one of its implementations |
| `b` | a backward op |

| variable, 0 or 1 | is 1 where |
|---|---|
| `first[o, w]` | op `o` runs in that implementation in the forward pass, or backward op `o` does |
| `run[o, w, k]` | op `o` runs again before event `k` |
| `carry[i, k]` | value `i` is in memory from event `k - 1`, or from the forward pass, into `k` |
| `hold[i, k]` | it is in memory while the backward ops of event `k` run |
| `passed[i, k]` | it is there only while forward ops run again |
"""

import bisect
import collections
import dataclasses
import functools as ft
import itertools as it
from collections.abc import Mapping, Sequence
from typing import Any

from ...graph import Graph, Implementation, Op
from ...solver.deadline import NEVER, Deadline
from ...solver.sparse import numbered
from ..steps import Execute


@dataclasses.dataclass(frozen=True)
class GridColumns:
    """The column of each variable, kind by kind and event by event.

    Attributes:
        width: how many columns there are.
        first, run, carry, hold, passed: the indices of a variable -> its column.
    """

    width: int
    first: Mapping[tuple[int, int], int]
    run: Mapping[tuple[int, int, int], int]
    carry: Mapping[tuple[int, int], int]
    hold: Mapping[tuple[int, int], int]
    passed: Mapping[tuple[int, int], int]


@dataclasses.dataclass(frozen=True, eq=False)
class GridSpace:
    """The schedules on one grid.

    Attributes:
        graph: the step.
        groups: positions in `Graph.ops` of the backward ops of each event.
        budget_bytes: what bytes are divided by.
        reach: how many ops before the one that wrote what an event reads may run again before the
            event; None for all, and for those that later events read.
        known: the runs of a schedule; what it runs again may run again there, whatever the reach.
        deadline: until when the program may be written. Past it, properties raise `SolverStopped`.
    """

    graph: Graph
    groups: Sequence[range]
    budget_bytes: int
    reach: int | None = None
    known: Sequence[Execute] = ()
    deadline: Deadline = NEVER

    @property
    def scale(self) -> float:
        """Bytes that count as 1."""
        return float(max(self.budget_bytes, 1))

    @ft.cached_property
    def forward(self) -> tuple[Op, ...]:
        """The forward ops."""
        return self.graph.ops[: self.graph.forward_count]

    @property
    def writer(self) -> dict[int, int]:
        """Forward value -> the op that writes it."""
        return self.graph.forward_writer_number

    @ft.cached_property
    def last_reader(self) -> dict[int, int]:
        """Forward value -> the last forward op that may read it, or else the one that writes it."""
        found = dict(self.writer)
        for o, op in enumerate(self.forward):
            found.update(dict.fromkeys(op.may_read, o))
        return found

    @ft.cached_property
    def first_implementations(self) -> dict[int, list[int]]:
        """Op -> the implementations in which it may run for the first time."""
        ops = range(len(self.graph.ops))
        return {o: _open_implementations(self, o, is_again=False) for o in ops}

    @ft.cached_property
    def again_implementations(self) -> dict[int, list[int]]:
        """Op -> the implementations in which it may run again, where it may."""
        ops = set(it.chain(*self.again))
        return {o: _open_implementations(self, o, is_again=True) for o in ops}

    @ft.cached_property
    def again(self) -> list[list[int]]:
        """For each event the forward ops that may run again before it."""
        return _runs_again(self)

    @ft.cached_property
    def events(self) -> dict[int, list[int]]:
        """Forward value -> the events in which it may be read, or written again.

        Between two of them it is held throughout or not at all.
        """
        found = collections.defaultdict(list)
        for k, group in self.deadline.during(enumerate(self.groups)):
            for i in _touched(self, k, group):
                found[i].append(k)
        return found

    @ft.cached_property
    def values(self) -> list[int]:
        """The forward values that have variables."""
        return sorted(self.events)

    @ft.cached_property
    def columns(self) -> GridColumns:
        """The variables."""
        return _columns(self)

    def is_chosen(self, o: int) -> bool:
        """Whether the first run of an op is open: several implementations, or none at all."""
        return self.graph.ops[o].optional or len(self.first_implementations[o]) > 1

    def read(self, b: int) -> list[tuple[int, set[int]]]:
        """The implementations of a backward op and the forward values that they read."""
        implementations = self.graph.implementations[b]
        return [
            (w, {i for i in implementations[w].inputs if i in self.writer})
            for w in self.first_implementations[b]
        ]

    def across(self, i: int, k: int) -> int | None:
        """The column that says whether a value is held from before event `k` to the next event
        that may touch it; None if there is none.
        """
        events = self.events[i]
        n = bisect.bisect_left(events, k)
        return self.columns.carry[i, events[n]] if n < len(events) else None

    def share(self, i: int) -> float:
        """Bytes of a value, over the budget."""
        return self.graph.values[i].nbytes / self.scale


def windows(
    graph: Graph, groups: Sequence[range], order: Sequence[Execute]
) -> tuple[list[int], list[int]]:
    """Where in an order of runs each event begins, and its first backward op."""
    position = {run.op: n for n, run in enumerate(order) if run.op >= graph.forward_count}
    seen: set[int] = set()
    end = 0  # of the forward pass
    while order[end].op < graph.forward_count and order[end].op not in seen:
        seen.add(order[end].op)
        end += 1
    starts = [end] + [position[group[-1]] + 1 for group in groups[:-1]]
    return starts, [position[group[0]] for group in groups]


def beats(implementations: Sequence[Implementation], v: int, w: int) -> bool:
    """Whether `v` is at least as good as `w` in every respect, and the first of its equals."""
    a, b = implementations[v], implementations[w]
    if v == w or not (set(a.inputs) <= set(b.inputs) and set(a.overwrites) <= set(b.overwrites)):
        return False
    costs = (a.seconds, a.workspace_bytes), (b.seconds, b.workspace_bytes)
    is_equal = costs[0] == costs[1] and set(a.inputs) == set(b.inputs)
    is_equal = is_equal and set(a.overwrites) == set(b.overwrites)
    return v < w if is_equal else costs[0][0] <= costs[1][0] and costs[0][1] <= costs[1][1]


def _open_implementations(space: GridSpace, o: int, *, is_again: bool) -> list[int]:
    """Implementations in which an op may run, less those that another one beats."""
    implementations = space.graph.implementations[o]
    possible = [
        w
        for w, implementation in enumerate(implementations)
        if (is_again or not implementation.only_again)
        and all(space.last_reader.get(i) == o for i in implementation.overwrites)
    ]
    return [w for w in possible if not any(beats(implementations, v, w) for v in possible)]


def _runs_again(space: GridSpace) -> list[list[int]]:
    """For each event the forward ops that may run again before it."""
    found = [_ancestors(space, group) for group in space.deadline.during(space.groups)]
    if space.reach is None:
        found = list(it.accumulate(found[::-1], set.union))[::-1]
    if space.known:
        starts, _ = windows(space.graph, space.groups, space.known)
        for n, run in enumerate(space.known[starts[0] :], starts[0]):
            if run.op < len(space.forward):
                found[bisect.bisect_right(starts, n) - 1].add(run.op)
    return list(map(sorted, found))


def _ancestors(space: GridSpace, group: range) -> set[int]:
    """Forward ops within reach that can run again for what the ops of an event read."""
    found: set[int] = set()
    for i in {i for b in group for _, read in space.read(b) for i in read}:
        first = 0 if space.reach is None else space.writer[i] - space.reach
        pending = [space.writer[i]]
        seen: set[int] = set()
        while pending:
            o = pending.pop()
            if o < first or o in seen or not space.graph.may_rerun(o):
                continue
            seen.add(o)
            pending += [space.writer[j] for j in space.forward[o].may_read]
        found |= seen
    return found


def _touched(space: GridSpace, k: int, group: range) -> set[int]:
    """Forward values that an event's backward ops, or what runs again for them, may touch."""
    found = {i for b in group for _, read in space.read(b) for i in read}
    for o in space.again[k]:
        found |= {*space.forward[o].outputs, *space.forward[o].may_read}
    return found


def _columns(space: GridSpace) -> GridColumns:
    keys: list[tuple[Any, ...]] = [
        ("first", o, w)
        for o in range(len(space.graph.ops))
        if space.is_chosen(o)
        for w in space.first_implementations[o]
    ]
    keys += [
        ("run", o, w, k)
        for k in range(len(space.groups))
        for o in space.again[k]
        for w in space.again_implementations[o]
    ]
    for kind in ("carry", "hold", "passed"):
        keys += [(kind, i, k) for i in space.values for k in space.events[i]]
    kinds = "first", "run", "carry", "hold", "passed"
    return GridColumns(len(keys), *numbered(space.deadline.during(keys), *kinds))
