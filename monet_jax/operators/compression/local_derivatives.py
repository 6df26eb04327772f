"""How is the slope of an elementwise chain kept, as of a GELU?

The derivative of `y = f(x)`, element by element, multiplies the cotangent with the slope `f'(x)`,
in which it is linear: rounded at random to a few levels, the slope gives an unbiased gradient,
which `x` rounded would not (docs/how-it-works.md, section 3). Which chains have a slope whose range
is known is for `chain_derivatives` to find; the levels are spread over that range, so that a code
has no metadata.
"""

import dataclasses
from typing import ClassVar

from ..codecs import Kind, Range


@dataclasses.dataclass(frozen=True)
class LocalDerivative(Range):
    """A slope, over the range of its chain."""

    @property
    def name(self) -> str:
        """As in "slope8", whatever the range."""
        return f"slope{self.bits}"


@dataclasses.dataclass(frozen=True)
class OfLocalDerivatives:
    """Slopes of elementwise chains, each over the range that it has.

    Attributes:
        bits: of each element: 2, 4 or 8.
    """

    bits: int = 8

    kind: ClassVar[Kind] = LocalDerivative.kind

    @property
    def name(self) -> str:
        """That of the codecs that it makes."""
        return f"slope{self.bits}"

    def over(self, low: float, high: float) -> LocalDerivative:
        """The codec of a slope that is never outside of a range."""
        return LocalDerivative(low, high, self.bits)
