"""Retention and recomputation op by op, on a grid of backward events: one integer program.

A forward value is read at a few places of the backward pass; in each gap between two of them it is
either held in memory or computed again. Checkmate asks that of every value before every op; here,
the backward ops are grouped into *events*, and only before an event may forward ops run again. That
is a row of memory for each event, and a short one for each op that may run again before it, where
MONeT's and Checkmate's programs have one for each pair of ops.

The space of schedules: forward ops run once, in order. Then, event by event, some of them run
again, each at most once and in order, and then the event's backward ops run. What is in memory
while they run was *carried* from the event before or has just run again. A value that only other
recomputations read (*passed*) leaves once the last forward op that could read it is reached; all
else stays to the end of the event. Where an op runs again of which one output is carried and
another lost, the carried one counts twice while it runs.

| index | means |
|---|---|
| `k` | an event |
| `i` | a forward value that some backward op, or a recomputation for one, may read |
| `o` | a forward op that writes one of those |

| variable, 0 or 1 | is 1 where |
|---|---|
| `run[o, k]` | op `o` runs again before event `k` |
| `carry[i, k]` | value `i` is in memory from event `k - 1`, or from the forward pass, into `k` |
| `hold[i, k]` | it is in memory while the backward ops of event `k` run |
| `passed[i, k]` | it is there only while forward ops run again |

Known limits: nothing runs again during the forward pass, and `bound_seconds` is about this space.
"""

import dataclasses
import itertools as it
from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from ._highs import solve
from ._sparse import at_least, matrix, total
from .errors import InfeasibleBudget, SolverStopped
from .graph import Graph, Op
from .steps import Schedule, certified_steps, with_frees

_Row = dict[int, float]


@dataclasses.dataclass(frozen=True)
class Gap:
    """The planner: the fastest schedule of its space within a budget.

    Attributes:
        events: groups of backward ops, at most; None makes each op an event of its own.
        time_limit: in seconds.
        gap: stop within this share of the step's seconds of the proven bound.
    """

    events: int | None = None
    time_limit: float = 60.0
    gap: float = 1e-4

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no schedule of the space fits.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        program = _Program(graph, _groups(graph, self.events), budget_bytes)
        if program.is_hopeless:
            raise self._infeasible(budget_bytes)
        bound = graph.seconds + program.unit * self._solved(program, budget_bytes)
        steps = with_frees(graph, program.order())
        return certified_steps(graph, steps, bound_seconds=bound, planner="Gap")

    def _solved(self, program: "_Program", budget_bytes: int) -> float:
        """Solves the program; the bound on its objective."""
        if not program.width:  # the backward pass reads nothing of the forward
            return 0.0
        outcome = solve(program.problem, time_limit=self.time_limit, absolute_gap=self.gap)
        if outcome.infeasible:
            raise self._infeasible(budget_bytes)
        if not outcome.found:
            raise SolverStopped(
                f"HiGHS found no schedule within {budget_bytes:,} bytes in {self.time_limit:g} s. "
                "Raise `time_limit` or the budget, or take fewer `events`."
            )
        return outcome.bound

    def _infeasible(self, budget_bytes: int) -> InfeasibleBudget:
        message = f"No schedule with {self.events or 'all'} events fits in {budget_bytes:,} bytes."
        return InfeasibleBudget(message, minimum_bytes=budget_bytes + 1)


def _groups(graph: Graph, events: int | None) -> list[range]:
    """Positions in `Graph.ops` of the backward ops of each event."""
    first, count = graph.forward_count, len(graph.ops) - graph.forward_count
    number = min(events or count, count)
    ends = [first + round(count * n / number) for n in range(number + 1)] if number else []
    return [range(a, b) for a, b in it.pairwise(ends) if b > a]


class _Program:
    """The program; one vector `x` holds all variables, kind by kind and event by event."""

    def __init__(self, graph: Graph, groups: list[range], budget_bytes: int):
        self.graph, self.groups = graph, groups
        self.scale = float(max(budget_bytes, 1))  # bytes enter as shares of the budget
        self.unit = graph.seconds or 1.0  # and seconds as shares of the step's
        self.forward = graph.ops[: graph.forward_count]
        self.writer = {i: o for o, op in enumerate(self.forward) for i in op.outputs}
        self.last_reader = dict(self.writer)
        for o, op in enumerate(self.forward):
            self.last_reader.update(dict.fromkeys(op.inputs, o))
        self.read = [
            {i for b in group for i in graph.ops[b].inputs if i in self.writer} for group in groups
        ]
        self.values = sorted(self._needed())
        self.again = sorted({self.writer[i] for i in self.values if self._may_rerun(i)})
        self._number_variables()
        self.is_hopeless = False  # whether what no decision changes is too much by itself
        self.x = cp.Variable(self.width, boolean=True)
        cost = np.zeros(self.width)
        for (o, _), column in self.run.items():
            cost[column] = self.forward[o].seconds / self.unit
        self.problem = cp.Problem(cp.Minimize(cost @ self.x), list(self._constraints()))

    def _needed(self) -> set[int]:
        """Forward values that the backward pass reads, or recomputation of such."""
        found: set[int] = set().union(*self.read) if self.read else set()
        pending = list(found)
        while pending:
            i = pending.pop()
            new = set(self.forward[self.writer[i]].inputs) - found if self._may_rerun(i) else set()
            found |= new
            pending += new
        return found

    def _may_rerun(self, value: int) -> bool:
        return self.graph.may_rerun(self.writer[value])

    def _number_variables(self) -> None:
        events = range(len(self.groups))
        keys = [("run", o, k) for k in events for o in self.again]
        for kind in ("carry", "hold", "passed"):
            keys += [(kind, i, k) for k in events for i in self.values]
        self.width = len(keys)
        numbers = list(enumerate(keys))
        self.run = {(a, k): n for n, (kind, a, k) in numbers if kind == "run"}
        self.carry = {(a, k): n for n, (kind, a, k) in numbers if kind == "carry"}
        self.hold = {(a, k): n for n, (kind, a, k) in numbers if kind == "hold"}
        self.passed = {(a, k): n for n, (kind, a, k) in numbers if kind == "passed"}

    def _constraints(self) -> Iterator[Any]:
        yield from self._reads()
        yield from self._sources()
        yield from self._carries()
        yield from self._inputs()
        yield from self._forward_memory()
        yield from self._recomputation_memory()
        yield from self._backward_memory()

    def _reads(self) -> Iterator[Any]:
        """What a backward op reads is held during its event."""
        columns = [self.hold[i, k] for k, read in enumerate(self.read) for i in sorted(read)]
        if columns:
            yield self.x[columns] == 1

    def _sources(self) -> Iterator[Any]:
        """What is held or passed was carried, or its op has run again."""
        rows = (
            total([*self._given(i, k), (self.hold[i, k], -1.0), (self.passed[i, k], -1.0)])
            for i, k in self.hold
        )
        yield from at_least(self.x, rows)

    def _given(self, i: int, k: int) -> Iterator[tuple[int, float]]:
        yield self.carry[i, k], 1.0
        if (self.writer[i], k) in self.run:
            yield self.run[self.writer[i], k], 1.0

    def _carries(self) -> Iterator[Any]:
        """What is carried into an event was held during the one before."""
        rows = (
            {self.hold[i, k - 1]: 1.0, column: -1.0}
            for (i, k), column in self.carry.items()
            if k > 0
        )
        yield from at_least(self.x, rows)

    def _inputs(self) -> Iterator[Any]:
        """What an op reads that runs again is held or passed."""
        rows = (
            {self.hold[i, k]: 1.0, self.passed[i, k]: 1.0, column: -1.0}
            for (o, k), column in self.run.items()
            for i in sorted(set(self.forward[o].inputs))
        )
        yield from at_least(self.x, rows)

    def _forward_memory(self) -> Iterator[Any]:
        """While a forward op runs: what later ones read, and what waits for the first event."""
        rows, fixed = [], []
        for o, op in enumerate(self.forward):
            written = [i for i, w in self.writer.items() if w <= o]
            live = [i for i in written if self.last_reader[i] >= o]
            waits = [i for i in written if self.last_reader[i] < o and (i, 0) in self.carry]
            rows.append({self.carry[i, 0]: self._bytes(i) for i in waits})
            fixed.append(sum(map(self._bytes, live)) + op.workspace_bytes / self.scale)
        yield from self._within(rows, fixed)

    def _recomputation_memory(self) -> Iterator[Any]:
        """While a forward op runs again: gradients, what was carried, what has run again so far.

        `level[o, k]` is what is in memory when op `o` is reached. Written as a change from the op
        before, it takes a handful of coefficients where its sum takes one for each value.
        """
        gradients = self._gradient_bytes()
        steps, changes, runs, fixed = [], [], [], []
        for k, group in enumerate(self.groups):
            before: _Row = {}
            for o in self.again:
                n, present = len(steps), self._present(o, k)
                steps.append({n: 1.0, n - 1: -1.0} if before else {n: 1.0})
                changes.append(_difference(present, before))
                runs.append({self.run[o, k]: self._own_bytes(self.forward[o])})
                fixed.append(gradients[group[0]][0])
                before = present
        if steps:
            level = cp.Variable(len(steps))
            yield matrix(steps, len(steps)) @ level == matrix(changes, self.width) @ self.x
            yield level + matrix(runs, self.width) @ self.x <= 1.0 - np.array(fixed)

    def _present(self, o: int, k: int) -> _Row:
        """What is in memory when op `o` is reached before event `k`, its own outputs apart."""
        found = {}
        for i in self.values:
            if self.writer[i] >= o:
                found[self.carry[i, k]] = self._bytes(i)
                continue
            found[self.hold[i, k]] = self._bytes(i)
            if self.last_reader[i] >= o:
                found[self.passed[i, k]] = self._bytes(i)
        return found

    def _backward_memory(self) -> Iterator[Any]:
        """While the largest backward op of an event runs: gradients, and what is held."""
        gradients = self._gradient_bytes()
        rows, fixed = [], []
        for k, group in enumerate(self.groups):
            rows.append({self.hold[i, k]: self._bytes(i) for i in self.values})
            workspaces = {b: self.graph.ops[b].workspace_bytes / self.scale for b in group}
            fixed.append(max(gradients[b][1] + workspaces[b] for b in group))
        yield from self._within(rows, fixed)

    def _gradient_bytes(self) -> dict[int, tuple[float, float]]:
        """Bytes of what backward ops wrote: before each of them, and while it runs."""
        ops, first = self.graph.ops, self.graph.forward_count
        last = {i: b for b, op in enumerate(ops) for i in (*op.outputs, *op.inputs)}
        live: set[int] = set()
        found = {}
        for b in range(first, len(ops)):
            before = sum(map(self._bytes, live))
            live |= set(ops[b].outputs)
            found[b] = before, sum(map(self._bytes, live))
            live = {i for i in live if last[i] > b}
        return found

    def _own_bytes(self, op: Op) -> float:
        return sum(map(self._bytes, op.outputs)) + op.workspace_bytes / self.scale

    def _bytes(self, i: int) -> float:
        return self.graph.values[i].nbytes / self.scale

    def _within(self, rows: list[_Row], fixed: list[float]) -> Iterator[Any]:
        """One family of constraints: each row and what it adds to keep the budget."""
        if rows:
            room = 1.0 - np.array(fixed)
            self.is_hopeless = self.is_hopeless or bool((room < 0).any())
            yield matrix(rows, self.width) @ self.x <= room

    def order(self) -> list[int]:
        """The ops of the solution, in order."""
        x: Any = self.x.value
        runs = {key for key, n in self.run.items() if x[n] > 0.5}
        found = list(range(len(self.forward)))
        for k, group in enumerate(self.groups):
            found += [o for o in self.again if (o, k) in runs]
            found += group
        return found


def _difference(row: _Row, other: _Row) -> _Row:
    terms = [*row.items(), *((column, -x) for column, x in other.items())]
    return {column: x for column, x in total(terms).items() if x}
