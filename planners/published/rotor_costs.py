"""Seconds and bytes of each move of a walk over a chain of blocks.

| index | means |
|---|---|
| `s` | a block |
| `h` | 1 where something outside keeps the input of `s` anyway, else 0 |
| `b` | a backward op |
"""

from collections.abc import Collection, Iterable

from .blocks import ChainBlocks


class MoveCosts:
    """Seconds and bytes of the moves over single blocks.

    `leave` is a pass from an input that is kept, `onward` one from an input that is not. Arrays of
    peaks and seconds have the index `first` in front: 1 where a block has not run before.
    """

    def __init__(self, blocks: ChainBlocks):
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
