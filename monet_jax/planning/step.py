"""The step that is compiled: the value and gradient of a function, as it is or as planned."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import planners

from ..ir.gradient import FlatFunction, cotangent_avals, value_and_gradient
from ..tracing.traced import Traced
from ..transformer.transform import transform

#: A function, and its arguments.
type Step = tuple[Callable[..., Any], tuple[Any, ...]]


def step_to_compile(traced: Traced, function: FlatFunction) -> Step:
    """The value and gradient of a traced function, run by `function`, and its arguments."""
    step = value_and_gradient(function, traced.program, traced.derivative)
    avals = map(jax.typeof, traced.constants)
    constants = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    cotangents = cotangent_avals(traced.program, traced.derivative)
    return step, (list(traced.avals), constants, cotangents)


def step_on(
    traced: Traced, function: FlatFunction, leaves: Callable[[], Sequence[Any]]
) -> Callable[[], Any]:
    """The value and gradient of a traced function, compiled for this process's device.

    Arguments:
        traced: the function.
        function: what runs it.
        leaves: returns the arrays that it is run on.
    """
    step, (inputs, constants, cotangents) = step_to_compile(traced, function)
    compiled = jax.jit(step).lower(inputs, constants, cotangents).compile()

    def run() -> Any:
        ones = [jnp.ones(x.shape, x.dtype) for x in cotangents]
        return compiled(list(leaves()), list(traced.constants), ones)

    return run


@dataclasses.dataclass(frozen=True)
class PlannedProgram:
    """A plan of one program of a function.

    Attributes:
        decisions: the plan.
        chunks: lengths of nested scans, as in `Plan.chunks`.
    """

    decisions: planners.Plan
    chunks: tuple[int, ...] | None

    def function(self, traced: Traced) -> FlatFunction:
        """The traced function as planned."""
        return transform(traced.staged(self.chunks), self.decisions)

    def step(self, traced: Traced) -> Step:
        """Its value and gradient, and their arguments."""
        return step_to_compile(traced, self.function(traced))
