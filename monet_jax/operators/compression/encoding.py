"""Which values of a stage may be kept as lossy codes, so that gradients stay unbiased?

The derivative of a product, a convolution or a square reads its operands, and is linear in them: if
what it reads is random, with the operand as its expectation, then the gradient is unbiased, which
it is not where an operation's input is encoded and its derivative computed from that. Such an
operand is a *leaf* here. Often several leaves follow from one value by sums, scaling and masks:
what a normalization reads, and the product behind it, from the convolution before it. Then one code
of that value, the *base*, serves all of them; each leaf's tap decodes it and computes the rest. A
codec that knows axes (`operators.OfOperands`) keeps a leaf by itself, for one operand. The weights
of a softmax, which alone its derivative reads, are a leaf and a base: one code serves that and the
product that reads them.

What is not encoded: values read by any other derivative (of `log`, of a division by them), which is
not linear in them; parameters, which are in memory anyway; what is small.

Where one code enters two factors of a product of the gradient, as the normalized values do in the
gradient of a normalization, the expectation is off by the code's variance over the number of values
that are averaged; in that of a softmax, by the variance of each weight's code times its cotangent.
"""

import dataclasses
import functools
import itertools as it
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...ir import compat
from ...ir.primitives import Kind, kind_of
from ...ir.program import Equation, Program, listed, parameters_of, run
from ...ir.stage import Replaced, Stage, active_in
from .. import (
    Decoded,
    Direct,
    OfLocalDerivatives,
    OfOperands,
    Stored,
    Windows,
    encoded,
    hook,
    is_hook,
    masks,
    representations_of,
)
from ..codecs import Codec, Mask
from ..derivative import with_derivative_at
from .chain_derivatives import Range, with_local_derivatives

#: Of each operand that a derivative is linear in: the operands whose tangents it multiplies.
_LINEAR = {
    "mul": {0: 1, 1: 0},
    "dot_general": {0: 1, 1: 0},
    "conv_general_dilated": {0: 1, 1: 0},
    "square": {0: 0},
    "integer_pow": {0: 0},  # where the power is 2
    "div": {0: 1},
}
#: Functions of one value that are linear, up to rounding.
_UNARY = frozenset(
    "neg reshape transpose squeeze expand_dims copy copy_p name convert_element_type".split()
)
#: Leaves have as many elements, and are no smaller a part of the largest value of the stage.
_LEAST, _SHARE = 4096, 1 / 64
#: Beside a base, values of this part of its bytes may be kept exactly.
_ASIDE = 1 / 16


def with_codes(
    program: Program,
    found: Replaced,
    codecs: Sequence[Codec | OfOperands | OfLocalDerivatives],
    avals: list[Any],
) -> Replaced:
    """A stage whose leaves may be kept as codes.

    Arguments:
        program: that the stage is of.
        found: its equations, and what is known of them.
        codecs: how values may be kept, the preferred one last.
        avals: of all values; those of new ones are added.
    """
    stage, weights = found.stage, found.weights
    leaves, sloped = _Leaves(program, stage, weights), Replaced(stage)
    if any(isinstance(x, OfLocalDerivatives) for x in codecs):
        sloped, ranges = with_local_derivatives(stage, leaves.is_coded, avals)
        program, stage = dataclasses.replace(program, avals=tuple(avals)), sloped.stage
        leaves = _Leaves(program, stage, weights, ranges)
    reads: dict[int, list[_Read]] = {}
    wanted: dict[int, list[Codec]] = {}
    for x in leaves.reads(codecs):
        reads.setdefault(id(x.equation), []).append(x)
        wanted[x.base] = list(dict.fromkeys((*wanted.get(x.base, ()), *x.codecs)))
    encoders: dict[int, Equation] = {}
    replaced: dict[int, list[Equation]] = {}
    for e in (e for e in stage.equations if id(e) in reads):
        new = {x.base: None for x in reads[id(e)] if x.base not in encoders}
        encoders |= {base: _encoder(base, e, wanted[base], avals) for base in new}
        at = {x.place: [y for y in reads[id(e)] if y.place == x.place] for x in reads[id(e)]}
        joined = with_derivative_at(e, tuple(at), program.rewrite)
        hooks = {place: _Hook.of(leaves, some, encoders, joined) for place, some in at.items()}
        replaced[id(e)] = [*(encoders[base] for base in new), *_replaced(e, hooks, joined, avals)]
    return sloped.then(Replaced.of(stage, replaced))


@dataclasses.dataclass(frozen=True)
class _Read:
    """A leaf that the derivative of an equation reads, and a base that may be kept for it.

    Attributes:
        equation: whose derivative reads it.
        place: of the leaf among its operands.
        leaf: the value.
        base: from which it follows; itself, perhaps.
        codecs: how the base may be kept for this, the preferred one last.
    """

    equation: Equation
    place: int
    leaf: int
    base: int
    codecs: tuple[Codec, ...]

    def direct(self, codec: Codec, joined: Callable[..., jax.Array]) -> Direct | None:
        """How `joined` reads the base's code as it is, if it can (`with_derivative_at`)."""
        by = Windows.of(self.equation.eqn, self.place, codec) if self.leaf == self.base else None
        return None if by is None else Direct(by, joined)


class _Leaves:
    """What of a stage may be decoded, and from what."""

    def __init__(
        self,
        program: Program,
        stage: Stage,
        weights: Mapping[int, int],
        ranges: Mapping[int, Range] | None = None,
    ):
        self.program, self.stage, self.ranges = program, stage, ranges or {}
        self.weights, self.divided = weights, frozenset(weights.values())
        self.active = active_in(stage.equations, stage.differentiated_inputs)
        self.writer = {i: e for e in stage.equations for i in e.outputs}
        largest = max(map(self._size, (*self.writer, *stage.inputs)), default=0)
        self.least = max(_LEAST, largest * _SHARE)
        self._sources: dict[int, int] = {}

    def _size(self, value: int) -> int:
        return math.prod(getattr(self.program.avals[value], "shape", ()))

    def places(self, equation: Equation) -> list[int]:
        """The places of an equation's operands that are leaves, wherever they can be decoded."""
        if equation.eqn.params.get("y", 2) != 2 or not self.active.intersection(equation.outputs):
            return []
        if equation.outputs[0] in self.weights:
            return [0] if self._is_large(equation.inputs[0]) else []
        if equation.outputs[0] in self.divided:  # no derivative of its own is taken
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
        if not isinstance(atom, int) or self._size(atom) < self.least:
            return False
        aval = self.program.avals[atom]
        return compat.is_float(aval) and not any(aval.sharding.spec)

    def reads(self, codecs: Sequence[Codec | OfOperands | OfLocalDerivatives]) -> Iterator[_Read]:
        """The leaves that are read, those with codecs that apply; a codec for single operands keeps
        the leaf itself, and so does one for slopes.
        """
        shared = [x for x in codecs if not isinstance(x, OfOperands | OfLocalDerivatives)]
        single = [x for x in codecs if isinstance(x, OfOperands)]
        local_derivatives = [x for x in codecs if isinstance(x, OfLocalDerivatives)]
        bases = self._bases() if shared else {}
        for e in self.stage.equations:
            if id(e) in self.ranges:
                local_derivative, over = e.inputs[0], self.ranges[id(e)]
                yield _Read(
                    e,
                    0,
                    local_derivative,
                    local_derivative,
                    tuple(x.over(*over) for x in local_derivatives),
                )
            for place in self.places(e):
                leaf = e.inputs[place]
                chosen = {bases[leaf]: shared} if leaf in bases else {}
                if leaf not in self.program.given:
                    laid_out = [x.at(e.eqn, place) for x in single]
                    chosen[leaf] = [*chosen.get(leaf, ()), *filter(None, laid_out)]
                for base, some in chosen.items():
                    fitting = tuple(x for x in some if x.applies(self.program.avals[base]))
                    if fitting:
                        yield _Read(e, place, leaf, base, fitting)

    def _bases(self) -> dict[int, int]:
        """Leaf -> its base. A leaf that is alone with its base is its own."""
        found = {e.inputs[p] for e in self.stage.equations for p in self.places(e)}
        sources = {leaf: self.source(leaf) for leaf in found}
        served = list(sources.values())
        return {
            leaf: source if served.count(source) > 1 else leaf
            for leaf, source in sources.items()
            if source not in self.program.given
        }

    def source(self, value: int) -> int:
        """The value furthest back from which one follows by linear steps and small values."""
        if value not in self._sources:
            sources = {self.source(i) for i in self.step(value).needs}
            self._sources[value] = sources.pop() if len(sources) == 1 else value
        return self._sources[value]

    def step(self, value: int) -> "_Step":
        """How a value follows from values of its size; it needs none where it does not."""
        equation = self.writer.get(value)
        if value in self.weights:
            return _Step(needs=(self.weights[value],))
        if equation is None or value in self.divided:
            return _Step()
        if (masked := self._masked(equation)) is not None:
            return masked
        aside = {i for i in equation.reads if self._is_aside(i, value)}
        needs = [i for i in equation.reads if i not in aside]
        same = all(
            compat.is_float(self.program.avals[i]) and self._size(i) == self._size(value)
            for i in needs
        )
        if not needs or not same or not _is_linear(equation, needs):
            return _Step()
        return _Step(equation, tuple(dict.fromkeys(needs)))

    def _masked(self, equation: Equation) -> "_Step | None":
        """The step of `relu` or `select_n`, whose boolean may be kept as bits; else None."""
        if equation.primitive != "custom_jvp_call" or len(equation.reads) < 2:
            return None
        original, tapped = (self.writer.get(i) for i in equation.reads[:2])
        bits = _bits(tapped)
        if original is None or tapped is None or bits is None:
            return None
        which = tapped.inputs[0]
        if original.primitive == "select_n" and original.inputs[0] == which:
            cases = [c for c in original.inputs[1:] if not self._is_aside(c, original.outputs[0])]
            return _Step(original, tuple(dict.fromkeys(cases)), bits, which) if cases else None
        sign = self.writer.get(which)
        if sign is None or not masks.is_sign(sign) or not masks.is_positive_part(original.eqn):
            return None
        return _Step(original, original.reads, bits) if sign.reads == original.reads else None

    def _is_aside(self, atom: Any, beside: int) -> bool:
        """Whether something is there anyway, or small beside a value, or a broadcast of that."""
        if not isinstance(atom, int) or atom in self.program.given:
            return True
        if self.program.nbytes(atom) <= self.program.nbytes(beside) * _ASIDE:
            return True
        equation = self.writer.get(atom)
        if equation is None or equation.primitive not in (*_UNARY, "broadcast_in_dim"):
            return False
        return all(self._is_aside(i, beside) for i in equation.inputs)


def _bits(equation: Equation | None) -> int | None:
    """The code, as bits, of what a tap passes."""
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


@dataclasses.dataclass(frozen=True)
class _Step:
    """How a value is computed again; it is not where there is neither equation nor need.

    Attributes:
        equation: that computes it; if there is none, it is equal to what it needs.
        needs: of its operands those that are computed again or decoded.
        bits: of a mask, the code of its boolean.
        which: the boolean, where it is an operand of the equation.
    """

    equation: Equation | None = None
    needs: tuple[int, ...] = ()
    bits: int | None = None
    which: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class _Chain:
    """The steps from a base to a leaf; to be called with a codec and with what is kept.

    Attributes:
        base: what is decoded.
        leaf: what is computed from it.
        aval: of the base.
        steps: what each value between them is computed by, in order.
        bits: codes of masks.
        others: values that are read beside.
    """

    base: int
    leaf: int
    aval: Any
    steps: tuple[tuple[int, _Step], ...]
    bits: tuple[int, ...]
    others: tuple[int, ...]

    @staticmethod
    def of(leaves: _Leaves, leaf: int, base: int) -> "_Chain":
        steps: dict[int, _Step] = {}

        def visit(value: int) -> None:
            if value != base and value not in steps:
                step = leaves.step(value)
                for i in step.needs:
                    visit(i)
                steps[value] = step

        visit(leaf)
        known = {base, *steps, *(step.which for step in steps.values())}
        read = (i for step in steps.values() if step.equation for i in step.equation.reads)
        return _Chain(
            base,
            leaf,
            leaves.program.avals[base],
            tuple(steps.items()),
            tuple(dict.fromkeys(x.bits for x in steps.values() if x.bits is not None)),
            tuple(dict.fromkeys(i for i in read if i not in known)),
        )

    def __call__(self, codec: Codec, *arrays: jax.Array) -> jax.Array:
        """The leaf from the arrays of the base's code, then the bits, then the others."""
        count = len(arrays) - len(self.bits) - len(self.others)
        env: dict[int, Any] = {self.base: codec.decode(arrays[:count], self.aval)}
        env |= dict(zip((*self.bits, *self.others), arrays[count:], strict=True))
        for value, step in self.steps:
            env[value] = _computed(step, env)
        return env[self.leaf]

    def __repr__(self) -> str:
        """The same for chains that differ in nothing but the numbers of their values."""
        local: dict[int, int] = {}

        def text(atom: Any) -> str:
            is_number = isinstance(atom, int)
            return str(local.setdefault(atom, len(local))) if is_number else f"{atom.val}"

        for i in (self.base, *self.bits, *self.others):
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


def _computed(step: _Step, env: Mapping[int, Any]) -> jax.Array:
    """The result of a step."""
    equation = step.equation
    if equation is None:
        return env[step.needs[0]]
    if step.bits is None:
        return _result(equation, env)
    aval = equation.eqn.invars[0].aval  # of the boolean, or of what is as large
    mask = Mask().decode((env[step.bits],), jax.ShapeDtypeStruct(aval.shape, jnp.bool))
    if step.which is None:  # `relu`
        return jnp.where(mask, env[step.needs[0]], 0)
    return _result(equation, {**env, step.which: mask})


def _result(equation: Equation, env: Mapping[int, Any]) -> jax.Array:
    env = dict(env)
    run([equation], env, {})
    return env[equation.outputs[0]]


@dataclasses.dataclass(frozen=True)
class _Hook:
    """A tap of a leaf: its operands, behind the leaf, and its forms."""

    operands: tuple[int, ...]
    representations: tuple[Decoded, ...]

    @staticmethod
    def of(
        leaves: _Leaves,
        reads: Sequence[_Read],
        encoders: Mapping[int, Equation],
        joined: Callable[..., jax.Array],
    ) -> "_Hook":
        """That of an operand which `joined` reads (`with_derivative_at`)."""
        operands: list[int] = []
        representations: list[Decoded] = []
        for x in reads:
            chain = _Chain.of(leaves, x.leaf, x.base)
            read = (*encoders[x.base].outputs[1:], *chain.bits, *chain.others)
            place = {i: n for n, i in enumerate(read, len(operands) + 1)}
            operands += read
            others = tuple(place[i] for i in chain.others)
            for representation, code in representations_of(encoders[x.base]):
                assert isinstance(representation, Stored)
                if representation.codec in x.codecs:
                    codes = tuple(place[i] for i in (*code, *chain.bits))
                    compute = functools.partial(chain, representation.codec)
                    direct = x.direct(representation.codec, joined)
                    representations.append(
                        Decoded(representation.codec, compute, codes, others, direct)
                    )
        return _Hook(tuple(operands), tuple(representations))


def _encoder(base: int, near: Equation, codecs: Sequence[Codec], avals: list[Any]) -> Equation:
    """The equation that writes the codes of a base."""
    (equation,) = listed(lambda x: encoded(x, codecs), [base], near, avals)
    return equation


def _replaced(
    equation: Equation,
    hooks: Mapping[int, _Hook],
    joined: Callable[..., jax.Array],
    avals: list[Any],
) -> list[Equation]:
    """What stands for an equation whose derivative reads operands through taps, by their places."""
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
