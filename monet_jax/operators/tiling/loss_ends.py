"""The end of a chunked loss: the one number of it on which the differentiated outputs depend.

The further it is behind the loop, the less is left to do with the gradients: where it is the loss
itself, whose cotangent is one, they are not written again to be scaled.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from ...ir import compat
from ...ir.primitives import STOPS
from ...ir.program import Equation, Program, dependents
from ...ir.stage import Differentiation, active_values

#: Equations that are linear in scalars, where constants may be added.
_LINEAR = """
add add_any broadcast_in_dim convert_element_type copy neg reduce_sum reshape sub
""".split()
#: Equations that are linear in one of two scalars: the places where it may stand.
_FACTORS = {"mul": (0, 1), "div": (0,)}


@dataclasses.dataclass(frozen=True)
class Ends:
    """Where a loss ends.

    Attributes:
        tail: equations behind the loop.
        linear: the active sums and the values that the tail computes.
        active: the sums on which the differentiated outputs depend.
        exits: the values that are read outside.
        lead: the exit on which they depend.
        read: of the values computed in the loop, those that are read behind it.
    """

    tail: tuple[Equation, ...]
    linear: frozenset[int]
    active: frozenset[int]
    exits: tuple[int, ...]
    lead: int
    read: frozenset[int]


def ends_of(
    program: Program, derivative: Differentiation, inside: Mapping[int, int | None]
) -> Ends | None:
    """Where a loss ends whose loop computes some values, each with its axis.

    It ends where the differentiated outputs depend on one number of it. Where they depend on
    several sums, it ends behind the equations that join them linearly; in any case behind those
    that scale the number by constants, such as a mean. None where there is no such place.
    """
    rest = [e for e in program.equations if inside.keys().isdisjoint(e.outputs)]
    late = dependents(program.equations, inside)
    active = active_values(program, derivative)
    scales = not any(_may_vanish(program.avals[i]) for i in inside)
    computed, linear, tail = {*inside}, set[int](), list[Equation]()
    found = None
    while True:
        read = _read(program, rest)
        exits = tuple(sorted(computed & read))
        needed = active & _influencing(program, derivative, rest)
        leading = [i for i in exits if i in needed]
        if any(inside.get(i) is not None or program.avals[i].shape for i in leading):
            return found
        if not tail:
            linear.update(leading)
            sums = frozenset(leading)
        behind = (e for e in rest if _is_linear(program, e, linear, late))
        if len(leading) == 1:
            kept = frozenset(inside) & {*exits, *sums}
            found = Ends(tuple(tail), frozenset(linear), sums, exits, leading[0], kept)
            behind = (e for e in behind if scales and active.intersection(e.reads) == {*leading})
        joined = next(behind, None)
        if joined is None or not leading:
            return found
        rest.remove(joined)
        tail.append(joined)
        linear.update(joined.outputs)
        computed.update(joined.outputs)


def _may_vanish(aval: Any) -> bool:
    """Whether small gradients of a value become zero, such as in float16.

    There a loss is often scaled by its cotangent, which the chunks do not know.
    """
    is_real = compat.is_float(aval) and jnp.issubdtype(aval.dtype, jnp.floating)
    return is_real and bool(jnp.finfo(aval.dtype).tiny > jnp.finfo(jnp.float32).tiny)


def _read(program: Program, equations: Sequence[Equation]) -> set[int]:
    """The values that equations read, and those that the program returns."""
    returned = {i for i in program.outputs if isinstance(i, int)}
    return returned.union(*(e.reads for e in equations))


def _is_linear(program: Program, equation: Equation, linear: set[int], late: set[int]) -> bool:
    """Whether an equation computes a scalar linear in some, from values that are computed."""
    places = [n for n, i in enumerate(equation.inputs) if isinstance(i, int) and i in linear]
    if not places or len(equation.outputs) != 1 or program.avals[equation.outputs[0]].shape:
        return False
    if any(i in late and i not in linear for i in equation.reads):
        return False
    if equation.primitive in _FACTORS:
        return len(places) == 1 and places[0] in _FACTORS[equation.primitive]
    is_float = compat.is_float(program.avals[equation.outputs[0]])
    return equation.primitive in _LINEAR and is_float


def _influencing(
    program: Program, derivative: Differentiation, equations: Sequence[Equation]
) -> set[int]:
    """The values that influence differentiated outputs through some of a program's equations."""
    found = {i for n in derivative.outputs if isinstance(i := program.outputs[n], int)}
    for e in reversed(equations):
        if e.primitive not in STOPS and found.intersection(e.outputs):
            found.update(e.reads)
    return found
