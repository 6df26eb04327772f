"""Packs small unsigned integers into bytes.

XLA's own dtypes are not used: `uint4` and `uint2` take as few bytes, but XLA:TPU aborts on a
`uint2` in an optimization barrier, and `uint1` does not lower. A byte holds elements that are a
part of an axis apart, not neighbours, so that packing reads slices and unpacking writes them.
"""

import functools as ft
import math

import jax
import jax.numpy as jnp


def pack(codes: jax.Array, width: int) -> jax.Array:
    """uint8, `width` (1, 2, 4 or 8) bits an element; `codes` are less than 2 ** width.

    In the shape of `codes` with one axis shorter by that factor; flat where it divides no axis.
    """
    parts = 8 // width
    axis = _axis(codes.shape, parts)
    if axis is None:
        codes, axis = jnp.pad(codes.reshape(-1), (0, -codes.size % parts)), 0
    pieces = jnp.split(codes.astype(jnp.uint8), parts, axis)
    return ft.reduce(jnp.bitwise_or, [x << (i * width) for i, x in enumerate(pieces)])


def unpack(packed: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    """The codes again, uint8."""
    parts = 8 // width
    axis = _axis(shape, parts)
    pieces = [packed >> (i * width) & jnp.uint8(2**width - 1) for i in range(parts)]
    codes = jnp.concatenate(pieces, axis or 0)
    return codes if axis is not None else codes[: math.prod(shape)].reshape(shape)


def _axis(shape: tuple[int, ...], parts: int) -> int | None:
    """The axis along which arrays of a shape are packed.

    The last axis but two where possible: XLA:TPU stores others in tiles, whose cuts are not free.
    """
    fitting = [axis for axis, n in enumerate(shape) if n % parts == 0]
    return min(fitting, key=lambda axis: (axis != len(shape) - 3, axis), default=None)
