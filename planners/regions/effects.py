"""What one region costs, whatever the rest of the plan: its effect.

A candidate is a region together with the seconds that it adds, the values that it makes the first
forward leave in memory, and what its backward holds while it runs. Effects are found by walking
the region's own runs; regions over isomorphic stages share one walk.

| index | means |
|---|---|
| `s` | a stage of the graph |
| `i` | a value of the graph |
| `k` | a moment of a region's backward: one of its runs |

Known limit: at a stage more than `MAX_SAMPLES` moments are merged into the last of them, on the
safe side: bytes are never underestimated.
"""

import bisect
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np

from ..graph import Graph, Op
from ..plan import Region
from ..runs import Run, backward_runs, error_of

MAX_SAMPLES = 4

_Place = tuple[int, int]  # of a value in an interval: see `Interval`


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A time in the backward of a stage at which a candidate may be at its peak.

    Attributes:
        nbytes: in memory then, gradients, workspace and the region's own values; without the
            values that the first forward of other regions left.
        reads: of those, the ones which the region still reads, at this stage for the last time.
    """

    nbytes: int
    reads: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A region and its effect on the rest of the plan.

    Attributes:
        region: the region.
        seconds, flops: of recomputation, of optional ops, and of ways that take longer.
        retained: its own values that the first forward leaves for its backward.
        reads: value of an earlier region that its backward reads -> the stage that does last.
        samples: for each of its stages, first to last, the moments that may set the peak.
        aliased: of `retained`, the values that wait in the memory of results (`Graph.aliased`).
        alone_bytes: bytes, beside `retained`, that its forward leaves where it is left alone.
        error: of its optional ops (`Op.error`).
    """

    region: Region
    seconds: float
    flops: int
    retained: frozenset[int]
    reads: dict[int, int]
    samples: tuple[tuple[Sample, ...], ...]
    aliased: frozenset[int] = frozenset()
    alone_bytes: int = 0
    error: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Consecutive stages, as far as the cost of regions over them goes.

    A place is a stage, counted from the first, and a position in its `values`. A value that
    several of the stages touch has its place in the first of them.

    Attributes:
        shape: equal for intervals that are isomorphic value by value and cost by cost.
        first: the first stage.
        values: for each stage every value that its ops touch, in an order that isomorphic
            intervals share.
    """

    shape: int
    first: int
    values: tuple[tuple[int, ...], ...]

    def at(self, place: _Place) -> int:
        """The value at a place."""
        return self.values[place[0]][place[1]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Effect:
    """A candidate in terms that isomorphic intervals share.

    Values are places in the interval, stages count from the region's first, and the bytes of
    moments leave out the gradients that are in memory throughout a stage's backward.
    """

    seconds: float
    flops: int
    retained: frozenset[_Place]
    aliased: frozenset[_Place]
    reads: dict[_Place, int]
    samples: tuple[tuple[tuple[int, frozenset[_Place]], ...], ...]  # bytes, values still read


@dataclasses.dataclass(frozen=True, slots=True)
class _Local:
    """One stage, as far as the shape of intervals goes.

    Attributes:
        shape: equal for stages that are isomorphic if no other stage touches their values.
        values: every value that its ops touch, in the order in which they do.
        number: value -> its position in `values`.
        linked: positions of the values that other stages touch as well.
    """

    shape: int
    values: tuple[int, ...]
    number: dict[int, int]
    linked: tuple[int, ...]


class Walker:
    """Turns regions of one graph into candidates."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self._gradients = _gradients(graph)
        self._shapes: dict[Hashable, int] = {}
        self._touching = _touching(graph)
        self._stages = [self._local(s) for s in range(len(graph.stages))]
        self._intervals: dict[tuple[int, int], Interval] = {}
        self._effects: dict[Hashable, _Effect] = {}

    def interval(self, first: int, last: int) -> Interval:
        """The stages from `first` to `last`."""
        if (first, last) not in self._intervals:
            stages = self._stages[first : last + 1]
            guests = range(first, last + 1) if self.graph.recomputes_late else (first,)
            aliasing = tuple(self.graph.stages[s - 1].result_bytes if s else () for s in guests)
            links = tuple(
                (s, k, place)
                for s, stage in enumerate(stages)
                for k in stage.linked
                if (place := self._place(first, stage.values[k]))[0] < s
            )
            key = tuple(stage.shape for stage in stages), links, aliasing
            values = tuple(stage.values for stage in stages)
            self._intervals[first, last] = Interval(self._number(key), first, values)
        return self._intervals[first, last]

    def candidate(self, region: Region) -> Candidate:
        """The region with its effect.

        Raises:
            InvalidPlan: the region would run an op again that must run once.
        """
        first, interval = region.first, self.interval(region.first, region.last)
        key = (interval.shape, self._relative(region, first))
        if key not in self._effects:
            self._effects[key] = self._effect(region)
        effect = self._effects[key]
        return Candidate(
            region=region,
            seconds=effect.seconds,
            flops=effect.flops,
            retained=frozenset(map(interval.at, effect.retained)),
            aliased=frozenset(map(interval.at, effect.aliased)),
            reads={interval.at(place): first + s for place, s in effect.reads.items()},
            samples=tuple(
                tuple(
                    Sample(nbytes + constant.steady_bytes, frozenset(map(interval.at, reads)))
                    for nbytes, reads in some
                )
                for constant, some in zip(self._gradients[first:], effect.samples, strict=False)
            ),
            alone_bytes=sum(_alone_bytes(self.graph, region)) if region.alone else 0,
            error=error_of(self.graph, [region]),
        )

    def _effect(self, region: Region) -> _Effect:
        first, found = region.first, _walked(self.graph, region, self._gradients)

        def placed(values: Iterable[int]) -> frozenset[_Place]:
            return frozenset(self._place(first, i) for i in values)

        return _Effect(
            seconds=found.seconds,
            flops=found.flops,
            retained=placed(found.retained),
            aliased=placed(found.aliased),
            reads={self._place(first, i): s - first for i, s in found.reads.items()},
            samples=tuple(
                tuple((m.nbytes, placed(m.reads)) for m in some) for some in found.samples
            ),
        )

    def _place(self, first: int, value: int) -> _Place:
        """The place of a value in intervals that begin at stage `first`."""
        touching = self._touching[value]
        s = touching[bisect.bisect_left(touching, first)]
        return s - first, self._stages[s].number[value]

    def _relative(self, region: Region, first: int) -> Hashable:
        """The region with stages counted from `first`, and places for values."""
        return (
            region.first - first,
            region.last - first,
            region.alone,
            tuple(self._place(first, self.graph.index[name]) for name in region.saved),
            tuple(self._relative(inner, first) for inner in region.inner),
        )

    def _local(self, s: int) -> _Local:
        """What a stage shares with those that are isomorphic to it."""
        graph = self.graph
        stage, number = graph.stages[s], dict[int, int]()
        ops = stage.forward + stage.backward
        costs = tuple(
            (len(op.outputs), op.recomputable, op.optional)
            + tuple(
                (len(x.inputs), x.seconds, x.flops, x.workspace_bytes) for x in op.implementations
            )
            for op in ops
        )
        touched = (i for op in ops for i in _touched(op))
        pattern = tuple(number.setdefault(i, len(number)) for i in touched)
        linked = tuple(k for i, k in number.items() if len(self._touching[i]) > 1)
        # Gradients differ in nothing here: their bytes are added to each stage, not to its shape.
        values = tuple(
            (x.nbytes, x.copies, x.savable, graph.forward_writer[i][0] == s)
            if i in graph.forward_writer
            else None
            for i, x in ((i, graph.values[i]) for i in number)
        )
        shared = tuple(i in graph.shared for i in number)
        varying = self._gradients[s].varying
        key = len(stage.forward), stage.alone_bytes, costs, pattern, values, shared, varying
        return _Local(self._number(key), tuple(number), number, linked)

    def _number(self, key: Hashable) -> int:
        """Equal for equal keys."""
        return self._shapes.setdefault(key, len(self._shapes))


def _touched(op: Op) -> Iterator[int]:
    """The values that an op reads, in any of its ways, and writes; some of them twice."""
    yield from op.inputs
    for implementation in op.alternatives:
        yield from implementation.inputs
    yield from op.outputs


def _touching(graph: Graph) -> dict[int, list[int]]:
    """Value -> the stages whose ops touch it, ascending."""
    found: dict[int, list[int]] = {}
    for s, stage in enumerate(graph.stages):
        for i in {i for op in stage.forward + stage.backward for i in _touched(op)}:
            found.setdefault(i, []).append(s)
    return found


def _walked(graph: Graph, region: Region, gradients: Sequence["_Gradients"]) -> Candidate:
    """The region with its effect, but for gradients in memory throughout a stage's backward."""
    runs = backward_runs(graph, region)
    live = _Lives(graph, region, runs)
    aliased = graph.aliased(region.first, live.retained)
    live = _Lives(graph, region, runs, aliased) if aliased else live
    more = [run.of(graph) for run in runs if run.phase == "forward"]
    more += _saving(graph, region)
    slower = [
        (run.of(graph), run.in_first_implementation().of(graph))
        for run in runs
        if run.implementation
    ]
    stage, nbytes = _in_backward(graph, runs, gradients)
    nbytes = nbytes + live.nbytes()
    nbytes += np.cumsum(_alone_bytes(graph, region))[stage - region.first]
    samples = []
    for s in range(region.first, region.last + 1):
        (at,) = np.nonzero(stage == s)
        ends = {i: k for i, k in live.last_read.items() if stage[k] == s}
        samples.append(_peaks(at, nbytes[at], ends))
    return Candidate(
        region=region,
        seconds=sum(op.seconds for op in more) + sum(a.seconds - b.seconds for a, b in slower),
        flops=sum(op.flops for op in more) + sum(a.flops - b.flops for a, b in slower),
        retained=frozenset(live.retained),
        aliased=aliased,
        reads={i: int(stage[k]) for i, k in live.last_read.items()},
        samples=tuple(samples),
    )


def _saving(graph: Graph, region: Region) -> Iterator[Op]:
    """The optional ops that the first forward runs for a region."""
    for s, o in {graph.forward_writer[graph.index[name]] for name in region.saved}:
        op = graph.stages[s].forward[o]
        if op.optional:
            yield op


def _alone_bytes(graph: Graph, region: Region) -> list[int]:
    """For each stage of a region what it keeps beside values, if it is left alone in there."""
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
            if not region.first <= writer[0] <= region.last:
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
    graph: Graph, runs: Sequence[Run], gradients: Sequence["_Gradients"]
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
    """The moments that no other one exceeds in bytes and in values still read.

    What is still read only shrinks, so they are the records of `nbytes`; of the records between
    two entries of `ends` the last.
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Gradients:
    """Bytes of gradients, and of what stands, in memory during the backward of one stage.

    Attributes:
        steady_bytes: throughout.
        varying: beyond those, for each backward op: while it runs, and just before.
    """

    steady_bytes: int
    varying: tuple[tuple[int, int], ...]


def _gradients(graph: Graph) -> list[_Gradients]:
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
        found.append(_Gradients(steady, tuple(map(tuple, (part - steady).tolist()))))
        start += len(part)
    return found[::-1]
