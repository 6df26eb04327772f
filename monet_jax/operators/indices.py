"""Compact indices: the integers that derivatives read, stored in 4, 8 or 16 bits instead of 32.

Indices of sorting are places along an axis: a `sort` has them for its derivative, a `top_k` for the
derivative of the values. Indices of gathers (`take_along_axis`, `x[..., i]`) and scatters are often
places too: they come from an `argmax`, a `top_k`, an `argsort`. JAX saves four bytes for each;
where bounds are proven that fit in fewer bits (`ranges`), a plan may save 4, 8 or 16 bits.
Gradients are JAX's, bit for bit.

Inputs of the program (tokens, labels) have no bounds. The branches of a `cond` are not searched.
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
from ..ir.program import Equation, Program, dependents, listed, with_replacements
from ..ir.stage import Differentiation, active_values
from .codecs import Integers
from .context import Context
from .derivative import joined, with_derivative_at
from .hooks import hook
from .ranges import Bounds, bounds_of
from .representations import Stored

#: Elements below which nothing is gained.
_LEAST = 64
#: The operand of gathers and scatters that holds the indices.
_PLACES = 1


def rewrite(program: Program, derivative: Differentiation, context: Context) -> Program:
    """The program with indices that may be saved in fewer bits; itself where there are none."""
    if context.is_sharded:
        return program
    active, avals = active_values(program, derivative), list(program.avals)
    bounds = bounds_of(program)
    varying = dependents(program.equations, (*program.inputs, *program.constants))
    instead: dict[int, list[Equation]] = {}
    for n, e in enumerate(program.equations):
        if active.intersection(e.outputs) and not _is_placed(e):
            function = _sorting(e) or _looking_up(e, bounds, varying)
            if function is not None:
                instead[n] = listed(function, e.inputs, e, avals, e.outputs)
    if not instead:
        return program
    equations = with_replacements(program.equations, instead)
    return dataclasses.replace(program, avals=tuple(avals), equations=equations)


def _is_placed(equation: Equation) -> bool:
    return any(compat.is_placed(x.aval) for x in (*equation.eqn.invars, *equation.eqn.outvars))


def _codec(bounds: Bounds, aval: Any) -> Integers | None:
    """The codec of integers, if there are enough of them and it saves bytes."""
    if math.prod(aval.shape) < _LEAST or bounds[1] - bounds[0] >= 2**32:
        return None
    codec = Integers(*bounds)
    return codec if codec.applies(aval) else None


# ---------------------------------------------------------------------------- looking up


def _looking_up(
    equation: Equation, bounds: Mapping[int, Bounds], varying: set[int]
) -> Callable[..., Any] | None:
    """The replacement of a gather or a scatter, if its indices have bounds.

    Indices that depend on no input of the program, as of `arange`, need not be saved at all.
    """
    is_known = equation.primitive == "gather" or equation.primitive.startswith("scatter")
    places = equation.inputs[_PLACES] if is_known else None
    if not isinstance(places, int) or places not in varying:
        return None
    codec = _codec(bounds[places], equation.eqn.invars[_PLACES].aval)
    return None if codec is None else functools.partial(_by_places, equation, codec)


def _by_places(equation: Equation, codec: Integers, *inputs: jax.Array) -> jax.Array:
    """The result of an equation whose derivative reads its indices through a residual hook."""
    (result,) = compat.bind_here(equation.eqn, inputs)
    read = [hook(inputs[_PLACES], representations=[Stored(codec)])]
    return with_derivative_at(equation, [_PLACES])(result, *read, *inputs)


# ------------------------------------------------------------------------------- sorting


def _sorting(equation: Equation) -> Callable[..., Any] | None:
    """The replacement of an equation that sorts, if compact places along its axis save bytes."""
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
    """All operands in the order of the first ones, with a derivative that reads the places."""
    params = equation.eqn.params
    places = lax.broadcasted_iota(jnp.int32, operands[0].shape, axis)
    *results, places = lax.sort((*operands, places), axis, params["is_stable"], params["num_keys"])
    places = hook(places, representations=[Stored(codec)])
    return [_moved(y, places, axis, x) for y, x in zip(results, operands, strict=True)]


def _best(equation: Equation, axis: int, codec: Integers, operand: jax.Array) -> list[Any]:
    """The greatest elements along an axis and their places, which the derivative reads."""
    best, places = compat.bind_here(equation.eqn, [operand])
    return [_moved(best, hook(places, representations=[Stored(codec)]), axis, operand), places]


def _moved(result: jax.Array, places: jax.Array, axis: int, operand: jax.Array) -> jax.Array:
    """The elements of an operand at some places along an axis, as a function of the operand."""
    if not compat.is_float(jax.typeof(operand)):
        return result

    def pushed(residuals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> jax.Array:
        return _along(tangents[0], residuals[0], axis)

    return joined(pushed, result, [places], [operand])


def _along(x: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    """The elements of an array at some places along an axis, gathered as JAX's derivatives do."""
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
