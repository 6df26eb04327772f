"""Lossy codes of the operands that derivatives are linear in, so that gradients stay unbiased.

The derivative of a product, a convolution or a square reads its operands, and is linear in them. If
the operand that it reads is random, with the exact operand as its expectation, the gradient is
unbiased (as in ActNN, Chen et al., 2021). It is biased where an operation's input is encoded and
its derivative is computed from that. Several such *linear operands* may follow from one value, the
*source* (`recomputation`). Then one code of the source serves all of them: the residual hook of
each operand decodes it and computes the rest. A codec that knows axes (`operands.OfOperands`)
encodes one operand by itself. The weights of a softmax, which alone its derivative reads, are a
linear operand and a source: one code serves the softmax and the product that reads the weights.

Three kinds of values are not encoded: values read by any other derivative (of `log`, of a division
by them), which is not linear in them; parameters, which are in memory anyway; and small values.

Where one code enters two factors of a product of the gradient, as the normalized values do in the
gradient of a normalization, the expectation is off by the code's variance over the number of values
that are averaged; in a softmax, by the variance of each weight's code times its cotangent.
"""

import dataclasses
import functools
import itertools as it
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ...ir import compat
from ...ir.program import Equation, Program, listed
from ...ir.stage import Replaced, Stage, active_in
from ..codecs import Codec
from ..derivative import with_derivative_at
from ..hooks import encoded, hook, representations_of
from ..representations import Decoded, Stored
from .chain_derivatives import Interval, with_local_derivatives
from .local_derivatives import OfLocalDerivatives
from .operands import OfOperands
from .recomputation import LinearSteps, Recomputation
from .windows import Direct, Windows

#: Of each operand that a derivative is linear in: the operands whose tangents it multiplies.
_LINEAR = {
    "mul": {0: 1, 1: 0},
    "dot_general": {0: 1, 1: 0},
    "conv_general_dilated": {0: 1, 1: 0},
    "square": {0: 0},
    "integer_pow": {0: 0},  # where the power is 2
    "div": {0: 1},
}
#: Encoded operands have as many elements, and this share of the stage's largest value's elements.
_LEAST, _SHARE = 4096, 1 / 64


def with_codes(
    program: Program,
    found: Replaced,
    codecs: Sequence[Codec | OfOperands | OfLocalDerivatives],
    avals: list[Any],
) -> Replaced:
    """A stage whose linear operands may be saved as codes.

    Arguments:
        program: the program that has the stage.
        found: the stage, and the weights of its softmaxes.
        codecs: how values may be stored, the preferred one last.
        avals: of all values; avals of new values are added.
    """
    stage, weights = found.stage, found.weights
    linear, sloped = _LinearOperands(program, stage, weights), Replaced(stage)
    if any(isinstance(x, OfLocalDerivatives) for x in codecs):
        sloped, ranges = with_local_derivatives(stage, linear.is_coded, avals)
        program, stage = dataclasses.replace(program, avals=tuple(avals)), sloped.stage
        linear = _LinearOperands(program, stage, weights, ranges)
    return sloped.then(_hooked(linear, linear.reads(codecs), avals))


@dataclasses.dataclass(frozen=True)
class _Read:
    """A linear operand that an equation's derivative reads, and a source that may be encoded.

    Attributes:
        position: in the stage, of the equation whose derivative reads the operand.
        equation: this equation.
        place: of the operand.
        operand: the value.
        source: the value from which it follows, or the operand itself.
        codecs: how the source may be stored for this, the preferred one last.
    """

    position: int
    equation: Equation
    place: int
    operand: int
    source: int
    codecs: tuple[Codec, ...]

    def direct(self, codec: Codec, joined: Callable[..., jax.Array]) -> Direct | None:
        """How `joined` reads the source's code as it is, if it can (`with_derivative_at`)."""
        is_own = self.operand == self.source
        by = Windows.of(self.equation.eqn, self.place, codec) if is_own else None
        return None if by is None else Direct(by, joined)


class _LinearOperands:
    """The operands of a stage that may be decoded, and their sources."""

    def __init__(
        self,
        program: Program,
        stage: Stage,
        weights: Mapping[int, int],
        ranges: Mapping[int, Interval] | None = None,
    ):
        self.program, self.stage, self.ranges = program, stage, ranges or {}
        self.steps = LinearSteps(program, stage, weights)
        self.active = active_in(stage.equations, stage.differentiated_inputs)
        largest = max(map(self.steps.size, (*self.steps.writer, *stage.inputs)), default=0)
        self.least = max(_LEAST, largest * _SHARE)

    def places(self, equation: Equation) -> list[int]:
        """The places of an equation's linear operands that are large enough for a code."""
        if equation.eqn.params.get("y", 2) != 2 or not self.active.intersection(equation.outputs):
            return []
        if equation.outputs[0] in self.steps.weights:
            return [0] if self._is_large(equation.inputs[0]) else []
        if equation.outputs[0] in self.steps.divided:  # no derivative of its own is taken
            return []
        factors = _LINEAR.get(equation.primitive, {})
        return [
            place
            for place, other in factors.items()
            if self._is_large(equation.inputs[place]) and self._is_active(equation.inputs[other])
        ]

    def is_coded(self, value: int) -> bool:
        """Whether a value is differentiated, large enough for a code, and not in memory anyway."""
        is_given = value in self.program.given
        return value in self.active and not is_given and self._is_large(value)

    def _is_active(self, atom: Any) -> bool:
        return isinstance(atom, int) and atom in self.active

    def _is_large(self, atom: Any) -> bool:
        if not isinstance(atom, int) or self.steps.size(atom) < self.least:
            return False
        aval = self.program.avals[atom]
        return compat.is_float(aval) and not any(aval.sharding.spec)

    def reads(self, codecs: Sequence[Codec | OfOperands | OfLocalDerivatives]) -> Iterator[_Read]:
        """The linear operands that are read, with the codecs that apply to their sources.

        A codec for single operands or for local derivatives encodes the operand itself.
        """
        shared = [x for x in codecs if not isinstance(x, OfOperands | OfLocalDerivatives)]
        single = [x for x in codecs if isinstance(x, OfOperands)]
        local_derivatives = [x for x in codecs if isinstance(x, OfLocalDerivatives)]
        sources = self._sources() if shared else {}
        for n, e in enumerate(self.stage.equations):
            over = self.ranges.get(e.outputs[0]) if e.outputs else None
            if over is not None:
                value = e.inputs[0]
                yield _Read(n, e, 0, value, value, tuple(x.over(*over) for x in local_derivatives))
            for place in self.places(e):
                operand = e.inputs[place]
                chosen = {sources[operand]: shared} if operand in sources else {}
                if operand not in self.program.given:
                    laid_out = [x.at(e.eqn, place) for x in single]
                    chosen[operand] = [*chosen.get(operand, ()), *filter(None, laid_out)]
                for source, some in chosen.items():
                    fitting = tuple(x for x in some if x.applies(self.program.avals[source]))
                    if fitting:
                        yield _Read(n, e, place, operand, source, fitting)

    def _sources(self) -> dict[int, int]:
        """Linear operand -> its source; an operand that shares its source with none is its own."""
        found = {e.inputs[p] for e in self.stage.equations for p in self.places(e)}
        sources = {operand: self.steps.source(operand) for operand in found}
        served = list(sources.values())
        return {
            operand: source if served.count(source) > 1 else operand
            for operand, source in sources.items()
            if source not in self.program.given
        }


@dataclasses.dataclass(frozen=True)
class _Hook:
    """A residual hook of a linear operand: what it reads beside that, and its representations."""

    operands: tuple[int, ...]
    representations: tuple[Decoded, ...]

    @staticmethod
    def of(
        steps: LinearSteps,
        reads: Sequence[_Read],
        encoders: Mapping[int, Equation],
        joined: Callable[..., jax.Array],
    ) -> "_Hook":
        """The hook of an operand which `joined` reads (`with_derivative_at`)."""
        operands: list[int] = []
        representations: list[Decoded] = []
        for x in reads:
            again = Recomputation.of(steps, x.operand, x.source)
            read = (*encoders[x.source].outputs[1:], *again.bits, *again.others)
            place = {i: n for n, i in enumerate(read, len(operands) + 1)}
            operands += read
            others = tuple(place[i] for i in again.others)
            for stored, code in representations_of(encoders[x.source]):
                assert isinstance(stored, Stored)
                if stored.codec in x.codecs:
                    codes = tuple(place[i] for i in (*code, *again.bits))
                    compute = functools.partial(again, stored.codec)
                    direct = x.direct(stored.codec, joined)
                    representations.append(Decoded(stored.codec, compute, codes, others, direct))
        return _Hook(tuple(operands), tuple(representations))


def _hooked(linear: _LinearOperands, reads: Iterable[_Read], avals: list[Any]) -> Replaced:
    """The stage with hooks of the linear operands that are read, and with encoders of sources."""
    by_equation: dict[int, list[_Read]] = {}
    codecs: dict[int, list[Codec]] = {}
    for x in reads:
        by_equation.setdefault(x.position, []).append(x)
        codecs[x.source] = list(dict.fromkeys((*codecs.get(x.source, ()), *x.codecs)))
    encoders: dict[int, Equation] = {}
    replaced: dict[int, list[Equation]] = {}
    for n, own in sorted(by_equation.items()):
        e = linear.stage.equations[n]
        new = {x.source: None for x in own if x.source not in encoders}
        encoders |= {source: _encoder(source, e, codecs[source], avals) for source in new}
        at = {x.place: [y for y in own if y.place == x.place] for x in own}
        joined = with_derivative_at(e, tuple(at), linear.program.rewrite)
        hooks = {place: _Hook.of(linear.steps, x, encoders, joined) for place, x in at.items()}
        written = [encoders[source] for source in new]
        replaced[n] = [*written, *_replaced(e, hooks, joined, avals)]
    return Replaced.of(linear.stage, replaced)


def _encoder(source: int, near: Equation, codecs: Sequence[Codec], avals: list[Any]) -> Equation:
    """The equation that writes the codes of a source."""
    (equation,) = listed(lambda x: encoded(x, codecs), [source], near, avals)
    return equation


def _replaced(
    equation: Equation,
    hooks: Mapping[int, _Hook],
    joined: Callable[..., jax.Array],
    avals: list[Any],
) -> list[Equation]:
    """The equation with a derivative that reads operands through hooks, by their places."""
    count = len(equation.inputs)
    operands = [*equation.inputs, *it.chain.from_iterable(x.operands for x in hooks.values())]

    def function(*arrays):
        inputs, rest = arrays[:count], iter(arrays[count:])
        read = [
            hook(
                inputs[place], *it.islice(rest, len(x.operands)), representations=x.representations
            )
            for place, x in hooks.items()
        ]
        (result,) = compat.bind_here(equation.eqn, inputs)
        return joined(result, *read, *inputs)

    return listed(function, operands, equation, avals, equation.outputs)
