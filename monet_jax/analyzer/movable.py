"""Says which values of a planning graph may wait in the host's memory, and over which link.

These are arrays of floats outside of loops and branches that the backward of one stage reads: the
stage that writes them, or the one that takes them as its input. So there is one region that sends
them and fetches them again.
"""

import collections
import dataclasses

from planners.graph import Graph, Link

from ..compiler.host import HostMemory
from ..ir import compat
from ..tracing.staged import StagedProgram

#: Smaller values stay on the device. To start a copy takes some ten microseconds, in which PCIe 5
#: carries this many bytes. With half or twice as many the zoo's plans are the same.
LEAST_BYTES = 2**19


def with_host(graph: Graph, staged: StagedProgram, host: HostMemory | None) -> Graph:
    """The graph, whose plans may move values to the host's memory, as far as that is allowed.

    Arguments:
        graph: of the program.
        staged: the program.
        host: its memory; None where nothing may be moved.
    """
    if host is None or not host.allows("activations"):
        return graph
    movable = _movable(graph, staged)
    values = tuple(
        dataclasses.replace(value, movable=i in movable) for i, value in enumerate(graph.values)
    )
    link = Link(host.out_bytes_per_second, host.back_bytes_per_second, host.budget_bytes)
    return dataclasses.replace(graph, values=values, link=link)


def _movable(graph: Graph, staged: StagedProgram) -> set[int]:
    """The values that may be moved."""
    program = staged.program
    returned = {i for i in program.outputs if isinstance(i, int)}
    inside = graph.looped | {s for s, branch in enumerate(graph.branch_of) if branch is not None}
    readers: dict[int, set[int]] = collections.defaultdict(set)
    backward: dict[int, set[int]] = collections.defaultdict(set)
    for s, stage in enumerate(graph.stages):
        for op in (*stage.forward, *stage.backward):
            for i in op.may_read:
                readers[i].add(s)
        for op in stage.backward:
            for i in op.may_read:
                backward[i].add(s)
    found = set()
    for i, (s, o) in graph.forward_writer.items():
        value, op = graph.values[i], graph.stages[s].forward[o]
        others = readers[i] - {s}
        is_alone = len(op.outputs) == 1 and op.recomputable and not op.optional
        is_read_once = len(others) <= 1 and not (others and s in backward[i])
        if not (is_alone and is_read_once and value.name in staged.values):
            continue
        number = staged.values[value.name]
        is_float = compat.is_float(program.avals[number]) and value.nbytes >= LEAST_BYTES
        may_leave = value.kept_as is None and number not in returned
        if is_float and may_leave and inside.isdisjoint({s, *others}):
            found.add(i)
    return found
