"""Codecs of the local derivative of an elementwise chain, such as a GELU.

The derivative of `y = f(x)`, element by element, multiplies the cotangent by the local derivative
`f'(x)`, in which it is linear. Stochastic rounding of the local derivative to a few levels gives an
unbiased gradient; stochastic rounding of `x` would not (docs/how/compressed-residuals.md).
`chain_derivatives` finds the chains whose local derivatives have a known range. The levels are
spread over that range, so that a code has no metadata.
"""

import dataclasses
from typing import ClassVar

from ..codecs import Kind, Range


@dataclasses.dataclass(frozen=True)
class LocalDerivative(Range):
    """A local derivative, over the range of its chain."""

    @property
    def name(self) -> str:
        """As in "slope8", whatever the range."""
        return f"slope{self.bits}"


@dataclasses.dataclass(frozen=True)
class OfLocalDerivatives:
    """Local derivatives of elementwise chains, each over its own range.

    Attributes:
        bits: of each element: 2, 4 or 8.
    """

    bits: int = 8

    kind: ClassVar[Kind] = LocalDerivative.kind

    @property
    def name(self) -> str:
        """The name of the codecs that it makes."""
        return f"slope{self.bits}"

    def over(self, low: float, high: float) -> LocalDerivative:
        """The codec of a local derivative that never leaves a range."""
        return LocalDerivative(low, high, self.bits)
