"""Which operands may be kept by a codec that knows what an array's axes are?

A window is one of pixels, and a row is what the gradient of a matrix sums over: such codecs serve
single operands of single equations, each laid out for its equation, and nothing that follows from
the same value.
"""

import abc
import dataclasses
from typing import Any

from ..codecs import Codec, Kind, Pixel, Pool, PoolResidual


@dataclasses.dataclass(frozen=True)
class OfOperands(abc.ABC):
    """A codec for some operands of some equations.

    Attributes:
        codec: as it is where nothing else is to be said.
    """

    codec: Any

    @property
    def name(self) -> str:
        """That of the codec."""
        return self.codec.name

    @property
    def kind(self) -> Kind:
        """That of the codec."""
        return self.codec.kind

    @abc.abstractmethod
    def at(self, eqn: Any, place: int) -> Codec | None:
        """The codec for the operand of a JAX equation at a place; None if it is not for it."""


class Convolutions(OfOperands):
    """What a convolution over two axes slides its kernel over; only the kernel's gradient reads it.

    Not where the kernel steps over pixels, or each channel has a kernel of its own: there, windows
    have little in common with what is read.
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
    """Operands of which a product contracts the last axis: a gradient sums over their rows."""

    def at(self, eqn: Any, place: int) -> Codec | None:
        """The codec as it is."""
        if eqn.primitive.name != "dot_general":
            return None
        contracted = eqn.params["dimension_numbers"][0][place]
        last = len(eqn.invars[place].aval.shape) - 1
        return self.codec if tuple(contracted) == (last,) else None
