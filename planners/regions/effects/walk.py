"""The effect of one region, found by walking the region's own runs.

Known limit: at a stage more than `MAX_SAMPLES` samples are merged into the last of them, on the
safe side: bytes are never underestimated.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ...graph import Graph, Op
from ...plan import Region
from ...runs import Run, backward_runs, fetches
from .candidate import Candidate, Sample
from .gradients import Gradients

MAX_SAMPLES = 4


def walked(graph: Graph, region: Region, gradients: Sequence[Gradients]) -> Candidate:
    """The region with its effect, but for gradients in memory throughout a stage's backward."""
    runs = fetches(graph, region) + backward_runs(graph, region)
    live = _Lives(graph, region, runs)
    aliased = graph.aliased(region.first, live.retained)
    live = _Lives(graph, region, runs, aliased) if aliased else live
    more = [run.of(graph) for run in runs if run.phase == "forward"]
    more += _saving(graph, region)
    slower = [
        (run.of(graph), run.in_first_implementation().of(graph))
        for run in runs
        if run.implementation and run.phase == "backward"
    ]
    saving = sum(graph.values[i].saving_seconds for i in {*live.retained} - graph.shared)
    if region.alone:
        saving += sum(x.alone_seconds for x in graph.stages[region.first : region.last + 1])
    stage, nbytes = _in_backward(graph, runs, gradients)
    nbytes = nbytes + live.nbytes()
    nbytes += np.cumsum(alone_bytes(graph, region))[stage - region.first]
    samples = []
    for s in range(region.first, region.last + 1):
        (at,) = np.nonzero(stage == s)
        ends = {i: k for i, k in live.last_read.items() if stage[k] == s}
        samples.append(_peaks(at, nbytes[at], ends))
    return Candidate(
        region=region,
        seconds=saving
        + sum(op.seconds for op in more)
        + sum(a.seconds - b.seconds for a, b in slower),
        flops=sum(op.flops for op in more) + sum(a.flops - b.flops for a, b in slower),
        retained=frozenset(live.retained),
        aliased=aliased,
        reads={i: int(stage[k]) for i, k in live.last_read.items()},
        samples=tuple(samples),
    )


def _saving(graph: Graph, region: Region) -> Iterator[Op]:
    """The optional ops that the first forward runs for a region."""
    for s, o in {graph.forward_writer[graph.index[name]] for name in region.kept}:
        op = graph.stages[s].forward[o]
        if op.optional:
            yield op


def alone_bytes(graph: Graph, region: Region) -> list[int]:
    """For each stage of a region bytes that it keeps beside values, if it is left alone."""
    alone = {s for leaf in region.walk() if leaf.alone for s in range(leaf.first, leaf.last + 1)}
    stages = range(region.first, region.last + 1)
    return [graph.stages[s].alone_bytes if s in alone else 0 for s in stages]


class _Lives:
    """When the values that a region's backward reads are in memory.

    Attributes:
        retained: the region's own values that the backward reads as its forward left them.
        last_read: value of an earlier region -> the last run that reads it.
    """

    def __init__(
        self,
        graph: Graph,
        region: Region,
        runs: Sequence[Run],
        aliased: frozenset[int] = frozenset(),
    ):
        self._graph = graph
        self._aliased = aliased
        self._first = set[int]()  # those of which no run has written a new instance yet
        self._change = [0] * (len(runs) + 1)
        self._workspace = [run.of(graph).workspace_bytes for run in runs]
        self._life: dict[int, tuple[int, int]] = {}  # own value -> written, last read so far
        self.retained: list[int] = []
        self.last_read: dict[int, int] = {}
        for k, run in enumerate(runs):
            self._read(region, run.of(graph).inputs, k)
            if run.phase == "forward":
                self._write(run.of(graph).outputs, k)
        for i in self._life:
            self._end(i)

    def nbytes(self) -> np.ndarray:
        """Bytes of own values and workspace during each run."""
        return np.cumsum(self._change[:-1]) + np.array(self._workspace, dtype=np.int64)

    def _read(self, region: Region, values: tuple[int, ...], k: int) -> None:
        for i in values:
            writer = self._graph.forward_writer.get(i)
            if writer is None:
                continue
            is_own = region.first <= writer[0] <= region.last
            if not is_own and i not in self._life:  # else it has come back from the host
                self.last_read[i] = k
                continue
            if i not in self._life:
                self.retained.append(i)
                self._first.add(i)
            self._life[i] = (self._life.get(i, (0, 0))[0], k)

    def _write(self, values: tuple[int, ...], k: int) -> None:
        for i in values:
            if i in self._life:
                self._end(i)
            self._first.discard(i)
            self._life[i] = (k, k)

    def _end(self, i: int) -> None:
        written, last_read = self._life[i]
        nbytes = self._graph.values[i].nbytes
        if i in self._first:
            nbytes = 0 if i in self._aliased else self._graph.values[i].waiting_bytes
        self._change[written] += nbytes
        self._change[last_read + 1] -= nbytes


def _in_backward(
    graph: Graph, runs: Sequence[Run], gradients: Sequence[Gradients]
) -> tuple[np.ndarray, np.ndarray]:
    """For each run the stage whose backward it belongs to, and bytes of varying gradients.

    A recomputation belongs to the backward op that it comes before.
    """
    stage, nbytes = np.zeros((2, len(runs)), dtype=np.int64)
    following = -1
    for k in reversed(range(len(runs))):
        if runs[k].phase == "backward":
            following = k
        at = runs[following]
        during, before = gradients[at.stage].varying[at.op]
        stage[k], nbytes[k] = at.stage, during if k == following else before
    return stage, nbytes


def _peaks(at: np.ndarray, nbytes: np.ndarray, ends: dict[int, int]) -> tuple[Sample, ...]:
    """The samples that no other one exceeds in bytes and in values still read.

    The values still read only become fewer, so these are the records of `nbytes`; of the records
    between two entries of `ends` the last.
    """
    if not len(at):
        return (Sample(0, frozenset()),)
    found: list[Sample] = []
    highest = np.maximum.accumulate(nbytes)
    records = np.flatnonzero(np.diff(highest, prepend=-1) > 0)
    for k, size in zip(at[records].tolist(), nbytes[records].tolist(), strict=True):
        reads = frozenset(i for i, end in ends.items() if end >= k)
        if found and (found[-1].reads == reads or len(found) == MAX_SAMPLES):
            reads = found.pop().reads
        found.append(Sample(size, reads))
    return tuple(found)
