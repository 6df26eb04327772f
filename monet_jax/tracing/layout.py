"""Lays a program out as stages; iterations of loops and branches have stages of their own."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..ir import compat
from ..ir.program import Equation, Program, flatten
from ..ir.stage import Differentiation, Replaced, Stage, active_values
from ..operators.compression.encoding import with_codes
from . import branches as branches_module
from . import loops as loops_module
from .branches import Branch, Choice, renamed_equation, renamed_stage, shifted
from .loops import Loop
from .partition import split


@dataclasses.dataclass(frozen=True)
class Layout:
    """A program cut into stages.

    Attributes:
        program: the program, every planned loop unrolled and every planned branch listed.
        stages: of the program, in order.
        loops: the planned loops, in order.
        choices: the planned choices that are in no loop and in no branch, in order.
        invariant_values: values that depend on a loop's constants alone -> the value of the last
            block. However many blocks save such a value, JAX keeps that one.
    """

    program: Program
    stages: tuple[Stage, ...]
    loops: tuple[Loop, ...]
    choices: tuple[Choice, ...]
    invariant_values: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def all_choices(self) -> Iterator[Choice]:
        """Every planned choice, including the choices of each block of iterations."""
        yield from branches_module.walk(self.choices)
        for loop in self.loops:
            for k in range(loop.blocks):
                yield from branches_module.walk(loop.choices_in(k))


@dataclasses.dataclass
class _Unrolled:
    """The layout of a program as far as it is known.

    Attributes:
        program: the program, its loops and branches as they are.
        active: the values that are differentiated.
        forward_mode: whether tangents must pass a plan forward as well.
        avals: of all values so far.
        given: values that are in memory throughout.
        keeps_other: as `Program.keeps_other`.
        stages, loops, choices: so far.
        listed: for an equation (its id), the equations of its stages.
        invariant_values: as `Layout.invariant_values`.
    """

    program: Program
    active: frozenset[int]
    forward_mode: bool
    avals: list[Any]
    given: set[int]
    keeps_other: bool
    stages: list[Stage] = dataclasses.field(default_factory=list)
    loops: list[Loop] = dataclasses.field(default_factory=list)
    choices: list[Choice] = dataclasses.field(default_factory=list)
    listed: dict[int, list[Equation]] = dataclasses.field(default_factory=dict)
    invariant_values: dict[int, int] = dataclasses.field(default_factory=dict)

    def layout(self) -> Layout:
        """The layout; its program lists what the stages run."""
        equations = (e for x in self.program.equations for e in self.listed.get(id(x), [x]))
        program = dataclasses.replace(
            self.program,
            avals=tuple(self.avals),
            equations=tuple(equations),
            given=frozenset(self.given),
            keeps_other=self.keeps_other,
        )
        return Layout(
            program,
            tuple(self.stages),
            tuple(self.loops),
            tuple(self.choices),
            self.invariant_values,
        )

    def is_given(self, atom: Any) -> bool:
        """Whether an operand is in memory throughout."""
        return not isinstance(atom, int) or atom in self.program.given


def lay_out(program: Program, derivative: Differentiation, has_loops: bool = True) -> Layout:
    """The program as consecutive stages, including stages of iterations and of branches.

    Arguments:
        program: the program.
        derivative: what is planned for.
        has_loops: whether loops have stages of their own; else they are opaque.
    """
    active = active_values(program, derivative)
    unrolled = _Unrolled(
        program,
        active,
        derivative.forward_mode,
        list(program.avals),
        set(program.given),
        program.keeps_other,
    )
    add = {}  # position of an equation -> what adds its stages
    for p, e in enumerate(program.equations):
        if has_loops and loops_module.may_be_planned(e, active):
            add[p] = _add_loop
        elif branches_module.may_be_planned(e, active):
            add[p] = _add_choice
    own = {id(program.equations[p]): adds for p, adds in add.items()}
    for stage in split(program, derivative, alone=[*add]):
        adds = own.get(id(stage.equations[0])) if len(stage.equations) == 1 else None
        if adds is None:
            _add_stage(unrolled, stage)
        else:
            adds(unrolled, stage.equations[0])
    return unrolled.layout()


def _add_stage(unrolled: _Unrolled, stage: Stage) -> None:
    """Adds a stage of the program itself."""
    rewrite, found = unrolled.program.rewrite, Replaced(stage)
    for replaced in rewrite.stages:
        found = found.then(replaced(found.stage, unrolled.avals))
    unrolled.keeps_other |= bool(found.instead)
    if rewrite.codecs:
        program = dataclasses.replace(unrolled.program, avals=tuple(unrolled.avals))
        found = found.then(with_codes(program, found, rewrite.codecs, unrolled.avals))
    unrolled.listed |= found.instead
    unrolled.stages.append(found.stage)


def _add_choice(unrolled: _Unrolled, equation: Equation) -> None:
    """Adds the stages of all branches of a `cond`."""
    unrolled.listed[id(equation)] = []
    jaxprs = equation.eqn.params["branches"]
    branches = tuple(_add_branch(unrolled, equation, jaxpr) for jaxpr in jaxprs)
    unrolled.choices.append(Choice(equation, branches))


def _add_branch(unrolled: _Unrolled, equation: Equation, jaxpr: Any) -> Branch:
    """Adds the stages of one branch of a `cond`."""
    program = unrolled.program
    inlines = program.inlines_checkpoints
    body = flatten(jaxpr, rewrite=program.rewrite, inline_checkpoints=inlines)
    operands = dict(zip(body.inputs, equation.inputs[1:], strict=True))
    given = frozenset(v for v, atom in operands.items() if unrolled.is_given(atom))
    derivative = _branch_derivative(unrolled, equation, body, operands)
    inner = lay_out(dataclasses.replace(body, given=given), derivative, has_loops=False)
    unrolled.keeps_other |= inner.program.keeps_other
    atom, first = shifted(len(unrolled.avals)), len(unrolled.stages)
    unrolled.avals += inner.program.avals
    unrolled.given.update(map(atom, inner.program.given))
    listed = [_under(equation, e, atom) for e in inner.program.equations]
    unrolled.listed[id(equation)] += listed
    for stage in inner.stages:
        own = [_under(equation, e, atom) for e in stage.equations]
        unrolled.stages.append(renamed_stage(stage, own, atom))
    branch = Branch(0, len(inner.stages), body.inputs, body.outputs, inner.choices)
    return branch.renamed(atom, first)


def _branch_derivative(
    unrolled: _Unrolled, equation: Equation, body: Program, operands: Mapping[int, Any]
) -> Differentiation:
    """The derivative of a branch: by its active operands."""
    avals = unrolled.program.avals
    outputs = tuple(
        n
        for n, i in enumerate(equation.outputs)
        if i in unrolled.active and compat.is_float(avals[i])
    )
    floats = (v for v in operands if compat.is_float(body.avals[v]))
    inputs = frozenset(v for v in floats if loops_module.is_in(operands[v], unrolled.active))
    return Differentiation(inputs, outputs, unrolled.forward_mode)


def _add_loop(unrolled: _Unrolled, equation: Equation) -> None:
    """Adds the stages of all blocks of a scan."""
    consts, carried, _ = compat.scan_counts(equation.eqn)
    body = loops_module.body_of(unrolled.program, equation, unrolled.active)
    operands = zip(body.inputs, equation.inputs, strict=True)
    carry = body.inputs[consts : consts + carried]
    given = frozenset(v for v, atom in operands if v not in carry and unrolled.is_given(atom))
    body = dataclasses.replace(body, given=given)
    derivative = loops_module.body_derivative(equation, unrolled.active, body)
    cut = _cut_body(body, body.inputs[:consts], derivative, unrolled.forward_mode)
    loop = _in_blocks(unrolled, equation, *cut)
    unrolled.loops.append(loop)
    unrolled.keeps_other |= loop.body.keeps_other or loop.hoists
    active = active_values(loop.body, derivative)
    unrolled.invariant_values |= loops_module.invariants_of(loop, active)
    listed = unrolled.listed[id(equation)] = []
    for k in range(loop.blocks):
        listed += _in_block(loop, k, loop.body.equations)
        for stage in loop.stages:
            own, atom = _in_block(loop, k, stage.equations), functools.partial(loop.atom, k)
            unrolled.stages.append(renamed_stage(stage, own, atom, loop.trips[k]))


def _in_blocks(
    unrolled: _Unrolled,
    equation: Equation,
    body: Program,
    stages: tuple[Stage, ...],
    choices: tuple[Choice, ...],
) -> Loop:
    """A loop in blocks of iterations; the values of each block are listed behind those so far."""
    counts = compat.scan_counts(equation.eqn)
    length = equation.eqn.params["length"]
    trips = (length,) if unrolled.forward_mode else loops_module.block_lengths(length, len(stages))
    operands = dict(zip(body.inputs, equation.inputs, strict=True))
    consts, carry = body.inputs[: counts[0]], body.inputs[counts[0] : sum(counts[:2])]
    offsets, given = [], []
    carried = [operands[v] for v in carry]
    for _ in trips:
        offset = len(unrolled.avals)
        unrolled.avals += body.avals
        known = {v: operands[v] for v in consts} | dict(zip(carry, carried, strict=True))
        offsets.append(offset)
        given.append(known)
        unrolled.given.update(offset + v for v in body.given if v not in known)
        carried = [
            known.get(v, offset + v) if isinstance(v, int) else v for v in body.outputs[: counts[1]]
        ]
    first = len(unrolled.stages)
    blocks = tuple(offsets), tuple(given)
    return Loop(equation, counts, body, stages, first, trips, *blocks, choices)


def _cut_body(
    body: Program, consts: tuple[int, ...], derivative: Differentiation, forward_mode: bool
) -> tuple[Program, tuple[Stage, ...], tuple[Choice, ...]]:
    """A loop's body, its stages, and its planned choices; first is what runs before the loop.

    A loop that must pass tangents forward is a plain scan, from which nothing is hoisted.
    """
    first, rest = None, body
    if not forward_mode:
        first, rest = loops_module.without_hoisted(body, consts, derivative)
    if first is None:
        inner = lay_out(body, derivative, has_loops=False)
        return inner.program, inner.stages, inner.choices
    starts = derivative.inputs.union(first.differentiated_outputs)
    inner = lay_out(rest, dataclasses.replace(derivative, inputs=starts), has_loops=False)
    whole = dataclasses.replace(
        inner.program,
        inputs=body.inputs,
        equations=(*first.equations, *inner.program.equations),
    )
    choices = tuple(x.renamed(lambda v: v, 1) for x in inner.choices)
    return whole, (first, *inner.stages), choices


def _in_block(loop: Loop, k: int, equations: Sequence[Equation]) -> list[Equation]:
    return [_under(loop.equation, e, functools.partial(loop.atom, k)) for e in equations]


def _under(outer: Equation, equation: Equation, atom: branches_module.Atoms) -> Equation:
    """An equation of a body or branch, by the values of the program that has it."""
    return renamed_equation(equation, atom, outer.name_stack)
