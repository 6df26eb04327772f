"""Predicts the bytes of temporaries that XLA will assign to a schedule, without compiling it.

XLA places buffers in order of size, largest first (its `BufferAssigner`). A result of the program
has its own memory, but until it is written any temporary that fits may live there. A temporary that
finds no such place goes to the heap. So a step's temporaries are not its peak of live values: a
network's activations can lie where its weights' gradients will be.
"""

import bisect
import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from planners.graph import Choice, Graph
from planners.plan import Region
from planners.replay import Changes, in_memory
from planners.runs import Run, first_forward, runs, spans_alone

from ..ir.primitives import Kind, traits_of


@dataclasses.dataclass(frozen=True, slots=True)
class _Buffer:
    """An array of a schedule, live while runs `start` to `stop` execute.

    The compiler places a stack as a whole; a part of it reuses no other buffer by itself.
    The buffer of a branch is live only where that branch runs. Results of one size are placed in
    the order in which the step returns them.
    """

    nbytes: int
    start: int
    stop: int
    is_output: bool
    is_stacked: bool = False
    branch: tuple[Choice, int] | None = None
    place: int = 0


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
    buffers, executed = _buffers(graph, regions, output_bytes)
    heap, _ = _placed(buffers)
    return int(_live_bytes(heap, executed).max(initial=0))


def bytes_in_results(
    graph: Graph, regions: Sequence[Region], output_bytes: Mapping[str, int]
) -> list[int]:
    """For each stage, bytes of temporaries that lie in results throughout its backward.

    Arguments are as in `predicted_temp_bytes`.
    """
    buffers, executed = _buffers(graph, regions, output_bytes)
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


def _placed(buffers: Sequence[_Buffer]) -> tuple[list[_Buffer], list[_Buffer]]:
    """The temporaries that take memory of their own, and those that lie in results."""
    homes: list[tuple[int, _Spans]] = []  # per result: when it is written, what lies there before
    heap, lent = [], []
    for buffer in sorted(buffers, key=_order_of_placement):
        if buffer.is_output:
            homes.append((buffer.start, []))
        elif buffer.is_stacked or not _finds_home(buffer, homes):
            heap.append(buffer)
        else:
            lent.append(buffer)
    return heap, lent


def _order_of_placement(buffer: _Buffer) -> tuple[int, bool, int, int]:
    return -buffer.nbytes, not buffer.is_output, buffer.place, buffer.start


def _finds_home(buffer: _Buffer, homes: Sequence[tuple[int, _Spans]]) -> bool:
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


def _buffers(graph: Graph, regions, output_bytes) -> tuple[list[_Buffer], Sequence[Run]]:
    """The buffers, and the runs."""
    executed = runs(graph, tuple(regions))
    schedule = [run.of(graph) for run in executed]
    open_at: dict[int, tuple[int, int]] = {}  # value -> run that wrote it, last run that read it
    end = first_forward(executed)
    in_loops = {i for i, (s, _) in graph.forward_writer.items() if s in graph.looped}
    used_in: dict[int, set[int]] = {}  # value -> the stages that wrote or read it
    shared: dict[int, list[_Buffer]] = {
        v.kept_as: [] for v in graph.values if v.kept_as is not None
    }
    found: list[_Buffer] = []
    places = {name: n for n, name in enumerate(output_bytes)}

    def close(i: int) -> None:
        start, stop = open_at[i]
        value = graph.values[i]
        waits = start < end <= stop
        nbytes = value.waiting_bytes if waits else value.nbytes
        kept = i if value.kept_as is None else value.kept_as
        if kept in shared:
            branch = graph.branch_of_all(used_in[i])
            nbytes = graph.values[kept].nbytes
            shared[kept].append(_Buffer(nbytes, start, stop, False, branch=branch))
        elif value.name in output_bytes:
            nbytes = output_bytes[value.name]
            place = places[value.name]
            found.append(_Buffer(nbytes, start, len(schedule), True, place=place))
        elif nbytes:
            branch = graph.branch_of_all(used_in[i]) if graph.choices else None
            is_stacked = waits and i in in_loops
            found.append(_Buffer(nbytes, start, stop, False, is_stacked, branch))

    for k, op in enumerate(schedule):
        for i in op.inputs:
            open_at[i] = open_at[i][0], k
            used_in[i].add(executed[k].stage)
        if op.workspace_bytes > 0:
            found.append(_Buffer(op.workspace_bytes, k, k, False))
        for i in op.outputs:
            if i in open_at:
                close(i)
            open_at[i], used_in[i] = (k, k), {executed[k].stage}
    for i in open_at:
        close(i)
    for same in shared.values():
        found += _kept_once(same)
    found += _kept_alone(graph, regions, executed)
    reused = {k: -op.workspace_bytes for k, op in enumerate(schedule)}
    elementwise = {k for k, op in enumerate(schedule) if _is_elementwise(op.name)}
    buffers = begun_in_results(_written_over(found, reused), elementwise)
    return buffers, executed


def _kept_once(same: Sequence[_Buffer]) -> list[_Buffer]:
    """Buffers of the same contents, where one stands for all that are live at a time."""
    found: list[_Buffer] = []
    for buffer in sorted(same, key=lambda b: b.start):
        if not found or found[-1].stop < buffer.start:
            found.append(buffer)
            continue
        last = found[-1]
        branch = last.branch if last.branch == buffer.branch else None
        stop = max(last.stop, buffer.stop)
        found[-1] = dataclasses.replace(last, stop=stop, branch=branch)
    return found


def _kept_alone(graph: Graph, regions: Sequence[Region], executed: Sequence[Run]) -> list[_Buffer]:
    """What the stages that are left alone keep beside their values."""
    return [
        _Buffer(graph.stages[s].alone_bytes, start, stop, False, branch=graph.branch_of[s])
        for s, start, stop in spans_alone(regions, executed)
    ]


def _written_over(buffers: list[_Buffer], reused_bytes: Mapping[int, int]) -> list[_Buffer]:
    """The buffers; those that an op writes its output over end just before it."""
    free = dict(reused_bytes)
    found = []
    for buffer in buffers:
        is_input = not buffer.is_output and buffer.start < buffer.stop
        if is_input and 0 < free[buffer.stop] <= buffer.nbytes:
            free[buffer.stop] = 0
            buffer = dataclasses.replace(buffer, stop=buffer.stop - 1)
        found.append(buffer)
    return found


def _is_elementwise(primitive: str) -> bool:
    return traits_of(primitive).kind is Kind.FUSED


def begun_in_results(buffers: list[_Buffer], elementwise: Collection[int]) -> list[_Buffer]:
    """The buffers; a result that an elementwise op writes over its operand begins as the operand.

    A gradient that is scaled or added up last of all lies in the memory of the result from its
    first part on.
    """
    ending: dict[tuple[int, int], list[_Buffer]] = collections.defaultdict(list)
    for buffer in buffers:
        is_read = buffer.start < buffer.stop and buffer.stop in elementwise
        if is_read and not (buffer.is_output or buffer.is_stacked or buffer.branch):
            ending[buffer.stop, buffer.nbytes].append(buffer)
    merged, found = set[int](), []
    for buffer in buffers:
        while buffer.is_output and buffer.start in elementwise:
            operands = ending[buffer.start, buffer.nbytes]
            if not operands:
                break
            operand = operands.pop()
            merged.add(id(operand))
            buffer = dataclasses.replace(buffer, start=operand.start)
        found.append(buffer)
    return [buffer for buffer in found if id(buffer) not in merged]


def _live_bytes(buffers: Sequence[_Buffer], executed: Sequence[Run]) -> np.ndarray:
    """Bytes of buffers during each run."""
    changes: Changes = collections.defaultdict(lambda: np.zeros(len(executed) + 2, np.int64))
    for buffer in buffers:
        changes[buffer.branch][buffer.start] += buffer.nbytes
        changes[buffer.branch][buffer.stop + 1] -= buffer.nbytes
    return in_memory(changes, np.array([run.stage for run in executed]))
