"""Products of arrays of several axes as products of two matrices, for XLA:CPU.

The gradient of a layer's weights sums over all axes of a batch. Where these are several, as batch
and sequence, XLA:CPU first copies the cotangent into another layout, element by element: for 2,048
tokens and weights of 1,024 x 2,816 the product takes 68 ms instead of 27. Of two matrices it copies
nothing, and to see an array as a matrix costs nothing either.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from ..ir import compat
from ..ir.program import Replacement
from .context import Context


def rewrite(eqn: Any, context: Context) -> Replacement | None:
    """The replacement of an equation; None where it is no product, or cannot be one of matrices."""
    if not context.backend.copies_summed_axes or context.is_sharded:
        return None
    if compat.primitive_name(eqn) != "dot_general" or eqn.params.get("out_sharding") is not None:
        return None
    avals = [v.aval for v in eqn.invars]
    summed, batched = eqn.params["dimension_numbers"]
    if any(batched) or any(map(compat.is_placed, avals)) or all(a.ndim == 2 for a in avals):
        return None
    if [*summed[1]] != sorted(summed[1]):  # pairs of summed axes in the order of both operands
        return None
    if not all(_is_matrix(a.ndim, axes) for a, axes in zip(avals, summed, strict=True)):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return Replacement(compat.traced_like(eqn, lambda *x: _product(x, summed, eqn), shapes))


def _is_matrix(ndim: int, summed: Sequence[int]) -> bool:
    """Whether the summed axes are the first or the last ones of an operand that has others."""
    places = [*range(len(summed))], [*range(ndim - len(summed), ndim)]
    return 0 < len(summed) < ndim and [*summed] in places


def _product(
    operands: Sequence[jax.Array], summed: Sequence[Sequence[int]], eqn: Any
) -> list[jax.Array]:
    matrices, axes, shape = [], [], list[int]()
    for x, of_x in zip(operands, summed, strict=True):
        free = [n for i, n in enumerate(x.shape) if i not in of_x]
        sides = [math.prod(free)]
        axis = 0 if of_x[0] == 0 else 1
        sides.insert(axis, math.prod(x.shape[i] for i in of_x))
        matrices.append(lax.reshape(x, sides))
        axes.append((axis,))
        shape += free
    params = {**eqn.params, "dimension_numbers": (tuple(axes), ((), ()))}
    return [lax.reshape(eqn.primitive.bind(*matrices, **params), shape)]
