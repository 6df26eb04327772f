"""What a reduction reads as arrays where a library computes it, and not a fusion of the compiler's.

XLA:CPU leaves sums and extremes to YNNPACK. An elementwise operand is computed inside only if the
library has it and nothing else reads it; otherwise the library reads an array, which the compiler
has to write: the centred values of a norm, say, or its scale spread over all rows, which both the
norm and its gradient multiply by.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from ..primitives import Kind, is_random
from ..program import Equation
from .materialised import Arrays, computed_in
from .row_reductions import REDUCTIONS

#: Elementwise primitives that YNNPACK has, or that XLA writes by means of those.
_ELEMENTWISE = frozenset(
    "abs add add_any broadcast_in_dim ceil convert_element_type cos div erf exp expm1 floor "
    "integer_pow log log1p logistic max min mul neg pow rsqrt sign sin sqrt square sub tan "
    "tanh".split()
)
#: XLA leaves no smaller reductions to it.
_MIN_ELEMENTS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryReads:
    """What a library's reductions read as arrays.

    Attributes:
        values: those that are computed elementwise.
        spread: for each reduction, by its result, what is spread over a larger array for other
            readers too, and a value of that array's shape.
    """

    values: frozenset[int]
    spread: Mapping[int, Sequence[tuple[int, int]]]


def library_reads(arrays: Arrays, constant: Set[int]) -> LibraryReads:
    """What reductions read as arrays.

    What reads a late value does not keep a reduction among the others from computing an operand.

    Arguments:
        arrays: of a program, known so far.
        constant: values that follow from literals alone.
    """
    some = [e for e, kind in arrays.equations() if kind is Kind.REDUCTION and _is_left(e)]
    if not some:
        return LibraryReads(frozenset(), {})
    readers = _Readers(arrays, constant)
    values, spread = set[int](), dict[int, list[tuple[int, int]]]()
    for reduction in some:
        inside, read = readers.inside(reduction)
        values |= read
        spread[reduction.outputs[0]] = readers.spread_in(inside)
    return LibraryReads(frozenset(values), spread)


class _Readers:
    """The elementwise equations of a program by what reads their results."""

    def __init__(self, arrays: Arrays, constant: Set[int]):
        self.program, self.constant, self.operands = arrays.program, constant, arrays.operands
        fusions = computed_in(arrays)
        self.times = {n: {i in arrays.late for i in results} for n, results in fusions.items()}
        self.elementwise: dict[int, Equation] = {}
        # Value, and whether late ones read it -> these equations, by identity.
        self.of: dict[tuple[int, bool], set[int]] = defaultdict(set)
        self.spreading: dict[tuple[int, int], set[int]] = defaultdict(set)  # and by size
        for equation, kind in arrays.equations():
            if kind is Kind.FUSED and not is_random(equation):
                self.elementwise.update(dict.fromkeys(equation.outputs, equation))
            if kind is not Kind.VIEW:
                for i in self.operands(equation):
                    for is_late in self.times[id(equation)]:
                        self.of[i, is_late].add(id(equation))
                    self.spreading[i, self.size(equation.outputs[0])].add(id(equation))
        for i in self.program.outputs:
            if isinstance(i, int):
                for is_late in (False, True):
                    self.of[arrays.root.get(i, i), is_late].add(id(self.program))

    def size(self, value: int) -> int:
        return math.prod(self.program.avals[value].shape)

    def inside(self, reduction: Equation) -> tuple[dict[int, Equation], set[int]]:
        """What is computed with a reduction, by identity, and the arrays that this reads."""
        (is_late,) = self.times[id(reduction)]
        inside, arrays = {id(reduction): reduction}, set[int]()
        pending = [*self.operands(reduction)]
        while pending:
            i = pending.pop()
            producer = self.elementwise.get(i)
            if producer is None or i in self.constant or self.size(i) < _MIN_ELEMENTS:
                continue
            if producer.primitive in _ELEMENTWISE and self.of[i, is_late] <= inside.keys():
                inside[id(producer)] = producer
                pending += self.operands(producer)
            else:
                arrays.add(i)
        return inside, arrays

    def spread_in(self, inside: Mapping[int, Equation]) -> list[tuple[int, int]]:
        """What equations other than those inside spread in the same way."""
        return [
            (i, e.outputs[0])
            for e in [*inside.values()][1:]
            if e.primitive != "broadcast_in_dim"
            for i in self.operands(e) - self.constant
            if self.size(i) < self.size(e.outputs[0])
            and not self.spreading[i, self.size(e.outputs[0])] <= inside.keys()
        ]


def _is_left(equation: Equation) -> bool:
    """Whether the library computes a reduction."""
    if equation.primitive not in REDUCTIONS:
        return False
    operand = equation.eqn.invars[0].aval
    is_large = math.prod(operand.shape) >= _MIN_ELEMENTS
    return is_large and operand.dtype in ("float32", "float64")
