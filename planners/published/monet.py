"""MONeT's integer program (Shah et al., ICLR 2021), for reference.

Time is cut into rounds. Round 0 is the forward pass. Round `k` runs some forward ops again, each
at most once and in order, and then the `k`-th backward op. What waits in memory from round to
round, what runs again, and in which way every op runs: one program decides it all. In brackets are
the names in the authors' own program, `monet/cvxpy_solver.py` of utsaslab/MONeT.

| index | means |
|---|---|
| `k` | a round (their `t`) |
| `o`, `w` | a forward op, or the backward op of a round, and a way to run it |
| `i` | a forward value |

| variable, 0 or 1 | is 1 where |
|---|---|
| `run[k, o, w]` (R, RF, IP, M) | op `o` runs in round `k`, in way `w` |
| `store[k, i]` (S) | value `i` is in memory from round `k - 1` into round `k` |
| `both[k, w, i]` (SM) | the backward op does so, reading value `i`, and `store[k + 1, i]` is 1 |

Two things are counted from above, which keeps the program small and linear:

- While a forward op runs, all that is *local* to it is in memory: what earlier ops write and it or
  a later one may read, whether or not that has run again in the round.
- What a backward op reads has run again in its round or is stored into the next one. So what has
  waited for its last reader leaves memory only in the round after.

The space is therefore part of that of `gap_program` on the full grid, which counts what is there.
Only here, a backward op may also write over a gradient.

Beside the published program, an op may write several values, and gradients of parameters are values
like others. A convolution's algorithm, writing over an input, and a batch norm whose statistics are
known are ways of an op. What is local and also read by the backward op counts once. The rows on
memory between two runs are left out, since they follow from those on the runs, and so are variables
for what is still there (P) after something was written over it.

Known limit: there are as many rows on memory as forward ops times backward ops, each with most of
a round's variables. Some hundred ops are practical.
"""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from ..errors import SolverStopped
from ..graph import Graph
from ..schedules.steps import Execute, Schedule, certified_steps, with_frees
from ..solver.deadline import Deadline
from ..solver.highs import require_found, solve
from ..solver.sparse import at_least, matrix, numbered, total

_Row = dict[int, float]

#: The share of the budget that is left free where HiGHS, which allows itself a millionth of a row,
#: has answered with a few bytes too many.
_ROOM = 1e-5


@dataclasses.dataclass(frozen=True)
class Monet:
    """The planner: the fastest schedule of its space within a budget.

    Attributes:
        time_limit: in seconds.
        gap: stop within this share of the step's seconds of the proven bound.
    """

    time_limit: float = 60.0
    gap: float = 1e-4

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no schedule of the space fits, or none that HiGHS can tell from one
                that does not; `minimum_bytes` is the least that any schedule needs, for the op that
                takes most by itself.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        deadline = Deadline.after(self.time_limit)
        bound = float("inf")
        for room in (0.0, _ROOM):
            program = _Program(graph, (1 - room) * budget_bytes, deadline.to_write())
            outcome = solve(program.problem, time_limit=deadline.left, absolute_gap=self.gap)
            require_found(
                outcome,
                budget_bytes,
                whose="MONeT's",
                least_bytes=_largest_op(graph),
                time_limit=self.time_limit,
            )
            bound = min(bound, program.unit * outcome.bound)  # that of the whole budget is less
            steps = with_frees(graph, program.order())
            schedule = certified_steps(graph, steps, bound_seconds=bound, planner="Monet")
            if schedule.peak_bytes <= budget_bytes:
                return schedule
        raise SolverStopped(f"HiGHS failed: its schedules take more than {budget_bytes:,} bytes.")


def _largest_op(graph: Graph) -> int:
    """Bytes in memory while one op runs, at least, whatever its way."""
    least = (
        min(
            sum(graph.values[i].nbytes for i in {*implementation.inputs, *op.outputs})
            + implementation.workspace_bytes
            for implementation in op.implementations
        )
        for op in graph.ops
        if not op.optional
    )
    return max(least, default=0)


class _Program:
    """The program; one vector `x` holds all variables.

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
        self.problem = cp.Problem(cp.Minimize(self._cost() @ self.x), list(self._constraints()))

    def _lives(self) -> dict[int, tuple[int, int]]:
        """Value -> the op that writes it, and the last of the same pass that may read it."""
        found: dict[int, tuple[int, int]] = {}
        for o, op in enumerate(self.graph.ops):
            for i in op.may_read:
                if o in self.forward or i not in self.writer:
                    found[i] = found[i][0], o
            found |= dict.fromkeys(op.outputs, (o, o))
        return found

    def _is_again(self, k: int, o: int) -> bool:
        """Whether what an op does in a round is to run again."""
        return k > 0 and o in self.forward

    def _open_implementations(self, k: int, o: int) -> list[int]:
        """Ways in which an op may run in a round.

        One that writes over a value is open to the last op that may read that in the same pass.
        """
        op = self.graph.ops[o]
        has_run = self._is_again(k, o) and not op.optional
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
        # Round and value -> for each way of the backward op that reads it, its variable and `both`.
        self.reading = collections.defaultdict(list)
        for (k, w, i), product in self.both.items():
            self.reading[k, i].append((self.run[k, self.rounds[k][-1], w], product))

    def _cost(self) -> np.ndarray:
        """Seconds of every variable."""
        cost = np.zeros(self.width)
        for (_, o, w), column in self.run.items():
            cost[column] = self.graph.implementations[o][w].seconds / self.unit
        return cost

    def _constraints(self) -> Iterator[Any]:
        yield from self._runs()
        yield from self._forward_reads()
        yield from self._backward_reads()
        yield from self._stores()
        yield from self._overwritten()
        yield from self._products()
        yield from self._forward_memory()
        yield from self._recomputation_memory()
        yield from self._backward_memory()

    def _runs(self) -> Iterator[Any]:
        """Each op runs in its pass, in one way; a forward op runs again at most once a round."""
        rows = {(k, o): self._ran(k, o) for k, o in self.implementations}
        must = [
            row
            for (k, o), row in rows.items()
            if not (self._is_again(k, o) or self.graph.ops[o].optional)
        ]
        yield from at_least(self.x, must, 1.0)
        yield matrix(list(rows.values()), self.width) @ self.x <= 1

    def _forward_reads(self) -> Iterator[Any]:
        """What a forward op reads has run in its round or was stored until then."""
        rows = (
            self._given(k, i, stored=k) | {column: -1.0}
            for (k, o, w), column in self.deadline.during(self.run.items())
            if o in self.forward
            for i in self.graph.implementations[o][w].inputs
        )
        yield from at_least(self.x, rows)

    def _backward_reads(self) -> Iterator[Any]:
        """What a backward op reads has run in its round or is stored into the next one."""
        rows = (
            self._given(k, i, stored=k + 1) | {column: -1.0}
            for (k, i), reading in self.deadline.during(self.reading.items())
            for column, _ in reading
        )
        yield from at_least(self.x, rows)

    def _stores(self) -> Iterator[Any]:
        """What is stored into a round has run in the one before or was stored into that."""
        rows = (
            self._given(k - 1, i, stored=k - 1) | {column: -1.0}
            for (k, i), column in self.deadline.during(self.store.items())
        )
        yield from at_least(self.x, rows)

    def _given(self, k: int, i: int, *, stored: int) -> _Row:
        """Whether a value has run in one round or is stored into the same or another."""
        found = self._ran(k, self.writer[i])
        if (stored, i) in self.store:
            found[self.store[stored, i]] = 1.0
        return found

    def _ran(self, k: int, o: int) -> _Row:
        return {self.run[k, o, w]: 1.0 for w in self.implementations.get((k, o), ())}

    def _overwritten(self) -> Iterator[Any]:
        """What a forward op has written over is neither stored nor read by the backward op."""
        rows = [
            {column: -1.0, other: -1.0}
            for (k, o, w), column in self.run.items()
            for i in set(self.graph.implementations[o][w].overwrites) & set(self.writer)
            for other in (
                self.store[k + 1, i],
                *(implementation for implementation, _ in self.reading.get((k, i), ())),
            )
        ]
        yield from at_least(self.x, rows, [-1.0] * len(rows))

    def _products(self) -> Iterator[Any]:
        """A product is at most either factor; where it is less than both, more memory counts."""
        rows = (
            {factor: 1.0, product: -1.0}
            for (k, i), reading in self.reading.items()
            for implementation, product in reading
            for factor in (implementation, self.store[k + 1, i])
        )
        yield from at_least(self.x, rows)

    def _forward_memory(self) -> Iterator[Any]:
        """While an op of the forward pass runs."""
        yield from self._within([(0, o) for o in self.rounds[0]])

    def _recomputation_memory(self) -> Iterator[Any]:
        """While a forward op runs again."""
        rounds = enumerate(self.rounds[1:], 1)
        yield from self._within([(k, o) for k, (*again, _) in rounds for o in again])

    def _backward_memory(self) -> Iterator[Any]:
        """While a backward op runs."""
        yield from self._within([(k, ops[-1]) for k, ops in enumerate(self.rounds[1:], 1)])

    def _within(self, samples: list[tuple[int, int]]) -> Iterator[Any]:
        """While an op runs in a round: it and what is local to it, what waits, and gradients."""
        rows, right = [], []
        for k, o in self.deadline.during(samples):
            op = self.graph.ops[o]
            own = self.local_bytes[o] + sum(map(self._bytes, op.outputs))
            runs = [
                (self.run[k, o, w], own + op.implementations[w].workspace_bytes / self.scale)
                for w in self.implementations[k, o]
            ]
            rows.append(total([*runs, *self._waiting(k, o)]))
            gradients = self.local_bytes[self.rounds[k][-1]] if self._is_again(k, o) else 0.0
            right.append(1.0 - gradients)
        if rows:
            yield matrix(rows, self.width) @ self.x <= np.array(right)

    def _waiting(self, k: int, o: int) -> Iterator[tuple[int, float]]:
        """Forward values that are not local to an op: of those that the round has not reached, what
        was stored; of the others, what is stored again or read by the backward op.
        """
        for i in self.writer:
            first, last = self.lives[i]
            if first > o and k:
                yield self.store[k, i], self._bytes(i)
            elif last < o:
                yield self.store[k + 1, i], self._bytes(i)
                for implementation, product in self.reading.get((k, i), ()):
                    yield implementation, self._bytes(i)
                    yield product, -self._bytes(i)

    def _local_bytes(self, o: int) -> float:
        """What earlier ops of the same pass write and an op or a later one of it may read."""
        return sum(self._bytes(i) for i, (first, last) in self.lives.items() if first < o <= last)

    def _bytes(self, i: int) -> float:
        return self.graph.values[i].nbytes / self.scale

    def order(self) -> Iterator[Execute]:
        """The runs of the solution, in order."""
        x: Any = self.x.value
        return (Execute(o, w) for (_, o, w), column in self.run.items() if x[column] > 0.5)
