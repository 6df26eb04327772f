"""Bounds of the integers of a program, by interval arithmetic over its equations.

Bounds follow from shapes and constants: the bounds of `argmax`, `top_k` and `iota` from an axis,
the bounds of sums, selections, clamps and moves from the bounds of operands. Booleans are 0 and 1,
so that selections by a comparison that is always true are known too. Integers that may wrap, and
results of equations that are not listed here, have the bounds of their dtype.
"""

import itertools as it
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..ir.program import Equation, Program

#: The least and the greatest of some integers.
Bounds = tuple[int, int]

#: Equations whose results hold numbers of their first operand.
_MOVES = frozenset(
    """
    broadcast_in_dim copy copy_p convert_element_type dynamic_slice expand_dims name reshape rev
    slice squeeze stop_gradient transpose
    """.split()
)
#: Equations whose results hold numbers of all operands.
_JOINS = frozenset(("concatenate", "pad"))
#: Equations with a result for each operand, which holds its numbers.
_EACH = frozenset(("optimization_barrier", "sort"))


def bounds_of(program: Program) -> dict[int, Bounds]:
    """Integer or boolean value of a program -> its bounds, within the bounds of its dtype."""
    found: dict[int, Bounds] = {}
    for i in (*program.inputs, *program.constants):
        if (most := _of_dtype(program.avals[i])) is not None:
            found[i] = most
    for e in program.equations:
        known = [found.get(x) if isinstance(x, int) else _of_number(x.val) for x in e.inputs]
        results = known if e.primitive in _EACH else _of_results(e, known)
        for i, bounds in it.zip_longest(e.outputs, results[: len(e.outputs)]):
            most = _of_dtype(program.avals[i])
            if most is not None:
                # Beyond the dtype's own bounds, integers wrap, and may be any.
                found[i] = most if bounds is None or not _is_within(bounds, most) else bounds
    return found


def _is_within(bounds: Bounds, most: Bounds) -> bool:
    return most[0] <= bounds[0] <= bounds[1] <= most[1]


def _of_number(number: Any) -> Bounds | None:
    value = np.asarray(number)
    is_whole = value.size and (value.dtype == bool or np.issubdtype(value.dtype, np.integer))
    return (int(value.min()), int(value.max())) if is_whole else None


def _of_dtype(aval: Any) -> Bounds | None:
    dtype = getattr(aval, "dtype", None)
    if dtype == jnp.bool:
        return 0, 1
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        return None
    info = jnp.iinfo(dtype)
    return int(info.min), int(info.max)


def _of_results(equation: Equation, known: Sequence[Bounds | None]) -> Sequence[Bounds | None]:
    """The bounds of results, by the bounds of the operands."""
    params, operand = equation.eqn.params, next(iter(equation.eqn.invars), None)
    match equation.primitive:
        case "iota":
            return [(0, params["shape"][params["dimension"]] - 1)]
        case "argmax" | "argmin":
            assert operand is not None
            return [(0, operand.aval.shape[params["axes"][0]] - 1)]
        case "top_k":
            assert operand is not None
            return [known[0], (0, operand.aval.shape[params.get("axis", -1)] - 1)]
        case "cumsum" | "reduce_sum" if known[0] is not None:
            assert operand is not None
            return [_summed(equation, operand.aval.shape, *known[0])]
        case "select_n":
            return [_selected(known[0], known[1:])]
        case "reduce_max" | "reduce_min":  # of no elements, the result is a bound of the dtype
            return known[:1] if operand is not None and math.prod(operand.aval.shape) else [None]
        case name if name in _JOINS:
            return [_joined(known)]
        case name if name in _MOVES:
            return [known[0]]
        case name:
            return [None if None in known else _computed(name, [x for x in known if x])]


def _joined(known: Sequence[Bounds | None]) -> Bounds | None:
    some = [x for x in known if x is not None]
    if not some or len(some) < len(known):
        return None
    return min(low for low, _ in some), max(high for _, high in some)


def _selected(which: Bounds | None, cases: Sequence[Bounds | None]) -> Bounds | None:
    low, high = which or (0, len(cases) - 1)
    return _joined(cases[max(low, 0) : high + 1])


def _summed(equation: Equation, shape: Sequence[int], low: int, high: int) -> Bounds:
    """The bounds of a sum, or of cumulative sums."""
    params = equation.eqn.params
    if equation.primitive == "cumsum":
        most = shape[params["axis"]]
        return min(low, low * most), max(high, high * most)
    count = math.prod(shape[axis] for axis in params["axes"])
    return low * count, high * count


def _computed(name: str, operands: Sequence[Bounds]) -> Bounds | None:
    """The bounds of an elementwise equation's result."""
    match name, operands:
        case "add", ((a, b), (c, d)):
            return a + c, b + d
        case "sub", ((a, b), (c, d)):
            return a - d, b - c
        case "mul", ((a, b), (c, d)):
            products = [x * y for x, y in it.product((a, b), (c, d))]
            return min(products), max(products)
        case "neg", ((a, b),):
            return -b, -a
        case "max", ((a, b), (c, d)):
            return max(a, c), max(b, d)
        case "min", ((a, b), (c, d)):
            return min(a, c), min(b, d)
        case "clamp", ((a, b), (c, d), (e, f)):
            return min(max(a, c), e), min(max(b, d), f)
        case "rem", ((a, b), (c, d)) if c > 0:
            return max(a, 1 - d) if a < 0 else 0, min(b, d - 1) if b > 0 else 0
        case "div", ((a, b), (c, d)) if c > 0 and a >= 0:
            return a // d, b // c
        case "lt", ((a, b), (c, d)):
            return int(b < c), int(a < d)
        case "ge", ((a, b), (c, d)):
            return int(a >= d), int(b >= c)
        case "gt", ((a, b), (c, d)):
            return int(a > d), int(b > c)
        case "le", ((a, b), (c, d)):
            return int(b <= c), int(a <= d)
    return None
