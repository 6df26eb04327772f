"""Bytes of gradients in memory during each stage's backward, the same in every plan."""

import dataclasses

import numpy as np

from ...graph import Graph


@dataclasses.dataclass(frozen=True, slots=True)
class Gradients:
    """Bytes of gradients in memory during the backward of one stage.

    Attributes:
        steady_bytes: throughout.
        varying: beyond those, for each backward op: while it runs, and just before.
    """

    steady_bytes: int
    varying: tuple[tuple[int, int], ...]


def gradients_of(graph: Graph) -> list[Gradients]:
    """The gradients of each stage; backward ops run once whatever the plan."""
    stages = range(len(graph.stages) - 1, -1, -1)
    ops = [op for s in stages for op in graph.stages[s].backward]
    written, read = {}, {}
    for t, op in enumerate(ops):
        read.update(dict.fromkeys(op.inputs, t))
        written.update(dict.fromkeys(op.outputs, t))
    during, before = np.zeros((2, len(ops) + 1), dtype=np.int64)
    for i, t in written.items():
        nbytes, end = graph.values[i].nbytes, read.get(i, t)
        during[t] += nbytes
        during[end + 1] -= nbytes
        if end > t:
            before[t + 1] += nbytes
            before[end + 1] -= nbytes
    table = np.stack([np.cumsum(during), np.cumsum(before)], axis=1)[:-1]
    found, start = [], 0
    for s in stages:
        part = table[start : start + len(graph.stages[s].backward)]
        steady = int(part.min()) if part.size else 0
        found.append(Gradients(steady, tuple(map(tuple, (part - steady).tolist()))))
        start += len(part)
    return found[::-1]
