"""A forward pass as a chain of blocks, which planners for chains walk to and fro.

The forward ops are cut where few values are live. The values that are live over a cut are the
*input* of the block behind it; a planner for chains keeps inputs as checkpoints and runs blocks
again from them. Cuts are *articulation points*, over which at most one value is live, where there
are any. Where there are none, or on demand, the graph is *linearized*, as the authors of Checkmate
(Jain et al., MLSys 2020) call it: every op is a block, and its input all that is live. What ops
that must run once write is kept in any case, and counts for no cut.

Each backward op belongs to the last block from whose run, together with the backward ops before it,
all that it reads can be had; the backward pass stays in order. A value counts as input to every
block up to the last one that reads it.

| index | means |
|---|---|
| `s`, `t` | a block |
| `o` | a forward op |
| `b` | a backward op |
"""

import dataclasses
import functools as ft
import itertools as it
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from ..graph import Graph
from ..schedules.orders import needed_ops, without_useless_runs


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """One move of a walk over the blocks.

    Attributes:
        kind: "pass" runs the block and leaves the input of the next one; "tape" leaves also what
            its backward reads; "turn" leaves only that, and runs its backward; "back" runs its
            backward, after a "tape".
        block: which.
    """

    kind: Literal["pass", "tape", "turn", "back"]
    block: int


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """To keep the input of blocks `s` to `t`, and run from it to a block in between.

    Attributes:
        at: the block in between; it and the blocks behind it are walked first.
        behind, before: what to decide by for the two parts.
    """

    at: int
    behind: Any = None
    before: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Tape:
    """To keep all that the backward of block `s` reads.

    Attributes:
        behind: what to decide by for the blocks behind it.
    """

    behind: Any = None


def walk(count: int, decide: Callable[[int, int, Any], Split | Tape], state: Any) -> Iterator[Move]:
    """The moves that run all of `count` blocks, forward and backward, by decisions.

    `decide(s, t, state)` says how blocks `s` to `t`, more than one, are run once the input of `s`
    is in memory and the backward of those behind `t` is done.
    """
    # A stack of its own: a chain may have more blocks than Python allows nested calls.
    stack: list[Any] = [(0, count - 1, state)]
    while stack:
        top = stack.pop()
        if isinstance(top, Move):
            yield top
            continue
        s, t, state = top
        if s == t:
            yield Move("turn", s)
            continue
        decision = decide(s, t, state)
        if isinstance(decision, Tape):
            yield Move("tape", s)
            stack += [Move("back", s), (s + 1, t, decision.behind)]
        else:
            yield from (Move("pass", k) for k in range(s, decision.at))
            stack += [(s, decision.at - 1, decision.before), (decision.at, t, decision.behind)]


class ChainBlocks:
    """The blocks of a graph, and the ops that a walk over them stands for.

    Attributes:
        ops: for each block its forward ops.
        inputs: for each block, and for the end, the values that are live over the cut before it.
        backward: for each block its backward ops.
        pinned: forward values that are kept from their first run on, since their op must run once.
    """

    def __init__(self, graph: Graph, *, linearized: bool = False):
        self.graph = graph
        self.writer = graph.forward_writer_number
        self.pinned = frozenset(i for i in self.writer if self._is_pinned(i))
        live = _live_over_cuts(graph, self.pinned)
        cuts = _cuts(live, linearized)
        ends = [0, *(cut + 1 for cut in cuts), graph.forward_count]
        self.ops = [range(a, b) for a, b in it.pairwise(ends)]
        self.inputs = [frozenset[int](), *(live[cut] for cut in cuts), frozenset[int]()]
        self.home = [s for s, ops in enumerate(self.ops) for _ in ops]  # forward op -> its block
        self.backward = self._backward()

    def __len__(self) -> int:
        return len(self.ops)

    def _is_pinned(self, i: int) -> bool:
        """Whether an op that must run once writes a value that may be read after the forward."""
        ops, first = self.graph.ops, self.graph.forward_count
        if self.graph.may_rerun(self.writer[i]):
            return False
        readers = (o for o, op in enumerate(ops) if i in op.inputs)
        return any(o >= first or self.graph.may_rerun(o) for o in readers)

    def _backward(self) -> list[range]:
        last = {i: self.home[o] for i, o in self.writer.items()}  # the last block that has a value
        for o, s in enumerate(self.home):
            last.update(dict.fromkeys(self.graph.ops[o].inputs, s))
        first, count = self.graph.forward_count, len(self.graph.ops)
        starts, s = [count] * len(self.ops), len(self.ops)
        for b in range(first, count):
            reads = set(self.graph.ops[b].inputs) - self.pinned
            block = min([len(self.ops) - 1, *(last[i] for i in reads if i in last)])
            while s > block:
                s -= 1
                starts[s] = b
        return [range(starts[s], starts[s - 1] if s else count) for s in range(len(self.ops))]

    def written(self, s: int) -> Iterator[int]:
        """What a block writes."""
        return (i for o in self.ops[s] for i in self.graph.ops[o].outputs)

    @ft.cached_property
    def last_read(self) -> dict[int, int]:
        """Value that the backward pass reads -> the last backward op that does."""
        ops, first = self.graph.ops, self.graph.forward_count
        return {i: b for b in range(first, len(ops)) for i in ops[b].inputs}

    @ft.cached_property
    def read(self) -> list[frozenset[int]]:
        """For each block what it writes and its backward, or an earlier block's, reads.

        Without pinned values.
        """
        return [
            frozenset(
                i
                for i in self.written(s)
                if i not in self.pinned and self.last_read.get(i, -1) >= self.backward[s].start
            )
            for s in range(len(self))
        ]

    @ft.cache  # noqa: B019 - as long-lived as the blocks
    def again(self, kind: str, s: int) -> list[int]:
        """The ops that run where a move comes to a block that has run before."""
        onward = frozenset() if kind == "turn" else self.inputs[s + 1] - self.inputs[s]
        values = onward if kind == "pass" else onward | self.read[s]
        return needed_ops(self.graph, values, self.inputs[s])

    def order(self, moves: Iterable[Move]) -> list[int]:
        """The ops of a walk, in order. A block that runs for the first time runs whole.

        Runs again of what nothing reads are left out, as of blocks before one whose backward reads
        nothing of the forward.
        """
        order, ran = [], 0
        for move in moves:
            s = move.block
            if move.kind != "back":
                order += self.ops[s] if s == ran else self.again(move.kind, s)
                ran = max(ran, s + 1)
            if move.kind in ("turn", "back"):
                order += self.backward[s]
        return without_useless_runs(self.graph, order)


def _live_over_cuts(graph: Graph, pinned: frozenset[int]) -> list[frozenset[int]]:
    """For each forward op the values that are live behind it, for other forward ops to read."""
    live: set[int] = set()
    found = []
    for op in reversed(graph.ops[: graph.forward_count]):
        found.append(frozenset(live))
        live = (live | set(op.inputs)) - set(op.outputs) - pinned
    return found[::-1]


def _cuts(live: list[frozenset[int]], linearized: bool) -> list[int]:
    """The forward ops behind which a block ends, the last one left out."""
    inner = range(len(live) - 1)
    points = [o for o in inner if len(live[o]) <= 1]
    cuts = list(inner) if linearized or not points else points
    # The same checkpoint twice is no choice, and its bytes would count twice.
    return [o for k, o in enumerate(cuts) if not k or not live[o] or live[o] != live[cuts[k - 1]]]
