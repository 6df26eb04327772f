"""Adds loops to a planning graph.

The results that a loop collects in slices are values of the graph, in memory throughout the loop.
So are the gradients of the operands that it takes in slices.
"""

import dataclasses
from collections.abc import Sequence

from planners.graph import Graph, Op, Value
from planners.graph import Loop as PlannerLoop

from ..compiler.backend import Backend
from ..seconds.prices import Prices
from ..tracing.conditionals import walk
from ..tracing.staged import Loop, StagedProgram
from .fusion import reads_whole
from .graph_state import GraphState, added
from .joint import Joint
from .step_costs import copying_seconds

#: Copies that it takes to save a value of a loop by its name. Where an iteration is left alone, it
#: is one: there more ops write straight into the stack.
BY_NAME = 2


def iterations_of(loop: Loop, backend: Backend) -> PlannerLoop:
    """A loop for planners. Where something is hoisted, its derivative is our own in any case."""
    zeros_first = backend.zeroes_results_first and not loop.hoists
    return PlannerLoop(loop.first, len(loop.stages), loop.blocks, zeros_first)


def expect_loop(state: GraphState, loop: Loop) -> None:
    """Record what a loop will return, and count the gradients that it will add to."""
    state.returned.update(i for result, i in loop.carried if result in state.returned)
    sliced = {v for stage in loop.stages for v in stage.differentiated_inputs}
    for choice in reversed([*walk(loop.body.choices)]):
        for branch in choice.branches:
            pairs = zip(choice.operands, branch.inputs, strict=True)
            sliced.update(i for i, v in pairs if v in sliced and isinstance(i, int))
    for i in {i for i, _ in loop.stacked}:
        state.pending[i] = state.pending.get(i, 0) + 1
    state.active.update(i for i, v in loop.stacked if v in sliced)


def open_loop(state: GraphState, loop: Loop, first: Joint) -> list[Op]:
    """What runs before a loop: its stacked results are in memory from here on.

    `first` is the joint program of its first stage.
    """
    state.repeats = 1
    for i, v in loop.stacked:
        if i in state.index:
            state.index |= {loop.atom(k, v): state.index[i] for k in range(loop.blocks)}
    ops = []
    for i, _ in loop.collected:
        state.index[i] = state.new(state.program.nbytes(i), i in state.returned)
        ops.append(Op("empty", (), (state.index[i],), 0.0))
    return ops + _hoist(state, loop, first)


def close_loop(state: GraphState, loop: Loop) -> None:
    """After a loop: the last iteration's carry becomes the result."""
    state.forwards[-1] += _drop_hoisted(state, loop)
    state.index |= {result: state.index[i] for result, i in loop.carried if i in state.index}


def open_loop_backward(state: GraphState, loop: Loop, first: Joint) -> list[Op]:
    """What runs before a loop's backward: gradients of stacked operands are live from here on."""
    state.repeats = 1
    for result, i in loop.carried:
        if result in state.gradients:
            state.gradients[i] = state.gradients[result]
    for result, v in loop.collected:
        # In the first block, what is carried into the loop may be a literal.
        atoms = (loop.atom(k, v) for k in range(loop.blocks))
        for i in atoms if result in state.gradients else ():
            if isinstance(i, int):
                state.gradients.setdefault(i, state.gradients[result])
    ops = []
    for i in dict.fromkeys(i for i, _ in loop.stacked if i in state.active):
        is_last = state.pending[i] == 1 and i not in state.gradients
        final = i in state.arguments and is_last
        state.buffers[i] = state.new(state.program.nbytes(i), returned=final)
        ops.append(Op("zeros", (), (state.buffers[i],), 0.0))
    return ops + _hoist(state, loop, first)


def close_loop_backward(state: GraphState, loop: Loop) -> None:
    """After a loop's backward: gradients of stacked operands join later stages' gradients."""
    ops = state.backwards[-1]
    ops += _drop_hoisted(state, loop)
    for i in {i for i, _ in loop.stacked}:
        state.pending[i] -= 1
        if i not in state.buffers:
            continue
        buffer = state.buffers.pop(i)
        ops.append(Op("stacked", (buffer,), (), 0.0))
        state.gradients[i] = added(state, i, buffer, ops)


def price_saving(state: GraphState, values: list[Value], prices: Prices) -> None:
    """Price what loops may save: it is copied into a stack, and where need be out of it.

    Arguments:
        state: of the graph.
        values: of the graph; those that loops write are replaced.
        prices: of copies.
    """
    every = [op for ops in (*state.forwards, *state.backwards) for op in ops]
    whole = {i for op in every if reads_whole(op.name, state.backend) for i in op.inputs}
    loops = state.staged.loops
    inside = (op for x in loops for s in range(x.first, x.stop) for op in state.forwards[s])
    for i in (i for op in inside for i in op.outputs):
        if values[i].kept_as is None:
            copies = values[i].copies * (BY_NAME + (i in whole))
            seconds = copies * copying_seconds(values[i].nbytes, prices)
            values[i] = dataclasses.replace(values[i], saving_seconds=seconds)


def with_stacks(
    graph: Graph, staged: StagedProgram, joints: Sequence[Joint], prices: Prices
) -> Graph:
    """The graph; an iteration's stage that is left alone stacks all that JAX saves of it."""
    stages = list(graph.stages)
    for s in sorted(graph.looped):
        repeats = staged.stages[s].repeats
        kept = graph.kept_bytes(s, s)
        nbytes = max(0, repeats * joints[s].residual_bytes - kept)
        more = repeats * joints[s].residual_seconds + copying_seconds(nbytes, prices)
        seconds = max(0.0, more - (BY_NAME - 1) * copying_seconds(kept, prices))
        stages[s] = dataclasses.replace(stages[s], alone_bytes=nbytes, alone_seconds=seconds)
    return dataclasses.replace(graph, stages=tuple(stages))


def with_slices(
    graph: Graph, staged: StagedProgram, joints: Sequence[Joint], backend: Backend
) -> Graph:
    """The graph; products and the like read copies of the slices that a loop takes of stacks."""
    stages = list(graph.stages)
    for loop in staged.loops:
        sliced = {loop.atom(k, v) for k in range(loop.blocks) for _, v in loop.stacked}
        for s in range(loop.first, loop.stop):
            joint = joints[s]
            whole = {i for op in joint.ops if reads_whole(op.primitive, backend) for i in op.inputs}
            given = zip(staged.stages[s].inputs, joint.inputs, strict=True)
            nbytes = sum(joint.program.nbytes(j) for i, j in given if i in sliced and j in whole)
            stages[s] = dataclasses.replace(stages[s], sliced_bytes=nbytes)
    return dataclasses.replace(graph, stages=tuple(stages))


def _hoist(state: GraphState, loop: Loop, first: Joint) -> list[Op]:
    """The op that computes what is hoisted out of a loop; the result is live until its end."""
    if not loop.hoists:
        return []
    own = [op for op in first.ops if op.forward]
    nbytes = sum(first.program.nbytes(j) for op in own for j in op.outputs)
    state.hoisted = state.new(nbytes)
    seconds, flops = sum(op.seconds for op in own), sum(op.flops for op in own)
    return [Op("hoist", (), (state.hoisted,), seconds, flops)]


def _drop_hoisted(state: GraphState, loop: Loop) -> list[Op]:
    return [Op("hoisted", (state.hoisted,), (), 0.0)] if loop.hoists else []
