"""Predicts the bytes of temporaries that XLA will assign to a schedule, without compiling it.

XLA places buffers in order of size, largest first (its `BufferAssigner`). A result of the program
has its own memory, but until it is written any temporary that fits may live there. A temporary that
finds no such place goes to the heap. So a step's temporaries are not its peak of live values: a
network's activations can lie where its weights' gradients will be. XLA:TPU keeps some on the chip.
"""

import bisect
import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from planners.graph import Graph
from planners.plan import Region
from planners.replay import Changes, in_memory
from planners.runs import Run, first_forward

from .schedule import Buffer, buffers_of

#: Disjoint intervals of runs, both ends included, in order.
_Spans = list[tuple[int, int]]


def predicted_temp_bytes(
    graph: Graph, regions: Sequence[Region], output_bytes: Mapping[str, int]
) -> int:
    """Bytes of temporaries of the compiled step.

    Arguments:
        graph: the step.
        regions: a plan's regions.
        output_bytes: name of a value that the step returns -> bytes of that result. The graph
            counts such values as nothing.
    """
    return predicted_peak(graph, regions, output_bytes)[0]


def predicted_peak(
    graph: Graph, regions: Sequence[Region], output_bytes: Mapping[str, int]
) -> tuple[int, int]:
    """Bytes of temporaries of the compiled step, and the stage that runs when they are most.

    Arguments are as in `predicted_temp_bytes`.
    """
    buffers, executed = buffers_of(graph, regions, output_bytes)
    heap, _ = _placed(buffers)
    live = _live_bytes(_off_chip(heap, executed, graph), executed)
    peak = int(live.argmax())
    return int(live[peak]), executed[peak].stage


def bytes_in_results(
    graph: Graph, regions: Sequence[Region], output_bytes: Mapping[str, int]
) -> list[int]:
    """For each stage, bytes of temporaries that lie in results throughout its backward.

    Arguments are as in `predicted_temp_bytes`.
    """
    buffers, executed = buffers_of(graph, regions, output_bytes)
    _, lent = _placed(buffers)
    live, least = _live_bytes(lent, executed).tolist(), dict[int, int]()
    start = first_forward(executed)
    for run, nbytes in zip(executed[start:], live[start:], strict=True):
        least[run.stage] = min(nbytes, least.get(run.stage, nbytes))
    return [least.get(s, 0) for s in range(len(graph.stages))]


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """A map from modelled to compiled temporaries, interpolated between some plans.

    Some of what recomputation takes beyond the model fades with it, so the difference is taken to
    be linear between two plans, and constant beyond them.

    Attributes:
        modelled, compiled: of the same plans, on all devices; both rise.
        devices: over how many devices the program is spread.
    """

    modelled: tuple[int, ...]
    compiled: tuple[int, ...]
    devices: int = 1

    def compiled_for(self, modelled: int) -> int:
        """Compiled temporaries of one device, from modelled ones of all."""
        difference = int(np.interp(modelled, self.modelled, self._differences))
        return max(0, modelled + difference) // self.devices

    def modelled_for(self, compiled: int) -> int:
        """The inverse of `compiled_for`."""
        compiled *= self.devices
        return compiled - int(np.interp(compiled, self.compiled, self._differences))

    @property
    def _differences(self) -> list[int]:
        return [c - m for m, c in zip(self.modelled, self.compiled, strict=True)]


def with_alone_bytes(graph: Graph, nbytes: int, counted: Collection[int] = ()) -> Graph:
    """The graph, `nbytes` more shared among its stages by what each keeps if it is left alone.

    What the `counted` stages keep is known to be counted elsewhere: they have no share. Negative
    `nbytes` are less of what stages keep beside their values, as far as that goes.
    """
    of_stages = np.array([stage.alone_bytes for stage in graph.stages], np.float64)
    if nbytes > 0:
        kept = [graph.kept_bytes(s, s) for s in range(len(graph.stages))]
        weights = of_stages + kept
        weights[list(counted)] = 0
    else:
        weights = of_stages
    shares = max(nbytes, -int(of_stages.sum())) * weights / (weights.sum() or 1.0)
    found = (of_stages + shares).astype(np.int64).tolist()
    stages = tuple(
        dataclasses.replace(stage, alone_bytes=nbytes)
        for stage, nbytes in zip(graph.stages, found, strict=True)
    )
    return dataclasses.replace(graph, stages=stages)


def _placed(buffers: Sequence[Buffer]) -> tuple[list[Buffer], list[Buffer]]:
    """The temporaries that take memory of their own, and those that lie in results."""
    homes: list[tuple[int, _Spans]] = []  # per result: when it is written, what lies there before
    heap, lent = [], []
    for buffer in sorted(buffers, key=_order_of_placement):
        if buffer.is_output:
            homes.append((buffer.start, []))
        elif not _finds_home(buffer, homes):
            heap.append(buffer)
        else:
            lent.append(buffer)
    return heap, lent


def _order_of_placement(buffer: Buffer) -> tuple[int, bool, int, int]:
    return -buffer.nbytes, not buffer.is_output, buffer.place, buffer.start


def _finds_home(buffer: Buffer, homes: Sequence[tuple[int, _Spans]]) -> bool:
    """Puts the buffer into the smallest result in whose memory nothing lives at the same time."""
    start, stop = buffer.start, buffer.stop
    for written, spans in reversed(homes):
        if stop >= written:  # a result lives until the end
            continue
        k = bisect.bisect(spans, (start, stop))
        if (k == 0 or spans[k - 1][1] < start) and (k == len(spans) or stop < spans[k][0]):
            spans.insert(k, (start, stop))
            return True
    return False


def _off_chip(buffers: list[Buffer], executed: Sequence[Run], graph: Graph) -> list[Buffer]:
    """The buffers in main memory: on the chip stay the shortest-lived, as many as find room."""
    if graph.chip is None:
        return buffers
    elapsed = np.cumsum([0.0, *(run.of(graph).seconds for run in executed)])
    lives = [0.0 if x.is_workspace else elapsed[x.stop + 1] - elapsed[x.start] for x in buffers]
    free, found = np.full(len(executed), graph.chip.nbytes), list[Buffer]()
    for n in np.argsort(lives, kind="stable").tolist():
        buffer = buffers[n]
        room = free[buffer.start : buffer.stop + 1]
        if lives[n] <= graph.chip.seconds and buffer.nbytes <= room.min():
            room -= buffer.nbytes
        else:
            found.append(buffer)
    return found


def _live_bytes(buffers: Sequence[Buffer], executed: Sequence[Run]) -> np.ndarray:
    """Bytes of buffers during each run."""
    changes: Changes = collections.defaultdict(lambda: np.zeros(len(executed) + 2, np.int64))
    for buffer in buffers:
        changes[buffer.branch][buffer.start] += buffer.nbytes
        changes[buffer.branch][buffer.stop + 1] -= buffer.nbytes
    return in_memory(changes, np.array([run.stage for run in executed]))
