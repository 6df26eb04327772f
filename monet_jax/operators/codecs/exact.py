"""Exact codecs of booleans, and of integers with a known range."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .codec import Code, Kind
from .packing import pack, unpack


@dataclasses.dataclass(frozen=True)
class Mask:
    """Booleans, eight a byte."""

    kind: ClassVar[Kind] = Kind.BITWISE

    @property
    def name(self) -> str:
        """Always the same."""
        return "mask"

    def applies(self, aval: Any) -> bool:
        """To booleans."""
        return aval.dtype == jnp.bool

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """One array of bytes."""
        del noise
        return (pack(x, 1),)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The booleans."""
        return unpack(code[0], 1, aval.shape).astype(jnp.bool)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """No error."""
        return jnp.zeros(x.shape, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high`, which the caller has proven: nothing is checked.

    They take the fewest of 1, 2, 4, 8, 16 or 32 bits that hold the range. Integers outside would
    decode to other integers, in the range of these bits.
    """

    low: int
    high: int

    kind: ClassVar[Kind] = Kind.BITWISE

    def __post_init__(self) -> None:
        if not self.low <= self.high < self.low + 2**32:
            raise ValueError(
                f"got integers from {self.low} to {self.high}; give `low` <= `high`, less than "
                "2**32 apart"
            )

    @property
    def name(self) -> str:
        """With the range."""
        return f"integers[{self.low},{self.high}]"

    @property
    def width(self) -> int:
        """Bits of an element."""
        return next(w for w in (1, 2, 4, 8, 16, 32) if self.high - self.low < 2**w)

    def applies(self, aval: Any) -> bool:
        """To integers of more bits, whose dtype holds the range."""
        if not jnp.issubdtype(aval.dtype, jnp.integer):
            return False
        info = jnp.iinfo(aval.dtype)
        return self.width < info.bits and info.min <= self.low and self.high <= info.max

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """The distances from `low`: packed where a byte holds several, else in x's shape."""
        del noise
        # Both differences wrap, so that decoding is right where a signed dtype cannot hold them.
        distance = x - jnp.array(self.low, x.dtype)
        if self.width < 8:
            return (pack(distance, self.width),)
        return (distance.astype(f"uint{self.width}"),)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The integers."""
        distance = unpack(code[0], self.width, aval.shape) if self.width < 8 else code[0]
        return distance.astype(aval.dtype) + jnp.array(self.low, aval.dtype)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """No error."""
        return jnp.zeros(x.shape, jnp.float32)
