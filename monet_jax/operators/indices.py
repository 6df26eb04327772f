"""In how few bits are the integers kept that a derivative reads?

Those of sorting are places along an axis: a `sort` has them for its derivative, a `top_k` for that
of the values. Those of looking up (`take_along_axis`, `x[..., i]`) and scattering often are: they
come from an `argmax`, a `top_k`, an `argsort`. JAX keeps four bytes for each; where bounds are
proven that fewer bits tell apart (`ranges`), a plan may keep 4, 8 or 16 of them. Gradients are
those of JAX, bit for bit.

What a program is given (tokens, labels) has no bounds; in the branches of a `cond` nothing is
looked for.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..ir import compat
from ..ir.program import Equation, Program, dependents, listed
from ..ir.stage import Differentiation, active_values
from .codecs import Integers
from .context import Context
from .derivative import joined, with_derivative_at
from .hooks import hook
from .ranges import Bounds, bounds_of
from .representations import Stored

#: Elements below which nothing is gained.
_LEAST = 64
#: Of what looks up and scatters, the operand that says where.
_PLACES = 1


def rewrite(program: Program, derivative: Differentiation, context: Context) -> Program:
    """The program, with places that may be kept in fewer bits; itself where there are none."""
    if context.is_sharded:
        return program
    active, avals = active_values(program, derivative), list(program.avals)
    bounds = bounds_of(program)
    given = dependents(program.equations, (*program.inputs, *program.constants))
    instead: dict[int, list[Equation]] = {}
    for e in program.equations:
        if active.intersection(e.outputs) and not _is_placed(e):
            function = _sorting(e) or _looking_up(e, bounds, given)
            if function is not None:
                instead[id(e)] = listed(function, e.inputs, e, avals, e.outputs)
    if not instead:
        return program
    equations = tuple(x for e in program.equations for x in instead.get(id(e), [e]))
    return dataclasses.replace(program, avals=tuple(avals), equations=equations)


def _is_placed(equation: Equation) -> bool:
    return any(compat.is_placed(x.aval) for x in (*equation.eqn.invars, *equation.eqn.outvars))


def _codec(bounds: Bounds, aval: Any) -> Integers | None:
    """How integers are kept, if there are enough of them and that spares something."""
    if math.prod(aval.shape) < _LEAST or bounds[1] - bounds[0] >= 2**32:
        return None
    codec = Integers(*bounds)
    return codec if codec.applies(aval) else None


# ---------------------------------------------------------------------------- looking up


def _looking_up(
    equation: Equation, bounds: Mapping[int, Bounds], given: set[int]
) -> Callable[..., Any] | None:
    """What stands for an equation that looks up or scatters, if its places have bounds.

    Those that nothing given decides on, as `arange`, need not be kept at all.
    """
    is_known = equation.primitive == "gather" or equation.primitive.startswith("scatter")
    places = equation.inputs[_PLACES] if is_known else None
    if not isinstance(places, int) or places not in given:
        return None
    codec = _codec(bounds[places], equation.eqn.invars[_PLACES].aval)
    return None if codec is None else functools.partial(_by_places, equation, codec)


def _by_places(equation: Equation, codec: Integers, *inputs: jax.Array) -> jax.Array:
    """The result of an equation whose derivative reads its places through a tap."""
    (result,) = compat.bind_here(equation.eqn, inputs)
    read = [hook(inputs[_PLACES], representations=[Stored(codec)])]
    return with_derivative_at(equation, [_PLACES])(result, *read, *inputs)


# ------------------------------------------------------------------------------- sorting


def _sorting(equation: Equation) -> Callable[..., Any] | None:
    """What stands for an equation that sorts, if the places along its axis spare something."""
    if equation.primitive not in ("sort", "top_k") or not equation.eqn.outvars:
        return None
    params, operand = equation.eqn.params, equation.eqn.invars[0].aval
    axis = params.get("dimension", params.get("axis", -1)) % len(operand.shape)
    places = jax.ShapeDtypeStruct(equation.eqn.outvars[0].aval.shape, jnp.int32)
    codec = _codec((0, max(operand.shape[axis] - 1, 0)), places)
    if codec is None:
        return None
    run = _sorted if equation.primitive == "sort" else _best
    return functools.partial(run, equation, axis, codec)


def _sorted(equation: Equation, axis: int, codec: Integers, *operands: jax.Array) -> list[Any]:
    """All operands in the order of the first ones, with a derivative that reads places."""
    params = equation.eqn.params
    places = lax.broadcasted_iota(jnp.int32, operands[0].shape, axis)
    *results, places = lax.sort((*operands, places), axis, params["is_stable"], params["num_keys"])
    places = hook(places, representations=[Stored(codec)])
    return [_moved(y, places, axis, x) for y, x in zip(results, operands, strict=True)]


def _best(equation: Equation, axis: int, codec: Integers, operand: jax.Array) -> list[Any]:
    """The greatest along an axis and their places, with a derivative that reads those."""
    best, places = compat.bind_here(equation.eqn, [operand])
    return [_moved(best, hook(places, representations=[Stored(codec)]), axis, operand), places]


def _moved(result: jax.Array, places: jax.Array, axis: int, operand: jax.Array) -> jax.Array:
    """What an operand has at some places along an axis, as a function of the operand."""
    if not compat.is_float(jax.typeof(operand)):
        return result

    def pushed(residuals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> jax.Array:
        return _along(tangents[0], residuals[0], axis)

    return joined(pushed, result, [places], [operand])


def _along(x: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    """What an array has at some places along an axis, as the derivatives of JAX look it up."""
    others = tuple(n for n in range(x.ndim) if n != axis)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(x, places[..., None], numbers, (1,) * x.ndim, mode=mode)
