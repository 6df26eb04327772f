"""How few seconds can any schedule within a budget take? A bound by an integer program.

The relaxation looks at the memory only while some of the backward ops run, the *samples*, and asks
of a schedule no more than follows from them. Let a schedule run the backward ops in the graph's
order, each once, and forward ops whenever and as often as it likes. Between one sample and the next
some forward ops run; count each of them once, in its fastest way. Then

- what a sample reads is in memory while it runs, beside the gradients that later ops read;
- what is in memory during a sample was so during the one before, or has been written since;
- what an op has read that has run since the last sample was in memory then, or has been written
  since, and so it is for what backward ops between the samples read.

Every schedule satisfies these rows, whatever it keeps, recomputes or frees in between, and takes no
less than the runs counted; hence no schedule takes less than the least of the program, nor than
what HiGHS has proven of it when it stops. Before the first sample, nothing is counted but each op's
first run. Fewer samples give a smaller program and a weaker bound.

| variable, 0 or 1 | is 1 where |
|---|---|
| `way[o, w]` | backward op `o` runs in its way `w`, or an optional forward op runs at all |
| `run[o, k]` | forward op `o` runs between samples `k - 1` and `k` |
| `hold[i, k]` | forward value `i` is in memory while sample `k` runs |
"""

import functools
import itertools as it
from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from ..graph import Graph, Op
from ..solver.deadline import NEVER, Deadline
from ..solver.highs import solve
from ..solver.sparse import at_least, matrix, numbered, total

_Row = dict[int, float]

#: A share of the budget that is no difference.
_TOLERANCE = 1e-9


def lower_bound(
    graph: Graph, budget_bytes: int, *, samples: int | None = None, time_limit: float = 60.0
) -> float:
    """Seconds that every schedule takes which fits the budget; infinite where none does.

    Arguments:
        samples: backward ops at which memory is looked at, at most; None for all.
        time_limit: in seconds.

    Raises:
        SolverStopped: the time was too short to write the program, or HiGHS failed for another
            reason.
    """
    deadline = Deadline.after(time_limit)
    program = BoundProgram(graph, _samples(graph, samples), budget_bytes, deadline.to_write())
    if program.is_hopeless:
        return float("inf")
    if not program.width:
        return graph.least_seconds
    outcome = solve(program.problem, time_limit=deadline.left, absolute_gap=1e-6)
    found = program.constant + program.unit * outcome.bound
    return max(graph.least_seconds, float(found))


def _samples(graph: Graph, number: int | None) -> list[int]:
    """Backward ops, evenly spread."""
    first, count = graph.forward_count, len(graph.ops) - graph.forward_count
    number = min(number or count, count)
    return sorted({first + round((n + 0.5) * count / number - 0.5) for n in range(number)})


class BoundProgram:
    """The program; one vector `x` holds all variables.

    Arguments:
        samples: positions in `Graph.ops` of backward ops, in order.
        deadline: until when it may be written.

    Raises:
        SolverStopped: the deadline has passed.
    """

    def __init__(
        self,
        graph: Graph,
        samples: list[int],
        budget_bytes: int,
        deadline: Deadline = NEVER,
    ):
        self.graph, self.samples, self.deadline = graph, samples, deadline
        self.scale = float(max(budget_bytes, 1))  # bytes enter as shares of the budget
        self.unit = graph.seconds or 1.0  # and seconds as shares of the step's
        self.forward = graph.ops[: graph.forward_count]
        self.writer = graph.forward_writer_number
        ends = [graph.forward_count, *(b + 1 for b in samples)]
        self.between = [range(a, b) for a, b in it.pairwise(ends)]  # with the sample itself
        self.needed = sorted(self._needed())
        self.again = sorted({self.writer[i] for i in self.needed if self._may_rerun(i)})
        self._number_variables()
        self.is_hopeless = False
        self.constant = sum(_least(op) for o, op in enumerate(graph.ops) if not self._is_chosen(o))
        self.x = cp.Variable(self.width, boolean=True)
        self.problem = cp.Problem(cp.Minimize(self._cost() @ self.x), list(self._constraints()))

    def _is_chosen(self, o: int) -> bool:
        op = self.graph.ops[o]
        return op.optional or (o >= len(self.forward) and len(op.implementations) > 1)

    def _may_rerun(self, value: int) -> bool:
        return self.graph.may_rerun(self.writer[value])

    def _needed(self) -> set[int]:
        """Forward values that the backward pass may read, or recomputation of such."""
        ops = self.graph.ops[len(self.forward) :]
        found = {i for op in ops for i in op.may_read if i in self.writer}
        pending = list(found)
        while pending:
            i = pending.pop()
            new = self.forward[self.writer[i]].always_reads if self._may_rerun(i) else frozenset()
            pending += new - found
            found |= new
        return found

    def _number_variables(self) -> None:
        samples = range(len(self.samples))
        chosen = [o for o in range(len(self.graph.ops)) if self._is_chosen(o)]
        keys: list[tuple[Any, ...]] = [
            ("implementation", o, w)
            for o in chosen
            for w in range(len(self.graph.implementations[o]))
        ]
        keys += [("run", o, k) for k in samples if k for o in self.again]
        keys += [("hold", i, k) for k in samples for i in self.needed]
        self.width = len(keys)
        self.implementation, self.run, self.hold = numbered(
            self.deadline.during(keys), "implementation", "run", "hold"
        )

    def _cost(self) -> np.ndarray:
        cost = np.zeros(self.width)
        for (o, w), column in self.implementation.items():
            cost[column] = self.graph.implementations[o][w].seconds / self.unit
        for (o, _), column in self.run.items():
            cost[column] = (
                min(implementation.seconds for implementation in self.forward[o].implementations)
                / self.unit
            )
        return cost

    def _constraints(self) -> Iterator[Any]:
        yield from self._implementations()
        yield from self._held()
        yield from self._read_by_runs()
        yield from self._read_by_samples()
        yield from self._read_between()
        yield from self._memory()

    def _implementations(self) -> Iterator[Any]:
        """A backward op runs in one of its ways."""
        rows = [
            {self.implementation[o, w]: 1.0 for w in range(len(op.implementations))}
            for o, op in enumerate(self.graph.ops)
            if self._is_chosen(o) and not op.optional
        ]
        if rows:
            yield matrix(rows, self.width) @ self.x == 1

    def _since(self, i: int, k: int) -> Iterator[tuple[int, float]]:
        """What says that a value is in memory at some time from sample `k - 1` to sample `k`."""
        if k:
            yield self.hold[i, k - 1], 1.0
            if (self.writer[i], k) in self.run:
                yield self.run[self.writer[i], k], 1.0
        else:
            o = self.writer[i]  # only what is optional need not have run
            yield from (
                (self.implementation[o, w], 1.0)
                for w in range(len(self.forward[o].implementations))
            )

    def _is_given(self, i: int, k: int) -> bool:
        """Whether a value is certainly in memory at some time before sample `k`."""
        return k == 0 and not self.forward[self.writer[i]].optional

    def _held(self) -> Iterator[Any]:
        """What is in memory during a sample was so during the one before, or has been written."""
        rows = (
            total([*self._since(i, k), (column, -1.0)])
            for (i, k), column in self.deadline.during(self.hold.items())
            if not self._is_given(i, k)
        )
        yield from at_least(self.x, rows)

    def _read_by_runs(self) -> Iterator[Any]:
        """What an op reads that has run was there, or has been written."""
        rows = (
            total([*self._since(i, k), (column, -1.0)])
            for (o, k), column in self.deadline.during(self.run.items())
            for i in sorted(self.forward[o].always_reads)
        )
        yield from at_least(self.x, rows)

    def _reads(self, b: int) -> Iterator[tuple[int, list[tuple[int, float]], float]]:
        """What a backward op may read: the value, and the terms or the number that say so."""
        op = self.graph.ops[b]
        always = op.always_reads
        for i in sorted(op.may_read & self.writer.keys()):
            if i in always:
                yield i, [], 1.0
            else:
                implementations = [
                    w
                    for w, implementation in enumerate(op.implementations)
                    if i in implementation.inputs
                ]
                yield i, [(self.implementation[b, w], -1.0) for w in implementations], 0.0

    def _read_by_samples(self) -> Iterator[Any]:
        """What a sample reads is in memory while it runs."""
        rows, right = [], []
        for k, b in enumerate(self.deadline.during(self.samples)):
            for i, terms, least in self._reads(b):
                rows.append(total([(self.hold[i, k], 1.0), *terms]))
                right.append(least)
        yield from at_least(self.x, rows, right)

    def _read_between(self) -> Iterator[Any]:
        """What a backward op reads between samples was there, or has been written."""
        rows, right = [], []
        for k, ops in enumerate(self.between):
            for i, terms, least in it.chain.from_iterable(map(self._reads, ops)):
                if not self._is_given(i, k):
                    rows.append(total([*self._since(i, k), *terms]))
                    right.append(least)
        yield from at_least(self.x, rows, right)

    def _memory(self) -> Iterator[Any]:
        """While a sample runs: gradients that are read later, what it writes, what is held."""
        rows, room = [], []
        for k, b in enumerate(self.samples):
            row = {self.hold[i, k]: self._bytes(i) for i in self.needed}
            workspaces = [
                implementation.workspace_bytes / self.scale
                for implementation in self.graph.implementations[b]
            ]
            if self._is_chosen(b):
                row |= {self.implementation[b, w]: x for w, x in enumerate(workspaces)}
                workspaces = [0.0]
            rows.append(row)
            room.append(1.0 - self._gradients[b] - workspaces[0])
        if rows:
            least = [sum(x for x in row.values() if x < 0) for row in rows]
            self.is_hopeless = bool((np.array(least) > np.array(room) + _TOLERANCE).any())
            yield matrix(rows, self.width) @ self.x <= np.array(room)

    @functools.cached_property
    def _gradients(self) -> dict[int, float]:
        """Bytes of what backward ops wrote that is certainly in memory while each runs."""
        ops, first = self.graph.ops, len(self.forward)
        last = {i: b for b, op in enumerate(ops) for i in op.always_reads if not op.optional}
        found, live = {}, set()
        for b in range(first, len(ops)):
            found[b] = sum(map(self._bytes, live | set(ops[b].outputs)))
            live = {i for i in live | set(ops[b].outputs) if last.get(i, b) > b}
        return found

    def _bytes(self, i: int) -> float:
        return self.graph.values[i].nbytes / self.scale


def _least(op: Op) -> float:
    return min(
        implementation.seconds
        for implementation in op.implementations
        if not implementation.only_again
    )
