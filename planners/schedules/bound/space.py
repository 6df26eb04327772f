"""The variables of the relaxation that bounds the seconds of schedules from below.

| index | means |
|---|---|
| `o`, `w` | an op, and one of its implementations |
| `k` | a sample: a backward op at which memory is looked at |
| `i` | a forward value that the backward pass, or recomputation for it, may read |

| variable, 0 or 1 | is 1 where |
|---|---|
| `implementation[o, w]` | op `o` runs in it: a backward op, or an optional forward op at all |
| `run[o, k]` | forward op `o` runs between samples `k - 1` and `k` |
| `hold[i, k]` | forward value `i` is in memory while sample `k` runs |
"""

import dataclasses
import functools as ft
import itertools as it
from collections.abc import Mapping, Sequence
from typing import Any

from ...graph import Graph, Op
from ...solver.deadline import NEVER, Deadline
from ...solver.sparse import numbered


@dataclasses.dataclass(frozen=True)
class BoundColumns:
    """The column of each variable.

    Attributes:
        width: how many columns there are.
        implementation, run, hold: the indices of a variable -> its column.
    """

    width: int
    implementation: Mapping[tuple[int, int], int]
    run: Mapping[tuple[int, int], int]
    hold: Mapping[tuple[int, int], int]


@dataclasses.dataclass(frozen=True, eq=False)
class BoundSpace:
    """The relaxation over some samples.

    Attributes:
        graph: the step.
        samples: positions in `Graph.ops` of backward ops, in order.
        budget_bytes: what bytes are divided by.
        deadline: until when the program may be written. Past it, `columns` raises `SolverStopped`.
    """

    graph: Graph
    samples: Sequence[int]
    budget_bytes: int
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
    def between(self) -> list[range]:
        """For each sample the backward ops since the one before, with the sample itself."""
        ends = [self.graph.forward_count, *(b + 1 for b in self.samples)]
        return [range(a, b) for a, b in it.pairwise(ends)]

    @ft.cached_property
    def needed(self) -> list[int]:
        """Forward values that the backward pass may read, or recomputation for it."""
        return sorted(_needed(self))

    @ft.cached_property
    def again(self) -> list[int]:
        """Forward ops that may run again for it."""
        return sorted({self.writer[i] for i in self.needed if self.may_rerun(i)})

    @ft.cached_property
    def columns(self) -> BoundColumns:
        """The variables."""
        return _columns(self)

    def is_chosen(self, o: int) -> bool:
        """Whether it is open how an op runs, or whether it does."""
        op = self.graph.ops[o]
        return op.optional or (o >= len(self.forward) and len(op.implementations) > 1)

    def may_rerun(self, value: int) -> bool:
        """Whether the op that writes a forward value may run again."""
        return self.graph.may_rerun(self.writer[value])

    def share(self, i: int) -> float:
        """Bytes of a value, over the budget."""
        return self.graph.values[i].nbytes / self.scale


def _needed(space: BoundSpace) -> set[int]:
    ops = space.graph.ops[len(space.forward) :]
    found = {i for op in ops for i in op.may_read if i in space.writer}
    pending = list(found)
    while pending:
        i = pending.pop()
        new = space.forward[space.writer[i]].always_reads if space.may_rerun(i) else frozenset()
        pending += new - found
        found |= new
    return found


def _columns(space: BoundSpace) -> BoundColumns:
    samples = range(len(space.samples))
    keys: list[tuple[Any, ...]] = [
        ("implementation", o, w)
        for o in range(len(space.graph.ops))
        if space.is_chosen(o)
        for w in range(len(space.graph.implementations[o]))
    ]
    keys += [("run", o, k) for k in samples if k for o in space.again]
    keys += [("hold", i, k) for k in samples for i in space.needed]
    kinds = "implementation", "run", "hold"
    return BoundColumns(len(keys), *numbered(space.deadline.during(keys), *kinds))
