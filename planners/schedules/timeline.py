"""The bytes in memory at each place of a sequence, while ops are put in and taken out.

A sequence has *places*; an op runs at some, the others are free, so that an op may be put between
two others without renumbering what follows. From each write of a value to its last read before the
next write, the value is in memory: these *spans* are ranges of places, and to put an op in changes
a range for each value that it reads or writes, no more. FastSA (Imanishi et al.) keeps the ranges
in a tree; with some thousand places, adding to a slice of an array takes no longer.
"""

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from ..graph import Graph


class SequenceTimeline:
    """A sequence of ops and the bytes that it has in memory; the first run of each op stays in.

    Attributes:
        ops: for each place the op (its position in `Graph.ops`) that runs there, or -1.
        over: for each place the bytes in memory less the budget, workspace included.
        first: for each op the place of its first run.
        again: places of all other runs, in no order.
        reads, writes: for each value the places where it is read or written, in order.
        seconds: of all runs.
    """

    def __init__(self, graph: Graph, order: Iterable[int], budget_bytes: int):
        """Places the ops of `order`, in which each of the graph runs once or more.

        Arguments:
            graph: what the ops read and write.
            order: positions in `Graph.ops`, an op's inputs written before it.
            budget_bytes: what `over` is relative to.
        """
        self.budget_bytes = budget_bytes
        self.nbytes = [value.nbytes for value in graph.values]
        self.cost = [op.seconds for op in graph.ops]
        self.workspace = [op.workspace_bytes for op in graph.ops]
        self.inputs = [tuple(dict.fromkeys(op.inputs)) for op in graph.ops]
        self.outputs = [op.outputs for op in graph.ops]
        self.reset(order)

    def reset(self, order: Iterable[int]) -> None:
        """Places another order, with a free place before each op."""
        self.ops = [place for op in order for place in (-1, op)]
        self.first = [-1] * len(self.cost)
        self.reads: list[list[int]] = [[] for _ in self.nbytes]
        self.writes: list[list[int]] = [[] for _ in self.nbytes]
        self.again: list[int] = []
        self._rank: dict[int, int] = {}  # place -> its position in `again`
        for place in range(1, len(self.ops), 2):
            self._list(self.ops[place], place)
        self.seconds = sum(self.cost[op] for op in self.ops if op >= 0)
        self.over = np.full(len(self.ops), -self.budget_bytes, dtype=np.int64)
        self._above = np.empty_like(self.over)
        for place, op in enumerate(self.ops):
            if op >= 0:
                self.over[place] += self.workspace[op]
        for value, nbytes in enumerate(self.nbytes):
            for start, end in self.spans(value):
                self.over[start : end + 1] += nbytes

    def _list(self, op: int, place: int) -> None:
        for value in self.inputs[op]:
            self.reads[value].append(place)
        for value in self.outputs[op]:
            self.writes[value].append(place)
        if self.first[op] < 0:
            self.first[op] = place
        else:
            self._note(place)

    def order(self) -> list[int]:
        """The ops as they run."""
        return [op for op in self.ops if op >= 0]

    def spans(self, value: int) -> list[tuple[int, int]]:
        """First and last place of each time that a value is in memory."""
        reads, writes = self.reads[value], self.writes[value]
        ends = [*(bisect_left(reads, write) for write in writes[1:]), len(reads)]
        return [
            (write, max(write, reads[end - 1]) if end else write)
            for write, end in zip(writes, ends, strict=False)  # without writes, none
        ]

    def excess(self) -> int:
        """Bytes above the budget, added up over all places."""
        return int(np.maximum(self.over, 0, out=self._above).sum())

    def peak_bytes(self) -> int:
        """The most bytes in memory at any place."""
        return int(self.over.max(initial=-self.budget_bytes)) + self.budget_bytes

    def gap(self, value: int, place: int) -> tuple[int, int]:
        """The last access to a value before a place, and the next read from there on of that write.

        The next read is -1 where there is none; the last access where it is not yet written.
        """
        reads, writes = self.reads[value], self.writes[value]
        r, w = bisect_left(reads, place), bisect_left(writes, place)
        last = writes[w - 1] if w else -1
        if r and reads[r - 1] > last:
            last = reads[r - 1]
        is_read = r < len(reads) and (w == len(writes) or reads[r] <= writes[w])
        return last, reads[r] if is_read else -1

    def insert(self, op: int, place: int) -> None:
        """Runs an op again at a free place after its first run."""
        for value in self.inputs[op]:
            _read(self, value, place)
        for value in self.outputs[op]:
            _write(self, value, place)
        self.over[place] += self.workspace[op]
        self.seconds += self.cost[op]
        self.ops[place] = op
        self._note(place)

    def remove(self, place: int) -> int:
        """Takes out the recomputation at a place, and returns its op."""
        op = self.ops[place]
        for value in self.inputs[op]:
            _unread(self, value, place)
        for value in self.outputs[op]:
            _unwrite(self, value, place)
        self.over[place] -= self.workspace[op]
        self.seconds -= self.cost[op]
        self.ops[place] = -1
        self._forget(place)
        return op

    def bounds(self, op: int) -> tuple[int, int]:
        """The places between which an op's first run may be, the ends left out.

        They are first writes of its inputs on one side, reads and second writes of its outputs on
        the other.
        """
        after = max((self.writes[value][0] for value in self.inputs[op]), default=-1)
        before = len(self.ops)
        for value in self.outputs[op]:
            uses = self.reads[value][:1] + self.writes[value][1:2]
            before = min(before, *uses) if uses else before
        return after, before

    def shift(self, op: int, place: int) -> None:
        """Moves the first run of an op to a free place within its bounds."""
        old = self.first[op]
        for value in self.inputs[op]:
            _unread(self, value, old)
            _read(self, value, place)
        for value in self.outputs[op]:
            _shift_write(self, value, old, place)
        self.over[old] -= self.workspace[op]
        self.over[place] += self.workspace[op]
        self.ops[old], self.ops[place] = -1, op
        self.first[op] = place

    def _note(self, place: int) -> None:
        self._rank[place] = len(self.again)
        self.again.append(place)

    def _forget(self, place: int) -> None:
        rank, last = self._rank.pop(place), self.again.pop()
        if last != place:
            self.again[rank], self._rank[last] = last, rank


def _read(line: SequenceTimeline, value: int, place: int) -> None:
    last, following = line.gap(value, place)
    if following < 0:
        line.over[last + 1 : place + 1] += line.nbytes[value]
    reads = line.reads[value]
    reads.insert(bisect_left(reads, place), place)


def _unread(line: SequenceTimeline, value: int, place: int) -> None:
    reads = line.reads[value]
    del reads[bisect_left(reads, place)]
    last, following = line.gap(value, place)
    if following < 0:
        line.over[last + 1 : place + 1] -= line.nbytes[value]


def _write(line: SequenceTimeline, value: int, place: int) -> None:
    _cut(line, value, place, line.nbytes[value])
    writes = line.writes[value]
    writes.insert(bisect_left(writes, place), place)


def _unwrite(line: SequenceTimeline, value: int, place: int) -> None:
    writes = line.writes[value]
    del writes[bisect_left(writes, place)]
    _cut(line, value, place, -line.nbytes[value])


def _cut(line: SequenceTimeline, value: int, place: int, nbytes: int) -> None:
    """A write within a span makes the value leave from its last access to the write."""
    last, following = line.gap(value, place)
    if following >= 0:
        line.over[last + 1 : place] -= nbytes
    else:
        line.over[place] += nbytes


def _shift_write(line: SequenceTimeline, value: int, old: int, new: int) -> None:
    nbytes, reads, writes = line.nbytes[value], line.reads[value], line.writes[value]
    if not reads or (len(writes) > 1 and reads[0] > writes[1]):
        line.over[old] -= nbytes
        line.over[new] += nbytes
    elif new < old:
        line.over[new:old] += nbytes
    else:
        line.over[old:new] -= nbytes
    writes[0] = new
