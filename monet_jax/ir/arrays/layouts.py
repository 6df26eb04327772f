"""Arrays that XLA:GPU writes in the layout of others before it sums them up with these.

A product writes its result in the order of its own axes, and transposing it only names that order
anew. Elementwise work on operands that lie in different orders reads one of them across, which a
kernel that sums or finds extremes does not: that operand is written first, in its dtype. In grouped
attention the scores and the gradients of their softmax are such a pair.
"""

from collections.abc import Sequence

from ..primitives import Kind
from ..program import Program
from .row_reductions import REDUCTIONS

#: Axes of a value from the one that is laid out first, those of one element left out.
Order = tuple[int, ...]


def written_across(program: Program, kinds: Sequence[Kind]) -> set[int]:
    """By identity, equations whose results are written in the order of others.

    Arguments:
        program: a flat program.
        kinds: of its equations.
    """

    def laid(values: Sequence[int], like: int) -> list[int]:
        shape = program.avals[like].shape
        return [i for i in values if i in orders and program.avals[i].shape == shape]

    producer = {i: e for e in program.equations for i in e.outputs}
    summed, found, orders = _summed(program, kinds), set[int](), dict[int, Order]()
    for equation, kind in zip(program.equations, kinds, strict=True):
        if not equation.outputs:
            continue
        result, reads = equation.outputs[0], equation.reads
        if equation.primitive == "dot_general":
            shape = program.avals[result].shape
            orders[result] = tuple(axis for axis, n in enumerate(shape) if n != 1)
        elif equation.primitive == "transpose" and reads[0] in orders:
            permutation = equation.eqn.params["permutation"]
            orders[result] = tuple(permutation.index(axis) for axis in orders[reads[0]])
        elif kind is Kind.VIEW:
            pairs = zip(equation.outputs, reads, strict=False)
            orders |= {i: orders[j] for i, j in pairs if laid([j], i)}
        elif kind is Kind.FUSED and (operands := laid(reads, result)):
            orders[result] = orders[min(operands)]  # What is computed first is laid out first.
            across = [i for i in operands if orders[i] != orders[result]]
            if result in summed:
                found.update(id(producer[i]) for i in across)
                orders |= dict.fromkeys(across, orders[result])
    return found


def _summed(program: Program, kinds: Sequence[Kind]) -> set[int]:
    """Values that reductions read, or elementwise work of which they do."""
    found = set[int]()
    pairs = [*zip(program.equations, kinds, strict=True)]
    for equation, kind in reversed(pairs):
        is_inside = kind is not Kind.SOLID and not found.isdisjoint(equation.outputs)
        if equation.primitive in REDUCTIONS or is_inside:
            found.update(equation.reads)
    return found
