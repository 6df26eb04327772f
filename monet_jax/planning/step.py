"""The step that is compiled: the value and gradient of a function."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..ir.gradient import FlatFunction, cotangent_avals, value_and_gradient
from ..tracing.traced import Traced


def step_to_compile(traced: Traced, function: FlatFunction) -> tuple[Callable[..., Any], tuple]:
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
