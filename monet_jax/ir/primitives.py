"""The traits of every primitive, in one table; first whether XLA materialises its result.

XLA fuses elementwise work into whatever reads it, so most equations of a jaxpr never own memory: a
model that counts them is off by 2 to 3.5 times (docs/how/stages.md). Each primitive is one of

    VIEW         another shape of the same bytes
    FUSED        computed inside the fusion that reads it
    REDUCTION    materialised, but its operands may be fused into it
    SOLID        materialised, and so must its operands be: products, sorts, loops, unknown ones
"""

import dataclasses
import enum
import math
from typing import Any

import jax.numpy as jnp

from . import compat
from .program import Equation


class Kind(enum.Enum):
    """How XLA treats the result of an equation."""

    VIEW = "view"
    FUSED = "fused"
    REDUCTION = "reduction"
    SOLID = "solid"


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """The traits of a primitive.

    Attributes:
        kind: how XLA treats its result. A call has the kind of its body.
        instructions: for each element, by order of magnitude; elementwise work of many
            instructions is not fused twice for free.
        is_call: whether it only calls what it holds.
        is_product: whether the matrix units run it.
        may_reshape: whether it is a view where its result has as many elements as its operand: a
            broadcast that adds, or a reduction that removes, only axes of size one.
        stops_tangents: whether no tangent passes it.
        compares_windows: whether it is the gradient of max pooling, as JAX takes it.
        updates_in_place: whether XLA writes its result over its first operand.
        draws: whether it draws random bits.
        runs_once: whether it may give another result, or be noticed, if it runs again.
        depends_on_key: whether `runs_once` holds for keys that are not threefry keys.
    """

    kind: Kind
    instructions: int = 1
    is_call: bool = False
    is_product: bool = False
    may_reshape: bool = False
    stops_tangents: bool = False
    compares_windows: bool = False
    updates_in_place: bool = False
    draws: bool = False
    runs_once: bool = False
    depends_on_key: bool = False


def _all(traits: Traits, names: str) -> dict[str, Traits]:
    return dict.fromkeys(names.split(), traits)


#: A primitive that is not in the table: costly, never wrong.
UNKNOWN = Traits(Kind.SOLID)

#: Every primitive of `jax.lax`, of `jax.lax.linalg` and of JAX's calls, by its name. The `SOLID`
#: ones without another trait are listed so that a test sees which ones a new JAX adds.
TRAITS: dict[str, Traits] = {
    **_all(
        Traits(Kind.VIEW),
        """
        reshape squeeze expand_dims transpose name copy copy_p optimization_barrier
        bitcast_convert_type random_wrap random_unwrap sharding_constraint layout_constraint
        pvary preduced vary_unreduced_cast
        """,
    ),
    **_all(Traits(Kind.VIEW, stops_tangents=True), "stop_gradient monet_hook"),
    **_all(
        Traits(Kind.FUSED),
        """
        abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
        cbrt ceil clamp clz complex concatenate conj cos cosh
        digamma div dynamic_slice empty2 eq eq_to erf_inv erfc exp2 expm1 floor full ge gt imag
        integer_pow iota is_finite le le_to lgamma log1p log2 logistic lt lt_to max min mul mulhi ne
        neg nextafter not one_minus_square or pad polygamma population_count pow
        random_clone random_fold_in random_seed random_split real reduce_precision rem rev round
        rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice
        split sqrt square stack sub tan tile unstack xor zeros_like
        """,
    ),
    **_all(Traits(Kind.FUSED, may_reshape=True), "broadcast_in_dim convert_element_type"),
    **_all(Traits(Kind.FUSED, instructions=8), "exp log"),
    **_all(Traits(Kind.FUSED, instructions=12), "tanh polynomial"),
    "erf": Traits(Kind.FUSED, instructions=16),
    "threefry2x32": Traits(Kind.FUSED, instructions=120, draws=True),
    "random_bits": Traits(Kind.FUSED, instructions=120, draws=True, depends_on_key=True),
    **_all(
        Traits(Kind.REDUCTION, may_reshape=True),
        "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor",
    ),
    **_all(Traits(Kind.REDUCTION), "argmax argmin reduce"),
    **_all(Traits(Kind.SOLID, is_product=True), "dot_general conv_general_dilated"),
    **_all(
        Traits(Kind.SOLID, updates_in_place=True),
        """
        dynamic_update_slice scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub
        """,
    ),
    **_all(Traits(Kind.SOLID, draws=True, runs_once=True), "rng_bit_generator rng_uniform"),
    "random_gamma": Traits(Kind.SOLID, depends_on_key=True),
    "pure_callback": Traits(Kind.SOLID, runs_once=True),
    **_all(Traits(Kind.SOLID, compares_windows=True), "select_and_scatter select_and_scatter_add"),
    **_all(Traits(Kind.SOLID, is_call=True), "custom_jvp_call closed_call core_call"),
    **_all(
        Traits(Kind.SOLID),
        """
        after_all all_gather all_gather_invariant all_gather_reduced all_to_all approx_top_k
        axis_index cholesky cholesky_update cond create_token cumlogsumexp cummax cummin cumprod
        cumsum custom_lin custom_linear_solve custom_vjp_call device_put eig eigh eval_jaxpr fft
        gather get hessenberg householder_product igamma igamma_grad_a igammac jit lu
        lu_pivots_to_permutation ormqr pbroadcast pmax pmin ppermute psum psum_invariant qr
        ragged_all_to_all ragged_dot_general reduce_scatter reduce_window reduce_window_max
        reduce_window_min reduce_window_sum regularized_incomplete_beta remat2 scan schur
        select_and_gather_add sort stage svd swap symmetric_product top_k triangular_solve
        tridiagonal tridiagonal_solve while zeta
        """,
    ),
}


def traits_of(primitive: str) -> Traits:
    """The traits of a primitive, by its name."""
    return TRAITS.get(primitive, UNKNOWN)


#: Primitives through which no tangent passes.
STOPS = frozenset(name for name, traits in TRAITS.items() if traits.stops_tangents)
#: Primitives that the matrix units run.
PRODUCTS = frozenset(name for name, traits in TRAITS.items() if traits.is_product)


def is_barrier(equation: Equation) -> bool:
    """Whether an equation is a barrier, or a call in which one value passes one."""
    if not traits_of(equation.primitive).is_call:
        return equation.primitive == "optimization_barrier"
    inside = [e for jaxpr in compat.subjaxprs(equation.eqn) for e in jaxpr.jaxpr.eqns]
    names = [compat.primitive_name(e) for e in inside]
    return len(equation.outputs) == 1 and names == ["optimization_barrier"]


def kind_of(equation: Equation) -> Kind:
    """How XLA treats the result of `equation`; unknown primitives are `SOLID`."""
    traits = traits_of(equation.primitive)
    if _only_reshapes(equation) or is_barrier(equation):
        return Kind.VIEW
    return _kind_of_call(equation.eqn) if traits.is_call else traits.kind


def _only_reshapes(equation: Equation) -> bool:
    """Whether a broadcast adds, or a reduction removes, only axes of size one."""
    if not traits_of(equation.primitive).may_reshape:
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
    return traits_of(equation.primitive).draws


def is_one_hot(equation: Equation) -> bool:
    """Whether an equation scatters one number into each row, as the gradient of a lookup does."""
    if not equation.primitive.startswith("scatter"):
        return False
    operand, updates = equation.eqn.invars[0].aval.shape, equation.eqn.invars[2].aval.shape
    numbers = equation.eqn.params["dimension_numbers"]
    rows = math.prod(n for axis, n in enumerate(operand) if axis in numbers.operand_batching_dims)
    return rows == math.prod(updates) and len(numbers.operand_batching_dims) == len(operand) - 1


def is_idle_rounding(equation: Equation) -> bool:
    """Whether an equation rounds to the precision that its operand has.

    `jax.checkpoint` rounds so what it saves.
    """
    if equation.primitive != "reduce_precision":
        return False
    params, kept = equation.eqn.params, jnp.finfo(equation.eqn.outvars[0].aval.dtype)
    return (params["exponent_bits"], params["mantissa_bits"]) == (kept.nexp, kept.nmant)


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
    traits = traits_of(eqn.primitive.name)
    if compat.has_effects(eqn) or traits.runs_once:
        return True
    if traits.depends_on_key:
        return compat.key_implementation(eqn.invars[0].aval) != "fry"
    if any(runs_once(e, in_rule) for body in compat.subjaxprs(eqn) for e in body.jaxpr.eqns):
        return True
    rules = [] if in_rule else compat.forward_rules(eqn)
    return any(runs_once(e, in_rule=True) for rule in rules for e in rule.jaxpr.eqns)


def is_in_place(equation: Equation) -> bool:
    """Whether an op of an equation may write its result over an operand that ends there."""
    return kind_of(equation) is Kind.FUSED or traits_of(equation.primitive).updates_in_place
