"""Optimal checkpointing of a heterogeneous chain, by dynamic programming over memory.

Rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
chains", 2019; ACM TOMS 2024). A chain of blocks is planned from its input on: either the first
block's *tape* is kept, all that its backward reads, and the rest planned with what memory is left;
or only the chain's *input* is kept, the blocks up to some block are run and forgotten, the chain
from there is planned, and then the blocks before it. Whichever is fastest, for each part of the
chain and each amount of memory.

The chain is that of the forward pass's articulation points (`blocks`), so that a graph between two
of them is one element: its ops run as a whole, as far as what is wanted needs them, and never twice
for one backward. Where there is no articulation point, every op is an element whose input is all
that is live. Memory is counted as replay does, gradients included, where each input is one value
and every op of the forward may run again: there, with as many slots as bytes, no schedule of this
space within the budget is faster. Elsewhere a value may count twice (in two inputs, or in an input
and a tape), and what ops that must run once write counts from the start of the step: plans are
valid, but faster ones may be missed. The paper keeps a block's input until its backward; here it is
kept only if the backward reads it, as replay has it.

Memory comes in slots: what is kept is rounded up, so that no plan exceeds the budget. Beyond the
budget's own slots, a few more are tried, for a plan that exceeds it by rounding alone: replay says.

| index | means |
|---|---|
| `s`, `t` | the first and the last block of a part of the chain |
| `k` | the block between, at which a part is split |
| `h` | 1 where something outside keeps the input of `s` anyway, else 0 |
| `m` | slots, without what is kept outside the part |

Known limits: seconds grow with the cube of the blocks, bytes with their square (16 `slots` each).
`bound_seconds` is the step's own: rounding makes the table no bound.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Collection, Iterable

import numpy as np

from ..graph import Graph
from ..schedules.orders import fastest_within, schedule_of
from ..schedules.steps import Schedule
from ..solver.deadline import Deadline
from .blocks import Blocks, Split, Tape, walk


@dataclasses.dataclass(frozen=True)
class Rotor:
    """The planner.

    Attributes:
        slots: into how many parts the budget is cut, at most.
        linearized: make every op a block, even where there are articulation points.
        time_limit: in seconds.
    """

    slots: int = 500
    linearized: bool = False
    time_limit: float = 60.0

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no schedule that the slots can tell fits; `minimum_bytes` is the least
                peak found, by the same program for smaller and smaller budgets.
            SolverStopped: `time_limit` passed.
        """
        deadline = Deadline.after(self.time_limit)
        everything = schedule_of(graph, range(len(graph.ops)), planner="Rotor")
        if everything.peak_bytes <= budget_bytes:
            return everything
        costs = _Costs(Blocks(graph, linearized=self.linearized))
        table_for = ft.partial(_Table, costs, self.slots, deadline)
        table = table_for(budget_bytes)
        for m in deadline.during(table.levels(), every=1):
            found = schedule_of(graph, table.order(m), planner="Rotor")
            if found.peak_bytes <= budget_bytes:
                return found
        return fastest_within(graph, [_smallest(graph, table_for)], budget_bytes, planner="Rotor")


def _smallest(graph: Graph, table_for: "Callable[[int], _Table]") -> list[int]:
    """The order of least peak. It depends on no budget, so that its peak is one that is met."""
    limit = sum(value.nbytes for value in graph.values) + 1
    while (found := _least(graph, table_for(limit))) is None:
        limit *= 2
    while (better := _least(graph, table_for(found[0]))) is not None and better[0] < found[0]:
        found = better
    return found[1]


def _least(graph: Graph, table: "_Table") -> tuple[int, list[int]] | None:
    """The least peak that a table knows, and its order; None if it knows none."""
    levels = table.levels()
    if not levels:
        return None
    order = table.order(levels[-1])
    return schedule_of(graph, order, planner="Rotor").peak_bytes, order


class _Costs:
    """What the moves over single blocks take, in seconds and bytes.

    `leave` is a pass from an input that is kept, `onward` one from an input that is not. Arrays of
    peaks and seconds have the index `first` in front: 1 where a block has not run before.
    """

    def __init__(self, blocks: Blocks):
        self.blocks, self.graph = blocks, blocks.graph
        self.last = len(blocks) - 1
        self.input_bytes = [self._bytes(values) for values in blocks.inputs]
        self.tapes = [self._tape(s) for s in range(len(blocks))]
        self._count_what_waits()
        every = range(len(blocks))
        kinds = ("pass", "tape", "turn")
        self.seconds = {
            kind: [[self._seconds(kind, s, first) for s in every] for first in (0, 1)]
            for kind in kinds
        }
        self.peak = {
            kind: [
                [[self._peak(kind, s, first, h) for h in (0, 1)] for s in every] for first in (0, 1)
            ]
            for kind in ("onward", "leave", *kinds[1:])
        }
        self.back = [[self._back(s, h) for h in (0, 1)] for s in every]

    def _bytes(self, values: Iterable[int]) -> int:
        return sum(self.graph.values[i].nbytes for i in values)

    def _tape(self, s: int) -> frozenset[int]:
        """What stays in memory from a block's run to its backward."""
        reads = {i for b in self.blocks.backward[s] for i in self.graph.ops[b].inputs}
        return self.blocks.read[s] | (self.blocks.inputs[s] & reads)

    def tape_bytes(self, s: int, h: int) -> int:
        """Bytes of a block's tape, without an input that is kept anyway."""
        return self._bytes(self.tapes[s] - (self.blocks.inputs[s] if h else frozenset()))

    def keeps_next_input(self, s: int, h: int) -> bool:
        """Whether the next block's input is kept with a block's tape, or outside."""
        kept = self.tapes[s] | (self.blocks.inputs[s] if h else frozenset())
        return self.blocks.inputs[s + 1] <= kept

    def _ops(self, kind: str, s: int, first: int) -> Collection[int]:
        return self.blocks.ops[s] if first else self.blocks.again(kind, s)

    def _seconds(self, kind: str, s: int, first: int) -> float:
        return sum(self.graph.ops[o].seconds for o in self._ops(kind, s, first))

    def _peak(self, kind: str, s: int, first: int, h: int) -> int:
        """Bytes while a block runs, beside what is kept outside and what waits."""
        here, behind = self.blocks.inputs[s], self.blocks.inputs[s + 1]
        kept = {
            "onward": behind,
            "leave": here | behind,
            "tape": self.tapes[s] | behind,
            "turn": self.tapes[s],
        }[kind]
        ops = self._ops("pass" if kind in ("onward", "leave") else kind, s, first)
        return self._run_peak(list(ops), here, kept, here if h else frozenset())

    def _run_peak(
        self, ops: list[int], live: frozenset[int], kept: frozenset[int], free: frozenset[int]
    ) -> int:
        """Bytes while ops run; some values are `kept` to the end, and `free` ones do not count."""
        touched = [(*self.graph.ops[o].outputs, *self.graph.ops[o].inputs) for o in ops]
        last = {i: k for k, values in enumerate(touched) for i in values}
        uncounted = free | self.blocks.pinned
        now = {i for i in live if i in kept or i in last}
        peak = self._bytes(now - uncounted)
        for k, o in enumerate(ops):
            op = self.graph.ops[o]
            now |= set(op.outputs)
            peak = max(peak, self._bytes(now - uncounted) + op.workspace_bytes)
            now = {i for i in now if i in kept or last[i] > k}
        return peak

    def _count_what_waits(self) -> None:
        """Bytes that no decision changes: gradients, what is read late, and what is pinned.

        `waits[t]` while the forward of blocks up to `t` runs and no backward of theirs has;
        `beside[b]` while a backward op runs, its block's tape left out.
        """
        blocks, ops, first = self.blocks, self.graph.ops, self.graph.forward_count
        written = {i: b for b in range(first, len(ops)) for i in ops[b].outputs}
        last = written | blocks.last_read
        home = {i: blocks.home[o] for i, o in blocks.writer.items()}
        self.waits: list[int] = []
        self.beside: dict[int, int] = {}
        for t, group in enumerate(blocks.backward):
            late = {i for i, s in home.items() if s > t and i not in blocks.pinned and i in last}
            pinned = self._bytes(i for i in blocks.pinned if self._pinned_until(i) <= t)
            waiting = {i for i in written if written[i] < group.start} | late
            self.waits.append(pinned + self._bytes(i for i in waiting if last[i] >= group.start))
            for b in group:
                live = {i for i in written if written[i] <= b} | late
                live = {i for i in live if last[i] >= b}
                self.beside[b] = pinned + self._bytes(live) + ops[b].workspace_bytes

    def _pinned_until(self, i: int) -> int:
        """The first block, counted from the front, that may read a pinned value."""
        blocks = self.blocks
        forward = [s for o, s in enumerate(blocks.home) if i in self.graph.ops[o].inputs]
        backward = [
            s
            for s, group in enumerate(blocks.backward)
            for b in group
            if i in self.graph.ops[b].inputs
        ]
        return min(forward + backward)

    def _back(self, s: int, h: int) -> int:
        """Bytes while a block's backward runs, beside what is kept outside."""
        tape = self.tapes[s] - (self.blocks.inputs[s] if h else frozenset())
        until = {i: self._last_read_in(i, s) for i in tape}
        return max(
            (
                self.beside[b] + self._bytes(i for i in tape if until[i] >= b)
                for b in self.blocks.backward[s]
            ),
            default=0,
        )

    def _last_read_in(self, i: int, s: int) -> int:
        """The last backward op that reads a value of a block's tape before it is written again."""
        if i in self.blocks.read[s]:
            return self.blocks.last_read[i]
        return max(b for b in self.blocks.backward[s] if i in self.graph.ops[b].inputs)


class _Table:
    """Seconds of forward runs, `best[h, s, t, m]`, infinite where it does not fit.

    Raises:
        SolverStopped: the deadline passed before they were all known.
    """

    def __init__(self, costs: _Costs, slots: int, deadline: Deadline, budget_bytes: int):
        self.costs, count = costs, len(costs.blocks)
        budget_bytes = max(budget_bytes, 0)
        self.unit = max(1, -(-budget_bytes // slots))
        # Rounding loses at most a slot for each thing that is kept: so many more are tried.
        self.width = budget_bytes // self.unit + count + 2
        self.sizes = np.arange(self.width) * self.unit
        self.best = np.empty((2, count, count, self.width))  # only from `s` to `t` is ever read
        parts = ((s, s + length) for length in range(count) for s in range(count - length))
        for s, t in deadline.during(parts):
            for h in (0, 1):
                self.best[h, s, t] = self._rows(s, t, h).min(axis=0)

    def levels(self) -> list[int]:
        """The fewest slots for each number of seconds that the chain may take, fastest first."""
        row = self.best[0, 0, -1]
        before = np.concatenate([[np.inf], row[:-1]])
        return np.flatnonzero(row < before)[::-1].tolist()

    def order(self, m: int) -> list[int]:
        """The ops of the fastest walk in so many slots."""
        blocks = self.costs.blocks
        return blocks.order(walk(len(blocks), self._decide, (0, m)))

    def _decide(self, s: int, t: int, state: tuple[int, int]) -> Split | Tape:
        h, m = state
        choice = int(self._rows(s, t, h)[:, m].argmin())
        if choice == 0:
            return Tape((int(self.costs.keeps_next_input(s, h)), m - self._tape_slots(s, h)))
        return Split(s + choice, behind=(0, m - self._input_slots(s, h)), before=(h, m))

    def _rows(self, s: int, t: int, h: int) -> np.ndarray:
        """Seconds by choice: to keep the tape of `s`, or to split at `s + 1`, ..., `t`."""
        if s == t:
            return self._turned(s, h)[None]
        rows = np.empty((t - s + 1, self.width))
        self._tape(s, t, h, out=rows[0])
        self._split(s, t, h, out=rows[1:])
        return rows

    def _turned(self, s: int, h: int) -> np.ndarray:
        costs, first = self.costs, int(s == self.costs.last)
        found = np.full(self.width, float(costs.seconds["turn"][first][s]))
        peak = max(costs.peak["turn"][first][s][h] + costs.waits[s], costs.back[s][h])
        self._limit(found, np.asarray(peak))
        return found

    def _tape(self, s: int, t: int, h: int, out: np.ndarray) -> None:
        costs, first = self.costs, int(t == self.costs.last)
        behind = self.best[int(costs.keeps_next_input(s, h)), s + 1, t]
        self._add(costs.seconds["tape"][first][s], behind, self._tape_slots(s, h), out)
        peak = max(costs.peak["tape"][first][s][h] + costs.waits[t], costs.back[s][h])
        self._limit(out, np.asarray(peak))

    def _split(self, s: int, t: int, h: int, out: np.ndarray) -> None:
        costs, first = self.costs, int(t == self.costs.last)
        held = 0 if h else costs.input_bytes[s]
        seconds = np.cumsum(costs.seconds["pass"][first][s:t])
        behind = self.best[0, s + 1 : t + 1, t]
        self._add(seconds[:, None], behind, self._input_slots(s, h), out)
        out += self.best[h, s, s:t]
        onward = [costs.peak["onward"][first][k][0] + held for k in range(s + 1, t)]
        peaks = np.maximum.accumulate([costs.peak["leave"][first][s][h], *onward]) + costs.waits[t]
        self._limit(out, peaks)

    def _add(
        self, seconds: float | np.ndarray, rows: np.ndarray, slots: int, out: np.ndarray
    ) -> None:
        """Seconds, and then those of rows of the table for `slots` less memory."""
        out[..., :slots] = np.inf
        np.add(seconds, rows[..., : max(self.width - slots, 0)], out=out[..., slots:])

    def _limit(self, rows: np.ndarray, peaks: np.ndarray) -> None:
        """Strikes out where so many bytes do not fit."""
        np.copyto(rows, np.inf, where=self.sizes < peaks[..., None])

    def _tape_slots(self, s: int, h: int) -> int:
        return -(-self.costs.tape_bytes(s, h) // self.unit)

    def _input_slots(self, s: int, h: int) -> int:
        return 0 if h else -(-self.costs.input_bytes[s] // self.unit)
