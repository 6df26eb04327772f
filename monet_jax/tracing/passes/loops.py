"""Unrolls loops into blocks of iterations, each with stages of its own.

To the planner a `lax.scan` looks unrolled: each iteration has stages and values of its own, so that
"the first seven recompute, the others save" is a plan like any other. The body is cut into stages
once. In a long loop, all iterations of a block share one plan, and one iteration stands for its
block. `transformer/scan` rolls up again what has the same plan. Where forward mode must work, a
loop is one block: it is a plain `lax.scan` then.

Known limit: of what is carried through the iterations of a loop's first block, one copy is counted.
"""

import dataclasses
import functools
from collections.abc import Sequence

from ...ir import compat
from ...ir.program import Equation, Program, dependents
from ...ir.stage import Differentiation, active_values
from ..conditionals import Choice, renamed_stage, walk
from ..staged import Loop, StagedProgram
from .draft import Draft, Listed, Listing, Place, Planned, is_in

#: Blocks of one loop, and stages of all of them, at most; but there are two blocks at least, unless
#: forward mode has to work.
MAX_BLOCKS, MAX_STAGES = 16, 128


def may_be_planned(equation: Equation, active: frozenset[int]) -> bool:
    """Whether an equation is a scan that can be run again, and in parts."""
    if equation.primitive != "scan" or compat.has_effects(equation.eqn):
        return False
    if equation.eqn.params["length"] < 2:
        return False
    if not active.intersection(equation.outputs) or not active.intersection(equation.reads):
        return False
    _, carry, _ = compat.scan_counts(equation.eqn)
    collects_keys = any(compat.is_key(var.aval) for var in equation.eqn.outvars[carry:])
    return not collects_keys and not equation.eqn.params["jaxpr"].consts


def unroll_loops(draft: Draft) -> None:
    """Lists the stages of all blocks of planned loops."""
    for n, piece in enumerate(draft.pieces):
        if isinstance(piece, Planned) and piece.equation.primitive == "scan":
            draft.pieces[n] = _unrolled(draft, piece.equation)


def _unrolled(draft: Draft, equation: Equation) -> Listed:
    """A loop with the stages of its blocks."""
    body = _staged_body(draft, equation)
    loop = _in_blocks(draft, equation, body)
    draft.keeps_other |= body.program.keeps_other or loop.hoists
    draft.invariant_values |= _invariants_of(loop, active_values(body.program, body.derivative))
    stages = [
        renamed_stage(stage, equation, functools.partial(loop.atom, k), loop.trips[k])
        for k in range(loop.blocks)
        for stage in loop.stages
    ]
    return Listed(loop, tuple(stages))


def _staged_body(draft: Draft, equation: Equation) -> StagedProgram:
    """The body of a loop in stages."""
    body, active = _body(draft, equation), draft.active
    count, carried, _ = compat.scan_counts(equation.eqn)
    consts, carry = body.inputs[:count], body.inputs[count : count + carried]
    operands = zip(body.inputs, equation.inputs, strict=True)
    given = frozenset(v for v, atom in operands if v not in carry and draft.is_given(atom))
    body = dataclasses.replace(body, given=given)
    derivative = _derivative(equation, active, body)
    # A loop that must pass tangents forward is a plain scan, from which nothing is hoisted.
    hoistable = () if draft.derivative.forward_mode else consts
    inner = Draft(body, derivative, Place.BODY, draft.passes, consts=hoistable)
    return draft.passes.staged(inner)


def _body(draft: Draft, equation: Equation) -> Program:
    """The flat program of a loop's body, changed as a whole where the rewrite changes bodies."""
    rewrite = draft.program.rewrite
    return draft.passes.listed(
        Listing(
            equation.eqn.params["jaxpr"],
            rewrite,
            draft.program.inlines_checkpoints,
            () if equation.apart else rewrite.bodies,  # that was made by such a change
            functools.partial(_derivative, equation, draft.active),
            caller=equation.eqn,
        )
    )


def _in_blocks(draft: Draft, equation: Equation, staged: StagedProgram) -> Loop:
    """A loop in blocks of iterations; the values of each block are listed behind those so far."""
    counts, length = compat.scan_counts(equation.eqn), equation.eqn.params["length"]
    is_one = draft.derivative.forward_mode
    trips = (length,) if is_one else block_lengths(length, len(staged.stages))
    body = staged.program
    operands = dict(zip(body.inputs, equation.inputs, strict=True))
    consts, carry = body.inputs[: counts[0]], body.inputs[counts[0] : sum(counts[:2])]
    offsets, given = [], []
    carried = [operands[v] for v in carry]
    for _ in trips:
        offset = len(draft.avals)
        draft.avals += body.avals
        known = {v: operands[v] for v in consts} | dict(zip(carry, carried, strict=True))
        offsets.append(offset)
        given.append(known)
        draft.given.update(offset + v for v in body.given if v not in known)
        carried = [
            known.get(v, offset + v) if isinstance(v, int) else v for v in body.outputs[: counts[1]]
        ]
    return Loop(equation, counts, staged, 0, trips, tuple(offsets), tuple(given))


def block_lengths(trips: int, stages: int) -> tuple[int, ...]:
    """Iterations of each block: the same number, but the first block may have fewer."""
    most = max(2, min(MAX_BLOCKS, MAX_STAGES // stages))
    size = -(-trips // most)
    rest = trips % size
    return (*([rest] if rest else []), *[size] * (trips // size))


def _derivative(equation: Equation, active: frozenset[int], body: Program) -> Differentiation:
    """The derivative of a loop's body: by what active operands reach in some iteration."""
    consts, carried, _ = compat.scan_counts(equation.eqn)
    operands = dict(zip(body.inputs, equation.inputs, strict=True))
    carry = body.inputs[consts : consts + carried]
    inputs = {
        v for v, atom in operands.items() if is_in(atom, active) and compat.is_float(body.avals[v])
    }
    floats = [n for n, v in enumerate(carry) if compat.is_float(body.avals[v])]
    outputs = tuple(
        n
        for n, i in enumerate(equation.outputs)
        if n in floats or (n >= len(carry) and i in active)
    )
    while True:
        found = Differentiation(frozenset(inputs), outputs)
        inside = active_values(body, found)
        reached = [body.outputs[n] for n in floats]
        more = {carry[n] for n, i in zip(floats, reached, strict=True) if is_in(i, inside)}
        more -= inputs
        if not more:
            return found
        inputs |= more


def _invariants_of(loop: Loop, active: frozenset[int]) -> dict[int, int]:
    """Loop-invariant values of all blocks -> the value of the last block."""
    own = _invariants(loop.body.program, loop.counts[0], active, loop.body.choices)
    if loop.hoists:
        own -= {i for e in loop.stages[0].equations for i in e.outputs}
    last = loop.blocks - 1
    return {loop.atom(k, v): loop.atom(last, v) for v in own for k in range(loop.blocks)}


def _invariants(
    body: Program, consts: int, active: frozenset[int], choices: Sequence[Choice]
) -> set[int]:
    """Values of a body that follow from constants of the loop alone and are differentiated."""
    inside = (v for x in walk(choices) for b in x.branches for v in b.inputs)
    varying = dependents(body.equations, (*body.inputs[consts:], *inside))
    own = {i for e in body.equations if not compat.has_effects(e.eqn) for i in e.outputs}
    return (own & active) - varying
