"""Floats of fewer bits: bfloat16, and float8 with a scale for each group."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from . import rounding
from .codec import Code, Kind, is_float, square_of_error
from .groups import Grouping
from .noise import uniform

#: The largest float8_e4m3fn.
_LARGEST_E4M3 = 448.0


@dataclasses.dataclass(frozen=True)
class BFloat16:
    """bfloat16, rounded to nearest: a relative error of at most 2^-8 where |x| >= 2^-118."""

    kind: ClassVar[Kind] = Kind.BIASED
    keeps_places: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Always the same."""
        return "bf16"

    def applies(self, aval: Any) -> bool:
        """To float32."""
        return aval.dtype == jnp.float32

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """One array in the shape of x."""
        del noise
        return (rounding.nearest(x, jnp.bfloat16).astype(jnp.bfloat16),)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The values in the wider dtype."""
        return code[0].astype(aval.dtype)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The square of the error."""
        return square_of_error(self, x)


@dataclasses.dataclass(frozen=True)
class RandomBFloat16:
    """bfloat16 by stochastic rounding: unbiased, a relative error of less than 2^-7.

    24 random bits choose between 2^16 values in between, so that the expectation is exact where
    |x| >= 2^-118. Values past bfloat16's largest may become infinite.
    """

    kind: ClassVar[Kind] = Kind.UNBIASED

    @property
    def name(self) -> str:
        """Always the same."""
        return "bf16-random"

    def applies(self, aval: Any) -> bool:
        """To float32."""
        return aval.dtype == jnp.float32

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """One array in the shape of x."""
        rounded = rounding.randomly(x, jnp.bfloat16, uniform(noise, x.shape))
        return (rounded.astype(jnp.bfloat16),)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The values in the wider dtype."""
        return code[0].astype(aval.dtype)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The variance between two neighbours."""
        return rounding.random_variance(x, jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Float8:
    """The bits of float8_e4m3fn with a bfloat16 scale for each group of elements.

    After COAT (arXiv 2410.19313): deterministic, scaled by the group's largest magnitude over 448.
    The scale is rounded up, so that no value saturates. An error is at most 2^-4 of the element or
    2^-10 of the scale, whichever is more, plus the error of rounding to the dtype of the array. A
    group with a value that is not finite decodes to NaN.
    """

    group: int = 32

    kind: ClassVar[Kind] = Kind.BIASED

    def __post_init__(self) -> None:
        if self.group < 1:
            raise ValueError(f"got a `group` of {self.group}; it has at least one element")

    @property
    def name(self) -> str:
        """Always the same."""
        return "fp8"

    def applies(self, aval: Any) -> bool:
        """To floats."""
        return is_float(aval)

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """Codes in the shape of x, and a scale for each group."""
        del noise
        grouping = Grouping.of(x.shape, self.group)
        groups = grouping.split(x.astype(jnp.float32))
        largest = jnp.max(jnp.abs(groups), axis=grouping.inside, keepdims=True)
        scale = rounding.above(largest / _LARGEST_E4M3, jnp.bfloat16)
        scale = jnp.where(jnp.isfinite(scale * _LARGEST_E4M3), scale, jnp.nan)
        scaled = groups / jnp.where(scale == 0, 1, scale)
        scaled = grouping.joined(scaled, jax.ShapeDtypeStruct(x.shape, jnp.float32))
        code = rounding.nearest(scaled, jnp.float8_e4m3fn).astype(jnp.float8_e4m3fn)
        # As bits: values that `jax.checkpoint` saves pass a `reduce_precision` that assumes
        # infinities, and turns the largest values of this dtype into NaN (JAX 0.12).
        code = jax.lax.bitcast_convert_type(code, jnp.uint8)
        return code, jnp.squeeze(scale, grouping.inside).astype(jnp.bfloat16)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """Scaled back, and rounded to the dtype of `aval`."""
        levels = jax.lax.bitcast_convert_type(code[0], jnp.float8_e4m3fn)
        grouping = Grouping.of(aval.shape, self.group)
        scale = jnp.expand_dims(code[1].astype(jnp.float32), grouping.inside)
        values = grouping.split(levels.astype(jnp.float32)) * scale
        return grouping.joined(rounding.nearest_finite(values, aval.dtype), aval)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The square of the error."""
        return square_of_error(self, x)
