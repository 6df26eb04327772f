"""How are small unsigned integers put into bytes?

By hand, in all widths: `uint4` and `uint2` take as few bytes, but XLA:TPU aborts on a `uint2` in an
optimization barrier, and `uint1` does not lower. A byte holds elements that are a part of the array
apart, not neighbours, so that packing reads slices and unpacking writes them.
"""

import functools as ft
import math

import jax
import jax.numpy as jnp


def pack(codes: jax.Array, width: int) -> jax.Array:
    """Flat uint8, `width` (1, 2, 4 or 8) bits an element; `codes` are less than 2 ** width."""
    parts = 8 // width
    flat = codes.reshape(-1).astype(jnp.uint8)
    flat = jnp.pad(flat, (0, -flat.size % parts)).reshape(parts, -1)
    return ft.reduce(jnp.bitwise_or, [flat[i] << (i * width) for i in range(parts)])


def unpack(packed: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    """The codes again, uint8."""
    shifts = jnp.arange(0, 8, width, dtype=jnp.uint8)[:, None]
    flat = (packed[None] >> shifts) & jnp.uint8(2**width - 1)
    return flat.reshape(-1)[: math.prod(shape)].reshape(shape)
