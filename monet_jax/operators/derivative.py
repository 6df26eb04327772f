"""Derivatives that read residuals passed in, and equal JAX's own otherwise."""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from ..ir import compat
from ..ir.barriers import as_row
from ..ir.places import filled
from ..ir.program import Equation, Program, Rewrite, run, unchanged, values_of, without_dead_code
from .compression.windows import Undecoded


class Derivative:
    """The derivative of a function of arrays, and the residuals that it reads.

    Attributes:
        program: `(*inputs, *tangents of floats) -> tangent`.
        floats: the places of the inputs that have tangents.
        residuals: the values of the program that are passed in.
        early: the equations that compute the residuals.
        late: of the other equations, those that the tangent needs.
    """

    def __init__(self, program: Program, floats: Sequence[int], residuals: Iterable[int]):
        self.program, self.floats = program, floats
        self.residuals = sorted(residuals)
        known = set(self.residuals)
        rest = [e for e in program.equations if known.isdisjoint(e.outputs)]
        self.late = without_dead_code(rest, program.outputs)
        self.early = without_dead_code(program.equations, self.residuals)

    def residuals_of(self, inputs: Sequence[Any]) -> list[Any]:
        """The residuals for these inputs."""
        env = dict(zip(self.program.inputs, inputs, strict=False)) | dict(self.program.constants)
        run(self.early, env, {})
        return values_of(env, self.residuals)

    def pushed(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        """The tangent of the result, from the tangents of all inputs."""
        pushed = self.program.inputs[len(tangents) :]
        env = dict(zip(pushed, (tangents[n] for n in self.floats), strict=True))
        env |= dict(zip(self.residuals, residuals, strict=True)) | dict(self.program.constants)
        run(self.late, env, {})
        return values_of(env, self.program.outputs)[0]


def joined(
    pushed: Callable[[Sequence[Any], Sequence[Any]], Any],
    result: jax.Array,
    residuals: Sequence[jax.Array],
    inputs: Sequence[jax.Array],
) -> jax.Array:
    """A result as a function of some inputs, with a derivative that reads residuals.

    Arguments:
        pushed: `(residuals, tangents of the inputs) -> tangent`.
        result, residuals, inputs: the arrays.
    """

    @jax.custom_jvp
    def joined(result, residuals, *inputs):
        return result

    @joined.defjvp
    def rule(primals, tangents):
        result, residuals, *_ = primals
        return result, pushed(residuals, tangents[2:])

    return joined(result, residuals, *inputs)


def with_derivative_at(
    equation: Equation, places: Sequence[int], rewrite: Rewrite = unchanged
) -> Callable[..., jax.Array]:
    """A function of an equation's result, of some operands, and of all: the result.

    Its derivative is the equation's, taken at those operands. One operand of a product may be its
    code, `Undecoded`. If `rewrite` flattens kernels' gradients, that is done here: the
    equation itself has no gradient any more. (A barrier over both gradients of the equation does
    not help here: a ResNet-50 with codes of 8 bits took 27.6 % of plain JAX's temporaries on an
    H100 with it, and 25.7 % without.)
    """
    flattens = rewrite.flattens_kernels and equation.primitive == "conv_general_dilated"
    first = 1 + len(places)

    @jax.custom_jvp
    def joined(result, *operands):
        return result

    def rule(primals, tangents):
        at = filled(primals[first:], places, primals[1:first])
        pushed = {n: t for n, t in enumerate(tangents[first:]) if not isinstance(t, SymbolicZero)}
        if flattens and 1 in pushed:
            pushed[1] = as_row(pushed[1])
        return primals[0], _pushed(equation, at, pushed)

    joined.defjvp(rule, symbolic_zeros=True)
    return joined


def _pushed(equation: Equation, at: Sequence[Any], tangents: Mapping[int, jax.Array]) -> jax.Array:
    """The tangent of an equation's result, from the tangents of the operands at some places."""

    def function(*chosen):
        return _bound(equation, filled(at, tangents, chosen))

    undecoded = next((x for x in at if isinstance(x, Undecoded)), None)
    if undecoded is None:
        return jax.jvp(function, [at[n] for n in tangents], [*tangents.values()])[1]
    parts = [  # of a product, in which each tangent stands in the place of its operand
        _bound(equation, filled(at, [n], [tangent]))
        if at[n] is undecoded
        else undecoded.direct.by(undecoded.code, tangent)
        for n, tangent in tangents.items()
    ]
    return functools.reduce(operator.add, parts)


def _bound(equation: Equation, inputs: Sequence[Any]) -> jax.Array:
    (result,) = compat.bind_here(equation.eqn, inputs)
    return result
