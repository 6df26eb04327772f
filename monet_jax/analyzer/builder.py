"""Adds stages to a planning graph: forward in order, then backward in reverse order.

Cotangents of a value are added up in backward order.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from planners.graph import Implementation, Op

from ..ir.primitives import traits_of
from ..ir.stage import Stage
from .graph_state import GraphState, Place, added
from .inverse import Line
from .joint import Joint, LocalOp


def add_forward(
    state: GraphState, stage: Stage, template: Stage, joint: Joint, place: Place, before: list[Op]
) -> None:
    """Add a stage's forward ops, behind some others."""
    state.repeats, state.place = 0 if stage.hoisted else stage.repeats, place
    local = {
        j: state.index[i]
        for j, i in zip(joint.inputs, stage.inputs, strict=True)
        if i in state.index
    }
    primal = _renumbered(joint.primal, template, stage)
    first = [op for op in joint.ops if op.forward]
    ops = [_add_op(state, op, joint, local, primal) for op in first]
    _note_lines(state, first, ops, template, stage)
    for i, j in zip(stage.outputs, joint.outputs, strict=True):
        if j in local:
            state.index[i] = local[j]
    for i in stage.differentiated_inputs:
        state.pending[i] = state.pending.get(i, 0) + 1
    state.forwards.append(before + ops)
    state.locals.append(local)


def add_backward(
    state: GraphState, stage: Stage, template: Stage, joint: Joint, place: Place, before: list[Op]
) -> None:
    """Add a stage's backward ops, and add its gradients to the gradients of later stages."""
    state.repeats, state.place = stage.repeats, place
    local = state.locals.pop()
    for j, i in zip(joint.cotangents, stage.differentiated_outputs, strict=True):
        if i in state.gradients:
            local[j] = state.gradients[i]
    free = _results(state, stage, joint)
    later = [op for op in joint.ops if not op.forward]
    ops = [_add_op(state, op, joint, local, {}, free) for op in later]
    _note_lines(state, later, ops, template, stage)
    ops += [Op("effect", (i,), (), 0.0) for i in state.effects.pop(len(state.locals), ())]
    state.backwards.append(before + ops + _accumulate(state, stage, joint, local))


def _results(state: GraphState, stage: Stage, joint: Joint) -> set[int]:
    """Joint values that lie in the step's results: final gradients of arguments, and first parts.

    To the first part of a gradient the others are added where it lies; unless it is computed inside
    that sum, from something smaller that waits.
    """
    pairs = zip(stage.differentiated_inputs, joint.gradients, strict=True)
    first = {j: i for i, j in pairs if i in state.arguments and i not in state.gradients}
    inside = fused_into_sums(joint) - {i for op in joint.ops if op.reused_bytes for i in op.outputs}
    return {
        j for j, i in first.items() if j is not None and (state.pending[i] == 1 or j not in inside)
    }


def _accumulate(state: GraphState, stage: Stage, joint: Joint, local: dict[int, int]) -> list[Op]:
    ops: list[Op] = []
    fused = fused_into_sums(joint)
    for i, j in zip(stage.differentiated_inputs, joint.gradients, strict=True):
        state.pending[i] -= 1
        if j not in local:
            continue  # zero, or a cotangent that is an argument
        if i in state.gradients and j in fused:
            state.fuse(local[j])
        state.gradients[i] = added(state, i, local[j], ops)
    return ops


def fused_into_sums(joint: Joint) -> set[int]:
    """Gradients that XLA computes inside the sums that they enter: elementwise, read by no op."""
    read = {i for op in joint.ops for i in op.inputs}
    return {
        i
        for op in joint.ops
        if op.in_place and not op.forward and not traits_of(op.primitive).updates_in_place
        for i in op.outputs
        if i not in read and joint.gradients.count(i) == 1
    }


def _add_op(
    state: GraphState, op: LocalOp, joint: Joint, local, primal: dict[int, int], free=()
) -> Op:
    for j in op.outputs:
        i = primal.get(j)
        if i is None or j in joint.fleeting:
            local[j] = state.new(joint.program.nbytes(j), returned=j in free)
        else:
            local[j] = state.named(i)
    inputs = tuple(sorted({local[j] for j in op.inputs if j in local}))
    outputs = tuple(local[j] for j in op.outputs)
    avals = (joint.program.avals[j] for j in op.outputs)
    state.narrow.update(i for i, a in zip(outputs, avals, strict=True) if a.dtype == jnp.float32)
    if not op.optional:  # what an encoder reads is not kept for it
        state.wide.update({*inputs} - {local[j] for j in op.narrowed if j in local})
    implementations = [(w, {local[j] for j in w.inputs if j in local}) for w in op.implementations]
    reused_bytes = min(op.reused_bytes, state.total(inputs), state.total(outputs))
    if op.has_effects:
        outputs += (state.effect(),)
    seconds = op.seconds * state.repeats * state.place.odds
    # XLA computes what is loop-invariant once, before the loop; but not in an iteration that runs
    # again, whose operands have passed a barrier.
    is_fixed = bool(op.outputs) and all(
        primal.get(j) in state.staged.invariant_values for j in op.outputs
    )
    once = op.forward and is_fixed and state.repeats > 1 and not op.optional
    spared = seconds - seconds / state.repeats if once else 0.0
    state.spared_seconds += spared
    if op.priced_by and not op.optional:  # it runs in any case
        known = state.seconds_by_source
        known[op.priced_by] = known.get(op.priced_by, 0.0) + seconds - spared
    may_rerun = op.recomputable and all(state.pin(primal, j) != "save" for j in op.outputs)
    return Op(
        op.primitive,
        inputs,
        outputs,
        seconds,
        int(op.flops * state.repeats * state.place.odds),
        op.workspace_bytes - reused_bytes,
        may_rerun,
        tuple(
            Implementation(
                tuple(sorted(reads)),
                implementation.seconds * state.repeats * state.place.odds,
                int(implementation.flops * state.repeats * state.place.odds),
                op.workspace_bytes - reused_bytes + implementation.more_bytes,
            )
            for implementation, reads in implementations
        ),
        op.optional,
        counter_bytes=op.counter_bytes,
        kept_again=op.kept_again,
    )


def _note_lines(
    state: GraphState, local: Sequence[LocalOp], ops: Sequence[Op], template: Stage, stage: Stage
) -> None:
    """Record the source lines of values that have no name in the program."""
    for one, op in zip(local, ops, strict=True):
        line = Line(template, stage, one.source)
        names = (state.values[i].name for i in op.outputs)
        state.lines.update((name, line) for name in names if name not in state.staged.values)


def _renumbered(primal: dict[int, int], template: Stage, stage: Stage) -> dict[int, int]:
    """`primal` of a template's joint, for an isomorphic stage."""
    old = (i for e in template.equations for i in e.outputs)
    new = (i for e in stage.equations for i in e.outputs)
    translation = dict(zip(old, new, strict=True))
    return {j: translation[i] for j, i in primal.items()}
