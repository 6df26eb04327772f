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
from ..ir.program import Program, Rewrite, has_checkpoints, unchanged
from ..ir.stage import Differentiation
from ..operators import Context, rewriter, selected
from . import nesting
from .modules import Given, OnArrays, on_arrays
from .passes.draft import Listing
from .pipeline import list_program
from .signature import Call, abstract_leaf, is_traced
from .traced import Recorded, Terms, Traced


def trace(fun: Callable[..., Any], call: Call, rewrite: Rewrite, terms: Terms) -> Traced:
    """Trace a function on the abstract values of a call's leaves; nothing is computed.

    Equations are replaced as `rewrite` says.
    """
    return traced_as(record(fun, call), call.differentiated, rewrite, terms)


def record(fun: Callable[..., Any], call: Call) -> Recorded:
    """The jaxpr of a function for a call, before any rewrite.

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
        return Recorded(jaxpr, (), (), avals, rebuild)
    # A tracer must not outlive its trace, and what is recorded may: see `_wrapped`.
    return Recorded(compat.of_constants(jaxpr), tuple(closed_over), tracers, avals, rebuild)


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


def without_rewrites(traced: Traced) -> tuple[Program, Differentiation]:
    """The program of a function as it was before any operator, and its derivative."""
    plain = _traced_again(traced, unchanged, traced.terms)
    return plain.program, plain.derivative


def without_operators(traced: Traced, target: str) -> Traced:
    """The function, traced for a target as `operators="none"` does."""
    made = traced.plain
    if target not in made:
        rewrite = rewriter((), context_for(target, traced.avals))
        terms = dataclasses.replace(traced.terms, operators=())
        made[target] = _traced_again(traced, rewrite, terms)
    return made[target]


def _traced_again(traced: Traced, rewrite: Rewrite, terms: Terms) -> Traced:
    differentiated = [i in traced.derivative.inputs for i in traced.program.inputs]
    return traced_as(traced.recorded, differentiated, rewrite, terms)


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
    return trace(pure, call, rewrite_for(terms, target.name, call), terms), (pure, call)


def rewrite_for(terms: Terms, target: str, call: Call) -> Rewrite:
    """The rewrite of a function's equations for a target.

    Arguments:
        terms: the options that it is planned with.
        target: the name of the target.
        call: the arguments; whether they are sharded over devices counts.
    """
    avals = [abstract_leaf(leaf) for leaf in call.leaves]
    return rewriter(selected(terms.operators), context_for(target, avals))


def context_for(target: str, avals: Sequence[Any]) -> Context:
    """The context of operators: the backend, and whether the inputs are sharded."""
    return Context(backend_of(target), is_sharded=devices_of(avals) > 1)


def outer_axes(traced: Traced, call: Call) -> tuple[str, ...]:
    """The mapped axes of outer transformations without which a function does not compile."""
    used = {axis for e in traced.program.equations for axis in compat.outer_axes(e.eqn)}
    given = (*call.leaves, *traced.constants)
    return tuple(sorted(used.union(*map(compat.varying_axes, map(jax.typeof, given)))))


def is_batched(traced: Traced, call: Call) -> bool:
    """Whether something is seen through `vmap`, which hides the size of its axis."""
    return any(compat.is_batch_tracer(x) for x in (*call.leaves, *traced.constants))
