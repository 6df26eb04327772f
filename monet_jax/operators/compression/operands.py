"""Codecs of single operands, which know the array's axes.

A window consists of pixels, and the gradient of a matrix sums over rows: such codecs serve single
operands of single equations, each laid out for its equation, and no other values that follow from
the same source.
"""

import abc
import dataclasses
from typing import Any

from ..codecs import Codec, Kind, Pixel, Pool, PoolResidual


@dataclasses.dataclass(frozen=True)
class OfOperands(abc.ABC):
    """A codec for some operands of some equations.

    Attributes:
        codec: with its default axes.
    """

    codec: Any

    @property
    def name(self) -> str:
        """The name of the codec."""
        return self.codec.name

    @property
    def kind(self) -> Kind:
        """The kind of the codec."""
        return self.codec.kind

    @abc.abstractmethod
    def at(self, eqn: Any, place: int) -> Codec | None:
        """The codec for the operand of a JAX equation at a place; None if it serves another."""


class Convolutions(OfOperands):
    """Images of convolutions over two axes, which the kernel's gradient alone reads.

    Excluded are kernels that step over pixels, and channels with kernels of their own: there,
    windows have little in common with the pixels that are read.
    """

    codec: Pool | PoolResidual | Pixel

    def at(self, eqn: Any, place: int) -> Codec | None:
        """The codec along the axes of the image."""
        if eqn.primitive.name != "conv_general_dilated" or place != 0:
            return None
        layout = eqn.params["dimension_numbers"]
        axes = layout.lhs_spec[2:]
        kernel = [eqn.invars[1].aval.shape[n] for n in layout.rhs_spec[2:]]
        if len(axes) != 2 or eqn.params["feature_group_count"] > 1:
            return None
        steps_over = any(s > k for s, k in zip(eqn.params["window_strides"], kernel, strict=True))
        spreads = any(n > 1 for n in (*eqn.params["lhs_dilation"], *eqn.params["rhs_dilation"]))
        if steps_over or spreads or eqn.params["batch_group_count"] > 1:
            return None
        return dataclasses.replace(self.codec, axes=tuple(sorted(axes)))


class Products(OfOperands):
    """Operands whose last axis a product contracts: a gradient sums over their rows."""

    def at(self, eqn: Any, place: int) -> Codec | None:
        """The codec, unchanged."""
        if eqn.primitive.name != "dot_general":
            return None
        contracted = eqn.params["dimension_numbers"][0][place]
        last = len(eqn.invars[place].aval.shape) - 1
        return self.codec if tuple(contracted) == (last,) else None
