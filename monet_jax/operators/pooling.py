"""Max and min pooling whose gradient reads the place of each window's extremum.

JAX keeps the operand of `reduce_window_max` for the gradient, which XLA:CPU and XLA:GPU expand over
integer coordinates of every element: three to five times the operand's bytes at the peak. Here the
place of each window's maximum is a value of its own, and the gradient reads one byte for each
window; a plan can store just that, or half of it as a code (as in the operators that MONeT
published, Shah et al., ICLR 2021). The values are the same. Each cotangent goes to the element that
XLA gives it to (the first of equals, the one behind the last NaN). Where windows overlap, gradients
are summed in another order.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..ir import compat
from ..ir.program import Replacement
from .codecs import Codec, Integers
from .context import Context
from .derivative import joined
from .hooks import hook
from .representations import Stored

#: Elements of a window, at most: each is an operand of the program that replaces the pooling.
MAX_WINDOW = 64
#: By primitive: the better of two elements, whether one is as good as the next, and the worst.
_POOLING = {
    "reduce_window_max": (jnp.maximum, lax.ge, -math.inf),
    "reduce_window_min": (jnp.minimum, lax.le, math.inf),
}


def rewrite(eqn: Any, context: Context) -> Replacement | None:
    """The replacement of an equation; None where it is no max or min pooling."""
    if not context.backend.expands_pooling:
        return None
    known = _POOLING.get(compat.primitive_name(eqn))
    if known is None:
        return None
    aval = eqn.invars[0].aval
    size = math.prod(eqn.params["window_dimensions"])
    is_placed = compat.is_placed(aval)
    if not jnp.issubdtype(aval.dtype, jnp.floating) or is_placed or not 1 < size <= MAX_WINDOW:
        return None
    # Places in a window of up to 16 elements are 4 bits each.
    code = None if context.is_sharded or size > 16 else Integers(0, size - 1)
    windows = functools.partial(_windows, params=eqn.params)
    apart = context.backend.sums_for_each_reader
    pooled = jax.make_jaxpr(lambda x: _pooled(x, windows, known, code, apart))
    return Replacement(
        pooled(jax.ShapeDtypeStruct(aval.shape, aval.dtype)), changes_what_is_kept=True
    )


def _windows(x: jax.Array, outside: float, params: dict[str, Any]) -> list[jax.Array]:
    """For each place in a window, the elements at that place, one for each window."""
    size, strides = params["window_dimensions"], params["window_strides"]
    spread = params["window_dilation"]
    padding = [
        (*pads, d - 1) for pads, d in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    padded = lax.pad(x, jnp.array(outside, x.dtype), padding)
    reach = [n - (w - 1) * d for n, w, d in zip(padded.shape, size, spread, strict=True)]
    found = []
    for place in itertools.product(*map(range, size)):
        start = [p * d for p, d in zip(place, spread, strict=True)]
        limit = [s + r for s, r in zip(start, reach, strict=True)]
        found.append(lax.slice(padded, start, limit, strides))
    return found


def _pooled(
    x: jax.Array,
    windows: Callable[[jax.Array, float], list[jax.Array]],
    kind: tuple[Callable, Callable, float],
    code: Codec | None,
    sums_apart: bool,
) -> jax.Array:
    """The best of each window's elements; its gradient goes to the one that XLA would choose.

    Arguments:
        x: the operand.
        windows: `(array, outside) -> for each place in a window, the elements at that place`.
        kind: one of `_POOLING`.
        code: of the places.
        sums_apart: whether the cotangents of an element are added up behind a barrier.
    """
    combine, keeps, worst = kind
    elements = windows(lax.stop_gradient(x), worst)
    best = functools.reduce(combine, elements)
    # Without the barrier XLA would find the places again for the gradient, from the operand.
    place = lax.optimization_barrier(_place(elements, keeps))
    if code is not None:
        place = hook(place, representations=[Stored(code)])

    def chosen(residuals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> jax.Array:
        moved = lax.optimization_barrier(tangents[0]) if sums_apart else tangents[0]
        return lax.select_n(residuals[0].astype(jnp.int32), *windows(moved, 0.0))

    return joined(chosen, best, [place], [x])


def _place(
    elements: Sequence[jax.Array], keeps: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """Which element of each window `select_and_scatter` chooses for the cotangent.

    It goes from one element to the next, and keeps the chosen one while that is as good as the
    next. NaN is never as good as another element, nor is another element as good as NaN.
    """
    chosen, place = elements[0], jnp.zeros(elements[0].shape, jnp.uint8)
    for n, x in enumerate(elements[1:], 1):
        stays = keeps(chosen, x)
        place = jnp.where(stays, place, jnp.uint8(n))
        chosen = jnp.where(stays, chosen, x)
    return place
