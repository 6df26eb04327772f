"""The rows of a composition about memory: bytes at each sample of each stage.

The indices and the variables are in `variables`.
"""

import bisect
import itertools as it
from collections.abc import Sequence

import numpy as np

from ...graph import Graph, Op
from .variables import Terms, Variables, add


def memory(variables: Variables) -> tuple[list[Terms], list[float]]:
    """Bytes in memory at each sample: terms, and constants."""
    rows, constants = [], []
    forward = Forward(variables)
    for t, some in enumerate(variables.covering):
        for time, nbytes in forward.peaks[t]:
            rows.append(forward_row(forward, t, time))
            constants.append(nbytes / variables.scale)
        for m in range(max(len(variables.samples(c, t)) for c in some)):
            rows.append(backward_row(variables, t, m))
            constants.append(0.0)
    return rows, constants


class Forward:
    """When the forward pass reads its values for the last time.

    Attributes:
        variables: of the composition.
        ops: of the forward pass.
        last_read: forward value -> the last forward op of the step that reads or writes it.
        peaks: for each stage the forward ops that may set its peak, with the bytes that the
            forward itself holds.
    """

    def __init__(self, variables: Variables):
        self.variables, graph = variables, variables.graph
        self.ops = graph.ops[: graph.forward_count]
        self.last_read = _last_reads(self.ops)
        self.peaks = _peaks(graph, self.last_read)
        self._idle: dict[int, tuple[list[int], list[int]]] = {}  # ends, sums of bytes before

    def idle_bytes(self, c: int, time: int) -> int:
        """Bytes that candidate `c` retains and the forward does not read from op `time` on."""
        if c not in self._idle:
            values, own = self.variables.graph.values, self.variables.own(c)
            ends = sorted((self.last_read[i], values[i].waiting_bytes) for i in own)
            sums = it.accumulate((nbytes for _, nbytes in ends), initial=0)
            self._idle[c] = [end for end, _ in ends], list(sums)
        ends, sums = self._idle[c]
        return sums[bisect.bisect_left(ends, time)]

    def encoding_bytes(self, c: int, time: int) -> int:
        """Bytes that candidate `c` holds at forward op `time` for that op alone, if it is
        optional.
        """
        op, retained = self.ops[time], self.variables.candidates[c].retained
        if not op.optional or retained.isdisjoint(op.outputs):
            return 0
        read = (i for i in op.inputs if self.last_read[i] < time and i not in retained)
        return sum(self.variables.graph.values[i].nbytes for i in read) + op.workspace_bytes


def forward_row(forward: Forward, t: int, time: int) -> Terms:
    """Bytes in memory at forward op `time` for the backward only."""
    variables = forward.variables
    row = {variables.count + t: 1.0}
    for c in variables.covering[t]:
        own = forward.idle_bytes(c, time) + variables.candidates[c].alone_bytes
        row[c] = (own + forward.encoding_bytes(c, time)) / variables.scale
    for i in variables.shared:
        if forward.last_read[i] < time and variables.is_counted(i, t):
            share = variables.bytes_of([i]) / variables.scale
            add(row, variables.kept_at(i, variables.last + 1), share)
    return row


def backward_row(variables: Variables, t: int, m: int) -> Terms:
    """Bytes in memory at sample `m` of the backward of stage `t`."""
    row = {variables.count + t: 1.0}
    for c in variables.covering[t]:
        row[c] = variables.sample(c, t, m).nbytes / variables.scale
    for c in variables.fetched_during(t):
        row[c] = variables.candidates[c].in_flight / variables.scale
    for i in variables.shared:
        if variables.is_counted(i, t):
            share = variables.bytes_of([i]) / variables.scale
            add(row, variables.kept_during(i, t, m), share)
    return row


def _last_reads(ops: Sequence[Op]) -> dict[int, int]:
    """Forward value -> the last forward op of the step that reads or writes it.

    Optional ops do not count. What they write, if they run, does nothing but wait.
    """
    found = {i: time - 1 for time, op in enumerate(ops) if op.optional for i in op.outputs}
    must = ((time, op) for time, op in enumerate(ops) if not op.optional)
    return found | {i: time for time, op in must for i in op.inputs + op.outputs}


def _peaks(graph: Graph, last: dict[int, int]) -> list[list[tuple[int, int]]]:
    """For each stage the forward ops that may set its peak, with what the forward itself holds.

    What waits for the backward only grows during the forward, so of two ops the earlier one
    matters only where the forward itself holds more.
    """
    ops = [(s, op) for s, stage in enumerate(graph.stages) for op in stage.forward]
    change = [0] * (len(ops) + 1)
    for time, (_, op) in enumerate(ops):
        for i in () if op.optional else op.outputs:
            change[time] += graph.values[i].nbytes
            change[last[i] + 1] -= graph.values[i].nbytes
    workspace = [0 if op.optional else op.workspace_bytes for _, op in ops]
    live = np.cumsum(change[:-1]) + np.array(workspace, np.int64)
    found: list[list[tuple[int, int]]] = [[] for _ in graph.stages]
    highest = -1
    for time in range(len(ops) - 1, -1, -1):
        s = ops[time][0]
        if not found[s]:
            highest = -1
        # What an optional op holds for itself is not among them.
        if live[time] > highest or ops[time][1].optional:
            found[s].append((time, int(live[time])))
        highest = max(highest, int(live[time]))
    return found
