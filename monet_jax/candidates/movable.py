"""Says which values of a planning graph may wait in the host's memory, and over which link.

These are arrays of floats outside of branches that the backward of one stage reads: the stage that
writes them, or the one that takes them as its input. So there is one region that sends them and
fetches them again. In a loop both stages are of it: the stage that writes them may be of the
iteration before, or, for the first iteration, in front of the loop. What a `jax.checkpoint` of the
user's reads stays.
"""

import collections
import dataclasses
from collections.abc import Container, Mapping

from planners.graph import Graph, Link
from planners.regions.stage_program.needs import needs

from ..compiler.host import STACK_SLOTS, HostMemory
from ..ir import compat
from ..tracing.staged import StagedProgram

#: In bytes: smaller values stay on the device. To start a copy takes some ten microseconds, in
#: which PCIe 5 carries about as many; half or double would add or spare only such copies.
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
    readers = _readers(graph)
    looped, opaque = _names_in_iterations(staged), _read_by_checkpoints(staged)

    def may_leave(i: int) -> bool:
        is_stacked = _is_stacked(graph, looped, i, readers[i])
        return is_stacked and graph.values[i].name not in opaque and _may_leave(graph, staged, i)

    movable = {i for i in readers if may_leave(i)}
    values = tuple(
        dataclasses.replace(value, reader=readers[i]) if i in movable else value
        for i, value in enumerate(graph.values)
    )
    slots = STACK_SLOTS if staged.program.rewrite.waits_in_stacks else 1
    link = Link(host.out_bytes_per_second, host.back_bytes_per_second, host.budget_bytes, slots)
    return dataclasses.replace(graph, values=values, link=link)


def _readers(graph: Graph) -> dict[int, int]:
    """Forward value -> the one stage whose backward, or a recomputation for it, may read it."""
    found: dict[int, set[int]] = collections.defaultdict(set)
    for s in range(len(graph.stages)):
        stage = needs(graph, s)
        direct = {i for op in stage.backward for i in op.may_read if i in graph.forward_writer}
        for i in direct.union(stage.values, stage.outside):
            found[i].add(s)
    return {i: min(some) for i, some in found.items() if len(some) == 1}


def _may_leave(graph: Graph, staged: StagedProgram, i: int) -> bool:
    """Whether a value may leave the device: a large array of floats, not returned."""
    value, (s, o) = graph.values[i], graph.forward_writer[i]
    op = graph.stages[s].forward[o]
    is_alone = len(op.outputs) == 1 and op.recomputable and not op.optional
    if not is_alone or value.kept_as is not None or value.name not in staged.values:
        return False
    program, number = staged.program, staged.values[value.name]
    is_large_float = compat.is_float(program.avals[number]) and value.nbytes >= LEAST_BYTES
    return is_large_float and number not in program.outputs


def _is_stacked(graph: Graph, looped: Mapping[int, Container[str]], i: int, reader: int) -> bool:
    """Whether no branch and no loop lies between a value and its reader, or a loop stacks it.

    A loop stacks an iteration's own values, and what is carried to it; not its constants.
    """
    writer = graph.forward_writer[i][0]
    if graph.branch_of[writer] is not None or graph.branch_of[reader] is not None:
        return False
    return graph.values[i].name in looped[reader] if reader in looped else writer not in looped


def _read_by_checkpoints(staged: StagedProgram) -> set[str]:
    """Values that a `jax.checkpoint` of the user's reads, which keeps them as its own residuals."""
    equations = (e for stage in staged.stages for e in stage.equations)
    checkpoints = (e for e in equations if e.eqn.primitive is compat.remat_p)
    return {staged.names[i] for e in checkpoints for i in e.reads if i in staged.names}


def _names_in_iterations(staged: StagedProgram) -> dict[int, Container[str]]:
    """For each stage of a loop the values that its iteration writes, or that are carried to it."""
    found = {}
    for loop in staged.loops:
        for k in range(loop.blocks):
            first, names = loop.first + k * len(loop.stages), staged.names_in_body(loop, k)
            found |= dict.fromkeys(range(first, first + len(loop.stages)), names)
    return found
