"""How an axis is divided into slices: also where its array is spread over devices along it."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Division:
    """An axis in equal slices, each with an equal share of every block of the axis.

    What is spread over devices along an axis lies there block by block, and so does each slice:
    every device has its share of it, and nothing is sent. With one block, slices are contiguous.

    Attributes:
        parts: how many slices.
        blocks: how many equal blocks.
    """

    parts: int
    blocks: int = 1

    def divides(self, size: int) -> bool:
        """Whether an axis of some size is divided."""
        return size > 1 and size % (self.parts * self.blocks) == 0

    def resized(self, shape: Sequence[int], axis: int) -> tuple[int, ...]:
        """The shape of a slice."""
        return (*shape[:axis], shape[axis] // self.parts, *shape[axis + 1 :])

    def slice_of(self, x: jax.Array, axis: int, k: jax.Array) -> jax.Array:
        """The slice `k` of an array."""
        lying = self._in_blocks(x, axis)
        share = lying.shape[axis + 1] // self.parts
        found = lax.dynamic_slice_in_dim(lying, k * share, share, axis + 1)
        return found.reshape(self.resized(x.shape, axis))

    def with_slice(self, x: jax.Array, new: jax.Array, axis: int, k: jax.Array) -> jax.Array:
        """An array with another slice `k`."""
        lying, new = self._in_blocks(x, axis), self._in_blocks(new, axis)
        start = k * new.shape[axis + 1]
        return lax.dynamic_update_slice_in_dim(lying, new, start, axis + 1).reshape(x.shape)

    def _in_blocks(self, x: jax.Array, axis: int) -> jax.Array:
        """An array, or a slice of it, with an axis of blocks before the axis."""
        size = x.shape[axis] // self.blocks
        return x.reshape(*x.shape[:axis], self.blocks, size, *x.shape[axis + 1 :])

    def stacked(self, x: jax.Array, axis: int) -> jax.Array:
        """The slices of an array, one after another."""
        before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        share = size // (self.parts * self.blocks)
        shares = x.reshape(*before, self.blocks, self.parts, share, *after)
        stacked = jnp.moveaxis(shares, axis + 1, 0)
        return stacked.reshape(self.parts, *before, self.blocks * share, *after)

    def joined(self, x: jax.Array, axis: int) -> jax.Array:
        """The array of which these are the slices, one after another."""
        before, size, after = x.shape[1 : axis + 1], x.shape[axis + 1], x.shape[axis + 2 :]
        shares = x.reshape(self.parts, *before, self.blocks, size // self.blocks, *after)
        whole = jnp.moveaxis(shares, 0, axis + 1)
        return whole.reshape(*before, self.parts * size, *after)


def nearest(size: int, devices: int, wanted: float, most: int) -> Division | None:
    """The division of an axis into about so many slices; None where it has none.

    Arguments:
        size: of the axis.
        devices: over how many devices it may be spread: on each of them it is divided.
        wanted: how many slices there should be.
        most: how many slices there may be.
    """
    known = (Division(n, devices) for n in range(2, min(size // devices, most) + 1))
    found = [x for x in known if x.divides(size)]
    return min(found, key=lambda x: abs(math.log(x.parts / wanted)), default=None)
