"""Reductions of rows, as of a softmax, that a compiler computes inside the fusion that reads them.

XLA:GPU computes `f(x, broadcast(g(reduce(h(x)))))` in one kernel of Triton, which holds a row of x
on the chip: the maximum and the sum of a softmax, the mean square of a norm. It does so only where
nothing else reads what is reduced: saved for the gradient, it costs two more kernels that read x.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set

from .. import compat
from ..primitives import Kind
from ..program import Equation, Program

#: Reductions that compilers compute in ways of their own.
REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
#: Primitives that move elements to other rows, or inside of them.
_MOVES = frozenset({"rev", "transpose"})
#: Primitives that write what passes them to memory, or may do so.
_BARRIERS = frozenset({"optimization_barrier", "monet_hook"})


class _Rows:
    """The equations of a program by what reads their results."""

    def __init__(self, program: Program, kinds: Sequence[Kind], constant: Set[int]):
        self.program, self.constant = program, constant
        self.returned = {i for i in program.outputs if isinstance(i, int)}
        pairs = list(zip(program.equations, kinds, strict=True))
        self.fusible = {id(e) for e, kind in pairs if _is_fusible(e, kind)}
        self.producer = {i: e for e in program.equations for i in e.outputs}
        self.readers: dict[int, list[Equation]] = defaultdict(list)
        for equation in program.equations:
            for i in set(equation.reads):
                self.readers[i].append(equation)

    def size(self, value: int) -> int:
        return self.program.avals[value].size

    def behind(self, values: Iterable[int], size: int) -> set[int]:
        """Values of a size that some are computed from elementwise, themselves among them."""
        found, pending = set[int](), list(values)
        while pending:
            i = pending.pop()
            if i in found or self.size(i) != size or i in self.constant:
                continue
            found.add(i)
            producer = self.producer.get(i)
            if producer is not None and id(producer) in self.fusible:
                pending += () if producer.primitive in _MOVES else producer.reads
        return found

    def meet(self, reduction: Equation) -> bool:
        """Whether what is reduced is spread over its rows again, and is read by nothing else."""
        (operand,) = reduction.reads
        whole, pending = self.behind([operand], self.size(operand)), [*reduction.outputs]
        have_met = False
        while pending:
            i = pending.pop()
            if i in self.returned or not self.readers[i]:
                return False
            for e in self.readers[i]:
                others = {*e.reads} - {i} - self.constant
                if id(e) not in self.fusible:
                    return False
                if others or self.size(i) == self.size(operand):
                    if whole.isdisjoint(self.behind(others, self.size(operand))):
                        return False
                    have_met = True
                else:
                    pending += e.outputs
        return have_met


def row_reductions(program: Program, kinds: Sequence[Kind], constant: Set[int]) -> list[Equation]:
    """The reductions that are no kernels of their own.

    Arguments:
        program: a flat program.
        kinds: of its equations.
        constant: values that follow from literals alone.
    """
    pairs = zip(program.equations, kinds, strict=True)
    some = [e for e, kind in pairs if kind is Kind.REDUCTION and is_of_rows(e)]
    if not some:
        return []
    rows = _Rows(program, kinds, constant)
    return [e for e in some if rows.meet(e)]


def reduced_in(equations: Sequence[Equation], root: Callable[[int], int]) -> set[int]:
    """What a kernel that holds a row of it reads, some of it for reductions: nothing may lie there.

    Such a kernel needs a reduction that meets what is reduced. The sum in a softmax's derivative
    alone, of products, is a kernel of its own, and another one writes over what it reads.

    Arguments:
        equations: those of one fusion, in order.
        root: value -> the value that it is a view of.
    """
    found = set[int]()
    if not any(_meets_itself(e, equations, root) for e in equations):
        return found
    for e in reversed(equations):
        if e.primitive in REDUCTIONS or not found.isdisjoint(e.outputs):
            found.update(map(root, e.reads))
    return found


def _meets_itself(
    reduction: Equation, equations: Sequence[Equation], root: Callable[[int], int]
) -> bool:
    """Whether an equation reads a reduction's result, and what alone its operand follows from."""
    if reduction.primitive not in REDUCTIONS:
        return False
    reads = {id(e): {root(i) for i in e.reads} for e in equations}
    reduced, spread = reads[id(reduction)], {*reduction.outputs}
    for e in reversed(equations):
        if len(reads[id(e)]) == 1 and not reduced.isdisjoint(e.outputs):
            reduced |= reads[id(e)]
    for e in equations:
        if reads[id(e)] and reads[id(e)] <= spread:
            spread.update(e.outputs)
    return any(spread & read and reduced & read for read in reads.values())


def is_of_rows(equation: Equation) -> bool:
    """Whether an equation sums up the last axis of floats, or finds its extremes."""
    if equation.primitive not in REDUCTIONS:
        return False
    (operand,) = equation.eqn.invars
    is_float = compat.is_float(operand.aval)
    return is_float and tuple(equation.eqn.params["axes"]) == (operand.aval.ndim - 1,)


def _is_fusible(equation: Equation, kind: Kind) -> bool:
    if equation.primitive in _BARRIERS or len(equation.outputs) != 1:
        return False
    return kind in (Kind.VIEW, Kind.FUSED)
