"""The gradient of a convolution's kernel from a pooled image, without decoding it.

To decode is to repeat each value over its window of `p` elements: to put `p - 1` zeros between the
values, and to add up `p` shifts of that. A convolution is linear, so that the shifts of its result
may be added up instead. Transposed, the cotangent is summed over windows, and the kernel's gradient
reads one value for each window: a `p`th of the FLOPs along each axis, and no array of full size but
those sums. Along an axis on which the kernel is one pixel, windows of the cotangent do not overlap,
so that the sums are as small as the pooled image.

XLA:GPU (JAX 0.12.0) runs JAX's derivative of the convolution with zeros as a convolution whose
kernel is as large as an image. So the convolution is written with its operands exchanged: the
pooled array slides over the kernel in steps of `p`, both reversed. The derivative of that is the
derivative of any convolution with strides, for which cuDNN has an algorithm of its own.

Known limits: the kernel moves one pixel at a time; where `p` does not divide an axis, so that its
last window is cut, no padding lies behind that window.
"""

import dataclasses
import functools
import itertools as it
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.places import filled
from ..codecs import Code, Codec, Pool


@dataclasses.dataclass(frozen=True)
class Windows:
    """The derivative of a convolution in the direction of its kernel, by its pooled image.

    Attributes:
        eqn: the convolution, of JAX.
        sides: the axes along which its kernel slides.
    """

    eqn: Any
    sides: tuple["_Side", ...]

    @staticmethod
    def of(eqn: Any, place: int, codec: Codec) -> "Windows | None":
        """The derivative of an equation by an operand's code; None where that must be decoded."""
        if eqn.primitive.name != "conv_general_dilated" or place or not isinstance(codec, Pool):
            return None
        image, kernel, result = eqn.params["dimension_numbers"]
        steps = (eqn.params[name] for name in ("window_strides", "lhs_dilation", "rhs_dilation"))
        groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
        if tuple(sorted(image[2:])) != codec.axes or {groups, *sum(steps, ())} != {1}:
            return None
        lengths = [
            [v.aval.shape[axis] for axis in spec[2:]]
            for v, spec in zip((*eqn.invars, *eqn.outvars), (image, kernel, result), strict=True)
        ]
        along = zip(*lengths, eqn.params["padding"], strict=True)
        sides = tuple(_Side(codec.p, *some) for some in along)
        return Windows(eqn, sides) if all(side.is_whole for side in sides) else None

    @property
    def flops(self) -> int:
        """FLOPs of the kernel's gradient."""
        elements = math.prod(self.eqn.invars[1].aval.shape)
        return 2 * elements * math.prod(side.windows for side in self.sides) * self._batch

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the sums of the cotangent."""
        result = self.eqn.outvars[0].aval
        channels = result.shape[self.eqn.params["dimension_numbers"].out_spec[1]]
        elements = channels * math.prod(side.sums for side in self.sides) * self._batch
        return elements * result.dtype.itemsize

    @property
    def _batch(self) -> int:
        return self.eqn.invars[0].aval.shape[self.eqn.params["dimension_numbers"].lhs_spec[0]]

    def __call__(self, code: Code, tangent: jax.Array) -> jax.Array:
        """The tangent of the result, from a tangent of the kernel."""
        (pooled,), params = code, self.eqn.params
        image, kernel, (batch, feature, *axes) = params["dimension_numbers"]
        precision = params["precision"]
        result = lax.conv_general_dilated(
            lax.rev(tangent, kernel[2:]),
            lax.rev(pooled, image[2:]),
            (1,) * len(axes),
            [side.padding for side in self.sides],
            rhs_dilation=[side.step for side in self.sides],
            dimension_numbers=lax.ConvDimensionNumbers(kernel, image, (feature, batch, *axes)),
            precision=precision[::-1] if isinstance(precision, tuple) else precision,
            preferred_element_type=params["preferred_element_type"],
        )
        return self._decoded(result, axes)

    def _decoded(self, values: jax.Array, axes: Sequence[int]) -> jax.Array:
        """The result: values added up along some axes and repeated along others.

        Both axes are treated at once: compilers would keep the array in between.
        """
        shifts = it.product(*(side.shifts for side in self.sides))
        values = functools.reduce(operator.add, (_cut(values, axes, some) for some in shifts))
        times = filled([1] * values.ndim, axes, (side.p // side.step for side in self.sides))
        values = jnp.kron(values, np.ones(times, values.dtype))
        return _cut(values, axes, [(0, side.result) for side in self.sides])


def _cut(values: jax.Array, axes: Sequence[int], parts: Iterable[tuple[int, int]]) -> jax.Array:
    """The part of an array from one place to another along some axes."""
    whole = filled([(0, n) for n in values.shape], axes, parts)
    return lax.slice(values, *zip(*whole, strict=True))


@dataclasses.dataclass(frozen=True)
class Direct:
    """How an equation runs whose derivative reads an undecoded code.

    Attributes:
        by: pushes forward a tangent of the equation's other operand, by the code.
        run: the equation that reads the residual hook: its operands include an `Undecoded`.
    """

    by: Windows
    run: Callable[..., jax.Array]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["code"], meta_fields=["direct"])
@dataclasses.dataclass(frozen=True)
class Undecoded:
    """A code that a residual hook passes on instead of the decoded array.

    Attributes:
        code: its arrays.
        direct: how the one equation that reads it runs.
    """

    code: Code
    direct: Direct


@dataclasses.dataclass(frozen=True)
class _Side:
    """An axis along which a kernel slides.

    Attributes:
        p: elements of a window.
        image, kernel, result: lengths.
        zeros: before and behind the image.
    """

    p: int
    image: int
    kernel: int
    result: int
    zeros: tuple[int, int]

    @property
    def windows(self) -> int:
        """The number of windows."""
        return -(-self.image // self.p)

    @property
    def is_whole(self) -> bool:
        """Whether the image has whole windows, or no result reads padding behind the last one."""
        return self.image % self.p == 0 or self.zeros[1] <= 0

    @property
    def step(self) -> int:
        """The distance of windows; 1 where each result reads one window."""
        return 1 if (self.kernel, *self.zeros) == (1, 0, 0) else self.p

    @property
    def sums(self) -> int:
        """The number of sums of the cotangent that are read."""
        return self.windows if self.step == 1 else self.result + self.p - 1

    @property
    def padding(self) -> tuple[int, int]:
        """The padding of the kernel, over which the windows slide."""
        before = self.step * self.windows + self.zeros[0] - self.kernel
        return before, self.sums - self.step - self.zeros[0]

    @property
    def shifts(self) -> list[tuple[int, int]]:
        """Start and end of the parts of the sums that are added up for the result."""
        length = self.windows if self.step == 1 else self.result
        return [(j, j + length) for j in range(self.step)]
