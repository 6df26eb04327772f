"""Chunked loss: a product with a wide matrix and the loss behind it, chunk by chunk of tokens.

Logits, their softmax and their gradient are often the largest arrays of a language model's step. A
product with a matrix of many columns, and all equations that follow from it token by token, down to
sums over tokens, run in a loop over chunks of tokens. The loop computes the gradient along with the
value (as in Liger Kernel, Hsu et al., 2024): the gradient of a sum is known up to one factor, which
comes later. So nothing of a chunk is saved, and nothing is computed twice.
Gradients equal JAX's but for the order of sums over tokens.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ...ir import compat
from ...ir.primitives import Kind, is_random, kind_of
from ...ir.program import Equation, Program, aval_nbytes, dependents, without_dead_code
from ...ir.stage import Differentiation, abstract, active_values
from ..context import Context
from .chunks import Chunks
from .division import Division, nearest
from .loss_ends import ends_of
from .rules import Cut, cuts_of, summed_in
from .slicer import Slicer

#: The bytes of a wide product's result over those of its token-wise operand, at least.
_WIDE = 4
#: A value with more than this share of the logits' bytes counts as large as logits.
_LARGE_SHARE = 1 / 8
#: The bytes of a loss's largest array over those of its logits, at most (casts widen it).
_GROWS = 4
#: The share of the bytes of logits and their gradient that chunks may take.
_WORTH = 1 / 2
#: Equations that each chunk repeats, rather than read a copy in another layout or dtype.
_MOVES = ("broadcast_in_dim", "convert_element_type", "iota", "reshape", "squeeze", "transpose")


@dataclasses.dataclass(frozen=True)
class Head:
    """Runs the losses of a program over a large vocabulary in chunks.

    Attributes:
        rows: tokens of a chunk, as nearly as they can be divided. Every chunk reads the matrix
            and adds to its gradient: with fewer tokens, that takes longer than the products.
        least_rows: tokens of a chunk, at least.
    """

    rows: int = 1024
    least_rows: int = 512

    def __call__(self, program: Program, derivative: Differentiation, context: Context) -> Program:
        """The program, its losses in chunks; itself where no loss is worth it."""
        if context.in_loop:
            return program
        # Losses that are smaller than another array of the program need not be looked for.
        least_bytes = max((program.nbytes(i) for i in _solid(program)), default=0) // _GROWS
        found = self._replaced(program, derivative, context, least_bytes)
        while found is not None:
            program, found = found, self._replaced(found, derivative, context, least_bytes)
        return program

    def _replaced(
        self,
        program: Program,
        derivative: Differentiation,
        context: Context,
        least_bytes: int,
    ) -> Program | None:
        active = active_values(program, derivative)
        for position, equation in enumerate(program.equations):
            if not active.intersection(equation.outputs):
                continue
            if sum(map(program.nbytes, equation.outputs)) < least_bytes:
                continue
            for axis, division in self._divisions(equation, context.devices):
                found = _loss_at(program, derivative, position, axis, division)
                if found is None or not found.is_worth_it(context):
                    continue
                replaced = found.replaced()
                if replaced is not None:
                    return replaced
        return None

    def _divisions(self, equation: Equation, devices: int) -> list[tuple[int, Division]]:
        """Axes of a product's result with the chunks along each, the best first.

        Tokens may be spread over devices along any axis, so that each is divided on every device.
        """
        found = []
        for axis, size in enumerate(equation.eqn.outvars[0].aval.shape):
            tokens = _tokens(equation.eqn, axis) // devices
            wanted, most = tokens / self.rows, tokens // self.least_rows
            division = nearest(size, devices, wanted, most)
            if division is not None:
                found.append((abs(math.log(division.parts / wanted)), axis, division))
        return [(axis, division) for _, axis, division in sorted(found, key=lambda x: x[:2])]


def _solid(program: Program) -> Iterator[int]:
    """The values that no fusion computes: results of products, of loops and the like."""
    return (i for e in program.equations if kind_of(e) is Kind.SOLID for i in e.outputs)


def _tokens(eqn: Any, axis: int) -> int:
    """The tokens of a wide product's result, if an axis is one of tokens; else 0."""
    result = eqn.outvars[0].aval
    if eqn.primitive.name != "dot_general" or not compat.is_float(result):
        return 0
    if 0 in result.shape or compat.is_placed(result):
        return 0
    for cut in cuts_of(eqn, Division(result.shape[axis])):
        if cut.outputs == (axis,) and None in cut.inputs:
            matrix = cut.inputs.index(None)
            (contracted, batch), aval = eqn.params["dimension_numbers"], eqn.invars[matrix].aval
            inner = {*contracted[matrix], *batch[matrix]}
            columns = math.prod(n for d, n in enumerate(aval.shape) if d not in inner)
            is_wide = aval_nbytes(result) >= _WIDE * aval_nbytes(eqn.invars[1 - matrix].aval)
            return math.prod(result.shape) // columns if is_wide else 0
    return 0


def _loss_at(
    program: Program, derivative: Differentiation, position: int, axis: int, division: Division
) -> "_Found | None":
    """The loss whose logits a product computes, if it can be sliced along an axis of them."""
    product = program.equations[position]
    slicer = _slicer(program, product, division)
    if not slicer.start_with(position, axis):
        return None
    slicer.follow(range(position + 1, len(program.equations)))
    sliced = slicer.sliced()
    cut = (i for i, d in sliced.operands if d is not None and i not in program.given)
    if any(_WIDE * program.nbytes(i) > program.nbytes(product.outputs[0]) for i in cut):
        return None
    inside: dict[int, int | None] = {**slicer.axes, **dict.fromkeys(slicer.sums)}
    ends = ends_of(program, derivative, inside)
    large_bytes = _large_bytes(program, product)
    if ends is None or any(program.nbytes(i) > large_bytes for i in ends.exits):
        return None
    results = tuple((i, d) for i, d in sorted(inside.items()) if i in ends.read)
    chunks = Chunks(
        sliced,
        division,
        results,
        tuple(program.avals[i] for i, _ in results),
        tuple(n for n, (i, _) in enumerate(results) if i in ends.active),
        ends.tail,
        tuple({i: None for e in ends.tail for i in e.reads if i not in ends.linear}),
        ends.exits,
        ends.exits.index(ends.lead),
    )
    computed = {*inside, *(i for e in ends.tail for i in e.outputs)}
    return _Found(program, product, frozenset(computed), chunks)


def _large_bytes(program: Program, product: Equation) -> float:
    """The bytes above which a value counts as large as the logits that a product computes."""
    return _LARGE_SHARE * program.nbytes(product.outputs[0])


def _slicer(program: Program, product: Equation, division: Division) -> Slicer:
    """A slicer that follows the logits of a product down to sums over tokens."""
    large_bytes, others = _large_bytes(program, product), _behind_others(program, product)

    def takes_in(equation: Equation, axis: int | None) -> bool:
        if axis is None:
            return equation.primitive in _MOVES
        (value,) = equation.outputs
        is_known = kind_of(equation) is not Kind.SOLID or equation.primitive == "dot_general"
        if not is_known or is_random(equation):
            return False
        if value in others:
            return True
        # What reads more than it writes would take the network itself into the chunks, step by
        # step: sums over skip connections do.
        read = sum(map(program.nbytes, {*equation.reads}))
        return large_bytes < program.nbytes(value) and read <= program.nbytes(value)

    def follows(equation: Equation, cut: Cut) -> bool:
        # Another product's layer would take the network itself into the chunks.
        return equation.primitive != "dot_general" or cut.is_sum

    return Slicer(program, division, takes_in, follows)


def _behind_others(program: Program, product: Equation) -> set[int]:
    """The values that follow from other products about as large, such as a teacher's logits."""
    (logits,) = product.outputs
    others = [
        e.outputs[0]
        for e in program.equations
        if e.primitive == "dot_general"
        and e is not product
        and 2 * program.nbytes(e.outputs[0]) >= program.nbytes(logits)
    ]
    return dependents(program.equations, others)


@dataclasses.dataclass(frozen=True)
class _Found:
    """A loss of a program that can run in chunks.

    Attributes:
        program: the program, unchanged.
        product: computes the logits.
        computed: the values that the loss alone computes.
        chunks: the loss in chunks.
    """

    program: Program
    product: Equation
    computed: frozenset[int]
    chunks: Chunks

    def is_worth_it(self, context: Context) -> bool:
        """Whether the loss has the largest array, and chunks take clearly fewer bytes."""
        steps, backend = self.chunks.sliced.steps, context.backend
        largest = max(self.program.nbytes(i) for e, _ in steps for i in e.outputs)
        if any(self.program.nbytes(i) > largest for i in _solid(self.program)):
            return False
        (logits,) = self.product.eqn.outvars
        is_halved = backend.narrows_operands and logits.aval.dtype == jnp.float32
        taken = largest if is_halved else 2 * largest  # bytes of logits and their gradient
        taken //= context.devices  # sums over chunks may be whole on each
        needed = taken // self.chunks.division.parts
        for i, axis in self.chunks.sliced.operands:
            aval = self.program.avals[i]
            if axis is None and compat.is_float(aval):
                summed = math.prod(aval.shape) * summed_in(aval.dtype).itemsize
                if backend.needs_scratch:  # it adds outside the product, and copies the matrix
                    needed += 2 * summed
                elif summed > backend.on_chip_bytes and self._is_read_elsewhere(i):
                    needed += summed
                else:  # the sum lies in the gradient's buffer, or on the chip
                    needed += summed - aval_nbytes(aval)
        return needed <= _WORTH * taken

    def _is_read_elsewhere(self, value: int) -> bool:
        """Whether equations outside the loss read a value, so that other gradients are added."""
        own = {id(e) for e, _ in self.chunks.sliced.steps}
        return any(value in e.reads for e in self.program.equations if id(e) not in own)

    def replaced(self) -> Program | None:
        """The program with one equation for the loss; None where products would run twice."""
        loss, program = self._equation(), self.program
        late = dependents(program.equations, loss.outputs)
        read = {self.product.outputs[0], *loss.reads}
        behind = max(p for p, e in enumerate(program.equations) if not read.isdisjoint(e.outputs))
        kept = [e for e in enumerate(program.equations) if self.computed.isdisjoint(e[1].outputs)]
        first = [e for p, e in kept if p <= behind and late.isdisjoint(e.reads)]
        rest = [e for p, e in kept if p > behind or not late.isdisjoint(e.reads)]
        equations = without_dead_code([*first, loss, *rest], program.outputs)
        again = {id(e) for e, _ in self.chunks.sliced.steps if kind_of(e) is Kind.SOLID}
        if not again.isdisjoint(map(id, equations)):
            return None
        return dataclasses.replace(program, equations=equations, keeps_other=True)

    def _equation(self) -> Equation:
        """The equation that runs the chunks."""
        operands = self.chunks.operands
        jaxpr = jax.make_jaxpr(self.chunks.function())(*abstract(self.program, operands))
        (eqn,) = jaxpr.jaxpr.eqns
        placed, stack = compat.placed_like(eqn, self.product.eqn), self.product.name_stack
        return Equation(
            placed, operands, self.chunks.exits, stack, f"in {self.chunks.division.parts} chunks"
        )
