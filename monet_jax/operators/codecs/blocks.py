"""How is an array kept as its largest blocks, and nothing of the others?"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from ._codec import Code, Kind, is_float, square_of_error
from ._placing import placed


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The share `keep` of the blocks of a matrix, those of the largest norms.

    After structured activation pruning (Barley and Fröning 2023, arXiv 2311.16883). The matrix has
    the array's last axis as columns, and all others as rows; it is filled up with zeros. The square
    of the error's norm is that of the blocks left out. Blocks with values that are not finite come
    first.

    Attributes:
        keep: the share, rounded up to whole blocks.
        block: rows and columns of a block.
    """

    keep: float = 0.25
    block: tuple[int, int] = (16, 16)

    kind: ClassVar[Kind] = Kind.BIASED

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"got a share of {self.keep} to `keep`; it is in (0, 1]")
        if min(self.block) < 1:
            raise ValueError(f"got blocks of {self.block}; they have at least one element")

    @property
    def name(self) -> str:
        """As in "blocks0.25"."""
        return f"blocks{self.keep:g}"

    def applies(self, aval: Any) -> bool:
        """To floats of at least two axes."""
        return is_float(aval) and len(aval.shape) >= 2

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """The kept blocks, flat, and their positions."""
        del noise
        blocks = self._cut(x)
        energy = jnp.sum(jnp.square(blocks.astype(jnp.float32)), axis=(1, 2))
        energy = jnp.where(jnp.isnan(energy), jnp.inf, energy)
        _, kept = lax.top_k(energy, math.ceil(self.keep * len(blocks)))
        return blocks[kept].reshape(-1), kept.astype(jnp.int32)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The blocks at their positions, zeros elsewhere."""
        values, kept = code
        rows, columns = self._grid(aval.shape)
        blocks = placed(values.reshape(-1, *self.block), kept, rows * columns)
        matrix = blocks.reshape(rows, columns, *self.block).swapaxes(1, 2)
        matrix = matrix.reshape(rows * self.block[0], columns * self.block[1])
        return matrix[: math.prod(aval.shape[:-1]), : aval.shape[-1]].reshape(aval.shape)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The square of what is left out."""
        return square_of_error(self, x)

    def _grid(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Blocks along rows and columns."""
        sides = math.prod(shape[:-1]), shape[-1]
        rows, columns = (-(-n // b) for n, b in zip(sides, self.block, strict=True))
        return rows, columns

    def _cut(self, x: jax.Array) -> jax.Array:
        """[blocks, rows, columns]."""
        rows, columns = self._grid(x.shape)
        matrix = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        filled = (rows * self.block[0], columns * self.block[1])
        missing = [(0, big - n) for big, n in zip(filled, matrix.shape, strict=True)]
        matrix = jnp.pad(matrix, missing).reshape(rows, self.block[0], columns, self.block[1])
        return matrix.swapaxes(1, 2).reshape(-1, *self.block)
