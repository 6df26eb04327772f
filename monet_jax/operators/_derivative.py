"""A derivative that reads residuals, as JAX computes it, equation by equation."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from .._program import Program, run, values_of, without_dead_code


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

    def joined(self, result: Any, residuals: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """The result, as a function of the inputs whose derivative reads these residuals."""

        @jax.custom_jvp
        def joined(result, residuals, *inputs):
            return result

        @joined.defjvp
        def rule(primals, tangents):
            result, residuals, *_ = primals
            return result, self.pushed(residuals, tangents[2:])

        return joined(result, residuals, *inputs)
