"""Rounds slices of what a loop reads before it casts them, so that it keeps no copy of the whole.

Parameters are float32 and products bfloat16, so an iteration casts its slice of each weight.
XLA:TPU casts the whole stack before the loop instead, for the forward and the backward, and keeps
it in between: two bytes for each parameter. It does not where the slice is first rounded to the
precision of the cast, which changes no bit of the result.

Where it does not cast the whole, it may copy it into the layout that the products like best, and
keeps that as well where iterations have several plans: four bytes for each parameter. So a slice
keeps the layout of the whole, where that is known: arguments lie row by row if no tile pads them.
"""

import operator
from collections.abc import Collection

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from ..ir.program import Equation
from ..tracing.staged import StagedProgram

_ROUNDED = jnp.finfo(jnp.bfloat16)


def only_cast(staged: StagedProgram, slices: Collection[int]) -> frozenset[int]:
    """Slices in float32 of which the body of a loop reads nothing but casts to bfloat16.

    bfloat16 has as many exponents as float32, so that rounding before the cast is rounding once.

    Arguments:
        staged: the body.
        slices: inputs of its program.
    """
    program, equations = staged.program, [e for x in staged.stages for e in x.equations]
    cast = {i for e in equations if _is_cast(e) for i in e.reads}
    others = [i for e in equations if not _is_cast(e) for i in e.reads]
    returned = [i for i in program.outputs if isinstance(i, int)]
    return frozenset(cast.intersection(slices).difference(others, returned))


def rounded(x: jax.Array, tile: tuple[int, int] | None) -> jax.Array:
    """A slice in float32, rounded to bfloat16, in the layout of the whole.

    Arguments:
        x: the slice.
        tile: rows and columns of the tiles that arrays are padded to, if they are.
    """
    if tile is not None and x.ndim > 1 and not any(map(operator.mod, x.shape[-2:], tile)):
        x = with_layout_constraint(x, Layout(tuple(range(x.ndim))))
    return lax.reduce_precision(x, _ROUNDED.nexp, _ROUNDED.nmant)


def _is_cast(equation: Equation) -> bool:
    if equation.primitive != "convert_element_type":
        return False
    (given,), (made,) = equation.eqn.invars, equation.eqn.outvars
    return (given.aval.dtype, made.aval.dtype) == (jnp.float32, jnp.bfloat16)
