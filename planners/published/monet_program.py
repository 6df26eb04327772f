"""MONeT's integer program: its variables, and the constraints that make a point a schedule.

In brackets are the names in the authors' own program, `monet/cvxpy_solver.py` of utsaslab/MONeT.

| index | means |
|---|---|
| `k` | a round (their `t`) |
| `o`, `w` | a forward op, or the backward op of a round, and one of its implementations |
| `i` | a forward value |

| variable, 0 or 1 | is 1 where |
|---|---|
| `run[k, o, w]` (R, RF, IP, M) | op `o` runs in round `k`, in implementation `w` |
| `store[k, i]` (S) | value `i` is in memory from round `k - 1` into round `k` |
| `both[k, w, i]` (SM) | the backward op does so, reading value `i`, and `store[k + 1, i]` is 1 |

Two things are counted from above, which keeps the program small and linear:

- While a forward op runs, all that is *local* to it is in memory: what earlier ops write and it or
  a later one may read, whether or not that has run again in the round.
- What a backward op reads has run again in its round or is stored into the next one. So what has
  waited for its last reader leaves memory only in the round after.
"""

import collections
from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from ..graph import Graph
from ..schedules.steps import Execute
from ..solver.deadline import Deadline
from ..solver.sparse import at_least, matrix, numbered, total

_Row = dict[int, float]


class MonetProgram:
    """The program; one vector `x` holds all variables.

    Attributes:
        rounds: for each round the ops that may run in it, in order.
        lives: value -> the op that writes it, and the last of the same pass that may read it.
        local_bytes: for each op what is local to it, over the budget.
        implementations: round and op -> the implementations that are open.
        run, store, both: the indices of a variable -> its column.
        reading: round and value -> for each implementation of the backward op that reads it, its
            column and the column in `both`.

    Raises:
        SolverStopped: the deadline passed while it was being written.
    """

    def __init__(self, graph: Graph, budget_bytes: float, deadline: Deadline):
        self.graph, self.deadline = graph, deadline
        self.unit = graph.seconds or 1.0  # seconds enter as shares of this, bytes of the budget
        self.scale = max(budget_bytes, 1.0)
        self.writer = graph.forward_writer_number
        self.forward = range(graph.forward_count)
        backward = range(graph.forward_count, len(graph.ops))
        again = [o for o in self.forward if graph.may_rerun(o)]
        self.rounds = [[*self.forward], *([*again, b] for b in backward)]
        self.lives = self._lives()
        self.local_bytes = [self._local_bytes(o) for o in range(len(graph.ops))]
        samples = ((k, o) for k, ops in enumerate(self.rounds) for o in ops)
        self.implementations = {
            (k, o): self._open_implementations(k, o) for k, o in deadline.during(samples)
        }
        self._number_variables()
        self.x = cp.Variable(self.width, boolean=True)
        self.problem = cp.Problem(cp.Minimize(self._cost() @ self.x), list(constraints(self)))

    def _lives(self) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for o, op in enumerate(self.graph.ops):
            for i in op.may_read:
                if o in self.forward or i not in self.writer:
                    found[i] = found[i][0], o
            found |= dict.fromkeys(op.outputs, (o, o))
        return found

    def _local_bytes(self, o: int) -> float:
        """What earlier ops of the same pass write and an op or a later one of it may read."""
        return sum(self.share(i) for i, (first, last) in self.lives.items() if first < o <= last)

    def is_again(self, k: int, o: int) -> bool:
        """Whether a run of an op in a round is a recomputation."""
        return k > 0 and o in self.forward

    def _open_implementations(self, k: int, o: int) -> list[int]:
        """Implementations in which an op may run in a round.

        One that writes over a value is open to the last op that may read that in the same pass.
        """
        op = self.graph.ops[o]
        has_run = self.is_again(k, o) and not op.optional
        return [
            w
            for w, implementation in enumerate(op.implementations)
            if (has_run or not implementation.only_again)
            and all(self.lives[i][1] == o for i in implementation.overwrites)
        ]

    def _number_variables(self) -> None:
        keys: list[tuple[Any, ...]] = [
            ("run", k, o, w)
            for (k, o), implementations in self.implementations.items()
            for w in implementations
        ]
        keys += [("store", k + 1, i) for k in range(len(self.rounds)) for i in self.writer]
        keys += [
            ("both", k, w, i)
            for (k, b), implementations in self.implementations.items()
            if b not in self.forward
            for w in implementations
            for i in sorted(set(self.graph.implementations[b][w].inputs) & set(self.writer))
        ]
        self.width = len(keys)
        kinds = "run", "store", "both"
        self.run, self.store, self.both = numbered(self.deadline.during(keys), *kinds)
        self.reading = collections.defaultdict(list)
        for (k, w, i), product in self.both.items():
            self.reading[k, i].append((self.run[k, self.rounds[k][-1], w], product))

    def _cost(self) -> np.ndarray:
        """Seconds of every variable."""
        cost = np.zeros(self.width)
        for (_, o, w), column in self.run.items():
            cost[column] = self.graph.implementations[o][w].seconds / self.unit
        return cost

    def share(self, i: int) -> float:
        """Bytes of a value, over the budget."""
        return self.graph.values[i].nbytes / self.scale

    def order(self) -> Iterator[Execute]:
        """The runs of the solution, in order."""
        x: Any = self.x.value
        return (Execute(o, w) for (_, o, w), column in self.run.items() if x[column] > 0.5)


def constraints(program: MonetProgram) -> Iterator[Any]:
    """All families of constraints, one function each."""
    yield from runs(program)
    yield from forward_reads(program)
    yield from backward_reads(program)
    yield from stores(program)
    yield from overwritten(program)
    yield from products(program)
    yield from forward_memory(program)
    yield from recomputation_memory(program)
    yield from backward_memory(program)


def runs(program: MonetProgram) -> Iterator[Any]:
    """Each op runs in its pass, in one implementation; a forward op again at most once a round."""
    rows = {(k, o): _ran(program, k, o) for k, o in program.implementations}
    must = [
        row
        for (k, o), row in rows.items()
        if not (program.is_again(k, o) or program.graph.ops[o].optional)
    ]
    yield from at_least(program.x, must, 1.0)
    yield matrix(list(rows.values()), program.width) @ program.x <= 1


def forward_reads(program: MonetProgram) -> Iterator[Any]:
    """What a forward op reads has run in its round or was stored until then."""
    rows = (
        _available(program, k, i, stored=k) | {column: -1.0}
        for (k, o, w), column in program.deadline.during(program.run.items())
        if o in program.forward
        for i in program.graph.implementations[o][w].inputs
    )
    yield from at_least(program.x, rows)


def backward_reads(program: MonetProgram) -> Iterator[Any]:
    """What a backward op reads has run in its round or is stored into the next one."""
    rows = (
        _available(program, k, i, stored=k + 1) | {column: -1.0}
        for (k, i), reading in program.deadline.during(program.reading.items())
        for column, _ in reading
    )
    yield from at_least(program.x, rows)


def stores(program: MonetProgram) -> Iterator[Any]:
    """What is stored into a round has run in the one before or was stored into that."""
    rows = (
        _available(program, k - 1, i, stored=k - 1) | {column: -1.0}
        for (k, i), column in program.deadline.during(program.store.items())
    )
    yield from at_least(program.x, rows)


def _available(program: MonetProgram, k: int, i: int, *, stored: int) -> _Row:
    """Whether a value has run in one round or is stored into the same or another."""
    found = _ran(program, k, program.writer[i])
    if (stored, i) in program.store:
        found[program.store[stored, i]] = 1.0
    return found


def _ran(program: MonetProgram, k: int, o: int) -> _Row:
    return {program.run[k, o, w]: 1.0 for w in program.implementations.get((k, o), ())}


def overwritten(program: MonetProgram) -> Iterator[Any]:
    """What a forward op has written over is neither stored nor read by the backward op."""
    rows = [
        {column: -1.0, other: -1.0}
        for (k, o, w), column in program.run.items()
        for i in set(program.graph.implementations[o][w].overwrites) & set(program.writer)
        for other in (
            program.store[k + 1, i],
            *(implementation for implementation, _ in program.reading.get((k, i), ())),
        )
    ]
    yield from at_least(program.x, rows, [-1.0] * len(rows))


def products(program: MonetProgram) -> Iterator[Any]:
    """A product is at most either factor; where it is less than both, more memory counts."""
    rows = (
        {factor: 1.0, product: -1.0}
        for (k, i), reading in program.reading.items()
        for implementation, product in reading
        for factor in (implementation, program.store[k + 1, i])
    )
    yield from at_least(program.x, rows)


def forward_memory(program: MonetProgram) -> Iterator[Any]:
    """While an op of the forward pass runs."""
    yield from _within(program, [(0, o) for o in program.rounds[0]])


def recomputation_memory(program: MonetProgram) -> Iterator[Any]:
    """While a forward op runs again."""
    rounds = enumerate(program.rounds[1:], 1)
    yield from _within(program, [(k, o) for k, (*again, _) in rounds for o in again])


def backward_memory(program: MonetProgram) -> Iterator[Any]:
    """While a backward op runs."""
    rounds = enumerate(program.rounds[1:], 1)
    yield from _within(program, [(k, ops[-1]) for k, ops in rounds])


def _within(program: MonetProgram, samples: list[tuple[int, int]]) -> Iterator[Any]:
    """While an op runs in a round: it and what is local to it, what waits, and gradients."""
    rows, right = [], []
    for k, o in program.deadline.during(samples):
        op = program.graph.ops[o]
        own = program.local_bytes[o] + sum(map(program.share, op.outputs))
        ran = [
            (program.run[k, o, w], own + op.implementations[w].workspace_bytes / program.scale)
            for w in program.implementations[k, o]
        ]
        rows.append(total([*ran, *_waiting(program, k, o)]))
        b = program.rounds[k][-1]
        right.append(1.0 - (program.local_bytes[b] if program.is_again(k, o) else 0.0))
    if rows:
        yield matrix(rows, program.width) @ program.x <= np.array(right)


def _waiting(program: MonetProgram, k: int, o: int) -> Iterator[tuple[int, float]]:
    """Forward values that are not local to an op.

    Of those that the round has not reached, what was stored; of the others, what is stored again or
    read by the backward op.
    """
    for i in program.writer:
        first, last = program.lives[i]
        if first > o and k:
            yield program.store[k, i], program.share(i)
        elif last < o:
            yield program.store[k + 1, i], program.share(i)
            for implementation, product in program.reading.get((k, i), ()):
                yield implementation, program.share(i)
                yield product, -program.share(i)
