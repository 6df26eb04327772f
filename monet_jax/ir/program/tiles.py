"""The padding of arrays that a device lays out in tiles of two axes, as TPUs do."""

import functools
import itertools as it
import math


@functools.lru_cache(maxsize=1 << 14)
def tiled_size(shape: tuple[int, ...], tile: tuple[int, int]) -> int:
    """Elements of an array that is padded to whole tiles, in the layout of which that takes least.

    A compiler may choose which two axes the tiles lie in: XLA:TPU does for most arrays that a
    training step keeps, and takes tiles of fewer rows for an axis of one, two or four.

    Arguments:
        shape: of the array.
        tile: rows and columns of a tile: 8 and 128 on a TPU.
    """
    sides = [n for n in shape if n != 1]
    size, (rows, columns) = math.prod(shape), tile
    if len(sides) < 2 or not size:
        return size
    return min(
        size // (n * m) * _padded(n, min(rows, 1 << (n - 1).bit_length())) * _padded(m, columns)
        for n, m in it.permutations(sides, 2)
    )


def _padded(side: int, multiple: int) -> int:
    return -(-side // multiple) * multiple
