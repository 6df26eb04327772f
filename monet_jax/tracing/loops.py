"""Loops whose iterations are planned one by one: their blocks and their bodies.

To the planner a `lax.scan` looks unrolled: each iteration has stages and values of its own, so that
"the first seven recompute, the others save" is a plan like any other. The body is cut into stages
once. In a long loop, all iterations of a block share one plan, and one iteration stands for its
block. `transformer/scan` rolls up again what has the same plan. Where forward mode must work, a
loop is one block: it is a plain `lax.scan` then.

Known limit: of what is carried through the iterations of a loop's first block, one copy is counted.

| index | means |
|---|---|
| `k` | a block of iterations, in order of execution |
| `v` | a value of the body; in block `k` it is `loop.atom(k, v)` of the program |
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..ir import compat
from ..ir.program import Equation, Program, dependents, flatten_changed, without_dead_code
from ..ir.stage import Differentiation, Stage, active_values
from . import branches as branches_module
from .branches import Choice
from .hoist import hoisted

#: Blocks of one loop, and stages of all of them, at most; but there are two blocks at least, unless
#: forward mode has to work.
MAX_BLOCKS, MAX_STAGES = 16, 128


@dataclasses.dataclass(frozen=True)
class Loop:
    """A `scan` whose iterations are stages.

    Attributes:
        equation: the scan.
        counts: how many of its operands are constants, carried, and stacked.
        body: its body.
        stages: of the body.
        first: its first stage among the program's.
        trips: how many iterations each block has.
        offsets: for each block what is added to the numbers of the body's own values.
        given: for each block what the body's inputs are: values or literals of the program.
        choices: the planned choices in the body, by its own stages and values.
    """

    equation: Equation
    counts: tuple[int, int, int]
    body: Program
    stages: tuple[Stage, ...]
    first: int
    trips: tuple[int, ...]
    offsets: tuple[int, ...]
    given: tuple[Mapping[int, Any], ...]
    choices: tuple[Choice, ...] = ()

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return len(self.trips)

    @property
    def stop(self) -> int:
        """The first of the program's stages behind it."""
        return self.first + self.blocks * len(self.stages)

    @property
    def hoists(self) -> bool:
        """Whether its first stage runs before it, rather than in each iteration."""
        return self.stages[0].hoisted

    def atom(self, k: int, v: Any) -> Any:
        """What a value or literal of the body is in block `k`."""
        if not isinstance(v, int):
            return v
        return self.given[k].get(v, self.offsets[k] + v)

    def choices_in(self, k: int) -> list[Choice]:
        """The planned choices in block `k`, by the program's stages and values."""
        shift = self.first + k * len(self.stages)
        return [x.renamed(functools.partial(self.atom, k), shift) for x in self.choices]

    @property
    def stacked(self) -> list[tuple[int, int]]:
        """Values of the program that the loop takes slices of, with the body's input for each."""
        split = self.counts[0] + self.counts[1]
        pairs = zip(self.equation.inputs[split:], self.body.inputs[split:], strict=True)
        return [(i, v) for i, v in pairs if isinstance(i, int)]

    @property
    def carried(self) -> list[tuple[int, int]]:
        """Results that are carried out of the last iteration, and the values that they are there.

        Those that a literal is carried into are left out.
        """
        last = (self.atom(self.blocks - 1, v) for v in self.body.outputs[: self.counts[1]])
        pairs = zip(self.equation.outputs, last, strict=False)
        return [(result, i) for result, i in pairs if isinstance(i, int)]

    @property
    def collected(self) -> list[tuple[int, Any]]:
        """Results that are stacked, and the output of the body for each."""
        split = self.counts[1]
        return list(zip(self.equation.outputs[split:], self.body.outputs[split:], strict=True))


def may_be_planned(equation: Equation, active: frozenset[int]) -> bool:
    """Whether an equation is a scan that can be run again, and in parts."""
    if equation.primitive != "scan" or equation.eqn.effects:
        return False
    if equation.eqn.params["length"] < 2:
        return False
    if not active.intersection(equation.outputs) or not active.intersection(equation.reads):
        return False
    _, carry, _ = compat.scan_counts(equation.eqn)
    collects_keys = any(compat.is_key(var.aval) for var in equation.eqn.outvars[carry:])
    return not collects_keys and not equation.eqn.params["jaxpr"].consts


def block_lengths(trips: int, stages: int) -> tuple[int, ...]:
    """Iterations of each block: the same number, but the first block may have fewer."""
    most = max(2, min(MAX_BLOCKS, MAX_STAGES // stages))
    size = -(-trips // most)
    rest = trips % size
    return (*([rest] if rest else []), *[size] * (trips // size))


def body_of(program: Program, equation: Equation, active: frozenset[int]) -> Program:
    """The flat program of a loop's body, changed as a whole where the rewrite changes bodies."""
    return flatten_changed(
        equation.eqn.params["jaxpr"],
        () if equation.apart else program.rewrite.bodies,  # that was made by such a change
        functools.partial(body_derivative, equation, active),
        program.rewrite,
        program.inlines_checkpoints,
    )


def body_derivative(equation: Equation, active: frozenset[int], body: Program) -> Differentiation:
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


def without_hoisted(
    body: Program, consts: tuple[int, ...], derivative: Differentiation
) -> tuple[Stage | None, Program]:
    """The stage that runs before a loop, if there is one, and the rest of the loop's body."""
    before, values = hoisted(body, consts)
    if not before:
        return None, body
    active = active_values(body, derivative)
    reads = sorted({i for e in before for i in e.reads}.intersection(consts))
    first = Stage(
        before,
        tuple(reads),
        values,
        tuple(i for i in reads if i in active),
        tuple(i for i in values if i in active),
        hoisted=True,
    )
    written = {*values}
    rest = [e for e in body.equations if written.isdisjoint(e.outputs)]
    others = dataclasses.replace(
        body,
        inputs=(*body.inputs, *values),
        equations=without_dead_code(rest, body.outputs),
        given=body.given | written,
    )
    return first, others


def invariants_of(loop: Loop, active: frozenset[int]) -> dict[int, int]:
    """Loop-invariant values of all blocks -> the value of the last block."""
    own = _invariants(loop.body, loop.counts[0], active, loop.choices)
    if loop.hoists:
        own -= {i for e in loop.stages[0].equations for i in e.outputs}
    last = loop.blocks - 1
    return {loop.atom(k, v): loop.atom(last, v) for v in own for k in range(loop.blocks)}


def _invariants(
    body: Program, consts: int, active: frozenset[int], choices: Sequence[Choice]
) -> set[int]:
    """Values of a body that follow from constants of the loop alone and are differentiated."""
    inside = (v for x in branches_module.walk(choices) for b in x.branches for v in b.inputs)
    varying = dependents(body.equations, (*body.inputs[consts:], *inside))
    own = {i for e in body.equations if not e.eqn.effects for i in e.outputs}
    return (own & active) - varying


def is_in(atom: Any, values: frozenset[int]) -> bool:
    """Whether a value or literal is one of these values."""
    return isinstance(atom, int) and atom in values
