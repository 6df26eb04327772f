"""One equation for a planned function until it is differentiated."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from .jaxprs import as_function, jaxpr_inputs, of_constants
from .tracers import carries_tangent


class _Planned(core.Primitive):
    """Runs a function as it is, until it is differentiated; then it is no primitive any more.

    What is planned then is written down where a tangent arrives, equation by equation, as if it had
    stood there from the start.
    """

    multiple_results = True

    def bind_with_trace(self, trace, args, avals, params, /):
        """As for any primitive, but where a derivative is being taken."""
        is_derivative = type(trace).__name__ in ("JVPTrace", "LinearizeTrace")
        if is_derivative and any(map(carries_tangent, args)):
            with core.set_current_trace(trace):
                return params["differentiated"](*args)
        return super().bind_with_trace(trace, args, avals, params)

    def is_high(self, *avals, jaxpr, **params):
        """Whether something in it is of JAX's higher types."""
        return getattr(jaxpr, "is_high", False)

    def to_lojax(self, *args, jaxpr, **params):
        """The function itself."""
        return as_function(jaxpr)(*args)


planned_p = _Planned("monet_jax_planned")


def until_differentiated(
    jaxpr: Any, differentiated: Callable[..., Sequence[Any]], operands: Sequence[Any]
) -> list[Any]:
    """One equation for a function that is to be planned once it is differentiated.

    Arguments:
        jaxpr: closed; the function as it is.
        differentiated: the function as planned, of the same operands.
        operands: arrays and tracers.
    """
    _, constants, _ = jaxpr_inputs(jaxpr)
    if not constants:
        return planned_p.bind(*operands, jaxpr=jaxpr, differentiated=differentiated)
    count = len(constants)  # arrays that it closes over belong to the program round it
    return planned_p.bind(
        *constants,
        *operands,
        jaxpr=of_constants(jaxpr),
        differentiated=lambda *given: differentiated(*given[count:]),
    )


def _run_plain(*operands: Any, jaxpr: Any, differentiated: Any) -> Any:
    return as_function(jaxpr)(*operands)


def _planned_results(*avals: Any, jaxpr: Any, differentiated: Any) -> tuple[Any, Any]:
    return list(jaxpr.out_avals), jaxpr.effects


def _planned_in_batches(operands: Any, axes: Any, *, jaxpr: Any, differentiated: Any) -> Any:
    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(lambda *given: list(function(*given)), in_axes=tuple(axes))

    whole = jax.make_jaxpr(mapped(as_function(jaxpr)))(*map(jax.typeof, operands))
    found = until_differentiated(whole, mapped(differentiated), operands)
    return found, [0] * len(found)


def _planned_transposed(cotangents: Any, *operands: Any, jaxpr: Any, differentiated: Any) -> Any:
    linear = [n for n, x in enumerate(operands) if ad.is_undefined_primal(x)]

    def function(*chosen: Any) -> list[Any]:
        given = list(operands)
        for n, x in zip(linear, chosen, strict=True):
            given[n] = x
        return as_function(jaxpr)(*given)

    transposed = jax.linear_transpose(function, *(operands[n].aval for n in linear))
    found = transposed([ad.instantiate_zeros(x) for x in cotangents])
    results: list[Any] = [None] * len(operands)
    for n, x in zip(linear, found, strict=True):
        results[n] = x
    return results


planned_p.def_impl(_run_plain)
planned_p.def_effectful_abstract_eval(_planned_results)
batching.primitive_batchers[planned_p] = _planned_in_batches
ad.primitive_transposes[planned_p] = _planned_transposed
mlir.register_lowering(planned_p, mlir.lower_fun(_run_plain))
