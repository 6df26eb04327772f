"""The fusions that XLA will make of a flat program, and the values that it materialises.

A value is kept in memory if its equation cannot be fused, if an equation that reads it cannot fuse
it, if it passes an optimization barrier, or if the program returns it. Every kept value is one op:
its equation, and the producers computed inside the same fusion. XLA:TPU computes elementwise work
and random bits inside the products that read them; the other compilers keep a product's operands.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from ..compiler.backend import Backend, spread_bytes
from ..ir import compat
from ..ir.arrays.kernels import read_as_they_are
from ..ir.arrays.layouts import written_across
from ..ir.arrays.library_reductions import library_reads
from ..ir.arrays.materialised import Arrays, constant_values, costly_values, drawn_values
from ..ir.arrays.row_reductions import row_reductions
from ..ir.costs import Work, work_of
from ..ir.primitives import (
    PRODUCTS,
    Kind,
    is_barrier,
    is_idle_rounding,
    is_one_hot,
    kind_of,
    traits_of,
)
from ..ir.program import Equation, Program, positions_of
from ..operators import is_hook
from ..seconds.group import Group


@dataclasses.dataclass(frozen=True, slots=True)
class Fusion:
    """An op.

    Attributes:
        equation: the equation whose results are kept.
        fused: the equations computed inside it, in execution order.
        inputs: kept values, and inputs of the program, that it reads.
        outputs: kept values that it writes.
        work: of all its equations.
    """

    equation: Equation
    fused: tuple[Equation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    work: Work


def _has_fused_operands(primitive: str, backend: Backend) -> bool:
    """Whether a backend computes what a product or a gather reads inside of it."""
    if primitive in PRODUCTS:
        return backend.fuses_into_products
    return primitive == "gather" and backend.fuses_into_gathers


def reads_whole(primitive: str, backend: Backend) -> bool:
    """Whether an op is no fusion, which would read its operands where they lie."""
    traits = traits_of(primitive)
    is_solid = traits.kind is Kind.SOLID and not traits.is_call
    return is_solid and not _has_fused_operands(primitive, backend)


class Fusions:
    """A program's ops, in order.

    Arguments:
        program: a flat program.
        backend: the compiler; whether gathers and products compute their operands.
        kept: values that are kept in any case.
        late: values that are computed at another time than the others, as cotangents may be.

    Attributes:
        across: see `ir/arrays/layouts`.
        kept: the values that ops write to memory.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        kept: Collection[int] = frozenset(),
        late: Set[int] = frozenset(),
    ):
        self.program, self.backend, self.late = program, backend, late
        kinds = _kinds_of(program, backend)
        self.across = written_across(program, kinds) if backend.sums_in_one_order else set[int]()
        pairs = zip(program.equations, kinds, strict=True)
        self._kinds = [Kind.SOLID if id(e) in self.across else kind for e, kind in pairs]
        self.position = positions_of(program.equations)
        self.producer = {i: e for e in program.equations for i in e.outputs}
        self._source = self._views()
        self._root = _roots(self._source)
        self.spread: Mapping[int, Sequence[tuple[int, int]]] = {}  # see `LibraryReads`
        self.kept = self._materialised(kept)

    def root(self, value: int) -> int:
        """The value whose bytes `value` shows: itself, unless it is a view."""
        return self._root.get(value, value)

    def is_kept(self, value: int) -> bool:
        """Whether a value is written to memory by an op."""
        return value in self.kept

    @functools.cached_property
    def read_elsewhere(self) -> set[int]:
        """Values that are returned, or that others than products read."""
        views, equations = self._source.keys(), self.program.equations
        rest = (e for e in equations if e.primitive != "dot_general" and not views & {*e.outputs})
        reads = (i for e in rest for i in e.reads)
        return {self.root(i) for i in (*reads, *self.program.outputs) if isinstance(i, int)}

    def all(self) -> Iterable[Fusion]:
        """Every op, in the order of the program."""
        for equation in self.program.equations:
            outputs = tuple(i for i in equation.outputs if i in self.kept)
            if outputs or compat.has_effects(equation.eqn):
                yield self._fusion(equation, outputs)

    def reads_past(
        self, equation: Equation, known: Collection[int] = ()
    ) -> tuple[set[int], dict[int, Equation]]:
        """What the op of an equation reads if it knows the results of some residual hooks.

        Arguments:
            equation: its results are kept; or a hook, for what passes it.
            known: results of hooks.

        Returns:
            Kept values and inputs of the program; and result -> hook for the hooks through which
            something is read, known ones included.
        """
        reads = equation.reads[:1] if is_hook(equation) else equation.reads
        return self.kept_behind(reads, known)

    def kept_behind(
        self, values: Iterable[int], known: Collection[int] = ()
    ) -> tuple[set[int], dict[int, Equation]]:
        """What is read for some values where the results of some hooks are known; as above."""
        found, hooks, seen, pending = set(), dict[int, Equation](), set(), list(values)
        while pending:
            i = pending.pop()
            producer = self.producer.get(i)
            if i in seen:
                continue
            seen.add(i)
            if producer is not None and is_hook(producer):
                hooks[i] = producer
            if i in self.kept or producer is None:
                found.add(i)
            elif i not in known:
                pending += [self._source[i]] if i in self._source else producer.reads
        return found, hooks

    def _fusion(self, equation: Equation, outputs: tuple[int, ...]) -> Fusion:
        fused = self._fused_into(equation)
        members = (equation, *fused)
        reads = {self.root(i) for e in members for i in e.reads}
        inputs = tuple(sorted(i for i in reads if i in self.kept or i not in self.producer))
        return Fusion(equation, fused, inputs, outputs, sum(map(work_of, members), Work()))

    def _fused_into(self, equation: Equation) -> tuple[Equation, ...]:
        found: dict[int, Equation] = {}
        queue = list(equation.reads)
        while queue:
            i = self.root(queue.pop())
            producer = self.producer.get(i)
            if producer is None or i in self.kept or self.position[i] in found:
                continue
            found[self.position[i]] = producer
            queue += producer.reads
        return tuple(found[position] for position in sorted(found))

    def _views(self) -> dict[int, int]:
        """View -> the value that it shows in another shape."""
        found: dict[int, int] = {}
        for equation, kind in zip(self.program.equations, self._kinds, strict=True):
            reads = equation.reads
            if kind is not Kind.VIEW or not reads:
                continue
            if is_hook(equation):  # its other results are compressed residuals
                found[equation.outputs[0]] = reads[0]
                continue
            one_each = len(reads) == len(equation.outputs)
            sources = reads if one_each else reads[:1] * len(equation.outputs)
            found.update(zip(equation.outputs, sources, strict=True))
        return found

    def _materialised(self, anyway: Collection[int]) -> set[int]:
        program, kinds, backend = self.program, self._kinds, self.backend
        returned = {i for i in program.outputs if isinstance(i, int)}
        kept = {self.root(i) for i in (*returned, *anyway)}
        known = constant_values(program.equations, kinds)
        constant = {self.root(i) for i in known}
        drawn = set() if backend.fuses_into_products else drawn_values(program, kinds, known)
        for equation, kind in zip(program.equations, kinds, strict=True):
            reads = {self.root(i) for i in equation.reads}
            if kind in (Kind.REDUCTION, Kind.SOLID):
                kept.update(equation.outputs)
            if kind is Kind.SOLID or is_barrier(equation):
                kept.update(reads - _computed_inside(self, equation, constant))
            if not drawn.issuperset(equation.outputs):
                kept.update(reads & drawn)
        if backend.leaves_reductions:
            found = library_reads(Arrays(program, kinds, self._root, kept, self.late), constant)
            kept |= found.values
            self.spread = found.spread
        if backend.computes_once:
            kept |= costly_values(Arrays(program, kinds, self._root, kept, self.late))
        kept &= self.producer.keys()
        return {i for i in kept if kinds[self.position[i]] is not Kind.VIEW}


def _computed_inside(fusions: Fusions, equation: Equation, constant: Set[int]) -> Set[int]:
    """Operands that an op with arrays for operands computes: constants of loops, and copies."""
    if equation.primitive == "scan":
        return constant
    spread = fusions.backend.copies_spread and spread_bytes(equation, fusions.producer)
    return {fusions.root(equation.inputs[0])} if spread else set()


def _roots(sources: Mapping[int, int]) -> dict[int, int]:
    """View -> the value whose bytes it shows, from what each view is made of."""
    root: dict[int, int] = {}
    for i, source in sources.items():
        root[i] = root.get(source, source)
    return root


def _kinds_of(program: Program, backend: Backend) -> list[Kind]:
    """How a compiler treats the results of each equation."""
    idle = read_as_they_are(program) if backend.keeps_kernels else set[int]()

    def kind(equation: Equation) -> Kind:
        if id(equation) in idle:
            return Kind.VIEW
        if _has_fused_operands(equation.primitive, backend):
            return Kind.REDUCTION
        if backend.fuses_into_products and is_one_hot(equation):
            return Kind.FUSED
        if backend.drops_idle_rounding and is_idle_rounding(equation):
            return Kind.VIEW
        return kind_of(equation)

    kinds = [*map(kind, program.equations)]
    if backend.fuses_row_reductions:
        constant = constant_values(program.equations, kinds)
        fused = {id(e) for e in row_reductions(program, kinds, constant)}
        pairs = zip(program.equations, kinds, strict=True)
        kinds = [Kind.FUSED if id(e) in fused else kind for e, kind in pairs]
    return kinds


def group_of(fusions: Fusions, fusion: Fusion) -> Group:
    """The equations of an op, views among them; hooks and barriers pass on what they read."""
    inside = {fusions.position[i]: fusions.producer[i] for i in _behind(fusions, fusion.equation)}
    equations = [*(inside[n] for n in sorted(inside)), fusion.equation]
    passed = {i: source for e in equations for i, source in _passed(e).items()}
    run = tuple(_reading(e, passed) for e in equations if not _passed(e))
    written = {i for e in run for i in e.outputs}
    inputs = {i for e in run for i in e.reads} - written
    return Group(run, tuple(sorted(inputs)), fusion.outputs, fusions.program.avals)


def _behind(fusions: Fusions, equation: Equation) -> set[int]:
    """The values that are computed inside the op of an equation."""
    found, pending = set[int](), list(equation.reads)
    while pending:
        i = pending.pop()
        producer = fusions.producer.get(i)
        if producer is not None and not fusions.is_kept(i) and i not in found:
            found.add(i)
            passed = _passed(producer)
            sources = [passed[i]] if i in passed else producer.reads
            pending += (source for source in sources if isinstance(source, int))
    return found


def _passed(equation: Equation) -> Mapping[int, Any]:
    """Result -> the operand that it is, of an equation that computes nothing."""
    if is_hook(equation):
        return {equation.outputs[0]: equation.reads[0]}
    if is_barrier(equation):
        return dict(zip(equation.outputs, equation.inputs, strict=True))
    return {}


def _reading(equation: Equation, passed: Mapping[int, Any]) -> Equation:
    """The equation, reading what hooks and barriers pass on instead of their results."""
    inputs = []
    for i in equation.inputs:
        while isinstance(i, int) and i in passed:
            i = passed[i]
        inputs.append(i)
    return dataclasses.replace(equation, inputs=tuple(inputs))
