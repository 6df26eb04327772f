"""How is an array cut into groups?

Along its own axes, and never along the last: a group is one column of the last axis, over a part of
the axes before. XLA:TPU keeps the last two axes in tiles, of images the first and the last, and a
reshape that cuts or merges tiles is a copy of the whole array, in float32 where codes are computed.
To cut any other axis is free, and so is a cut of the last but one into whole tiles.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

#: Rows of a tile.
_TILE = 8


@dataclasses.dataclass(frozen=True)
class Cut:
    """An array of a shape in groups.

    Attributes:
        shape: of the array with each axis that is cut as two: groups, and the elements of one.
        inside: the axes of that which lie within groups.
        missing: elements by which the flat array is filled up; None where the axes are its own.
    """

    shape: tuple[int, ...]
    inside: tuple[int, ...]
    missing: int | None = None

    @staticmethod
    @ft.lru_cache(maxsize=4096)
    def of(shape: tuple[int, ...], group: int) -> "Cut":
        """Groups of at most so many elements, and of at least half as many where there are so many.

        Where axes have no parts of that size, groups are consecutive elements of the flat array,
        and the last is filled up. An array of fewer elements is one group of its own size.
        """
        lengths = _lengths(shape, group)
        if 0 in shape or 2 * math.prod(lengths) < group:
            size = math.prod(shape)
            group = min(group, max(size, 1))
            return Cut((-(-size // group), group), (1,), -size % group)
        parts = [(n // k, k) if 1 < k < n else (n,) for n, k in zip(shape, lengths, strict=True)]
        ends = [sum(map(len, parts[: axis + 1])) for axis in range(len(shape))]
        inside = tuple(end - 1 for end, k in zip(ends, lengths, strict=True) if k > 1)
        return Cut(sum(parts, ()), inside)

    def split(self, x: jax.Array) -> jax.Array:
        """The array in groups; one that is filled up is with its last element."""
        if self.missing:
            x = jnp.pad(x.reshape(-1), (0, self.missing), mode="edge")
        return x.reshape(self.shape)

    def joined(self, groups: jax.Array, aval: Any) -> jax.Array:
        """The array again, of the shape and dtype of `aval`."""
        if self.missing:
            groups = groups.reshape(-1)[: math.prod(aval.shape)]
        return groups.reshape(aval.shape).astype(aval.dtype)


def _lengths(shape: Sequence[int], group: int) -> list[int]:
    """Elements of a group along each axis: whole axes and a part of one, from the last but one."""
    lengths = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        n = shape[axis]
        lengths[axis] = _part(n, group // math.prod(lengths))
        if lengths[axis] < n:
            break
    return lengths


def _part(n: int, most: int) -> int:
    """The largest divisor of `n` up to a number, of whole tiles if there is one."""
    if 0 < n <= most:
        return n
    divisors = [k for k in range(1, most + 1) if n % k == 0]
    return max(divisors, key=lambda k: (k % _TILE == 0, k))
