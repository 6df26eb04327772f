"""What an equation costs: FLOPs of products, instructions, and seconds by a roofline.

The roofline model (Williams et al., CACM 2009) bounds an op's time from below by its arithmetic at
the device's peak and by its memory traffic at the device's bandwidth. Here the two are added rather
than overlapped, and products are charged several times over: of two recomputations that save the
same bytes, the one without products costs less. It ranks ops; it is not a clock.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from . import compat
from .primitives import Kind, kind_of, traits_of
from .program import Equation

#: Trips charged to a loop whose length is not known before it runs.
UNKNOWN_TRIPS = 1
#: The share of the matrix units' peak that products are charged at. At 0.12, networks that memory
#: traffic bounds take 5 % more FLOPs than policies placed by hand within the same bytes; at 0.03,
#: ResNet-50 for an H100 still takes 1.3 % more; at 0.02, 0.8 %.
MATMUL_EFFICIENCY = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """A device's peaks.

    Attributes:
        matmul_flops_per_second: dtype name -> peak of products; "float32" must be there.
        vector_flops_per_second: peak of elementwise work.
        bandwidth_bytes_per_second: of the device's main memory.
    """

    matmul_flops_per_second: dict[str, float]
    vector_flops_per_second: float
    bandwidth_bytes_per_second: float

    def seconds(self, work: "Work", moved_bytes: int) -> float:
        """Seconds of an op with this work that reads and writes `moved_bytes`."""
        peak = self.matmul_flops_per_second
        matmul = work.flops / (MATMUL_EFFICIENCY * peak.get(work.dtype, peak["float32"]))
        vector = work.instructions / self.vector_flops_per_second
        return matmul + vector + moved_bytes / self.bandwidth_bytes_per_second


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of one or several equations.

    Attributes:
        flops: of products and convolutions, two for each multiply-add.
        instructions: of everything else, one for each simple elementwise result.
        dtype: of the products' operands, which decides their speed.
    """

    flops: int = 0
    instructions: int = 0
    dtype: str = "float32"

    def __add__(self, other: "Work") -> "Work":
        dtype = self.dtype if self.flops >= other.flops else other.dtype
        flops, instructions = self.flops + other.flops, self.instructions + other.instructions
        return Work(flops, instructions, dtype)

    def times(self, trips: int) -> "Work":
        """The work of `trips` repetitions."""
        return Work(self.flops * trips, self.instructions * trips, self.dtype)


def work_of(equation: Equation) -> Work:
    """The arithmetic of one equation, loops times their trips. Never free unless a view."""
    return _eqn_work(equation.eqn)


def flops_of(equations: Iterable[Equation]) -> int:
    """FLOPs of all products and convolutions, loops times their trips."""
    return sum(work_of(equation).flops for equation in equations)


def _eqn_work(eqn: Any) -> Work:
    name = eqn.primitive.name
    if name == "dot_general":
        return Work(_dot_flops(eqn), 0, str(eqn.invars[0].aval.dtype))
    if name == "conv_general_dilated":
        return Work(_conv_flops(eqn), 0, str(eqn.invars[0].aval.dtype))
    inner = [_jaxpr_work(jaxpr) for jaxpr in compat.subjaxprs(eqn)]
    if not inner:
        return _elementwise_work(eqn)
    if name == "cond":
        return max(inner, key=lambda work: (work.flops, work.instructions))
    total = sum(inner, Work())
    return total.times(_trips(eqn))


def _jaxpr_work(jaxpr: Any) -> Work:
    return sum((_eqn_work(eqn) for eqn in jaxpr.jaxpr.eqns), Work())


def _trips(eqn: Any) -> int:
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    return UNKNOWN_TRIPS


def _elementwise_work(eqn: Any) -> Work:
    if kind_of(Equation(eqn, (), (), None)) is Kind.VIEW:
        return Work()
    sizes = [
        math.prod(v.aval.shape) for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "shape")
    ]
    if "window_dimensions" in eqn.params:  # every window is looked at whole
        sizes.append(min(sizes) * math.prod(eqn.params["window_dimensions"]))
    return Work(0, max(sizes, default=0) * traits_of(eqn.primitive.name).instructions)


def _dot_flops(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    lhs = eqn.invars[0].aval.shape
    return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(lhs[i] for i in contracted)


def _conv_flops(eqn: Any) -> int:
    numbers = eqn.params["dimension_numbers"]
    kernel, result = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    features_in = kernel[numbers.rhs_spec[1]]
    window = math.prod(kernel[i] for i in numbers.rhs_spec[2:])
    # Window elements that fall on the zeros of a dilated input (a strided convolution's gradient)
    # are not work; XLA and the hardware skip them.
    dilation = math.prod(eqn.params["lhs_dilation"])
    return 2 * math.prod(result) * features_in * window // dilation
