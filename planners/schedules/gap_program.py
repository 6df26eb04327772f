"""Which forward ops run again before which backward ops, and how: the integer program of `Gap`.

The space of schedules: forward ops run once, in order. Then, event by event, some of them run
again, each at most once and in order, and then the event's backward ops run. What is in memory
while they run was *carried* from the event before or has just run again. A value that only other
recomputations read (*passed*) leaves once the last forward op that could read it is reached; all
else stays to the end of the event. Where an op runs again of which one output is carried and
another lost, the carried one counts twice while it runs. Every run is in one of the op's ways. One
that writes over a forward value is open to the last forward op that reads it.

| index | means |
|---|---|
| `k` | an event |
| `i` | a forward value that the backward ops of event `k`, or what runs again for them, may touch |
| `o`, `w` | a forward op that writes one of those, and one of its ways |
| `b` | a backward op |

| variable, 0 or 1 | is 1 where |
|---|---|
| `first[o, w]` | op `o` runs in that way in the forward pass, or backward op `o` does |
| `run[o, w, k]` | op `o` runs again before event `k` |
| `carry[i, k]` | value `i` is in memory from event `k - 1`, or from the forward pass, into `k` |
| `hold[i, k]` | it is in memory while the backward ops of event `k` run |
| `passed[i, k]` | it is there only while forward ops run again |
"""

import bisect
import collections
import functools
import itertools as it
from collections.abc import Iterator, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from ..graph import Graph, Implementation
from ..solver.deadline import NEVER, Deadline
from ..solver.sparse import at_least, matrix, numbered, total
from .steps import Execute, lifetimes

_Row = dict[int, float]

#: A share of the budget that is no difference.
_TOLERANCE = 1e-9


class GapProgram:
    """The program; one vector `x` holds all variables, kind by kind and event by event.

    Arguments:
        groups: positions in `Graph.ops` of the backward ops of each event.
        reach: how many ops before the one that wrote what an event reads may run again before the
            event; None for all, and for those that later events read.
        known: the runs of a schedule; what it runs again may run again there, whatever the reach.
        of_peak: whether to minimize the peak, as a share of the budget, instead of the seconds.
        deadline: until when it may be written.

    Raises:
        SolverStopped: the deadline has passed.
    """

    def __init__(
        self,
        graph: Graph,
        groups: list[range],
        budget_bytes: int,
        reach: int | None = None,
        known: Sequence[Execute] = (),
        of_peak: bool = False,
        deadline: Deadline = NEVER,
    ):
        self.graph, self.groups = graph, groups
        self.reach, self.known, self.deadline = reach, known, deadline
        self.scale = float(max(budget_bytes, 1))  # bytes enter as shares of the budget
        self.unit = graph.seconds or 1.0  # and seconds as shares of the step's
        self.forward = graph.ops[: graph.forward_count]
        self.writer = graph.forward_writer_number
        self.last_reader = dict(self.writer)
        for o, op in enumerate(self.forward):
            self.last_reader.update(dict.fromkeys(op.may_read, o))
        self.implementations_first = {
            o: self._open_implementations(o, False) for o in range(len(graph.ops))
        }
        self.again = self._runs_again()
        self.implementations_again = {
            o: self._open_implementations(o, True) for o in set(it.chain(*self.again))
        }
        self.events = self._events()
        self.values = sorted(self.events)
        self._number_variables()
        self.is_hopeless = False  # whether what no decision changes is too much by itself
        self.x = cp.Variable(self.width, boolean=True)
        self.level = cp.Variable(max(sum(map(len, self.again)), 1))
        self.peak = cp.Variable() if of_peak else None
        # Ops that run as they do in any schedule.
        self.constant = sum(
            op.implementations[self.implementations_first[o][0]].seconds
            for o, op in enumerate(graph.ops)
            if not self._is_chosen(o)
        )
        objective = self._cost() @ self.x if self.peak is None else self.peak
        self.problem = cp.Problem(cp.Minimize(objective), list(self._constraints()))

    def _cost(self) -> np.ndarray:
        """Seconds of every variable."""
        cost = np.zeros(self.width)
        for (o, w, *_), column in (*self.first.items(), *self.run.items()):
            cost[column] = self.graph.implementations[o][w].seconds / self.unit
        return cost

    def _open_implementations(self, o: int, again: bool) -> list[int]:
        """Ways in which an op may run, less those that another is better than in all respects."""
        implementations = self.graph.implementations[o]
        possible = [
            w
            for w, implementation in enumerate(implementations)
            if (again or not implementation.only_again)
            and all(self.last_reader.get(i) == o for i in implementation.overwrites)
        ]
        return [w for w in possible if not any(_beats(implementations, v, w) for v in possible)]

    def _is_chosen(self, o: int) -> bool:
        """Whether a schedule may run an op for the first time in several ways, or not at all."""
        return self.graph.ops[o].optional or len(self.implementations_first[o]) > 1

    def _read(self, b: int) -> list[tuple[int, set[int]]]:
        """The ways of a backward op and the forward values that they read."""
        implementations = self.graph.implementations[b]
        return [
            (w, {i for i in implementations[w].inputs if i in self.writer})
            for w in self.implementations_first[b]
        ]

    def _runs_again(self) -> list[list[int]]:
        """For each event the forward ops that may run again before it."""
        found = [self._ancestors(group) for group in self.deadline.during(self.groups)]
        if self.reach is None:
            found = list(it.accumulate(found[::-1], set.union))[::-1]
        if self.known:
            starts, _ = self._windows(self.known)
            for n, run in enumerate(self.known[starts[0] :], starts[0]):
                if run.op < len(self.forward):
                    found[bisect.bisect_right(starts, n) - 1].add(run.op)
        return list(map(sorted, found))

    def _ancestors(self, group: range) -> set[int]:
        """Forward ops within reach that can run again for what the ops of an event read."""
        found: set[int] = set()
        for i in {i for b in group for _, read in self._read(b) for i in read}:
            first = 0 if self.reach is None else self.writer[i] - self.reach
            pending = [self.writer[i]]
            seen: set[int] = set()
            while pending:
                o = pending.pop()
                if o < first or o in seen or not self.graph.may_rerun(o):
                    continue
                seen.add(o)
                pending += [self.writer[j] for j in self.forward[o].may_read]
            found |= seen
        return found

    def _events(self) -> dict[int, list[int]]:
        """Forward value -> the events in which it may be read, or written again.

        Between two of them it is held throughout or not at all.
        """
        found = collections.defaultdict(list)
        for k, group in self.deadline.during(enumerate(self.groups)):
            touched = {i for b in group for _, read in self._read(b) for i in read}
            for o in self.again[k]:
                touched |= {*self.forward[o].outputs, *self.forward[o].may_read}
            for i in touched:
                found[i].append(k)
        return found

    def _across(self, i: int, k: int) -> int | None:
        """The variable that says whether a value is held from before event `k` to the next event
        that may touch it; None if there is none.
        """
        events = self.events[i]
        n = bisect.bisect_left(events, k)
        return self.carry[i, events[n]] if n < len(events) else None

    def _number_variables(self) -> None:
        events = range(len(self.groups))
        ops = range(len(self.graph.ops))
        keys: list[tuple[Any, ...]] = [
            ("first", o, w)
            for o in ops
            if self._is_chosen(o)
            for w in self.implementations_first[o]
        ]
        keys += [
            ("run", o, w, k)
            for k in events
            for o in self.again[k]
            for w in self.implementations_again[o]
        ]
        for kind in ("carry", "hold", "passed"):
            keys += [(kind, i, k) for i in self.values for k in self.events[i]]
        self.width = len(keys)
        kinds = "first", "run", "carry", "hold", "passed"
        self.first, self.run, self.carry, self.hold, self.passed = numbered(
            self.deadline.during(keys), *kinds
        )

    def _constraints(self) -> Iterator[Any]:
        yield from self._implementations()
        yield from self._reads()
        yield from self._sources()
        yield from self._carries()
        yield from self._inputs()
        yield from self._overwritten()
        yield from self._forward_memory()
        yield from self._recomputation_memory()
        yield from self._backward_memory()

    def _implementations(self) -> Iterator[Any]:
        """An op first runs in one of its ways; an optional one in one at most."""
        chosen = [o for o in range(len(self.graph.ops)) if self._is_chosen(o)]
        rows = {o: {self.first[o, w]: 1.0 for w in self.implementations_first[o]} for o in chosen}
        must = [rows[o] for o in chosen if not self.graph.ops[o].optional]
        may = [rows[o] for o in chosen if self.graph.ops[o].optional]
        if must:
            yield matrix(must, self.width) @ self.x == 1
        if may:
            yield matrix(may, self.width) @ self.x <= 1

    def _reads(self) -> Iterator[Any]:
        """What a backward op reads is held during its event."""
        always, rows = [], []
        for k, group in enumerate(self.groups):
            for b in group:
                for w, read in self._read(b):
                    held = [self.hold[i, k] for i in sorted(read)]
                    if self._is_chosen(b):
                        rows += [{column: 1.0, self.first[b, w]: -1.0} for column in held]
                    else:
                        always += held
        if always:
            yield self.x[sorted(set(always))] == 1
        yield from at_least(self.x, rows)

    def _sources(self) -> Iterator[Any]:
        """What is held or passed was carried, or its op has run again."""
        rows = (
            total([*self._given(i, k), (self.hold[i, k], -1.0), (self.passed[i, k], -1.0)])
            for i, k in self.hold
        )
        yield from at_least(self.x, rows)

    def _given(self, i: int, k: int) -> Iterator[tuple[int, float]]:
        yield self.carry[i, k], 1.0
        for w in self.implementations_again.get(self.writer[i], ()):
            if (self.writer[i], w, k) in self.run:
                yield self.run[self.writer[i], w, k], 1.0

    def _carries(self) -> Iterator[Any]:
        """What is carried into an event was held during the one before, or has run at all."""
        rows = []
        for i, events in self.events.items():
            for before, k in it.pairwise(events):
                rows.append({self.hold[i, before]: 1.0, self.carry[i, k]: -1.0})
            if self.forward[o := self.writer[i]].optional:
                ran = {self.first[o, w]: 1.0 for w in self.implementations_first[o]}
                rows.append(ran | {self.carry[i, events[0]]: -1.0})
        yield from at_least(self.x, rows)

    def _inputs(self) -> Iterator[Any]:
        """What an op reads that runs again is held or passed."""
        rows = (
            {self.hold[i, k]: 1.0, self.passed[i, k]: 1.0, column: -1.0}
            for (o, w, k), column in self.run.items()
            for i in sorted(set(self.forward[o].implementations[w].inputs))
        )
        yield from at_least(self.x, rows)

    def _overwritten(self) -> Iterator[Any]:
        """What an op has written over is neither carried nor held."""
        rows = [
            {column: -1.0, self.carry[i, self.events[i][0]]: -1.0}
            for (o, w), column in self.first.items()
            for i in self.graph.implementations[o][w].overwrites
            if i in self.events
        ]
        rows += [
            {column: -1.0, self.hold[i, k]: -1.0}
            for (o, w, k), column in self.run.items()
            for i in self.forward[o].implementations[w].overwrites
        ]
        yield from at_least(self.x, rows, [-1.0] * len(rows))

    def _forward_memory(self) -> Iterator[Any]:
        """While a forward op runs: what later ones read, and what waits for the first event."""
        rows, fixed = [], []
        for o in self.deadline.during(range(len(self.forward))):
            written = [i for i, w in self.writer.items() if w <= o]
            live = [i for i in written if self.last_reader[i] >= o]
            waits = [i for i in written if self.last_reader[i] < o and i in self.events]
            terms = [(self.carry[i, self.events[i][0]], self._bytes(i)) for i in waits]
            workspace, constant = self._workspace(o)
            for i in live:
                if self.forward[source := self.writer[i]].optional:
                    terms += [
                        (self.first[source, w], self._bytes(i))
                        for w in self.implementations_first[source]
                    ]
                else:
                    constant += self._bytes(i)
            rows.append(total(terms + workspace))
            fixed.append(constant)
        yield from self._within(rows, fixed)

    def _workspace(self, o: int) -> tuple[list[tuple[int, float]], float]:
        """Workspace of an op's first run: by decision, and in any case."""
        implementations = self.graph.implementations[o]
        if not self._is_chosen(o):
            return [], implementations[
                self.implementations_first[o][0]
            ].workspace_bytes / self.scale
        return [
            (self.first[o, w], implementations[w].workspace_bytes / self.scale)
            for w in self.implementations_first[o]
        ], 0.0

    def _recomputation_memory(self) -> Iterator[Any]:
        """While a forward op runs again: gradients, what was carried, what has run again so far.

        `level[o, k]` is what is in memory when op `o` is reached. Written as a change from the op
        before, it takes a handful of coefficients where its sum takes one for each value.
        """
        steps, runs, fixed = [], [], []
        for k, group in enumerate(self.groups):
            for o in self.again[k]:
                n = len(steps)
                is_first = o == self.again[k][0]
                steps.append({n: 1.0} if is_first else {n: 1.0, n - 1: -1.0})
                runs.append(
                    {
                        self.run[o, w, k]: self._own_bytes(o, w)
                        for w in self.implementations_again[o]
                    }
                )
                fixed.append(self._gradients[group[0]][0])
        if steps:
            yield matrix(steps, len(steps)) @ self.level == self._changes @ self.x
            yield self.level + matrix(runs, self.width) @ self.x <= self._room(fixed)

    @functools.cached_property
    def _changes(self) -> Any:
        """By how much what is in memory changes from one op that may run again to the next."""
        rows = []
        for k, again in enumerate(self.again):
            before: _Row = {}
            for o in self.deadline.during(again):
                present = self._present(o, k)
                rows.append(_difference(present, before))
                before = present
        return matrix(rows, self.width)

    def _present(self, o: int, k: int) -> _Row:
        """What is in memory when op `o` is reached before event `k`, its own outputs apart."""
        found = {}
        for i in self.values:
            if self.writer[i] >= o or (i, k) not in self.hold:
                column = self._across(i, k)
                if column is not None:
                    found[column] = self._bytes(i)
                continue
            found[self.hold[i, k]] = self._bytes(i)
            if self.last_reader[i] >= o:
                found[self.passed[i, k]] = self._bytes(i)
        return found

    def _backward_memory(self) -> Iterator[Any]:
        """While a backward op runs: gradients, what this or a later op of the event may read, and
        what is held on.
        """
        rows, fixed = [], []
        for k, group in enumerate(self.groups):
            last = {i: b for b in group for _, read in self._read(b) for i in read}
            for b in self.deadline.during(group):
                present = {}
                for i in self.values:
                    is_done = last.get(i, b) < b or (i, k) not in self.hold
                    column = self._across(i, k + 1) if is_done else self.hold[i, k]
                    if column is not None:
                        present[column] = self._bytes(i)
                workspace, constant = self._workspace(b)
                rows.append(present | dict(workspace))
                fixed.append(self._gradients[b][1] + constant)
        yield from self._within(rows, fixed)

    @functools.cached_property
    def _gradients(self) -> dict[int, tuple[float, float]]:
        """Bytes of what backward ops wrote: before each of them, and while it runs."""
        ops, first = self.graph.ops, self.graph.forward_count
        last = {i: b for b, op in enumerate(ops) for i in (*op.outputs, *op.may_read)}
        live: set[int] = set()
        found = {}
        for b in range(first, len(ops)):
            before = sum(map(self._bytes, live))
            live |= set(ops[b].outputs)
            found[b] = before, sum(map(self._bytes, live))
            live = {i for i in live if last[i] > b}
        return found

    def _own_bytes(self, o: int, w: int) -> float:
        op = self.forward[o]
        return (
            sum(map(self._bytes, op.outputs)) + op.implementations[w].workspace_bytes / self.scale
        )

    def _bytes(self, i: int) -> float:
        return self.graph.values[i].nbytes / self.scale

    def _within(self, rows: list[_Row], fixed: list[float]) -> Iterator[Any]:
        """One family of constraints: each row and what it adds to keep the budget."""
        if rows:
            # A way that writes over an input takes less than nothing.
            least = np.array([sum(x for x in row.values() if x < 0) for row in rows])
            is_over = self.peak is None and bool((least + fixed > 1.0 + _TOLERANCE).any())
            self.is_hopeless = self.is_hopeless or is_over
            yield matrix(rows, self.width) @ self.x <= self._room(fixed)

    def _room(self, fixed: list[float]) -> Any:
        """What is left for what decisions change."""
        return (1.0 if self.peak is None else self.peak) - np.array(fixed)

    def start(self, order: Sequence[Execute]) -> dict[cp.Variable, np.ndarray]:
        """The variables at a schedule that runs ops in an order.

        No point of the program where the schedule is not of its space.
        """
        x = np.zeros(self.width)
        starts, begins = self._windows(order)
        again = [n >= starts[0] and run.op < len(self.forward) for n, run in enumerate(order)]
        order = list(map(self._standing, order, again))
        for n, (run, is_again) in enumerate(zip(order, again, strict=True)):
            k = bisect.bisect_right(starts, n) - 1
            column = (
                self.run.get((run.op, run.implementation, k))
                if is_again
                else self.first.get((run.op, run.implementation))
            )
            if column is not None:
                x[column] = 1.0
            if is_again:
                read = self.graph.implementations[run.op][run.implementation].inputs
                x[[self.passed[i, k] for i in read if (i, k) in self.passed]] = 1.0
        for i, written, read in lifetimes(self.graph, order):
            for k in self.events.get(i, ()):
                if written < starts[k] <= read:
                    x[self.carry[i, k]] = 1.0
                if written < begins[k] <= read:
                    x[self.hold[i, k]], x[self.passed[i, k]] = 1.0, 0.0
        level, changes = [], self._changes @ x
        for ops in filter(None, self.again):
            change, changes = np.split(changes, [len(ops)])
            level.append(change.cumsum())
        point = {self.x: x}
        if level:
            point[self.level] = np.concatenate(level)
        if self.peak is not None:
            workspace = max(
                implementation.workspace_bytes
                for op in self.graph.ops
                for implementation in op.implementations
            )
            most = sum(value.nbytes for value in self.graph.values) + max(workspace, 0)
            point[self.peak] = np.array(most / self.scale)
        return point

    def _standing(self, run: Execute, is_again: bool) -> Execute:
        """The run, in a way that is better where its own was left out for that."""
        open_implementations = (
            self.implementations_again.get(run.op, [])
            if is_again
            else self.implementations_first[run.op]
        )
        if run.implementation in open_implementations:
            return run
        implementations = self.graph.implementations[run.op]
        return Execute(
            run.op,
            next(
                (v for v in open_implementations if _beats(implementations, v, run.implementation)),
                run.implementation,
            ),
        )

    def plain_order(self) -> list[Execute]:
        """The ops of a schedule without recomputation."""
        ops = enumerate(self.graph.ops)
        return [Execute(o, self.implementations_first[o][0]) for o, op in ops if not op.optional]

    def _windows(self, order: Sequence[Execute]) -> tuple[list[int], list[int]]:
        """Where each event begins, and its first backward op."""
        position = {run.op: n for n, run in enumerate(order) if run.op >= len(self.forward)}
        seen: set[int] = set()
        end = 0  # of the forward pass
        while order[end].op < len(self.forward) and order[end].op not in seen:
            seen.add(order[end].op)
            end += 1
        starts = [end] + [position[group[-1]] + 1 for group in self.groups[:-1]]
        return starts, [position[group[0]] for group in self.groups]

    def order(self) -> list[Execute]:
        """The ops of the solution, in order."""
        x: Any = self.x.value
        found = [
            Execute(o, w)
            for o in range(len(self.forward))
            if (w := self._first_implementation(x, o)) is not None
        ]
        runs = {(o, k): w for (o, w, k), n in self.run.items() if x[n] > 0.5}
        for k, group in enumerate(self.groups):
            found += [Execute(o, runs[o, k]) for o in self.again[k] if (o, k) in runs]
            found += [Execute(b, self._first_implementation(x, b) or 0) for b in group]
        return found

    def _first_implementation(self, x: Any, o: int) -> int | None:
        """How an op first runs; None if not at all."""
        if not self._is_chosen(o):
            return self.implementations_first[o][0]
        return next((w for w in self.implementations_first[o] if x[self.first[o, w]] > 0.5), None)


def _beats(implementations: tuple[Implementation, ...], v: int, w: int) -> bool:
    """Whether way `v` is at least as good as `w` in every respect, and the first of its equals."""
    a, b = implementations[v], implementations[w]
    if v == w or not (set(a.inputs) <= set(b.inputs) and set(a.overwrites) <= set(b.overwrites)):
        return False
    costs = (a.seconds, a.workspace_bytes), (b.seconds, b.workspace_bytes)
    is_equal = costs[0] == costs[1] and set(a.inputs) == set(b.inputs)
    is_equal = is_equal and set(a.overwrites) == set(b.overwrites)
    return v < w if is_equal else costs[0][0] <= costs[1][0] and costs[0][1] <= costs[1][1]


def _difference(row: _Row, other: _Row) -> _Row:
    terms = [*row.items(), *((column, -x) for column, x in other.items())]
    return {column: x for column, x in total(terms).items() if x}
