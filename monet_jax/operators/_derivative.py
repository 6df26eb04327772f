"""How does a derivative read residuals that are given to it, and is JAX's own all the same?"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from .. import _compat
from .._places import filled
from .._program import Equation, Program, run, values_of, without_dead_code


class Derivative:
    """The derivative of a function of arrays, and what it reads of them.

    Attributes:
        program: `(*inputs, *tangents of floats) -> tangent`.
        floats: the places of the inputs that have tangents.
        residuals: those of its values that are read as they are given.
        early: what computes them; of the rest, `late` is what the tangent needs.
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
    """A result, as a function of some inputs whose derivative reads residuals.

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


def with_derivative_at(equation: Equation, places: Sequence[int]) -> Callable[..., jax.Array]:
    """A function of an equation's result, of some operands, and of all: the result.

    Its derivative is that of the equation, taken where those operands are as they are given.
    """

    @jax.custom_jvp
    def joined(result, read, *inputs):
        return result

    def rule(primals, tangents):
        result, read, *inputs = primals
        live = [n for n, t in enumerate(tangents[2:]) if not isinstance(t, SymbolicZero)]
        at = filled(inputs, places, read)

        def function(*chosen):
            (found,) = _compat.bind_here(equation.eqn, filled(at, live, chosen))
            return found

        pushed = [tangents[2 + n] for n in live]
        return result, jax.jvp(function, [at[n] for n in live], pushed)[1]

    joined.defjvp(rule, symbolic_zeros=True)
    return joined
