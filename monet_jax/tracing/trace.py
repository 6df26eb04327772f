"""Traces a function on example arguments to a flat program, and rebuilds its outputs."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core

from ..compiler.backend import backend_of
from ..compiler.compile import devices_of
from ..compiler.targets import Target, naming_cudnn
from ..ir import compat
from ..ir.gradient import derivative_of
from ..ir.program import Rewrite, has_checkpoints
from ..operators import Context, rewriter, selected
from . import nesting
from .modules import Given, OnArrays, on_arrays
from .passes.draft import Listing
from .pipeline import list_program
from .signature import Call, abstract_leaf, is_traced
from .traced import Recorded, Terms, Traced


def trace(
    fun: Callable[..., Any], call: Call, terms: Terms, target: str, devices: int | None = None
) -> Traced:
    """Trace a function on the abstract values of a call's leaves; nothing is computed.

    Arguments:
        fun, call: the function and its arguments.
        terms: the options that it is planned with.
        target: the name of the target.
        devices: over how many devices the arguments are spread; None for what they say.

    Raises:
        TypeError, TargetUnavailable: see `record`.
    """
    return traced_with(record(fun, call, devices), call.differentiated, terms, target)


def record(fun: Callable[..., Any], call: Call, devices: int | None = None) -> Recorded:
    """The jaxpr of a function for a call, before any rewrite.

    Arguments:
        fun, call: the function and its arguments.
        devices: over how many devices the arguments are spread; None for what they say.

    Raises:
        TypeError: a backward rule closes over a tracer of this trace.
        TargetUnavailable: the function asks for attention of cuDNN, which is not installed.
    """
    shape: dict[str, Any] = {}

    def flat(*inputs: Any) -> list[Any]:
        args, kwargs = call.rebuild(inputs)
        shape["trace"] = compat.current_trace()
        with nesting.inside():
            outputs, tree = jax.tree.flatten(fun(*args, **kwargs))
        # Python's own numbers are returned as they are, like all that is no array.
        arrays = [is_traced(x) and hasattr(x, "dtype") for x in outputs]
        shape["tree"] = tree
        shape["fixed"] = [None if a else x for a, x in zip(arrays, outputs, strict=True)]
        shape["arrays"] = arrays
        return [x for a, x in zip(arrays, outputs, strict=True) if a]

    def rebuild(outputs: Sequence[Any]) -> Any:
        remaining = iter(outputs)
        pairs = zip(shape["arrays"], shape["fixed"], strict=True)
        return jax.tree.unflatten(shape["tree"], [next(remaining) if a else x for a, x in pairs])

    avals = tuple(abstract_leaf(leaf) for leaf in call.leaves)
    axes = compat.mapped_axes()
    devices = max(1, (devices or devices_of(avals)) // axes.devices)  # arrays are of one's part
    with naming_cudnn():
        jaxpr = jax.make_jaxpr(flat)(*avals)
    if compat.closes_over_its_own(jaxpr, shape.pop("trace")):
        raise TypeError(
            "the backward rule of a `custom_vjp` closes over a value that the function computes; "
            "let the forward rule return it among its residuals"
        )
    _, closed_over, _ = compat.jaxpr_inputs(jaxpr)
    tracers = tuple(isinstance(x, jax.core.Tracer) for x in closed_over)
    if not any(tracers):
        return Recorded(jaxpr, (), (), avals, rebuild, devices, axes)
    # A tracer must not outlive its trace, and what is recorded may: see `_wrapped`.
    constant = compat.of_constants(jaxpr)
    return Recorded(constant, tuple(closed_over), tracers, avals, rebuild, devices, axes)


def traced_as(
    recorded: Recorded, differentiated: Sequence[bool], rewrite: Rewrite, terms: Terms
) -> Traced:
    """A recorded function as a flat program whose equations are replaced as `rewrite` says."""
    inlines = terms.checkpoints == "plan" and has_checkpoints(recorded.jaxpr)
    covered = functools.partial(
        derivative_of,
        differentiated=differentiated,
        forward_mode=terms.forward_mode,
        tracers=[*itertools.compress(recorded.closed_over, recorded.tracers)],
    )
    program = list_program(
        Listing(recorded.jaxpr, rewrite, inlines, rewrite.programs, covered, recorded.closed_over)
    )
    return Traced(program, covered(program), recorded, terms)


def traced_with(
    recorded: Recorded, differentiated: Sequence[bool], terms: Terms, target: str
) -> Traced:
    """A recorded function as a flat program, with the operators of its terms."""
    context = Context(backend_of(target), recorded.devices)
    rewrite = rewriter(selected(terms.operators), context)
    with compat.within_axes(recorded.axes):
        return traced_as(recorded, differentiated, rewrite, terms)


def without_operators(traced: Traced, target: str) -> Traced:
    """The function, traced for a target as `operators="none"` does."""
    made = traced.plain
    if target not in made:
        made[target] = with_operators(traced, target, ())
    return made[target]


def with_operators(traced: Traced, target: str, operators: tuple[str, ...]) -> Traced:
    """The function, traced for a target with other operators."""
    differentiated = [i in traced.derivative.inputs for i in traced.program.inputs]
    terms = dataclasses.replace(traced.terms, operators=operators)
    made = traced_with(traced.recorded, differentiated, terms, target)
    return dataclasses.replace(made, narrows=traced.narrows)


def trace_for(
    target: Target,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
) -> Traced:
    """Trace a function on its arguments, as `plan` does for a target.

    Raises:
        TypeError, ValueError: there is no function, or the options do not fit its arguments.
    """
    terms = Terms.of(operators, checkpoints)
    given = argnums, static_argnums, static_argnames
    return trace_call(fun, args, kwargs or {}, given, terms, target)[0]


def trace_call(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    given: Given,
    terms: Terms,
    target: Target,
    on_arrays: Callable[..., OnArrays] = on_arrays,
) -> tuple[Traced, OnArrays]:
    """The trace of a function on its arguments, and the function of arrays that was traced.

    Arguments:
        fun, args, kwargs: the function and its arguments, which may be modules.
        given: how its arguments are meant.
        terms: the options that it is planned with.
        target: to plan for.
        on_arrays: makes of a function and its arguments a function of arrays, and a call of it.

    Raises:
        TypeError, ValueError: there is no function, or the options do not fit its arguments.
    """
    pure, call = on_arrays(fun, args, kwargs, given)
    return trace(pure, call, terms, target.name), (pure, call)


def outer_axes(traced: Traced, call: Call) -> tuple[str, ...]:
    """The mapped axes of outer transformations without which a function does not compile."""
    used = {axis for e in traced.program.equations for axis in compat.outer_axes(e.eqn)}
    given = (*call.leaves, *traced.constants)
    return tuple(sorted(used.union(*map(compat.varying_axes, map(jax.typeof, given)))))


def hidden_axes(traced: Traced, call: Call) -> tuple[str, ...]:
    """Those of `outer_axes` that no `shard_map` maps over: under `vmap`, they are gone later."""
    return tuple(a for a in outer_axes(traced, call) if a not in traced.recorded.axes.sizes)


def is_batched(traced: Traced, call: Call) -> bool:
    """Whether something is seen through `vmap`, which hides the size of its axis."""
    return any(compat.is_batch_tracer(x) for x in (*call.leaves, *traced.constants))
