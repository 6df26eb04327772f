"""An array stored as its largest blocks (Barley and Fröning, 2023, arXiv 2311.16883)."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from .codec import Code, Kind, is_float, square_of_error
from .placing import placed


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The share `keep` of the blocks of a matrix, with the largest norms.

    After structured activation pruning (Barley and Fröning 2023, arXiv 2311.16883). The matrix has
    the array's last axis as columns, and all others as rows; it is filled up with zeros. The square
    of the error's norm is the sum of the squared elements of the omitted blocks. Blocks with values
    that are not finite come first.

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
        matrix = self._filled(x)
        energy = self._energies(matrix)
        energy = jnp.where(jnp.isnan(energy), jnp.inf, energy)
        _, kept = lax.top_k(energy, math.ceil(self.keep * len(energy)))
        # Sliced one by one: side by side they would be an array of short rows, padded on a TPU.
        cut = jax.vmap(lambda corner: lax.dynamic_slice(matrix, corner, self.block))
        return cut(self._corners(kept, matrix.shape)).reshape(-1), kept.astype(jnp.int32)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The blocks at their positions, zeros elsewhere."""
        values, kept = code
        sides, blocks = self._sides(aval.shape), values.reshape(-1, *self.block)
        matrix = lax.platform_dependent(
            blocks,
            kept,
            tpu=functools.partial(self._scattered, sides),
            default=functools.partial(self._gathered, sides),
        )
        return matrix[: math.prod(aval.shape[:-1]), : aval.shape[-1]].reshape(aval.shape)

    def _scattered(self, sides: tuple[int, int], blocks: jax.Array, kept: jax.Array) -> jax.Array:
        """On a TPU, which would store blocks side by side as an array of short rows, padded."""
        return lax.scatter(
            jnp.zeros(sides, blocks.dtype),
            self._corners(kept, sides),
            blocks,
            lax.ScatterDimensionNumbers((1, 2), (), (0, 1)),
            unique_indices=True,
            mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
        )

    def _gathered(self, sides: tuple[int, int], blocks: jax.Array, kept: jax.Array) -> jax.Array:
        """On other devices: XLA:CPU would scatter all codes of a step at once, early."""
        rows, columns = (n // b for n, b in zip(sides, self.block, strict=True))
        every = placed(blocks, kept, rows * columns)
        return every.reshape(rows, columns, *self.block).swapaxes(1, 2).reshape(sides)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The square of the omitted elements, 0 elsewhere."""
        return square_of_error(self, x)

    def _sides(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows and columns of the matrix, filled up to whole blocks, at least one block."""
        sides = math.prod(shape[:-1]), shape[-1]
        rows, columns = (max(1, -(-n // b)) * b for n, b in zip(sides, self.block, strict=True))
        return rows, columns

    def _filled(self, x: jax.Array) -> jax.Array:
        """The matrix, filled up with zeros."""
        matrix = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        sides = zip(self._sides(x.shape), matrix.shape, strict=True)
        return jnp.pad(matrix, [(0, big - n) for big, n in sides])

    def _energies(self, matrix: jax.Array) -> jax.Array:
        """The squared norm of each block, float32 [blocks]."""
        (rows, columns), (high, wide) = matrix.shape, self.block
        square = jnp.square(matrix.astype(jnp.float32)).reshape(rows // high, high, columns)
        return jnp.sum(jnp.sum(square, axis=1).reshape(-1, wide), axis=1)

    def _corners(self, block: jax.Array, sides: tuple[int, ...]) -> jax.Array:
        """The first row and the first column of some blocks, [blocks, 2]."""
        across = sides[1] // self.block[1]
        return jnp.stack([block // across, block % across], axis=1) * jnp.array(self.block)
