"""Groups of an array's elements along its own axes, for metadata.

A group never lies along the last axis: it is one column of the last axis, over a part of the axes
before. XLA:TPU stores the last two axes in tiles, for images the first and the last, and a reshape
that cuts or merges tiles is a copy of the whole array, in float32 where codes are computed. To cut
any other axis is free, and so is a cut of the last but one into whole tiles.
"""

import dataclasses
import functools as ft
import itertools as it
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

#: Rows of a tile.
_TILE = 8


@dataclasses.dataclass(frozen=True)
class Grouping:
    """The groups of arrays of one shape.

    Attributes:
        filled: the shape to which an array is filled up; one axis where it is made flat first.
        shape: the same shape, in which an axis that is cut is two: groups, and elements of a group.
        inside: the axes of `shape` that lie within groups.
    """

    filled: tuple[int, ...]
    shape: tuple[int, ...]
    inside: tuple[int, ...]

    @staticmethod
    @ft.lru_cache(maxsize=4096)
    def of(shape: tuple[int, ...], group: int) -> "Grouping":
        """Groups of at most `group` elements, and at least half as many if the array has them.

        Where the last axis alone holds most elements, groups are consecutive elements of the flat
        array. An array of fewer elements is one group of its own size.
        """
        lengths = _lengths(shape, group, _divisor)
        if 2 * math.prod(lengths) < group:
            lengths = _lengths(shape, group, _part)
        if 2 * math.prod(lengths) < group or 0 in shape:
            shape = (math.prod(shape),)
            lengths = [min(group, max(shape[0], 1))]
        counts = [-(-n // k) for n, k in zip(shape, lengths, strict=True)]
        parts = [(m, k) if m > 1 < k else (m * k,) for m, k in zip(counts, lengths, strict=True)]
        ends = it.accumulate(map(len, parts))
        return Grouping(
            tuple(map(math.prod, parts)),
            tuple(it.chain.from_iterable(parts)),
            tuple(end - 1 for end, k in zip(ends, lengths, strict=True) if k > 1),
        )

    def split(self, x: jax.Array) -> jax.Array:
        """The array in groups, filled up with the last elements along an axis."""
        if x.ndim != len(self.filled):
            x = x.reshape(-1)
        missing = [(0, big - n) for big, n in zip(self.filled, x.shape, strict=True)]
        if any(more for _, more in missing):
            x = jnp.pad(x, missing, mode="edge")
        return x.reshape(self.shape)

    def joined(self, groups: jax.Array, aval: Any) -> jax.Array:
        """The array from its groups, in the shape and dtype of `aval`."""
        is_flat = len(aval.shape) != len(self.filled)
        shape = (math.prod(aval.shape),) if is_flat else aval.shape
        whole = jax.lax.slice(groups.reshape(self.filled), [0] * len(shape), shape)
        return whole.reshape(aval.shape).astype(aval.dtype)


def _lengths(shape: Sequence[int], group: int, part: Callable[[int, int], int]) -> list[int]:
    """Elements of a group along each axis, taken from the last axis but one on to the first."""
    lengths = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        n, most = shape[axis], group // math.prod(lengths)
        lengths[axis] = part(n, most) if n > most else max(n, 1)
    return lengths


def _divisor(n: int, most: int) -> int:
    """The best part of an axis of `n` that leaves no remainder: large, and of whole tiles."""
    divisors = (k for k in range(1, most + 1) if n % k == 0)
    return max(divisors, key=lambda k: (2 * k > most, k % _TILE == 0, k))


def _part(n: int, most: int) -> int:
    """The best large part of an axis of `n`: with a small remainder, and of whole tiles."""

    def filled(k: int) -> int:
        is_cut = k % _TILE > 0  # a TPU fills up each part to whole tiles
        return -(-n // k) * k + is_cut * (n // _TILE)

    return min(range(most // 2 + 1, most + 1), key=filled)
