"""Prices by the compiler's own estimates of the instructions of a compiled program.

An instruction is known by what survives in a compiled text: the FLOPs of its products, and how many
elements it reads and writes. Names do not: XLA calls the gradient of a product "transpose", and a
fusion by one of its equations. Where no instruction is like an op, the roofline counts.

It counts as well where an estimate is far beyond it. XLA:GPU multiplies the seconds of a product
whose sum it splits by the number of parts, those of a whole product each: weights' gradients of a
batch of 4096 had 64 times the roofline's seconds, and 7.5 times the clock's on an H100.
"""

import collections
import math
import statistics
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from ..compiler.estimates import FEWEST_ELEMENTS, Estimate
from .group import Group
from .prices import COMPILER, ROOFLINE, Price, Prices
from .roofline import Roofline

#: An estimate beyond this many times the roofline, and so many seconds more, is not believed. Of 52
#: programs on an H100 none took twice the seconds of its roofline; starting a kernel takes 5 us.
_TIMES, _STARTING = 8.0, 2e-5
_LEAST_ITEMSIZE = 2  # bytes of an element: an estimate does not say what its arrays are of


class ByCompiler(Prices):
    """Prices by the estimates of a compiled program of the same function.

    Arguments:
        estimates: of its instructions.
        roofline: for what they do not price.
    """

    def __init__(self, estimates: Iterable[Estimate], roofline: Roofline):
        self.roofline = roofline
        found: dict[Hashable, list[float]] = collections.defaultdict(list)
        for estimate in credible(estimates, roofline):
            for key in _keys(estimate.flops, estimate.read, estimate.written):
                found[key].append(estimate.seconds)
        self._seconds = {key: statistics.median(some) for key, some in found.items()}

    def of(self, group: Group) -> Price:
        """The price of an op."""
        work = group.work
        read, written = _elements(group, group.inputs), _elements(group, group.outputs)
        for key in _keys(work.flops, read, written):
            if key in self._seconds:
                return Price(self._seconds[key], COMPILER)
        return Price(self.roofline.seconds(work, group.moved_bytes), ROOFLINE)


def credible(estimates: Iterable[Estimate], roofline: Roofline) -> list[Estimate]:
    """The estimates that are not far beyond what a roofline gives the same instructions."""
    return [x for x in estimates if x.seconds <= _TIMES * _least_seconds(x, roofline) + _STARTING]


def _least_seconds(estimate: Estimate, roofline: Roofline) -> float:
    """The roofline's seconds of an instruction, of whose arrays only the elements are known."""
    moved = _LEAST_ITEMSIZE * sum((*estimate.read, *estimate.written))
    traffic = moved / roofline.bandwidth_bytes_per_second
    return max(estimate.flops / roofline.matmul_flops_per_second["float32"], traffic)


def _keys(flops: int, read: tuple[int, ...], written: tuple[int, ...]) -> Iterator[Hashable]:
    """What an instruction is known by, the most precise first.

    Of products, XLA may write parts that are added later, or read operands in another precision.
    """
    if read or written:
        yield flops, read, written
    if flops:
        yield flops, read
        yield flops


def _elements(group: Group, values: Iterable[int]) -> tuple[int, ...]:
    """Elements of arrays, those of scalars and the like left out, in ascending order."""
    shapes: Iterator[Any] = (getattr(group.avals[i], "shape", ()) for i in {*values})
    sizes = map(math.prod, shapes)
    return tuple(sorted(n for n in sizes if n >= FEWEST_ELEMENTS))


def total_seconds(estimates: Iterable[Estimate]) -> float:
    """Seconds of a program, loops times their trips."""
    return sum(estimate.seconds * estimate.runs for estimate in estimates)
