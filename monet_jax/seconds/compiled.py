"""The compiler's own seconds of a compiled program: what its instructions are estimated to take.

They compare programs that were compiled, and price nothing that is planned: against the clock of an
H100, the ratio of a program's estimates to the plain program's was off by 15 % in the median of ten
programs, and a roofline's by 6 % (docs/how/seconds.md).

XLA:GPU multiplies the seconds of a product whose sum it splits by the number of parts, those of a
whole product each: weights' gradients of a batch of 4096 had 64 times the roofline's seconds, and
7.5 times the clock's. So what is far beyond the roofline is not believed.
"""

from collections.abc import Iterable

from ..compiler.estimates import Estimate
from .roofline import Roofline

#: An estimate beyond this many times the roofline, and so many seconds more, is not believed. Of 48
#: programs on an H100 none took thrice the seconds of its roofline; starting a kernel takes 5 us.
_TIMES, _STARTING = 8.0, 2e-5
_LEAST_ITEMSIZE = 2  # bytes of an element: an estimate does not say what its arrays are of


def credible(estimates: Iterable[Estimate], roofline: Roofline) -> list[Estimate]:
    """The estimates that are not far beyond what a roofline gives the same instructions."""
    return [x for x in estimates if x.seconds <= _TIMES * _least_seconds(x, roofline) + _STARTING]


def _least_seconds(estimate: Estimate, roofline: Roofline) -> float:
    """The roofline's seconds of an instruction, of whose arrays only the elements are known."""
    moved = _LEAST_ITEMSIZE * sum((*estimate.read, *estimate.written))
    traffic = moved / roofline.bandwidth_bytes_per_second
    return max(estimate.flops / roofline.matmul_flops_per_second["float32"], traffic)


def total_seconds(estimates: Iterable[Estimate]) -> float:
    """Seconds of a program, loops times their trips."""
    return sum(estimate.seconds * estimate.runs for estimate in estimates)
