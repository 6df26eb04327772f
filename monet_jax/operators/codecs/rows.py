"""A matrix stored as a sample of its rows, unbiased (WTA-CRS, NeurIPS 2023, arXiv 2305.15265).

A weight's gradient sums over rows: dW = sum over i of outer(x[i], g[i]). The sample and its weights
depend on x alone, so that the estimate is unbiased whatever g is.

| letter | |
|---|---|
| n | rows: all axes of the array but the last |
| k | slots for kept rows |
| c | winners: rows kept as they are, in the first slots |

A row's chance is a whole number of ticks, 2^-32 each, and its weight the reciprocal of just that:
no rounding makes a bias.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import rounding
from .codec import Code, Kind, is_float
from .noise import bits, fold, uniform
from .placing import placed

#: The sum of the chances of all rows; a draw is a number below.
_TICKS = 2**32 - 1
#: The ticks that are shared out in proportion. The others make up for rounding.
_SHARED_TICKS = 2**32 - 2**24
_MOST_ROWS = 2**23


@dataclasses.dataclass(frozen=True)
class Rows:
    """The share `keep` of the rows: the largest as they are, others at random, with weights.

    Winner-take-all column-row sampling (WTA-CRS, NeurIPS 2023, arXiv 2305.15265), by the norms of
    the rows of x alone. Each row has a probability; the c largest are taken, with the c for which
    (1 - their sum) / (k - c) is least; the other k - c slots are drawn from the rest, with
    replacement. A row that is drawn twice is stored once, with the sum of its weights.

    The variance of an element is its square times (1 - q) / (q (k - c)), where q is the chance of
    its row in a draw. In bfloat16 and float16 the products with weights are also rounded at random,
    which adds to it. An array with a value that is not finite decodes to NaN in the kept rows.
    """

    keep: float = 0.3

    kind: ClassVar[Kind] = Kind.UNBIASED

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"got a share of {self.keep} to `keep`; it is in (0, 1]")

    @property
    def name(self) -> str:
        """As in "rows0.3"."""
        return f"rows{self.keep:g}"

    def applies(self, aval: Any) -> bool:
        """To floats of at least two axes and one element, and of at most 2^23 rows."""
        shape = aval.shape
        is_matrix = len(shape) >= 2 and math.prod(shape) > 0
        return is_float(aval) and is_matrix and math.prod(shape[:-1]) <= _MOST_ROWS

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """The kept rows times their weights, flat, and their places."""
        matrix = _matrix(x)
        lots = _lots(matrix, self.keep)
        row, weight = _drawn(lots, noise)
        product = rounding.randomly(
            matrix[row] * weight[:, None], x.dtype, uniform(fold(noise, 1), (len(row), x.shape[-1]))
        )
        return product.astype(x.dtype).reshape(-1), row

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The products at their rows, zeros elsewhere."""
        product, row = code
        matrix = placed(product.reshape(len(row), -1), row, math.prod(aval.shape[:-1]))
        return matrix.reshape(aval.shape)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The variance, without the variance of rounding to the dtype of x."""
        matrix = _matrix(x)
        variance = _variance_of_weights(_lots(matrix, self.keep))
        return (jnp.square(matrix) * variance[:, None]).reshape(x.shape)


class _Lots(NamedTuple):
    """How the rows of one array are chosen.

    Attributes:
        largest: int32 [k], the rows of the largest norms, in order.
        winners: how many of these are kept in any case: c.
        ticks: uint32 [n], the chance of each row in a draw; 0 for a winner.
        poison: 0, or NaN where the array has a value that is not finite.
    """

    largest: jax.Array
    winners: jax.Array
    ticks: jax.Array
    poison: jax.Array


def _matrix(x: jax.Array) -> jax.Array:
    """[n, columns], float32."""
    return x.astype(jnp.float32).reshape(-1, x.shape[-1])


def _lots(matrix: jax.Array, keep: float) -> _Lots:
    """The lots of the rows, by their norms."""
    n = len(matrix)
    k = math.ceil(keep * n)
    largest_element = jnp.max(jnp.abs(matrix))
    scaled = matrix / jnp.where(largest_element == 0, 1, largest_element)  # no square overflows
    norm = jnp.sqrt(jnp.sum(jnp.square(scaled), axis=1))
    total = jnp.sum(norm)
    chance = jnp.where(jnp.isfinite(total) & (total > 0), norm / total, 1 / n)
    highest, largest = lax.top_k(chance, k)
    winners = jnp.int32(n) if k == n else _winners(highest)
    is_winner = jnp.zeros(n, bool).at[largest].set(jnp.arange(k) < winners)
    return _Lots(largest, winners, _ticks(chance, is_winner), total * 0)


def _winners(highest: jax.Array) -> jax.Array:
    """c, from the k highest chances in order: where (1 - their sum) / (k - c) is least."""
    k = len(highest)
    rest = jnp.maximum(1 - (jnp.cumsum(highest) - highest), 0)
    others = (k - jnp.arange(k)).astype(rest.dtype)
    return jnp.argmin(rest / others).astype(jnp.int32)


def _ticks(chance: jax.Array, is_winner: jax.Array) -> jax.Array:
    """Chances in a draw among the rows that are no winners, as whole numbers."""
    n = len(chance)
    chance = jnp.where(is_winner, 0, chance)
    highest = jnp.max(chance)
    # So coarse that the sum of n is less than 2^31, and exact.
    parts = jnp.ceil(
        chance / jnp.where(highest == 0, 1, highest) * 2.0 ** (31 - (n - 1).bit_length())
    )
    parts = jnp.maximum(parts.astype(jnp.uint32), (chance > 0).astype(jnp.uint32))
    total = jnp.maximum(jnp.sum(parts, dtype=jnp.uint32), 1).astype(jnp.float32)
    ticks = jnp.floor(parts.astype(jnp.float32) * (float(_SHARED_TICKS) / total)).astype(jnp.uint32)
    rest = jnp.uint32(_TICKS) - jnp.sum(ticks, dtype=jnp.uint32)
    return ticks.at[jnp.argmax(jnp.where(is_winner, -1, chance))].add(rest)


def _drawn(lots: _Lots, noise: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The row in each of the k slots, and its weight: 0 where an earlier slot has the row."""
    n, k = len(lots.ticks), len(lots.largest)
    slot = jnp.arange(k)
    number = jnp.minimum(bits(noise, (k,)), jnp.uint32(_TICKS - 1))
    edges = jnp.cumsum(lots.ticks, dtype=jnp.uint32)
    drawn = jnp.searchsorted(edges, number, side="right").astype(jnp.int32)
    is_winner = slot < lots.winners
    row = jnp.where(is_winner, lots.largest, drawn)
    draws = (k - lots.winners).astype(jnp.float32)
    expected = draws * (lots.ticks[drawn].astype(jnp.float32) / float(_TICKS))
    weight = jnp.where(is_winner, 1, 1 / expected) + lots.poison
    summed = jnp.zeros(n, jnp.float32).at[row].add(weight)
    first = jnp.full(n, k).at[row].min(slot)
    return row, jnp.where(first[row] == slot, summed[row], 0)


def _variance_of_weights(lots: _Lots) -> jax.Array:
    """The variance of the summed weight of each row."""
    draws = jnp.maximum(len(lots.largest) - lots.winners, 1).astype(jnp.float32)
    chance = lots.ticks.astype(jnp.float32) / float(_TICKS)
    variance = (1 - chance) / (jnp.where(chance == 0, 1, chance) * draws)
    return jnp.where(chance == 0, 0, variance) + lots.poison
