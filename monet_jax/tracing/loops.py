"""Loops whose iterations are planned one by one: which they are, and where their parts stand.

To the planner a `lax.scan` looks unrolled: each iteration has stages and values of its own, so that
"the first seven recompute, the others save" is a plan like any other. The stages are those of the
body, cut once. In a long loop, blocks of iterations have one plan, and one of each stands for all.
`transformer/scan` rolls up again what has the same plan. Where forward mode must work, a loop is
one block: it is a plain `lax.scan` then.

Known limit: of what is carried through the iterations of a loop's first block, one copy is counted.

| index | means |
|---|---|
| `k` | a block of iterations, in order of execution |
| `v` | a value of the body; in block `k` it is `loop.atom(k, v)` of the program |
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..ir import compat
from ..ir.program import Equation, Program, dependents, flatten, flatten_changed, without_dead_code
from ..ir.stage import Differentiation, Replaced, Stage, active_values
from ..operators.compression.encoding import with_codes
from . import branches as branches_module
from .branches import Branch, Choice, renamed_equation, renamed_stage, shifted
from .hoist import hoisted
from .split import split

#: Blocks of one loop, and stages of all of them, at most; but there are two blocks at least, unless
#: forward mode has to work.
MAX_BLOCKS, MAX_STAGES = 16, 128


@dataclasses.dataclass(frozen=True)
class Loop:
    """A `scan` whose iterations are stages.

    Attributes:
        equation: the scan.
        counts: how many of its operands are constants, carried, and stacked.
        body: its body.
        stages: of the body.
        first: its first stage among the program's.
        trips: how many iterations each block has.
        offsets: for each block what is added to the numbers of the body's own values.
        given: for each block what the body's inputs are: values or literals of the program.
        choices: the planned choices in the body, by its own stages and values.
    """

    equation: Equation
    counts: tuple[int, int, int]
    body: Program
    stages: tuple[Stage, ...]
    first: int
    trips: tuple[int, ...]
    offsets: tuple[int, ...]
    given: tuple[Mapping[int, Any], ...]
    choices: tuple[Choice, ...] = ()

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return len(self.trips)

    @property
    def stop(self) -> int:
        """The first of the program's stages behind it."""
        return self.first + self.blocks * len(self.stages)

    @property
    def hoists(self) -> bool:
        """Whether its first stage runs before it, rather than in each iteration."""
        return self.stages[0].hoisted

    def atom(self, k: int, v: Any) -> Any:
        """What a value or literal of the body is in block `k`."""
        if not isinstance(v, int):
            return v
        return self.given[k].get(v, self.offsets[k] + v)

    def choices_in(self, k: int) -> list[Choice]:
        """The planned choices in block `k`, by the program's stages and values."""
        shift = self.first + k * len(self.stages)
        return [x.renamed(functools.partial(self.atom, k), shift) for x in self.choices]

    @property
    def stacked(self) -> list[tuple[int, int]]:
        """Values of the program that the loop takes slices of, with the body's input for each."""
        split = self.counts[0] + self.counts[1]
        pairs = zip(self.equation.inputs[split:], self.body.inputs[split:], strict=True)
        return [(i, v) for i, v in pairs if isinstance(i, int)]

    @property
    def carried(self) -> list[tuple[int, int]]:
        """Results that are carried out of the last iteration, and the values that they are there.

        Those that a literal is carried into are left out.
        """
        last = (self.atom(self.blocks - 1, v) for v in self.body.outputs[: self.counts[1]])
        pairs = zip(self.equation.outputs, last, strict=False)
        return [(result, i) for result, i in pairs if isinstance(i, int)]

    @property
    def collected(self) -> list[tuple[int, Any]]:
        """Results that are stacked, and the output of the body for each."""
        split = self.counts[1]
        return list(zip(self.equation.outputs[split:], self.body.outputs[split:], strict=True))


@dataclasses.dataclass(frozen=True)
class Layout:
    """A program cut into stages.

    Attributes:
        program: the program, every planned loop unrolled and every planned branch listed. stages:
        of it, in order. loops: the planned loops, in order. choices: the planned choices that are
        in no loop and in no branch, in order. invariant_values: what all iterations of a loop
        compute alike, from its constants. However many keep
            such a value, JAX keeps one: that of the last block, to which those of all lead.
    """

    program: Program
    stages: tuple[Stage, ...]
    loops: tuple[Loop, ...]
    choices: tuple[Choice, ...]
    invariant_values: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def all_choices(self) -> Iterator[Choice]:
        """Every planned choice, those of each block of iterations among them."""
        yield from branches_module.walk(self.choices)
        for loop in self.loops:
            for k in range(loop.blocks):
                yield from branches_module.walk(loop.choices_in(k))


def lay_out(program: Program, derivative: Differentiation, has_loops: bool = True) -> Layout:
    """The program as consecutive stages, those of iterations and of branches among them.

    Arguments:
        program: the program.
        derivative: what is planned for.
        has_loops: whether loops have stages of their own; else they are opaque.
    """
    active = active_values(program, derivative)
    unroller = _Unroller(program, active, derivative.forward_mode)
    add = {}  # position of an equation -> what adds its stages
    for p, e in enumerate(program.equations):
        if has_loops and may_be_planned(e, active):
            add[p] = unroller.add_loop
        elif branches_module.may_be_planned(e, active):
            add[p] = unroller.add_choice
    own = {id(program.equations[p]): adds for p, adds in add.items()}
    for stage in split(program, derivative, alone=[*add]):
        adds = own.get(id(stage.equations[0])) if len(stage.equations) == 1 else None
        if adds is None:
            unroller.add_stage(stage)
        else:
            adds(stage.equations[0])
    return unroller.layout()


def may_be_planned(equation: Equation, active: frozenset[int]) -> bool:
    """Whether an equation is a scan that can be run again, and in parts."""
    if equation.primitive != "scan" or equation.eqn.effects:
        return False
    if equation.eqn.params["length"] < 2:
        return False
    if not active.intersection(equation.outputs) or not active.intersection(equation.reads):
        return False
    _, carry, _ = compat.scan_counts(equation.eqn)
    collects_keys = any(compat.is_key(var.aval) for var in equation.eqn.outvars[carry:])
    return not collects_keys and not equation.eqn.params["jaxpr"].consts


class _Unroller:
    """The layout of a program as far as it is known."""

    def __init__(self, program: Program, active: frozenset[int], forward_mode: bool):
        self.program, self.active, self.forward_mode = program, active, forward_mode
        self.avals = list(program.avals)
        self.given = set(program.given)
        self.keeps_other = program.keeps_other
        self.stages: list[Stage] = []
        self.loops: list[Loop] = []
        self.choices: list[Choice] = []
        self.listed: dict[int, list[Equation]] = {}  # for an equation (its id) those of its stages
        self.invariant_values: dict[int, int] = {}

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

    def _body(self, jaxpr: Any) -> Program:
        """The flat program of a loop's body or of a branch."""
        inlines = self.program.inlines_checkpoints
        return flatten(jaxpr, rewrite=self.program.rewrite, inline_checkpoints=inlines)

    def add_stage(self, stage: Stage) -> None:
        """Adds a stage of the program itself."""
        found = Replaced(stage)
        for replaced in self.program.rewrite.stages:
            found = found.then(replaced(found.stage, self.avals))
        self.keeps_other |= bool(found.instead)
        if self.program.rewrite.codecs:
            program = dataclasses.replace(self.program, avals=tuple(self.avals))
            codecs = self.program.rewrite.codecs
            found = found.then(with_codes(program, found, codecs, self.avals))
        self.listed |= found.instead
        self.stages.append(found.stage)

    def add_choice(self, equation: Equation) -> None:
        """Adds the stages of all branches of a `cond`."""
        operands = equation.inputs[1:]
        wanted = tuple(
            n
            for n, i in enumerate(equation.outputs)
            if i in self.active and compat.is_float(self.program.avals[i])
        )
        listed = self.listed[id(equation)] = []
        branches = []
        for jaxpr in equation.eqn.params["branches"]:
            body = self._body(jaxpr)
            pairs = list(zip(body.inputs, operands, strict=True))
            given = frozenset(v for v, atom in pairs if self._is_given(atom))
            floats = (v for v, _ in pairs if compat.is_float(body.avals[v]))
            known = dict(pairs)
            active = frozenset(v for v in floats if _is_in(known[v], self.active))
            derivative = Differentiation(active, wanted, self.forward_mode)
            inner = lay_out(dataclasses.replace(body, given=given), derivative, has_loops=False)
            self.keeps_other |= inner.program.keeps_other
            atom, first = shifted(len(self.avals)), len(self.stages)
            self.avals += inner.program.avals
            self.given.update(map(atom, inner.program.given))
            listed += [_under(equation, e, atom) for e in inner.program.equations]
            for stage in inner.stages:
                own = [_under(equation, e, atom) for e in stage.equations]
                self.stages.append(renamed_stage(stage, own, atom))
            branch = Branch(0, len(inner.stages), body.inputs, body.outputs, inner.choices)
            branches.append(branch.renamed(atom, first))
        self.choices.append(Choice(equation, tuple(branches)))

    def add_loop(self, equation: Equation) -> None:
        """Adds the stages of all blocks of a scan."""
        counts = compat.scan_counts(equation.eqn)
        body = self._loop_body(equation)
        operands = dict(zip(body.inputs, equation.inputs, strict=True))
        consts, carry = body.inputs[: counts[0]], body.inputs[counts[0] : sum(counts[:2])]
        always = {v for v in body.inputs if v not in carry and self._is_given(operands[v])}
        body = dataclasses.replace(body, given=frozenset(always))
        derivative = self._derivative(equation, body)
        body, stages, inner_choices = self._cut_body(body, consts, derivative)
        self.keeps_other |= body.keeps_other
        length = equation.eqn.params["length"]
        trips = (length,) if self.forward_mode else _blocks(length, len(stages))
        offsets, given = [], []
        carried = [operands[v] for v in carry]
        for _ in trips:
            offset = len(self.avals)
            self.avals += body.avals
            known = {v: operands[v] for v in consts} | dict(zip(carry, carried, strict=True))
            offsets.append(offset)
            given.append(known)
            self.given.update(offset + v for v in body.given if v not in known)
            carried = [
                known.get(v, offset + v) if isinstance(v, int) else v
                for v in body.outputs[: counts[1]]
            ]
        first = len(self.stages)
        loop = Loop(
            equation,
            counts,
            body,
            stages,
            first,
            trips,
            tuple(offsets),
            tuple(given),
            inner_choices,
        )
        self.loops.append(loop)
        self.keeps_other |= loop.hoists
        once = {i for e in stages[0].equations for i in e.outputs} if loop.hoists else set()
        for v in (
            _invariants(body, counts[0], active_values(body, derivative), inner_choices) - once
        ):
            last = loop.atom(loop.blocks - 1, v)
            self.invariant_values |= {loop.atom(k, v): last for k in range(loop.blocks)}
        self.listed[id(equation)] = listed = []
        for k in range(loop.blocks):
            listed += _in_block(loop, k, body.equations)
            for stage in stages:
                own, atom = _in_block(loop, k, stage.equations), functools.partial(loop.atom, k)
                self.stages.append(renamed_stage(stage, own, atom, loop.trips[k]))

    def _cut_body(
        self, body: Program, consts: tuple[int, ...], derivative: Differentiation
    ) -> tuple[Program, tuple[Stage, ...], tuple[Choice, ...]]:
        """A loop's body, its stages, and its planned choices; first is what runs before the loop.

        A loop that must pass tangents forward is a plain scan, from which nothing is taken.
        """
        before, values = ((), ()) if self.forward_mode else hoisted(body, consts)
        if not before:
            inner = lay_out(body, derivative, has_loops=False)
            return inner.program, inner.stages, inner.choices
        active = active_values(body, derivative)
        reads = sorted({i for e in before for i in e.reads}.intersection(consts))
        first = Stage(
            before,
            tuple(reads),
            values,
            tuple(i for i in reads if i in active),
            tuple(i for i in values if i in active),
            hoisted=True,
        )
        written = {*values}
        rest = (e for e in body.equations if written.isdisjoint(e.outputs))
        others = dataclasses.replace(
            body,
            inputs=(*body.inputs, *values),
            equations=without_dead_code([*rest], body.outputs),
            given=body.given | written,
        )
        starts = derivative.inputs.union(first.differentiated_outputs)
        inner = lay_out(others, dataclasses.replace(derivative, inputs=starts), has_loops=False)
        whole = dataclasses.replace(
            inner.program,
            inputs=body.inputs,
            equations=(*before, *inner.program.equations),
        )
        choices = tuple(x.renamed(lambda v: v, 1) for x in inner.choices)
        return whole, (first, *inner.stages), choices

    def _is_given(self, atom: Any) -> bool:
        return not isinstance(atom, int) or atom in self.program.given

    def _loop_body(self, equation: Equation) -> Program:
        """The flat program of a loop's body, changed as a whole where that is asked for."""
        program = self.program
        return flatten_changed(
            equation.eqn.params["jaxpr"],
            () if equation.apart else program.rewrite.bodies,  # that was made by such a change
            functools.partial(self._derivative, equation),
            program.rewrite,
            program.inlines_checkpoints,
        )

    def _derivative(self, equation: Equation, body: Program) -> Differentiation:
        """What of the body is differentiated: what an active operand reaches, round by round."""
        consts, carried, _ = compat.scan_counts(equation.eqn)
        operands = dict(zip(body.inputs, equation.inputs, strict=True))
        carry = body.inputs[consts : consts + carried]
        inputs = {
            v
            for v, atom in operands.items()
            if _is_in(atom, self.active) and compat.is_float(body.avals[v])
        }
        floats = [n for n, v in enumerate(carry) if compat.is_float(body.avals[v])]
        wanted = [
            n
            for n, i in enumerate(equation.outputs)
            if n in floats or (n >= len(carry) and i in self.active)
        ]
        while True:
            active = active_values(body, Differentiation(frozenset(inputs), tuple(wanted)))
            reached = [body.outputs[n] for n in floats]
            more = {carry[n] for n, i in zip(floats, reached, strict=True) if _is_in(i, active)}
            more -= inputs
            if not more:
                return Differentiation(frozenset(inputs), tuple(wanted))
            inputs |= more


def _blocks(trips: int, stages: int) -> tuple[int, ...]:
    """Iterations of each block: all the same but for the first, which may have fewer."""
    most = max(2, min(MAX_BLOCKS, MAX_STAGES // stages))
    size = -(-trips // most)
    rest = trips % size
    return (*([rest] if rest else []), *[size] * (trips // size))


def _invariants(
    body: Program, consts: int, active: frozenset[int], choices: Sequence[Choice]
) -> set[int]:
    """What of a body follows from constants of the loop alone, and is differentiated."""
    inside = (v for x in branches_module.walk(choices) for b in x.branches for v in b.inputs)
    varying = dependents(body.equations, (*body.inputs[consts:], *inside))
    own = {i for e in body.equations if not e.eqn.effects for i in e.outputs}
    return (own & active) - varying


def _is_in(atom: Any, values: frozenset[int]) -> bool:
    return isinstance(atom, int) and atom in values


def _in_block(loop: Loop, k: int, equations: Sequence[Equation]) -> list[Equation]:
    return [_under(loop.equation, e, functools.partial(loop.atom, k)) for e in equations]


def _under(outer: Equation, equation: Equation, atom: branches_module.Atoms) -> Equation:
    """An equation of a body or branch, by the values of the program that has it."""
    return renamed_equation(equation, atom, outer.name_stack)
