"""Rounding of float32 to narrower dtypes and to uniform levels, to nearest or unbiased at random.

All rounding is float32 arithmetic on a grid of levels; the cast that follows is exact. Stochastic
rounding takes the level above with a probability that comes from the two levels *as they will be
decoded*, in the dtype of the decoded array: any other rounding, of the metadata or in decoding,
moves levels, not the expectation.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def spacing(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """The distance of neighbours of float32 `x` in `dtype`, a power of 2, and its reciprocal.

    At least 2^-126: devices flush smaller numbers to zero. Subnormal float16 and float8 are kept.
    The reciprocal is for multiplying: division is not exact everywhere.
    """
    info = jnp.finfo(dtype)
    exponent = (lax.bitcast_convert_type(x, jnp.int32) >> 23 & 0xFF) - 127
    exponent = jnp.maximum(exponent, int(info.minexp)) - int(info.nmant)
    exponent = jnp.maximum(exponent, -126)
    return _power(exponent), _power(-exponent)


def nearest(x: jax.Array, dtype: Any) -> jax.Array:
    """The values of `dtype` nearest to float32 `x`, ties to even, as float32; not saturated."""
    if jnp.dtype(dtype) == jnp.float32:
        return x
    step, reciprocal = spacing(x, dtype)
    return jnp.round(x * reciprocal) * step


def nearest_finite(x: jax.Array, dtype: Any) -> jax.Array:
    """The nearest finite values of `dtype`, as float32; NaN stays."""
    if jnp.dtype(dtype) == jnp.float32:
        return x
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(nearest(x, dtype), -largest, largest)


def above(x: jax.Array, dtype: Any) -> jax.Array:
    """The least values of `dtype` that are at least float32 `x`, as float32."""
    step, reciprocal = spacing(x, dtype)
    return jnp.ceil(x * reciprocal) * step


def below(x: jax.Array, dtype: Any) -> jax.Array:
    """The greatest values of `dtype` that are at most float32 `x`, as float32."""
    return -above(-x, dtype)


def randomly(x: jax.Array, dtype: Any, u: jax.Array) -> jax.Array:
    """Values of `dtype` just below or above float32 `x`, as float32, whose expectation is `x`.

    `u` is uniform in [0, 1). Values beyond the largest of `dtype` may become infinite.
    """
    if jnp.dtype(dtype) == jnp.float32:
        return x
    step, reciprocal = spacing(x, dtype)
    floor = jnp.floor(x * reciprocal)
    rounded_up = (u < x * reciprocal - floor).astype(jnp.float32)
    return (floor + rounded_up) * step


def random_variance(x: jax.Array, dtype: Any) -> jax.Array:
    """The variance of `randomly`."""
    if jnp.dtype(dtype) == jnp.float32:
        return jnp.zeros_like(x)
    step, reciprocal = spacing(x, dtype)
    part = x * reciprocal - jnp.floor(x * reciprocal)
    return jnp.square(step) * part * (1 - part)


def _power(exponent: jax.Array) -> jax.Array:
    """2 to an exponent from -126 to 127."""
    return lax.bitcast_convert_type(exponent + 127 << 23, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Levels:
    """Uniform levels, as they are decoded.

    Attributes:
        low, step: the lowest level and the distance of levels: float32, exact in the code.
        top: the number of the highest level; the lowest has number 0.
        dtype: the dtype to which decoded arrays are rounded.
        offset: float32 that is added to the levels when they are decoded.
    """

    low: Any
    step: Any
    top: int
    dtype: Any
    offset: Any = 0.0

    def level(self, number: jax.Array) -> jax.Array:
        """The decoded values of codes, as float32."""
        level = self.low + number.astype(jnp.float32) * self.step
        return nearest_finite(self.offset + level, self.dtype)

    def code(self, x: jax.Array, u: jax.Array) -> jax.Array:
        """Numbers of levels whose expectation is `x`, uint8; `u` is uniform in [0, 1).

        Values outside go to the nearest level, NaN to 0.
        """
        number, floor, ceiling = self._neighbours(x)
        rounded_up = (u * (ceiling - floor) < x - floor).astype(jnp.float32)
        return jnp.where(jnp.isnan(number), 0, number + rounded_up).astype(jnp.uint8)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The expected square of the error that `code` makes."""
        _, floor, ceiling = self._neighbours(x)
        outside = jnp.maximum(floor - x, 0) + jnp.maximum(x - ceiling, 0)
        return jnp.maximum((x - floor) * (ceiling - x), 0) + jnp.square(outside)

    def _neighbours(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The number of the level below, that level, and the one above."""
        steps = (x - self.offset - self.low) / jnp.where(self.step == 0, 1, self.step)
        number = jnp.clip(jnp.floor(steps), 0, self.top - 1)
        return number, self.level(number), self.level(number + 1)
