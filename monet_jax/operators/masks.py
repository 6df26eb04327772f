"""Masks: derivatives that read nothing but booleans, of `relu`, `clip`, `where` and dropout.

JAX saves the booleans, a byte each, or the values that they are computed from. Here they pass
residual hooks. A plan can store them as one bit an element, or compute them again from the result
where that is saved anyway (after Binarize of Gist, Jain et al., ISCA 2018, and the operators that
MONeT published, Shah et al., ICLR 2021). The derivative is JAX's, equation by equation, so that
gradients are the same bit for bit.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..ir import compat
from ..ir.places import filled
from ..ir.primitives import Kind, kind_of
from ..ir.program import Equation, Replacement, dependents, flatten
from .codecs import Mask
from .context import Context
from .derivative import Derivative, joined
from .hooks import hook
from .representations import Derived, Representation, Stored

#: Primitives whose derivative may read booleans alone.
_PRIMITIVES = ("max", "min", "clamp", "select_n", "custom_jvp_call")
#: Elements below which nothing is gained.
_LEAST = 64


def rewrite(eqn: Any, context: Context) -> Replacement | None:
    """The replacement of an equation; None where its derivative does not read booleans alone."""
    if compat.primitive_name(eqn) not in _PRIMITIVES or len(eqn.outvars) != 1:
        return None
    result = eqn.outvars[0].aval
    if not compat.is_float(result) or math.prod(result.shape) < _LEAST or compat.has_effects(eqn):
        return None
    if kind_of(Equation(eqn, (), (), None)) is not Kind.FUSED:
        return None
    if compat.is_placed(result):
        return None
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    varying = [n for n, v in enumerate(eqn.invars) if not isinstance(v, compat.Literal)]
    floats = [n for n in varying if compat.is_float(avals[n])]
    bounds = [n for n in floats if avals[n].shape != result.shape]
    if not floats or (bounds and eqn.primitive.name == "clamp"):  # JAX has no rule for these
        return None
    derivative = _derivative_of(eqn, avals, floats)
    if derivative is None:
        return None
    representations: list[Representation] = []
    if not context.is_sharded:
        representations.append(Stored(Mask()))
    if by_result := _from_result(eqn, derivative):
        representations.append(Derived(by_result))
    if not representations:
        return None
    return Replacement(
        jax.make_jaxpr(functools.partial(_operator, eqn, derivative, representations))(*avals)
    )


def _operator(eqn: Any, derivative: Derivative, representations: Sequence[Representation], *inputs):
    """The equation with a derivative that reads residual hooks."""
    (result,) = compat.bind_here(eqn, inputs)
    read = [
        hook(x, result, representations=representations) for x in derivative.residuals_of(inputs)
    ]
    return joined(derivative.pushed, result, read, inputs)


def _derivative_of(eqn: Any, avals: Sequence[Any], floats: Sequence[int]) -> Derivative | None:
    """The derivative of an equation; None where it reads a value that is no boolean."""
    program = flatten(_pushed(eqn, avals, floats))
    tangents = dependents(program.equations, program.inputs[len(avals) :])
    primal = dependents(program.equations, program.inputs[: len(avals)])
    writer = {i: e for e in program.equations for i in e.outputs}
    pending = [i for e in program.equations if tangents.intersection(e.outputs) for i in e.reads]
    found: set[int] = set()
    while pending:
        i = pending.pop()
        if i in tangents or i not in primal or i in found:
            continue
        if program.avals[i].dtype == jnp.bool:
            found.add(i)
        elif i in writer and kind_of(writer[i]) in (Kind.FUSED, Kind.VIEW):
            pending += writer[i].reads
        else:
            return None
    return Derivative(program, floats, found) if found else None


def _pushed(eqn: Any, avals: Sequence[Any], floats: Sequence[int]) -> Any:
    """The jaxpr of `(inputs, tangents of the floats) -> tangent` of an equation."""

    def push(inputs, tangents):
        def function(chosen):
            (found,) = compat.bind_here(eqn, filled(inputs, floats, chosen))
            return found

        return jax.jvp(function, ([inputs[n] for n in floats],), (tangents,))[1]

    return jax.make_jaxpr(push)(list(avals), [avals[n] for n in floats])


def _from_result(eqn: Any, derivative: Derivative) -> Callable[[jax.Array], jax.Array] | None:
    """The boolean of a derivative as a function of the result, where one is known."""
    if compat.primitive_name(eqn) != "custom_jvp_call":
        return None
    # Another rule for the same function may read another value.
    match _limits(flatten(eqn.params["call_jaxpr"]).equations), _limits(derivative.early):
        case [("max", None, 0.0)], [("gt", None, 0.0)]:
            return _is_positive
        case (
            [("max", None, 0.0), ("min", None, 6.0)],
            [("gt", None, 0.0), ("lt", None, 6.0), ("and", None, None)],
        ):
            return _is_inside_six
    return None


def _limits(equations: Iterable[Equation]) -> list[tuple[Any, ...]]:
    """Each equation as its primitive and the numbers among its operands."""
    return [(e.primitive, *map(_literal, e.inputs)) for e in equations]


def is_positive_part(eqn: Any) -> bool:
    """Whether an equation is a call of `x -> max(x, 0)`, whatever its derivative."""
    if compat.primitive_name(eqn) != "custom_jvp_call":
        return False
    return _limits(flatten(eqn.params["call_jaxpr"]).equations) == [("max", None, 0.0)]


def is_sign(equation: Equation) -> bool:
    """Whether an equation is `x > 0`."""
    return _limits([equation]) == [("gt", None, 0.0)]


def _literal(atom: Any) -> float | None:
    return None if isinstance(atom, int) else float(atom.val)


def _is_positive(relu: jax.Array) -> jax.Array:
    """Where the operand of a `relu` was positive, which is where its result is positive."""
    return relu > 0


def _is_inside_six(relu6: jax.Array) -> jax.Array:
    """Where the operand of a `relu6` was between its bounds, which is where its result is."""
    return (relu6 > 0) & (relu6 < 6)
