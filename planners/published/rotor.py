"""Optimal checkpointing of a heterogeneous chain, by dynamic programming over memory.

Rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
chains", 2019; ACM TOMS 2024). A chain of blocks is planned from its input on: either the first
block's *tape* is kept, all that its backward reads, and the rest planned with what memory is left;
or only the chain's *input* is kept, the blocks up to some block are run and forgotten, the chain
from there is planned, and then the blocks before it. Whichever is fastest, for each part of the
chain and each amount of memory.

The chain is cut at the forward pass's articulation points (`blocks`), so that a graph between two
of them is one element: its needed ops run as a whole, and never twice for one backward. Where there
is no articulation point, every op is an element whose input is all that is live. Memory is counted
as replay does, gradients included, where each input is one value and every op of the forward may
run again: there, with as many slots as bytes, no schedule of this space within the budget is
faster. Elsewhere a value may count twice (in two inputs, or in an input and a tape), and what ops
that must run once write counts from the start of the step: plans are valid, but faster ones may be
missed. The paper keeps a block's input until its backward; here it is kept only if the backward
reads it, as replay has it.

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
from collections.abc import Callable

import numpy as np

from ..graph import Graph
from ..schedules.orders import fastest_within, schedule_of
from ..schedules.planner import SchedulePlanner
from ..schedules.steps import Schedule
from ..solver.deadline import Deadline
from .blocks import ChainBlocks, Split, Tape, walk
from .rotor_costs import MoveCosts


@dataclasses.dataclass(frozen=True)
class Rotor(SchedulePlanner):
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
        costs = MoveCosts(ChainBlocks(graph, linearized=self.linearized))
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


class _Table:
    """Seconds of forward runs, `best[h, s, t, m]`, infinite where it does not fit.

    Raises:
        SolverStopped: the deadline passed before they were all known.
    """

    def __init__(self, costs: MoveCosts, slots: int, deadline: Deadline, budget_bytes: int):
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
        """Seconds, added to rows of the table for `slots` less memory."""
        out[..., :slots] = np.inf
        np.add(seconds, rows[..., : max(self.width - slots, 0)], out=out[..., slots:])

    def _limit(self, rows: np.ndarray, peaks: np.ndarray) -> None:
        """Strikes out where so many bytes do not fit."""
        np.copyto(rows, np.inf, where=self.sizes < peaks[..., None])

    def _tape_slots(self, s: int, h: int) -> int:
        return -(-self.costs.tape_bytes(s, h) // self.unit)

    def _input_slots(self, s: int, h: int) -> int:
        return 0 if h else -(-self.costs.input_bytes[s] // self.unit)
