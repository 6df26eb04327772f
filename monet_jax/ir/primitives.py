"""The kinds of primitives: whether XLA materialises a result or fuses it into its consumers.

XLA fuses elementwise work into whatever reads it, so most equations of a jaxpr never own memory: a
model that counts them is off by 2 to 3.5 times (docs/how-it-works.md). Each primitive is one of

    VIEW         another shape of the same bytes
    FUSED        computed inside the fusion that reads it
    REDUCTION    materialised, but its operands may be fused into it
    SOLID        materialised, and so must its operands be: products, sorts, loops, unknown ones
"""

import enum
import math
from typing import Any

from . import compat
from .program import Equation


class Kind(enum.Enum):
    """How XLA treats the result of an equation."""

    VIEW = "view"
    FUSED = "fused"
    REDUCTION = "reduction"
    SOLID = "solid"


_VIEWS = frozenset(
    """
    reshape squeeze expand_dims transpose name copy copy_p stop_gradient optimization_barrier
    bitcast_convert_type random_wrap random_unwrap sharding_constraint monet_hook
    """.split()
)
_FUSED = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    broadcast_in_dim cbrt ceil clamp clz complex concatenate conj convert_element_type cos cosh
    digamma div dynamic_slice empty2 eq eq_to erf erf_inv erfc exp exp2 expm1 floor full ge gt imag
    integer_pow iota is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi ne
    neg nextafter not one_minus_square or pad pbroadcast polygamma polynomial population_count pow
    pvary random_bits random_clone random_fold_in random_seed random_split real reduce_precision rem
    rev round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh
    slice split sqrt square stack sub tan tanh threefry2x32 tile unstack xor zeros_like
    """.split()
)
_REDUCTIONS = frozenset(
    """
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin
    reduce
    """.split()
)
#: Primitives through which no tangent passes.
STOPS = frozenset(("stop_gradient", "monet_hook"))
#: Primitives that the matrix units run.
PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
#: Elementwise functions that take many instructions; XLA does not fuse them twice for free.
EXPENSIVE = {
    "random_bits": 120,
    "threefry2x32": 120,
    "exp": 8,
    "log": 8,
    "tanh": 12,
    "polynomial": 12,
    "erf": 16,
}


def kind_of(equation: Equation) -> Kind:
    """How XLA treats the result of `equation`; unknown primitives are `SOLID`."""
    primitive = equation.primitive
    if primitive in _VIEWS or _is_free_broadcast(equation):
        return Kind.VIEW
    if primitive in _FUSED:
        return Kind.FUSED
    if primitive in _REDUCTIONS:
        return Kind.REDUCTION
    if primitive in ("custom_jvp_call", "closed_call", "core_call"):
        return _kind_of_call(equation.eqn)
    return Kind.SOLID


def _is_free_broadcast(equation: Equation) -> bool:
    """A broadcast that adds only axes of size one."""
    if equation.primitive not in ("broadcast_in_dim", "convert_element_type"):
        return False
    operand, result = equation.eqn.invars[0].aval, equation.eqn.outvars[0].aval
    return operand.dtype == result.dtype and math.prod(operand.shape) == math.prod(result.shape)


def _kind_of_call(eqn: Any) -> Kind:
    """A call is fused if everything inside it is; one that returns what it is given is a view."""
    kinds, bodies = set(), compat.subjaxprs(eqn)
    for jaxpr in bodies:
        for inner in jaxpr.jaxpr.eqns:
            if inner.primitive is compat.jit_p:
                kinds.add(_kind_of_call(inner))
            else:
                kinds.add(kind_of(Equation(inner, (), (), None)))
    if not kinds <= {Kind.VIEW, Kind.FUSED} or not bodies:
        return Kind.SOLID
    return Kind.FUSED if kinds else Kind.VIEW


def is_random(equation: Equation) -> bool:
    """Whether an equation draws random bits."""
    return equation.primitive in ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")


def is_one_hot(equation: Equation) -> bool:
    """Whether an equation scatters one number into each row, as the gradient of a lookup does."""
    if not equation.primitive.startswith("scatter"):
        return False
    operand, updates = equation.eqn.invars[0].aval.shape, equation.eqn.invars[2].aval.shape
    numbers = equation.eqn.params["dimension_numbers"]
    rows = math.prod(n for axis, n in enumerate(operand) if axis in numbers.operand_batching_dims)
    return rows == math.prod(updates) and len(numbers.operand_batching_dims) == len(operand) - 1


def must_run_once(equation: Equation) -> bool:
    """Whether running an equation again may not give the same result, or would be noticed.

    Effects (prints, callbacks, references), callbacks that JAX takes to be pure, and generators
    whose bits depend on how the program is compiled: everything but threefry keys.
    """
    return runs_once(equation.eqn)


def runs_once(eqn: Any, in_rule: bool = False) -> bool:
    """The same of an equation of JAX's; of one with a rule of its own, also of what that runs.

    Arguments:
        eqn: the equation.
        in_rule: whether a rule runs it; then it is not differentiated there. Rules often call the
            function that they are for, so that following all of them would not end.
    """
    if eqn.effects or eqn.primitive.name in ("rng_bit_generator", "rng_uniform", "pure_callback"):
        return True
    if eqn.primitive.name in ("random_bits", "random_gamma"):
        return compat.key_implementation(eqn.invars[0].aval) != "fry"
    if any(runs_once(e, in_rule) for body in compat.subjaxprs(eqn) for e in body.jaxpr.eqns):
        return True
    rules = [] if in_rule else compat.forward_rules(eqn)
    return any(runs_once(e, in_rule=True) for rule in rules for e in rule.jaxpr.eqns)
