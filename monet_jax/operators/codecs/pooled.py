"""Codecs that store an image at a lower resolution.

Windows of `p` x `p` lie side by side over two axes, from the first element on; those at the far
edges hold fewer elements where `p` does not divide. Decoding repeats a window's value over it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from . import rounding as rounding_module
from .codec import Code, Kind, is_float, square_of_error
from .noise import NO_WORDS, fold, uniform
from .quantized import Groups


@dataclasses.dataclass(frozen=True)
class Pool:
    """The mean of each window, or its soft maximum, in the dtype of the array.

    Backpropagation with compressed activations after Barley and Fröning (2024, arXiv 2409.11902),
    which stores a convolution's input so for the gradient of its kernel. With "mean", the
    sum of a window at the edge is divided by the elements that it has: decoding then gives the
    orthogonal projection on arrays that are constant in windows, for any shape. With "soft",
    elements are weighted by their exponentials (SoftPool, ICCV 2021, arXiv 2101.00440; the
    window's maximum is subtracted first here, so that nothing overflows).

    Attributes:
        p: elements of a window's side.
        pooling: "mean" or "soft".
        axes: the two spatial axes; by default of NHWC.
    """

    p: int = 2
    pooling: str = "mean"
    axes: tuple[int, int] = (1, 2)

    kind: ClassVar[Kind] = Kind.BIASED

    def __post_init__(self) -> None:
        _check_windows(self.p, self.axes)
        if self.pooling not in ("mean", "soft"):
            raise ValueError(f'got `pooling` {self.pooling!r}; use "mean" or "soft"')

    @property
    def name(self) -> str:
        """As in "pool2" and "softpool2"."""
        return f"{'soft' if self.pooling == 'soft' else ''}pool{self.p}"

    def applies(self, aval: Any) -> bool:
        """To floats of at least two windows along each of the axes."""
        return _has_windows(aval, self.p, self.axes)

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """A value for each window, in place of the axes."""
        del noise
        pool = _mean if self.pooling == "mean" else _soft_maximum
        return (rounding_module.nearest(pool(x, self.p, self.axes), x.dtype).astype(x.dtype),)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """Each value over its window."""
        return _repeated(code[0], self.p, self.axes, aval.shape)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The square of the error."""
        return square_of_error(self, x)


@dataclasses.dataclass(frozen=True)
class PoolResidual:
    """The mean of each window in bfloat16, and the rest quantized: unbiased.

    After DIVISION (its published code, `guanchuwang/division`): p = 8, and 2 bits for the rest.
    There a group of the rest is a channel of a sample; here it is a part of one. The means are
    rounded before they are subtracted. The variance of an element is at most a quarter of its
    group's step squared.
    """

    p: int = 8
    bits: int = 2
    group: int = 64
    axes: tuple[int, int] = (1, 2)

    kind: ClassVar[Kind] = Kind.UNBIASED

    def __post_init__(self) -> None:
        _check_windows(self.p, self.axes)
        Groups(self.bits, self.group)  # checks them

    @property
    def name(self) -> str:
        """As in "pool8+int2"."""
        return f"pool{self.p}+{self._rest.name}"

    def applies(self, aval: Any) -> bool:
        """To floats of at least two windows along each of the axes."""
        return _has_windows(aval, self.p, self.axes)

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """The means, then the code of the rest."""
        means = self._means(x)
        offset = _repeated(means, self.p, self.axes, x.shape)
        return means.astype(jnp.bfloat16), *self._rest.encode(x, noise, offset)

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The sum of both."""
        offset = _repeated(code[0].astype(jnp.float32), self.p, self.axes, aval.shape)
        return self._rest.decode(code[1:], aval, offset)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The variance."""
        return self._rest.mean_square(x, _repeated(self._means(x), self.p, self.axes, x.shape))

    @property
    def _rest(self) -> Groups:
        return Groups(self.bits, self.group)

    def _means(self, x: jax.Array) -> jax.Array:
        return rounding_module.nearest(_mean(x, self.p, self.axes), jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Pixel:
    """One element of each window, at random, times the elements of the window: unbiased.

    The place is the same along all axes behind the first spatial one: of NHWC, for all channels. It
    is not stored, but drawn again. The variance of an element is its square times one less than the
    window's elements. Where that number is no power of 2, the product is also rounded to bfloat16
    or float16 at random, which adds to it. A window with a value that is not finite decodes to NaN
    at its place.
    """

    p: int = 2
    axes: tuple[int, int] = (1, 2)

    kind: ClassVar[Kind] = Kind.UNBIASED

    def __post_init__(self) -> None:
        _check_windows(self.p, self.axes)

    @property
    def name(self) -> str:
        """As in "pixel2"."""
        return f"pixel{self.p}"

    def applies(self, aval: Any) -> bool:
        """To floats of at least two windows along each of the axes."""
        return _has_windows(aval, self.p, self.axes)

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """The products, in place of the axes, and the words of the noise."""
        if noise is None:
            raise TypeError(NO_WORDS)
        windows = _windows(x.astype(jnp.float32), self.p, self.axes)
        inside = _inside(self.axes)
        at_row, at_column = (
            jnp.expand_dims(place, inside) == _along(np.arange(self.p), axis, windows.ndim)
            for place, axis in zip(self._picked(x.shape, noise), inside, strict=True)
        )
        value = jnp.sum(jnp.where(at_row & at_column, windows, 0), axis=inside)
        is_finite = jnp.all(jnp.isfinite(windows), axis=inside)
        product = jnp.where(is_finite, value * _elements(x.shape, self.p, self.axes), jnp.nan)
        product = rounding_module.randomly(product, x.dtype, uniform(fold(noise, 1), product.shape))
        return product.astype(x.dtype), noise

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The products at their places, zeros elsewhere."""
        product, noise = code
        at_row, at_column = (
            _repeated(place, self.p, self.axes, aval.shape)
            == _along(np.arange(aval.shape[axis]) % self.p, axis, len(aval.shape))
            for place, axis in zip(self._picked(aval.shape, noise), self.axes, strict=True)
        )
        product = _repeated(product, self.p, self.axes, aval.shape)
        return jnp.where(at_row & at_column, product, 0)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The variance."""
        elements = _elements(x.shape, self.p, self.axes)
        elements = _repeated(jnp.asarray(elements), self.p, self.axes, x.shape)
        wide = x.astype(jnp.float32)
        rounding = rounding_module.random_variance(wide * elements, x.dtype)
        return jnp.square(wide) * (elements - 1) + rounding / elements

    def _picked(self, shape: tuple[int, ...], noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The row and the column of the element that each window keeps."""
        first = self.axes[0]
        elements = _elements(shape, self.p, self.axes)
        drawn = [*shape[:first], *elements.shape[first:]]  # the same for all channels
        number = jnp.floor(uniform(noise, tuple(drawn)) * elements)
        number = jnp.minimum(number, elements - 1).astype(jnp.int32)
        columns = _along(_lengths(shape[self.axes[1]], self.p), self.axes[1], len(shape))
        return number // columns, number % columns


def _check_windows(p: int, axes: tuple[int, int]) -> None:
    if p < 2:
        raise ValueError(f"got windows of {p} x {p}; `p` is at least 2")
    if not 0 <= axes[0] < axes[1]:
        raise ValueError(f"got `axes` {axes}; give two, not negative, in increasing order")


def _has_windows(aval: Any, p: int, axes: tuple[int, int]) -> bool:
    is_deep_enough = axes[1] < len(aval.shape)
    return is_float(aval) and is_deep_enough and all(aval.shape[a] >= 2 * p for a in axes)


def _inside(axes: tuple[int, int]) -> tuple[int, int]:
    """The axes within windows, of an array that `_windows` returns."""
    return axes[0] + 1, axes[1] + 2


def _windows(x: jax.Array, p: int, axes: Sequence[int], fill: float = 0.0) -> jax.Array:
    """x with each of the axes as two: windows, and the `p` elements of one."""
    missing = [(0, -n % p if axis in axes else 0) for axis, n in enumerate(x.shape)]
    x = jnp.pad(x, missing, constant_values=fill)
    cut = [(n // p, p) if axis in axes else (n,) for axis, n in enumerate(x.shape)]
    return x.reshape(sum(cut, ()))


def _lengths(n: int, p: int) -> np.ndarray:
    """The elements of each window along an axis of `n`."""
    return np.minimum(p, n - np.arange(0, n, p))


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector along one axis of an array of that rank."""
    return values.reshape([-1 if a == axis else 1 for a in range(rank)])


def _elements(shape: tuple[int, ...], p: int, axes: tuple[int, int]) -> np.ndarray:
    """The elements of each window, float32: of the array's rank, of length 1 in other axes."""
    sides = [_along(_lengths(shape[axis], p), axis, len(shape)) for axis in axes]
    return (sides[0] * sides[1]).astype(np.float32)


def _mean(x: jax.Array, p: int, axes: tuple[int, int]) -> jax.Array:
    """The mean of each window, float32."""
    total = jnp.sum(_windows(x.astype(jnp.float32), p, axes), axis=_inside(axes))
    return total / _elements(x.shape, p, axes)


def _soft_maximum(x: jax.Array, p: int, axes: tuple[int, int]) -> jax.Array:
    """The mean of each window, weighted by exponentials, float32."""
    x, inside = x.astype(jnp.float32), _inside(axes)
    outranked = _windows(x, p, axes, fill=-jnp.inf)  # beyond the array: no weight
    weight = jnp.exp(outranked - jnp.max(outranked, axis=inside, keepdims=True))
    return jnp.sum(weight * _windows(x, p, axes), axis=inside) / jnp.sum(weight, axis=inside)


def _repeated(
    values: jax.Array, p: int, axes: tuple[int, int], shape: tuple[int, ...]
) -> jax.Array:
    """Each value over its window, up to the lengths that `shape` has along the axes."""
    for axis in axes:
        values = jnp.repeat(values, p, axis=axis)
        values = jax.lax.slice_in_dim(values, 0, shape[axis], axis=axis)
    return values
