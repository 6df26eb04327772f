"""The transformations under way: what traces the caller, and what traces a value."""

from typing import Any

import jax
import jax.core
from jax._src.config import trace_context as trace_context
from jax._src.core import trace_ctx
from jax.interpreters import ad


def is_batch_tracer(x: Any) -> bool:
    """Whether `x` is traced by `vmap`, whose axis size the traced function cannot see."""
    while isinstance(x, jax.core.Tracer):
        if type(x).__name__ == "BatchTracer":
            return True
        x = getattr(x, "primal", None)  # below a derivative, as in `vmap(grad(f))`
    return False


def is_pushed_forward(x: Any) -> bool:
    """Whether `x` carries a tangent, as in `jax.jvp`; not where a gradient will be pulled back."""
    # Without direct linearization, `jax.grad` pushes tangents forward before it transposes.
    return type(x).__name__ == "JVPTracer" and jax.config.jax_use_direct_linearize


def current_trace() -> Any:
    """What is being traced where the caller stands."""
    return trace_ctx.trace


def no_gradient_is_taken() -> bool:
    """Whether `vmap` is the only transformation under way, so that no gradient can be taken."""
    return type(_below("BatchTrace")).__name__ == "EvalTrace"


def is_staged() -> bool:
    """Whether what is called is written down, to be run, transformed or differentiated later."""
    return type(_below("BatchTrace", "JVPTrace", "LinearizeTrace")).__name__ != "EvalTrace"


def _below(*kinds: str) -> Any:
    """The trace below all traces of some kinds."""
    trace = trace_ctx.trace
    while type(trace).__name__ in kinds:
        trace = trace.parent_trace
    return trace


def carries_tangent(x: Any) -> bool:
    """Whether a derivative with respect to `x` is being taken, through `vmap` or not."""
    while isinstance(x, jax.core.Tracer):
        match type(x).__name__:
            case "JVPTracer" | "LinearizeTracer":
                if not isinstance(x.tangent, ad.Zero):
                    return True
                x = x.primal
            case "BatchTracer":
                x = x.val
            case _:
                return False
    return False
