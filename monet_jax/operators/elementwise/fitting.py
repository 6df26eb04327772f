"""Formulas by which residuals follow from a result, fitted to and verified on all 16-bit numbers.

A candidate is a sigmoid, or a function in two pieces, each constant or a line. The candidate with
the smallest error is taken for each residual; the formulas of a function are used where the local
derivatives that they give agree with JAX's.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..representations import Derived
from .pointwise import ElementwiseFunction, computed, numbers

#: Nearer to zero, operands may count as zero: some of their results round to the result of zero.
_NEAREST = 1e-30
#: The distance of local derivatives from JAX's, at most, in units of the last place.
_UNITS = 4


@functools.lru_cache(maxsize=1024)
def representations(
    forward: ElementwiseFunction, late: ElementwiseFunction
) -> tuple[Derived, ...] | None:
    """How each residual of a function follows from its result, on all numbers of 16 bits.

    Arguments:
        forward: `source -> (result, *residuals)`.
        late: `(tangent, *residuals) -> tangent`.
    """
    at = numbers(forward.dtype)
    result, *residuals = forward.on(at[(np.abs(at) >= _NEAREST) | (at == 0) | np.isnan(at)])
    places, *values = forward.on(_places(result.dtype))
    rest = next((y for y in map(float, (places[3], places[5])) if math.isfinite(y)), 0.0)
    found = []
    for value, residual in zip(values, residuals, strict=True):
        candidates = [_Pieces.through(places, value), _Sigmoid(rest)]
        errors = [_error(x, result, residual) for x in candidates]
        found.append(candidates[errors.index(min(errors))])
    is_16_bit = jnp.finfo(result.dtype).bits < 32
    if is_16_bit and not any(isinstance(x, _Sigmoid) for x in found):
        return None  # one plus a result is off by its rounding, where a derivative is small
    one = np.ones_like(result)
    (exact,) = late.on(one, *residuals)
    (fitted,) = late.on(one, *(computed(x, result) for x in found))
    is_relative = _Sigmoid(0.0) in found
    return tuple(map(Derived, found)) if _agree(fitted, exact, result, is_relative) else None


def _error(candidate: Callable[..., Any], result: np.ndarray, residual: np.ndarray) -> float:
    """The largest error of a candidate, computed from results, against the residual."""
    found = computed(candidate, result)
    if found.dtype != residual.dtype:
        return math.inf
    with np.errstate(invalid="ignore"):
        wrong = np.abs(found.astype(np.float64) - residual.astype(np.float64))
    return float(np.max(wrong, where=np.isfinite(wrong), initial=0))


def _agree(fitted: np.ndarray, exact: np.ndarray, result: np.ndarray, is_relative: bool) -> bool:
    """Whether local derivatives computed from results are within the bound of JAX's.

    Arguments:
        fitted: the local derivatives computed from results.
        exact: JAX's local derivatives.
        result: the results.
        is_relative: whether small local derivatives are as exact as large ones. JAX computes them
            as `exp(x - y)` then, and they are off by the rounding of `x - y`.
    """
    info = jnp.finfo(exact.dtype)
    least = max(float(jnp.finfo(jnp.float32).tiny), 4 * float(info.smallest_subnormal))
    fitted, exact, result = (np.asarray(x, np.float64) for x in (fitted, exact, result))
    scale = np.abs(exact)
    with np.errstate(invalid="ignore"):
        if is_relative:
            scale = scale * (1 + np.clip(np.abs(result), 0, 100) - np.log(np.clip(scale, least, 1)))
        else:
            scale = np.max(scale, where=np.isfinite(scale), initial=0)
        near = np.abs(fitted - exact) <= _UNITS * float(info.eps) * scale + least
    return bool(np.all(near | (fitted == exact) | (np.isnan(fitted) & np.isnan(exact))))


def _places(dtype: Any) -> np.ndarray:
    """Where functions are evaluated: at NaN, at zero, and on both sides near and far from zero."""
    tiny = float(jnp.finfo(dtype).tiny)
    return np.asarray((np.nan, 0.0, -tiny, -np.inf, tiny, np.inf), dtype)


@dataclasses.dataclass(frozen=True)
class _Sigmoid:
    """A sigmoid, computed from the softplus of the same operand plus some number.

    Attributes:
        rest: the result of softplus where the sigmoid is zero; results may fall away from it.
    """

    rest: float

    def __call__(self, result: jax.Array) -> jax.Array:
        """The sigmoid."""
        return -jnp.expm1(-jnp.abs(result - self.rest if self.rest else result))


@dataclasses.dataclass(frozen=True)
class _Piece:
    """How a residual follows from the results for operands on one side of zero.

    Attributes:
        limit: the last result; the others are on the near side of it.
        value: the residual there.
        rise: the derivative of the residual by the result.
    """

    limit: float
    value: Any
    rise: float

    @staticmethod
    def through(near: tuple[Any, Any], far: tuple[Any, Any]) -> "_Piece":
        """The line through results and residuals near zero and far away."""
        (y, r), (limit, value) = near, far
        run = limit - y
        is_line = math.isfinite(run) and run and not isinstance(value, bool)
        return _Piece(limit, value, (value - r) / run if is_line else 0.0)

    def __call__(self, result: jax.Array) -> Any:
        """The residuals."""
        return self.value + (result - self.limit) * self.rise if self.rise else self.value


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """A residual as a function of the result in two pieces, each constant or a line.

    Attributes:
        at_nan: the residual where the result is NaN.
        kink: the result for the operand zero.
        at_kink: the residual there.
        low, high: the pieces below and above the kink.
    """

    at_nan: Any
    kink: float
    at_kink: Any
    low: _Piece
    high: _Piece

    @staticmethod
    def through(results: np.ndarray, residuals: np.ndarray) -> "_Pieces":
        """The pieces through results and residuals at `_places`."""
        pairs = list(zip(results.astype(float).tolist(), residuals.tolist(), strict=True))
        (_, at_nan), (kink, at_kink), *beside = pairs
        sides = _Piece.through(*beside[:2]), _Piece.through(*beside[2:])
        low, high = sorted(sides, key=lambda x: x.limit)
        return _Pieces(at_nan, kink, at_kink, low, high)

    def __call__(self, result: jax.Array) -> jax.Array:
        """The residuals."""
        found = jnp.where(result > self.kink, self.high(result), self.low(result))
        found = jnp.where(result == self.kink, self.at_kink, found)
        found = jnp.where(jnp.isnan(result), self.at_nan, found)
        return found if found.dtype == jnp.bool else found.astype(result.dtype)
