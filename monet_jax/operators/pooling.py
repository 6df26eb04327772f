"""How does max pooling remember where its maxima were, instead of all that it pooled?

JAX keeps the operand of `reduce_window_max` for the gradient, which XLA:CPU and XLA:GPU expand over
integer coordinates of every element: three to five times the operand's bytes at the worst moment.
Written with the place of each window's maximum as a value of its own, the gradient reads one byte
for each window, and a plan can keep just that, or half of it as a code (as in the operators that
MONeT published: Shah et al., ICLR 2021). The values are the same, ties go to the first of the
equals as they do in XLA, and where windows overlap, gradients are summed in another order.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from .. import _compat
from .._program import Replacement
from ._tap import Stored, tap
from .codecs import Codec, Integers

if TYPE_CHECKING:
    from . import Context

#: Elements of a window, at most: each is an operand of the program that replaces the pooling.
MAX_WINDOW = 64


def rewrite(eqn: Any, context: "Context") -> Replacement | None:
    """What replaces an equation; None for all that is no max or min pooling."""
    if not context.backend.expands_pooling:
        return None
    better = {"reduce_window_max": jnp.maximum, "reduce_window_min": jnp.minimum}
    combine = better.get(_compat.primitive_name(eqn))
    if combine is None:
        return None
    aval = eqn.invars[0].aval
    size = math.prod(eqn.params["window_dimensions"])
    is_placed = _compat.is_placed(aval)
    if not jnp.issubdtype(aval.dtype, jnp.floating) or is_placed or not 1 < size <= MAX_WINDOW:
        return None
    worst = -math.inf if combine is jnp.maximum else math.inf
    # Places in a window of up to 15 elements, and none, are 4 bits each.
    code = None if context.is_sharded or size > 15 else Integers(0, size)
    pooled = jax.make_jaxpr(lambda x: _pooled(_windows(x, worst, eqn.params), combine, code))
    return Replacement(
        pooled(jax.ShapeDtypeStruct(aval.shape, aval.dtype)), changes_what_is_kept=True
    )


def _windows(x: jax.Array, worst: float, params: dict[str, Any]) -> list[jax.Array]:
    """For each place in a window, the elements that stand there, one for each window."""
    size, strides = params["window_dimensions"], params["window_strides"]
    spread = params["window_dilation"]
    padding = [
        (*pads, d - 1) for pads, d in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    padded = lax.pad(x, jnp.array(worst, x.dtype), padding)
    reach = [n - (w - 1) * d for n, w, d in zip(padded.shape, size, spread, strict=True)]
    found = []
    for place in itertools.product(*map(range, size)):
        start = [p * d for p, d in zip(place, spread, strict=True)]
        limit = [s + r for s, r in zip(start, reach, strict=True)]
        found.append(lax.slice(padded, start, limit, strides))
    return found


def _pooled(
    elements: Sequence[jax.Array],
    combine: Callable[[jax.Array, jax.Array], jax.Array],
    code: Codec | None,
) -> jax.Array:
    """The best of each window's elements; its gradient goes to the first that equals the best.

    Where none does, some element is no number, and so is the result.
    """
    fixed = [lax.stop_gradient(x) for x in elements]
    best = fixed[0]
    for x in fixed[1:]:
        best = combine(best, x)
    place = jnp.full(best.shape, len(elements), jnp.uint8)
    for n, x in reversed(list(enumerate(fixed))):
        place = jnp.where(x == best, jnp.uint8(n), place)
    # XLA would find the places again for the gradient, from all that was pooled.
    place = lax.optimization_barrier(place)
    if code is not None:
        place = tap(place, forms=[Stored(code)])
    nothing = jnp.full_like(best, math.nan)
    return lax.select_n(place.astype(jnp.int32), *elements, nothing)
