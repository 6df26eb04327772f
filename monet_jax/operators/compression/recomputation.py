"""Recomputes the operands of a derivative from one decoded value, by linear steps and masks.

Several operands often follow from one value by sums, scaling and masks. A normalization and the
product behind it read values that follow from the convolution before them. One code of that value,
the *source*, serves all of them: each operand is computed from what the code decodes to.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...ir import compat
from ...ir.primitives import Kind, kind_of
from ...ir.program import Equation, Program, parameters_of, run
from ...ir.stage import Stage
from .. import masks
from ..codecs import Codec, Mask
from ..hooks import is_hook, representations_of
from ..representations import Stored

#: Functions of one value that are linear, up to rounding.
_UNARY = frozenset(
    "neg reshape transpose squeeze expand_dims copy copy_p name convert_element_type".split()
)
#: Beside a source, values of this part of its bytes may be saved exactly.
_SMALL_SHARE = 1 / 16


@dataclasses.dataclass(frozen=True)
class LinearStep:
    """How a value is computed again. Without an equation and needs, it cannot be.

    Attributes:
        equation: computes the value; without one, the value equals what it needs.
        needs: the operands that are computed again or decoded.
        bits: of a mask, the code of its boolean.
        which: the boolean, where it is an operand of the equation.
    """

    equation: Equation | None = None
    needs: tuple[int, ...] = ()
    bits: int | None = None
    which: Any = None


class LinearSteps:
    """How the values of a stage follow from others of their size.

    Arguments:
        program: the program that has the stage.
        stage: its equations.
        weights: the result of each softmax -> the equal value that its derivative reads.
    """

    def __init__(self, program: Program, stage: Stage, weights: Mapping[int, int]):
        self.program, self.weights = program, weights
        self.divided = frozenset(weights.values())
        self.writer = {i: e for e in stage.equations for i in e.outputs}
        self._sources: dict[int, int] = {}

    def source(self, value: int) -> int:
        """The value furthest back from which one follows by linear steps and small values."""
        if value not in self._sources:
            sources = {self.source(i) for i in self.step(value).needs}
            self._sources[value] = sources.pop() if len(sources) == 1 else value
        return self._sources[value]

    def step(self, value: int) -> LinearStep:
        """How a value follows from values of its size; it needs none where it does not."""
        equation = self.writer.get(value)
        if value in self.weights:
            return LinearStep(needs=(self.weights[value],))
        if equation is None or value in self.divided:
            return LinearStep()
        if (masked := self._masked(equation)) is not None:
            return masked
        small = {i for i in equation.reads if self._is_small(i, value)}
        needs = [i for i in equation.reads if i not in small]
        same = all(
            compat.is_float(self.program.avals[i]) and self.size(i) == self.size(value)
            for i in needs
        )
        if not needs or not same or not _is_linear(equation, needs):
            return LinearStep()
        return LinearStep(equation, tuple(dict.fromkeys(needs)))

    def size(self, value: int) -> int:
        """The elements of a value."""
        return math.prod(getattr(self.program.avals[value], "shape", ()))

    def _masked(self, equation: Equation) -> LinearStep | None:
        """The step of `relu` or `select_n`, whose boolean may be saved as bits; else None."""
        if equation.primitive != "custom_jvp_call" or len(equation.reads) < 2:
            return None
        original, hooked = (self.writer.get(i) for i in equation.reads[:2])
        bits = _bits(hooked)
        if original is None or hooked is None or bits is None:
            return None
        which = hooked.inputs[0]
        if original.primitive == "select_n" and original.inputs[0] == which:
            cases = [c for c in original.inputs[1:] if not self._is_small(c, original.outputs[0])]
            return LinearStep(original, tuple(dict.fromkeys(cases)), bits, which) if cases else None
        sign = self.writer.get(which)
        if sign is None or not masks.is_sign(sign) or not masks.is_positive_part(original.eqn):
            return None
        return LinearStep(original, original.reads, bits) if sign.reads == original.reads else None

    def _is_small(self, atom: Any, beside: int) -> bool:
        """Whether an operand is in memory anyway, small beside a value, or a broadcast of that."""
        if not isinstance(atom, int) or atom in self.program.given:
            return True
        if self.program.nbytes(atom) <= self.program.nbytes(beside) * _SMALL_SHARE:
            return True
        equation = self.writer.get(atom)
        if equation is None or equation.primitive not in (*_UNARY, "broadcast_in_dim"):
            return False
        return all(self._is_small(i, beside) for i in equation.inputs)


def _bits(equation: Equation | None) -> int | None:
    """The code, as bits, of a boolean that passes a residual hook."""
    if equation is not None and is_hook(equation):
        for representation, values in representations_of(equation):
            if isinstance(representation, Stored) and isinstance(representation.codec, Mask):
                return values[0]
    return None


def _is_linear(equation: Equation, varying: Sequence[int]) -> bool:
    """Whether an equation is linear in some of its operands, up to rounding."""
    match equation.primitive:
        case "add" | "sub" | "add_any":
            return True
        case "mul":
            return len(varying) == 1
        case "div":
            return [*varying] == [equation.inputs[0]]
        case name:
            view = kind_of(equation) is Kind.VIEW and not is_hook(equation)
            return len(equation.reads) == 1 and (view or name in _UNARY)


@dataclasses.dataclass(frozen=True, eq=False)
class Recomputation:
    """The steps from a source to an operand; to be called with a codec and with saved arrays.

    Attributes:
        source: the value that is decoded.
        operand: the value that is computed from it.
        aval: of the source.
        steps: each value between them with its step, in order.
        bits: codes of masks.
        others: values that are read beside.
    """

    source: int
    operand: int
    aval: Any
    steps: tuple[tuple[int, LinearStep], ...]
    bits: tuple[int, ...]
    others: tuple[int, ...]

    @staticmethod
    def of(known: LinearSteps, operand: int, source: int) -> "Recomputation":
        """The steps by which an operand follows from a source."""
        steps: dict[int, LinearStep] = {}

        def visit(value: int) -> None:
            if value != source and value not in steps:
                step = known.step(value)
                for i in step.needs:
                    visit(i)
                steps[value] = step

        visit(operand)
        there = {source, *steps, *(step.which for step in steps.values())}
        read = (i for step in steps.values() if step.equation for i in step.equation.reads)
        return Recomputation(
            source,
            operand,
            known.program.avals[source],
            tuple(steps.items()),
            tuple(dict.fromkeys(x.bits for x in steps.values() if x.bits is not None)),
            tuple(dict.fromkeys(i for i in read if i not in there)),
        )

    def __call__(self, codec: Codec, *arrays: jax.Array) -> jax.Array:
        """The operand from the arrays of the source's code, then the bits, then the others."""
        count = len(arrays) - len(self.bits) - len(self.others)
        env: dict[int, Any] = {self.source: codec.decode(arrays[:count], self.aval)}
        env |= dict(zip((*self.bits, *self.others), arrays[count:], strict=True))
        for value, step in self.steps:
            env[value] = _computed(step, env)
        return env[self.operand]

    def __repr__(self) -> str:
        """The same text for recomputations that differ in the numbers of their values alone."""
        local: dict[int, int] = {}

        def text(atom: Any) -> str:
            is_number = isinstance(atom, int)
            return str(local.setdefault(atom, len(local))) if is_number else f"{atom.val}"

        for i in (self.source, *self.bits, *self.others):
            text(i)
        parts = [
            (
                step.equation.primitive,
                [text(x) for x in step.equation.inputs],
                parameters_of(step.equation.eqn),
                text(value),
            )
            for value, step in self.steps
            if step.equation is not None
        ]
        same = [
            (text(v), text(x.needs[0])) for v, x in self.steps if x.equation is None and x.needs
        ]
        return repr((parts, same))


def _computed(step: LinearStep, env: Mapping[int, Any]) -> jax.Array:
    """The result of a step."""
    equation = step.equation
    if equation is None:
        return env[step.needs[0]]
    if step.bits is None:
        return _result(equation, env)
    aval = equation.eqn.invars[0].aval  # of the boolean, or of an array as large
    mask = Mask().decode((env[step.bits],), jax.ShapeDtypeStruct(aval.shape, jnp.bool))
    if step.which is None:  # `relu`
        return jnp.where(mask, env[step.needs[0]], 0)
    return _result(equation, {**env, step.which: mask})


def _result(equation: Equation, env: Mapping[int, Any]) -> jax.Array:
    env = dict(env)
    run([equation], env, {})
    return env[equation.outputs[0]]
