"""What functions with their own derivative rules run and read where they are differentiated."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax._src.interpreters.ad import CustomVJPException

from .avals import explicit_sharding, is_float, shape_on_axes
from .binding import bind_here
from .jaxprs import as_function, jaxpr_inputs, subjaxprs

#: What JAX raises where something cannot be differentiated: a `while` in reverse, or a rule by what
#: its function closes over.
NOT_DIFFERENTIABLE = (TypeError, ValueError, CustomVJPException)


def forward_rules(eqn: Any) -> list[Any]:
    """The jaxpr of what a `custom_vjp` runs where it is differentiated; none of other equations."""
    if not _is_custom_vjp(eqn):
        return []
    operands = [var.aval for var in eqn.invars]
    own = range(closed_over_count(eqn), len(operands))
    places = [n for n in own if is_float(operands[n])]

    def forward(*operands):
        def differentiated(*chosen):
            given = list(operands)
            for n, x in zip(places, chosen, strict=True):
                given[n] = x
            results = bind_here(eqn, given)
            return [x for x in results if is_float(jax.typeof(x))]

        return jax.tree.leaves(jax.vjp(differentiated, *(operands[n] for n in places)))

    try:
        shapes = [shape_on_axes(a, explicit_sharding(a)) for a in operands]
        with jax.debug_key_reuse(False):
            return [jax.make_jaxpr(forward)(*shapes)]
    except Exception:  # a rule may raise anything, and does so again where it runs
        return []


def closed_over_count(eqn: Any) -> int:
    """How many operands, the first ones, a function with a rule of its own closes over."""
    if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
        return eqn.params["num_consts"]
    return len(jax.tree.leaves(eqn.params["_prim"].in_avals[0])) if _is_custom_vjp(eqn) else 0


def closes_over_its_own(jaxpr: Any, trace: Any) -> bool:
    """Whether a backward rule in a closed jaxpr reads a tracer of the trace that made the jaxpr.

    Such a rule works where the function is differentiated as it is traced, and nowhere else.
    """
    if not any(map(_has_backward_rule, jaxpr.jaxpr.eqns)):
        return False
    inputs = [var.aval for var in jaxpr.jaxpr.invars]
    floats = [n for n, aval in enumerate(inputs) if is_float(aval)]

    def pulled(values: Sequence[Any]) -> Any:
        def function(*chosen: Any) -> list[Any]:
            given = dict(zip(floats, chosen, strict=True))
            outputs = as_function(jaxpr)(*(given.get(n, x) for n, x in enumerate(values)))
            return [x for x in outputs if is_float(jax.typeof(x))]

        outputs, pull = jax.vjp(function, *(values[n] for n in floats))
        return pull([jnp.ones_like(x) for x in outputs])

    try:
        _, constants, _ = jaxpr_inputs(jax.make_jaxpr(pulled)(inputs))
    except Exception:  # by a rule of the user's: whoever differentiates the function will see it
        return False
    return any(isinstance(x, jax.core.Tracer) and x._trace is trace for x in constants)


def _has_backward_rule(eqn: Any) -> bool:
    bodies = (e for body in subjaxprs(eqn) for e in body.jaxpr.eqns)
    return _is_custom_vjp(eqn) or any(map(_has_backward_rule, bodies))


def _is_custom_vjp(eqn: Any) -> bool:
    # With `jax_custom_vjp3` it is a hijax primitive.
    is_hidden = type(eqn.params.get("_prim")).__name__ == "CustomVJPTraced"
    return is_hidden or eqn.primitive.name == "custom_vjp_call"
