"""The step that is compiled: the value and gradient of a function."""

from collections.abc import Callable
from typing import Any

import jax

from ..ir.gradient import FlatFunction, cotangent_avals, value_and_gradient
from ..tracing.trace import Traced


def step_to_compile(traced: Traced, function: FlatFunction) -> tuple[Callable[..., Any], tuple]:
    """The value and gradient of a traced function, run by `function`, and its arguments."""
    step = value_and_gradient(function, traced.program, traced.derivative)
    avals = map(jax.typeof, traced.constants)
    constants = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    cotangents = cotangent_avals(traced.program, traced.derivative)
    return step, (list(traced.avals), constants, cotangents)
