"""Tests whether a function is analytic on both sides of zero.

Such a function has jumps and spikes at zero alone, and two such functions that agree on tens of
thousands of numbers are the same. Comparisons must compare numbers that change at zero alone: those
that double where the operand doubles (`max(x, 0)`, `-x`), with one another or with zero; or any
numbers with infinity.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir import compat
from ...ir.program import Equation, Program, flatten

#: Functions that are analytic where they are defined, and operations on booleans.
_ANALYTIC = frozenset(
    """
    add add_any and broadcast_in_dim copy copy_p div exp expm1 log log1p logistic mul neg not or
    select_n stop_gradient sub tanh
    """.split()
)
#: Functions that compare, or change at zero.
_COMPARING = frozenset("abs eq ge gt le lt max min ne sign".split())
#: Functions whose results are in proportion to the input where all operands are.
_LINEAR = frozenset(
    "abs add add_any convert_element_type copy copy_p max min neg stop_gradient sub".split()
)


def is_smooth_beside_zero(program: Program) -> bool:
    """Whether an elementwise program of one input is known to be analytic on both sides of zero."""
    return _is_smooth(program, set(program.inputs), set(program.inputs))


def _is_smooth(program: Program, proportional: set[int], varying: set[int]) -> bool:
    """The same where some inputs are in proportion to the operand, and some vary with it."""
    for e in program.equations:
        if not varying.isdisjoint(e.reads):
            varying.update(e.outputs)
            if not _is_allowed(e, proportional, varying):
                return False
        if _is_proportional(e, proportional, varying):
            proportional.update(e.outputs)
    return True


def _is_allowed(equation: Equation, proportional: set[int], varying: set[int]) -> bool:
    """Whether an equation's results are analytic beside zero where its operands are."""
    if equation.primitive == "custom_jvp_call":
        inner = flatten(equation.eqn.params["call_jaxpr"])
        pairs = list(zip(inner.inputs, equation.inputs, strict=True))
        known = {i for i, x in pairs if _in(x, proportional)}
        return _is_smooth(inner, known, {i for i, x in pairs if _varies(x, varying)})
    if equation.primitive in _COMPARING:
        against = any(map(_is_infinite, equation.inputs))
        return against or _is_all_proportional(equation.inputs, proportional)
    if equation.primitive == "convert_element_type":  # not to integers, which jump
        return compat.is_float(equation.eqn.outvars[0].aval)
    return equation.primitive in _ANALYTIC


def _is_proportional(equation: Equation, proportional: set[int], varying: set[int]) -> bool:
    """Whether an equation's result is in proportion to the input on either side of zero."""
    match equation.primitive, equation.inputs:
        case "select_n", (_, *cases):
            return _is_all_proportional(cases, proportional)
        case "mul", (a, b):
            pairs = (a, b), (b, a)
            return any(_in(x, proportional) and not _varies(y, varying) for x, y in pairs)
        case "div", (a, b):
            return _in(a, proportional) and not _varies(b, varying)
        case "broadcast_in_dim", (a,):
            return _in(a, proportional)
        case name, operands:
            return name in _LINEAR and _is_all_proportional(operands, proportional)


def _is_all_proportional(operands: Sequence[Any], proportional: set[int]) -> bool:
    return all(_in(x, proportional) for x in operands)


def _in(atom: Any, proportional: set[int]) -> bool:
    """Whether an operand is in proportion to the input, as zero is."""
    if isinstance(atom, int):
        return atom in proportional
    return np.ndim(atom.val) == 0 and atom.val == 0


def _varies(atom: Any, varying: set[int]) -> bool:
    return isinstance(atom, int) and atom in varying


def _is_infinite(atom: Any) -> bool:
    return not isinstance(atom, int) and np.ndim(atom.val) == 0 and bool(np.isinf(atom.val))
