"""Stochastic quantization of float arrays to a few levels, unbiased.

The levels have a lowest level and a step for each group of elements, or lie over one range that is
known beforehand, without metadata. The gradient of a function that is linear in the decoded array
is unbiased; other functions of it are biased: encode the residuals of a derivative, not the inputs
of an operation.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from . import rounding
from .codec import Code, Kind, is_float
from .groups import Grouping
from .noise import uniform
from .packing import pack, unpack


@dataclasses.dataclass(frozen=True)
class Groups:
    """`bits` (2, 4 or 8) for each element; bfloat16 lowest level and step for each group.

    After ActNN (arXiv 2104.14129), whose published code rounds the metadata after the codes are
    computed, and is biased by that. Here the lowest level is rounded down and the step up, and
    codes are drawn between the resulting levels. The variance of an element is at most a
    quarter of its group's step squared; in bfloat16 and float16, where levels are rounded as well,
    of the distance between two of them. A group with a value that is not finite, or of a range that
    float32 does not hold, decodes to NaN.
    """

    bits: int = 8
    group: int = 256

    kind: ClassVar[Kind] = Kind.UNBIASED

    def __post_init__(self) -> None:
        _check_bits(self.bits, (2, 4, 8))
        if self.group < 1:
            raise ValueError(f"got a `group` of {self.group}; it has at least one element")

    @property
    def name(self) -> str:
        """As in "int4"."""
        return f"int{self.bits}"

    def applies(self, aval: Any) -> bool:
        """To floats."""
        return is_float(aval)

    def encode(
        self, x: jax.Array, noise: jax.Array | None = None, offset: jax.Array | None = None
    ) -> Code:
        """Packed codes, lowest levels and steps.

        With an `offset` (float32, in the shape of `x`), they encode `x - offset`.
        """
        grouping = Grouping.of(x.shape, self.group)
        levels, groups = self._fitted(grouping, x, offset)
        codes = levels.code(groups, uniform(noise, groups.shape))
        packed = pack(grouping.joined(codes, jax.ShapeDtypeStruct(x.shape, codes.dtype)), self.bits)
        low, step = (jnp.squeeze(m, grouping.inside) for m in (levels.low, levels.step))
        return packed, low.astype(jnp.bfloat16), step.astype(jnp.bfloat16)

    def decode(self, code: Code, aval: Any, offset: jax.Array | None = None) -> jax.Array:
        """The levels, plus the same `offset`."""
        packed, *metadata = code
        grouping = Grouping.of(aval.shape, self.group)
        low, step = (jnp.expand_dims(m.astype(jnp.float32), grouping.inside) for m in metadata)
        codes = grouping.split(unpack(packed, self.bits, aval.shape))
        return grouping.joined(
            self._levels(grouping, low, step, aval.dtype, offset).level(codes), aval
        )

    def mean_square(self, x: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        """The variance."""
        grouping = Grouping.of(x.shape, self.group)
        levels, groups = self._fitted(grouping, x, offset)
        return grouping.joined(
            levels.mean_square(groups), jax.ShapeDtypeStruct(x.shape, jnp.float32)
        )

    def _fitted(
        self, grouping: Grouping, x: jax.Array, offset: jax.Array | None
    ) -> tuple[rounding.Levels, jax.Array]:
        """Levels that enclose each group, and the groups."""
        groups = grouping.split(x.astype(jnp.float32))
        rest = groups if offset is None else groups - grouping.split(offset)
        top = 2**self.bits - 1
        low = rounding.below(jnp.min(rest, axis=grouping.inside, keepdims=True), jnp.bfloat16)
        step = (jnp.max(rest, axis=grouping.inside, keepdims=True) - low) / top
        step = rounding.above(step, jnp.bfloat16)
        step = jnp.where(jnp.isfinite(low + top * step), step, jnp.nan)
        return self._levels(grouping, low, step, x.dtype, offset), groups

    def _levels(
        self,
        grouping: Grouping,
        low: jax.Array,
        step: jax.Array,
        dtype: Any,
        offset: jax.Array | None,
    ) -> rounding.Levels:
        over = 0.0 if offset is None else grouping.split(offset)
        return rounding.Levels(low, step, 2**self.bits - 1, dtype, over)


@dataclasses.dataclass(frozen=True)
class Range:
    """`bits` (2, 4 or 8) for each element, over a range from `low` to `high` known beforehand.

    Without metadata, and without a pass over the array to find them. Meant for derivatives, such as
    GELU's. The variance of an element is at most a quarter of the step squared, a step being
    the range over 2 ** bits - 2: the last code is kept for NaN. Finite values outside are clamped,
    which is biased; infinite values decode to NaN.
    """

    low: float
    high: float
    bits: int = 8

    kind: ClassVar[Kind] = Kind.UNBIASED

    def __post_init__(self) -> None:
        _check_bits(self.bits, (2, 4, 8))
        if not -(2.0**100) < self.low < self.high < 2.0**100:
            raise ValueError(
                f"got a range from {self.low} to {self.high}; give finite numbers, `low` < `high`"
            )

    @property
    def name(self) -> str:
        """Its bits and its range."""
        return f"range{self.bits}[{self.low:g},{self.high:g}]"

    def applies(self, aval: Any) -> bool:
        """To floats."""
        return is_float(aval)

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """Packed codes."""
        codes = self._levels(x.dtype).code(x.astype(jnp.float32), uniform(noise, x.shape))
        return (pack(jnp.where(jnp.isfinite(x), codes, self._nan), self.bits),)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The levels."""
        codes = unpack(code[0], self.bits, aval.shape)
        level = self._levels(aval.dtype).level(codes)
        return jnp.where(codes == self._nan, jnp.nan, level).astype(aval.dtype)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The variance; for a value outside, the square of its distance from the range."""
        square = self._levels(x.dtype).mean_square(x.astype(jnp.float32))
        return jnp.where(jnp.isfinite(x), square, jnp.nan)

    @property
    def _nan(self) -> int:
        return 2**self.bits - 1

    def _levels(self, dtype: Any) -> rounding.Levels:
        top = self._nan - 1
        low, step = jnp.float32(self.low), jnp.float32((self.high - self.low) / top)
        return rounding.Levels(low, step, top, dtype)


def _check_bits(bits: int, known: tuple[int, ...]) -> None:
    if bits not in known:
        raise ValueError(f"got {bits} `bits`; use one of {', '.join(map(str, known))}")
