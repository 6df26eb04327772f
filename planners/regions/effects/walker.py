"""Effects of many regions: regions over isomorphic stages share one walk.

| index | means |
|---|---|
| `s` | a stage of the graph |
| `i` | a value of the graph |
"""

import bisect
import dataclasses
from collections.abc import Hashable, Iterable, Iterator

from ...errors import InvalidPlan
from ...graph import Graph, Op
from ...plan import Region
from ...runs import error_of, fetched_before, fetches
from ...transfers import (
    back_seconds,
    fetched_bytes,
    hiding_seconds,
    moved_bytes,
    out_seconds,
    region_host_bytes,
)
from .candidate import Candidate, Sample
from .gradients import gradients_of
from .shapes import Shapes
from .walk import alone_bytes, walked

_Place = tuple[int, int]  # of a value in an interval: see `Interval`


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Consecutive stages, reduced to all that the cost of regions over them depends on.

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
    samples leave out the gradients that are in memory throughout a stage's backward.
    """

    seconds: float
    flops: int
    retained: frozenset[_Place]
    aliased: frozenset[_Place]
    reads: dict[_Place, int]
    samples: tuple[tuple[tuple[int, frozenset[_Place]], ...], ...]  # bytes, values still read


@dataclasses.dataclass(frozen=True, slots=True)
class _Local:
    """One stage, reduced to all that the shape of intervals depends on.

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
    """Turns regions of one graph into candidates.

    Arguments:
        graph: of the regions.
        shapes: what other graphs share with it.
    """

    def __init__(self, graph: Graph, shapes: Shapes | None = None):
        self.graph, self.shapes = graph, shapes or Shapes()
        self._gradients = gradients_of(graph)
        self._touching = _touching(graph)
        self._stages = [self._local(s) for s in range(len(graph.stages))]
        self._intervals: dict[tuple[int, int], Interval] = {}

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
            shape = tuple(stage.shape for stage in stages)
            key = shape, links, aliasing, self.graph.recomputes_late
            values = tuple(stage.values for stage in stages)
            self._intervals[first, last] = Interval(self.shapes.number(key), first, values)
        return self._intervals[first, last]

    def candidate(self, region: Region) -> Candidate:
        """The region with its effect.

        Raises:
            InvalidPlan: the region would run an op again that must run once.
        """
        first, interval = region.first, self.interval(region.first, region.last)
        returning = len(fetches(self.graph, region))
        key = (interval.shape, self._relative(region, first), returning, self._alone(region))
        effect: _Effect | None = self.shapes.effects.get(key)
        if effect is None:
            effect = self.shapes.effects[key] = self._effect(region)
        return Candidate(
            region=region,
            seconds=effect.seconds + _waiting_seconds(self.graph, region),
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
            alone_bytes=sum(alone_bytes(self.graph, region)) if region.alone else 0,
            error=error_of(self.graph, [region]),
            host_bytes=region_host_bytes(self.graph, region),
            in_flight=fetched_bytes(self.graph, region),
            fetched_before=fetched_before(self.graph, region),
        )

    def allowed(self, region: Region) -> Candidate | None:
        """The region with its effect; None where no plan may have it."""
        try:
            found = self.candidate(region)
        except InvalidPlan:  # it would run again what must run once
            return None
        return found if found.error <= self.graph.most_error else None

    def _effect(self, region: Region) -> _Effect:
        first, found = region.first, walked(self.graph, region, self._gradients)

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
            tuple(self._place(first, self.graph.index[name]) for name in region.offloaded),
            tuple(self._relative(inner, first) for inner in region.inner),
        )

    def _alone(self, region: Region) -> Hashable:
        """What the stages of a region take, beside their values, where they are left alone."""
        leaves = (leaf for leaf in region.walk() if leaf.alone)
        stages = (x for leaf in leaves for x in self.graph.stages[leaf.first : leaf.last + 1])
        return tuple((stage.alone_bytes, stage.alone_seconds) for stage in stages)

    def _local(self, s: int) -> _Local:
        """The stage, reduced to what isomorphic stages share."""
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
            (
                x.nbytes,
                x.copies,
                x.savable,
                x.saving_seconds,
                x.reader and x.reader - s,
                graph.forward_writer[i][0] == s,
            )
            if i in graph.forward_writer
            else None
            for i, x in ((i, graph.values[i]) for i in number)
        )
        shared = tuple(i in graph.shared for i in number)
        varying = self._gradients[s].varying
        key = len(stage.forward), costs, pattern, values, shared, varying
        return _Local(self.shapes.number(key), tuple(number), number, linked)


def _waiting_seconds(graph: Graph, region: Region) -> float:
    """Seconds of copies that are not hidden, if all that hides copies hides these.

    Known limit: recomputation hides none, and of a region behind only the first stage does.
    """
    if not moved_bytes(graph, region):
        return 0.0
    forward, backward = hiding_seconds(graph, region.last) if region.ahead else (0.0, 0.0)
    return out_seconds(graph, region, forward) + back_seconds(graph, region, backward)


def _touched(op: Op) -> Iterator[int]:
    """The values that an op reads, in any implementation, and writes; some of them twice."""
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
