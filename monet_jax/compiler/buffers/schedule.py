"""The buffers of a schedule: which arrays a compiled step makes, and when each is live.

What iterations of a loop keep for their backward lies in stacks, one for each value of a run of
iterations that one body runs. What is carried into an iteration is in the stack of that one; what
an iteration saves of its own is in another, though it may be the same value.
"""

import collections
import dataclasses
import itertools as it
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from planners.graph import Choice, Graph, Op
from planners.plan import Region
from planners.regions.iterations import places_in_loops, written_last
from planners.runs import Run, first_forward, runs, spans_alone

from ...ir.primitives import Kind, traits_of

#: Stage -> the last run that reads a value there.
_Reads = dict[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """An array of a schedule, live while runs `start` to `stop` execute.

    The buffer of a branch is live only where that branch runs. Results of one size are placed in
    the order in which the step returns them. What an op needs only while it runs, the body of a
    loop say, is one for each iteration, and short-lived.
    """

    nbytes: int
    start: int
    stop: int
    is_output: bool
    branch: tuple[Choice, int] | None = None
    place: int = 0
    is_workspace: bool = False


def buffers_of(
    graph: Graph, regions: Sequence[Region], output_bytes: Mapping[str, int]
) -> tuple[list[Buffer], Sequence[Run]]:
    """The buffers, and the runs.

    Arguments are as in `model.predicted_temp_bytes`.
    """
    executed = runs(graph, tuple(regions))
    schedule = [run.of(graph) for run in executed]
    end, number = first_forward(executed), written_last(graph)
    in_loops = places_in_loops(graph, regions, number)
    early = _with_early_zeros(graph, in_loops)
    open_at: dict[int, tuple[int, int, _Reads]] = {}  # value -> stage and run that wrote it, reads
    shared: dict[int, list[Buffer]] = {v.kept_as: [] for v in graph.values if v.kept_as is not None}
    found: list[Buffer] = []
    stacks: dict[Hashable, list[Buffer]] = collections.defaultdict(list)
    places = {name: n for n, name in enumerate(output_bytes)}

    def close(i: int) -> None:
        stage, start, reads = open_at[i]
        value, stop = graph.values[i], max(reads.values(), default=start)
        waits = start < end <= stop
        nbytes = value.waiting_bytes if waits else value.nbytes
        kept = i if value.kept_as is None else value.kept_as
        branch = graph.branch_of_all({stage, *reads}) if graph.choices else None
        if kept in shared:
            nbytes = graph.values[kept].nbytes
            shared[kept].append(Buffer(nbytes, start, stop, False, branch))
        elif value.name in output_bytes:
            nbytes, place = output_bytes[value.name], places[value.name]
            is_table = graph.zeros_first and schedule[start].name == "scatter-add"
            begun = 0 if is_table or stage in early else start
            found.append(Buffer(nbytes, begun, len(schedule), True, place=place))
        elif nbytes and waits and stage in in_loops:
            late = {s: k for s, k in reads.items() if k >= end}
            for stack, last in _stacks_with(in_loops, (stage, number[i]), late):
                stacks[stack].append(Buffer(nbytes, start, last, False, branch))
        elif nbytes:
            found.append(Buffer(nbytes, start, stop, False, branch))

    for k, op in enumerate(schedule):
        stage = executed[k].stage
        for i in op.inputs:
            open_at[i][2][stage] = k
        if op.workspace_bytes > 0:
            found.append(Buffer(op.workspace_bytes, k, k, False, is_workspace=True))
        for i in op.outputs:
            if i in open_at:
                close(i)
            open_at[i] = stage, k, {}
    for i in open_at:
        close(i)
    found += map(_whole, stacks.values())
    for same in shared.values():
        found += _kept_once(same)
    found += _kept_alone(graph, regions, executed)
    found += _kept_again(graph, executed, schedule)
    found += _sliced(graph, executed) if graph.loops else ()
    found += _counters(schedule, [in_loops.get(run.stage, (None,))[0] for run in executed], end)
    reused = {k: -op.workspace_bytes for k, op in enumerate(schedule)}
    elementwise = {k for k, op in enumerate(schedule) if _is_elementwise(op.name)}
    return begun_in_results(_written_over(found, reused), elementwise), executed


def _with_early_zeros(graph: Graph, in_loops: Mapping[int, tuple[int, int]]) -> set[int]:
    """The stages of loops whose gradients' memory is taken from the step's beginning on."""
    found = set[int]()
    for loop in graph.loops:
        stages = range(loop.first, loop.stop)
        if loop.zeros_first and all(in_loops[s][0] == loop.first for s in stages):
            found.update(stages)
    return found


def _stacks_with(
    in_loops: Mapping[int, tuple[int, int]], written: tuple[int, int], late: _Reads
) -> Iterator[tuple[Hashable, int]]:
    """The stacks of a loop that hold a value, and the last run that reads it there.

    Arguments:
        in_loops: by `places_in_loops`.
        written: the stage that writes the value, in a loop, and its number there.
        late: the runs of the backward that read it.
    """
    s, number = written
    _, place = in_loops[s]
    last: dict[Hashable, int] = {}
    for t, k in late.items():
        stack: Hashable = "behind", s, number  # no stack: a result of the last iteration
        if t in in_loops:
            run, reader = in_loops[t]
            is_own = t - reader == s - place
            stack = "own" if is_own else "carried", run, place, number
        last[stack] = max(last.get(stack, 0), k)
    yield from last.items()


def _whole(parts: Sequence[Buffer]) -> Buffer:
    """The stack of what the iterations of a loop keep, which a compiler places as a whole."""
    return dataclasses.replace(
        parts[0],
        nbytes=sum(part.nbytes for part in parts),
        start=min(part.start for part in parts),
        stop=max(part.stop for part in parts),
    )


def _counters(schedule: Sequence[Op], loops: Sequence[int | None], end: int) -> Iterator[Buffer]:
    """The counters of random bits that loops draw, each live from the first such loop to the last.

    Arguments:
        schedule: the ops that run.
        loops: for each run, the loop that it is in; loops run forward and backward.
        end: the first run of the backward.
    """
    bounds: dict[int, tuple[int, int]] = {}
    for (loop, _), found in it.groupby(range(len(loops)), key=lambda k: (loops[k], k < end)):
        inside = [*found]
        for nbytes in {schedule[k].counter_bytes for k in inside} if loop is not None else ():
            start, _ = bounds.get(nbytes, (inside[0], 0))
            bounds[nbytes] = start, inside[-1]
    return (
        Buffer(nbytes, start, stop, False) for nbytes, (start, stop) in bounds.items() if nbytes
    )


def _kept_once(same: Sequence[Buffer]) -> list[Buffer]:
    """Buffers of the same contents, where one stands for all that are live at a time."""
    found: list[Buffer] = []
    for buffer in sorted(same, key=lambda b: b.start):
        if not found or found[-1].stop < buffer.start:
            found.append(buffer)
            continue
        last = found[-1]
        branch = last.branch if last.branch == buffer.branch else None
        stop = max(last.stop, buffer.stop)
        found[-1] = dataclasses.replace(last, stop=stop, branch=branch)
    return found


def _kept_alone(graph: Graph, regions: Sequence[Region], executed: Sequence[Run]) -> list[Buffer]:
    """What the stages that are left alone keep beside their values."""
    return [
        Buffer(graph.stages[s].alone_bytes, start, stop, False, branch=graph.branch_of[s])
        for s, start, stop in spans_alone(regions, executed)
    ]


def _kept_again(graph: Graph, executed: Sequence[Run], schedule: Sequence[Op]) -> Iterator[Buffer]:
    """What ops that run again keep for the backward that follows, beside their outputs."""
    again = [k for k, op in enumerate(schedule) if op.kept_again and executed[k].depth]
    if not again:
        return
    later = {(x.stage, x.depth, x.op): k for k, x in enumerate(executed) if x.phase == "backward"}
    for k in again:
        stage, depth = executed[k].stage, executed[k].depth
        for nbytes, reader in schedule[k].kept_again:
            if (stage, depth, reader) in later:
                stop = later[stage, depth, reader]
                yield Buffer(nbytes, k, stop, False, branch=graph.branch_of[stage])


def _sliced(graph: Graph, executed: Sequence[Run]) -> Iterator[Buffer]:
    """Copies of slices of a loop's operands, made at the start of an iteration's backward."""
    iteration = {s: t for t, stop in graph.spans for s in range(t, stop)}
    start, stop = dict[int, int](), dict[int, int]()
    for k, run in enumerate(executed):
        if run.depth:
            start.setdefault(iteration[run.stage], k)
            stop[run.stage] = k
    for s, last in stop.items():
        if nbytes := graph.stages[s].sliced_bytes:
            yield Buffer(nbytes, start[iteration[s]], last, False, branch=graph.branch_of[s])


def _written_over(buffers: list[Buffer], reused_bytes: Mapping[int, int]) -> list[Buffer]:
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


def begun_in_results(buffers: list[Buffer], elementwise: Collection[int]) -> list[Buffer]:
    """The buffers; a result that an elementwise op writes over its operand begins as the operand.

    A gradient that is scaled or added up last of all lies in the memory of the result from its
    first part on.
    """
    ending: dict[tuple[int, int], list[Buffer]] = collections.defaultdict(list)
    for buffer in buffers:
        is_read = buffer.start < buffer.stop and buffer.stop in elementwise
        if is_read and not (buffer.is_output or buffer.branch):
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
