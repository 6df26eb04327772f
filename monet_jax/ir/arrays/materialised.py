"""Which elementwise values a compiler keeps as arrays, beside those that unfusible ops read.

It computes cheap work again for each fusion that reads it, but draws no random bits twice, nor a
hyperbolic tangent where it counts that as costly.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from ..primitives import Kind, is_random, must_run_once
from ..program import Equation, Program
from .row_reductions import is_of_rows

#: Elementwise primitives that XLA:CPU does not compute twice.
_COSTLY = frozenset(
    "cbrt cos erf erf_inv exp exp2 expm1 log log1p logistic pow sin tan tanh".split()
)


@dataclasses.dataclass(frozen=True, slots=True)
class Arrays:
    """A flat program, and which of its values are known to be arrays.

    Attributes:
        program: the program.
        kinds: of its equations.
        root: view -> the value that it shows in another shape.
        kept: values that are arrays.
        late: values that are computed at another time than the others.
    """

    program: Program
    kinds: Sequence[Kind]
    root: Mapping[int, int]
    kept: Set[int]
    late: Set[int] = frozenset()

    def equations(self) -> Iterable[tuple[Equation, Kind]]:
        """The equations, and how a compiler treats the results of each."""
        return zip(self.program.equations, self.kinds, strict=True)

    def operands(self, equation: Equation) -> set[int]:
        """What an equation reads, views replaced by what they show."""
        return {self.root.get(i, i) for i in equation.reads}


def constant_values(equations: Iterable[Equation], kinds: Iterable[Kind]) -> set[int]:
    """Values that follow from literals alone: zeros, spread out."""
    found: set[int] = set()
    for equation, kind in zip(equations, kinds, strict=True):
        fused = kind in (Kind.VIEW, Kind.FUSED) and not is_random(equation)
        if fused and found.issuperset(equation.reads):
            found.update(equation.outputs)
    return found


def drawn_values(program: Program, kinds: Sequence[Kind], constant: Set[int]) -> set[int]:
    """Values drawn from a generator and not yet mixed with anything else.

    Drawing costs many instructions, so what is drawn (a dropout mask, say, rather than the
    random bits that it came from) is kept where it meets other data.
    """
    drawn: set[int] = set()
    for equation, kind in zip(program.equations, kinds, strict=True):
        reads = set(equation.reads) - constant
        fused = kind in (Kind.VIEW, Kind.FUSED)
        if is_random(equation) or (fused and reads and reads <= drawn):
            drawn.update(equation.outputs)
    return drawn


def counter_bytes(program: Program, equations: Iterable[Equation]) -> int:
    """Bytes of the counters that threefry draws random bits from: two words for each element."""
    drawn = (i for e in equations if is_random(e) and not must_run_once(e) for i in e.outputs)
    return max((2 * 4 * program.avals[i].size for i in drawn), default=0)


def is_sum_of_dropped(program: Program, equation: Equation) -> bool:
    """Whether rows are summed for whose elements a stage draws random bits, as for a dropout.

    XLA:TPU takes 806 MiB of temporaries for a GPT-2 in bfloat16 that saves nothing, and 303 where
    it saves these sums, 48 KiB in each block: else it divides by them in a fusion of its own, for
    which it makes arrays of the scalars that random bits are drawn from, 24 MiB each.
    """
    if equation.primitive != "reduce_sum" or not is_of_rows(equation) or not equation.reads:
        return False
    size = program.avals[equation.reads[0]].size
    drawn = (i for e in program.equations if is_random(e) for i in e.outputs)
    return any(program.avals[i].size == size for i in drawn)


def computed_in(
    arrays: Arrays,
    keeps: Callable[[Equation, Set[int]], bool] = lambda equation, fusions: False,
) -> Mapping[int, Set[int]]:
    """The results of the fusions that compute each equation, views left out, by its identity.

    Arguments:
        arrays: of a program.
        keeps: whether an elementwise equation that some fusions would compute is kept as well.
    """
    found: dict[int, Set[int]] = {}
    of_value: dict[int, set[int]] = {}
    for equation, kind in reversed([*arrays.equations()]):
        if kind is Kind.VIEW:
            continue
        fusions = {j for i in equation.outputs for j in of_value.get(i, ())}
        own = [i for i in equation.outputs if i in arrays.kept or kind is not Kind.FUSED]
        if own or keeps(equation, fusions):
            fusions = {*(own or equation.outputs)[:1]}
        found[id(equation)] = fusions
        for i in arrays.operands(equation):
            of_value.setdefault(i, set()).update(fusions)
    return found


def costly_values(arrays: Arrays) -> set[int]:
    """Results of costly primitives that several fusions read at one time."""

    def keeps(equation: Equation, fusions: Set[int]) -> bool:
        most = max(len(fusions & arrays.late), len(fusions - arrays.late))
        return equation.primitive in _COSTLY and most > 1

    fusions = computed_in(arrays, keeps)
    costly = (e for e in arrays.program.equations if e.primitive in _COSTLY)
    return {i for e in costly for i in e.outputs if i in fusions[id(e)]}
