"""A derivative reads its result only where the result determines it, and is right.

Local derivatives are computed here in float64, by their formulas. Every case runs under a plan that
saves all by name, so that derivatives read results; and under one that saves nothing, where they
are JAX's.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import compiler_targets
from emission import Flat, assert_same, flat, pulled, reference
from exact_operators import awkward, layered, planned, same, saving_results
from exact_operators import pulled as pulled_by
from programs import Case, array, straight_through
from thinning import thinned

from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.operators import Derived, is_hook, representations_of
from monet_jax.operators.elementwise import fitting, results
from monet_jax.operators.elementwise.pointwise import numbers
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.step import step_to_compile
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer.transform import transform
from planners import Graph, Region
from planners.plan import Plan
from planners.regions.simple_plans import certified, saving_codes

#: With code as users have it; that of the other tests rounds `softplus` otherwise here and there.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 3})
ALPHA, SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def exponential(x, alpha):
    """The derivative of `elu`."""
    return np.where(x > 0, 1, alpha * np.exp(np.minimum(x, 0)))


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


#: Functions; their derivatives in float64; and whether those are exact where they are small.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], bool]] = {
    "elu": (jax.nn.elu, lambda x: exponential(x, 1), False),
    "elu_0.3": (lambda x: jax.nn.elu(x, 0.3), lambda x: exponential(x, 0.3), False),
    "elu_plus": (lambda x: jax.nn.elu(x) + 1, lambda x: exponential(x, 1), False),
    "mirrored": (lambda x: -jax.nn.elu(-2 * x), lambda x: 2 * exponential(-2 * x, 1), False),
    "selu": (jax.nn.selu, lambda x: SCALE * exponential(x, ALPHA), False),
    "celu_2.5": (lambda x: jax.nn.celu(x, 2.5), lambda x: exponential(x / 2.5, 1), False),
    "softplus": (jax.nn.softplus, sigmoid, True),
    "softplus_above": (lambda x: jax.nn.softplus(x) + 1e-6, sigmoid, False),
    "log_sigmoid": (jax.nn.log_sigmoid, lambda x: sigmoid(-x), True),
}

#: What has another derivative, or one that the result does not tell.
OTHERS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "falling": lambda x: jax.nn.elu(x, -0.5),
    "jumping": lambda x: jax.nn.selu(x) + 1,
    "steeper": lambda x: jnp.where(x > 0, 1.001 * x, jnp.expm1(jnp.where(x > 0, 0.0, x))) * (x + 1),
    "half_at_zero": lambda x: jnp.where(x > 0, x, jnp.exp(jnp.minimum(x, 0)) - 1),
    "far": lambda x: jax.nn.softplus(x) + x,
    "own_rule": lambda x: jnp.exp(straight_through(x)) + straight_through(x),
    "steps": lambda x: jax.nn.elu(x) + 0 * jnp.exp(jnp.int32(x).astype(x.dtype)),
    "spike": lambda x: jax.nn.elu(x) * jnp.where(jnp.abs(x - 0.1) < 1e-6, 2, 1),
}


def reads_results(found) -> bool:
    """Whether a planned function has derivatives that may read a result by this operator."""
    equations = [e for stage in found.staged.stages for e in stage.equations if is_hook(e)]
    representations = [
        representation for e in equations for representation, _ in representations_of(e)
    ]
    mine = (fitting._Pieces, fitting._Sigmoid)
    return any(isinstance(x, Derived) and isinstance(x.compute, mine) for x in representations)


def ordinary(shape, dtype, seed=0):
    """Numbers of all sizes, of both signs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 10.0 ** rng.uniform(-9, 2, shape)
    return jnp.asarray(x, dtype)


def taken(function, x):
    """The function under a plan that keeps results, and whether derivatives follow from those."""
    fixed = jax.lax.optimization_barrier
    ours, found = planned(lambda x: fixed(function(fixed(x))), x, regions=saving_results)
    return ours, reads_results(found)


#: What is used in 16 bits too.
SIGMOIDS = ("softplus", "softplus_above", "log_sigmoid")


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        itertools.product(FUNCTIONS, [jnp.bfloat16, jnp.float16]),
        "softplus-bfloat16",
        "selu-float16",
    ),
)
def test_in_sixteen_bits_derivatives_are_as_near_to_the_exact_ones_as_those_of_jax(name, dtype):
    """On all numbers, in the worst and in the mean, or they do not follow from results."""
    function, local_derivative, _ = FUNCTIONS[name]
    at = np.float64(numbers(jnp.dtype(dtype).name))
    x = jnp.asarray(at[(np.abs(at) < 60) & ((np.abs(at) > 1e-30) | (at == 0))], dtype)
    ours, used = taken(function, x)
    assert used == (name in SIGMOIDS)
    fixed = jax.lax.optimization_barrier
    gradients = (
        jit(functools.partial(pulled_by, f))(x, jnp.ones_like(x))[1]
        for f in (ours, lambda x: fixed(function(fixed(x))))
    )
    wrong = [np.abs(np.float64(y) - local_derivative(np.float64(x))) for y in gradients]
    assert wrong[0].max() <= wrong[1].max() and wrong[0].mean() <= wrong[1].mean()


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        [
            *itertools.product(FUNCTIONS, [jnp.float32]),
            *itertools.product(SIGMOIDS, [jnp.bfloat16]),
        ],
        "selu-float32",
        "log_sigmoid-float32",
        "softplus-bfloat16",
    ),
)
def test_derivatives_that_follow_from_results_are_right_within_the_bound(name, dtype):
    function, local_derivative, is_relative = FUNCTIONS[name]
    x = ordinary((64, 65), dtype)
    ours, used = taken(function, x)
    assert used
    y, gradient = jit(functools.partial(pulled_by, ours))(x, jnp.ones_like(x))
    assert np.asarray(y).tobytes() == np.asarray(jit(function)(x)).tobytes()
    wrong = np.abs(np.asarray(gradient, np.float64) - local_derivative(np.float64(x)))
    expected = local_derivative(np.float64(x))
    scale = expected if is_relative else np.max(expected)
    tiny = float(jnp.finfo(jnp.float32).tiny)
    assert (wrong <= 4 * float(jnp.finfo(dtype).eps) * scale + tiny).all()


@pytest.mark.parametrize("name", thinned(FUNCTIONS, "selu"))
def test_where_no_result_is_read_gradients_are_those_of_jax_bit_for_bit(name):
    function, dtype = layered(FUNCTIONS[name][0]), jnp.float32
    x, w, ct = awkward((7, 37), dtype), awkward((7, 37), dtype, 1), awkward((7, 37), dtype, 2)
    ours, found = planned(function, x, w, regions=saving_codes)
    assert reads_results(found)
    want = jit(functools.partial(pulled_by, function))(x, w, ct)
    same(jit(functools.partial(pulled_by, ours))(x, w, ct), want)


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        itertools.product(FUNCTIONS, [jnp.float32, jnp.bfloat16]),
        "elu-float32",
        "mirrored-float32",
        "log_sigmoid-bfloat16",
    ),
)
def test_what_is_finite_in_a_gradient_stays_so(name, dtype):
    """At zeros of both signs, what is no number, infinite or hardly a number; at both of them."""
    function = FUNCTIONS[name][0]
    x, ct = awkward((16, 37), dtype), awkward((16, 37), dtype, 1)
    fixed = jax.lax.optimization_barrier
    plain = lambda x: fixed(function(fixed(x)))  # noqa: E731
    ours, _ = planned(plain, x, regions=saving_results)
    got, want = (
        np.asarray(jax.jit(lambda x, f=f: jax.vjp(f, x)[1](ct)[0])(x), np.float64)
        for f in (ours, plain)
    )
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    assert finite.any() and not finite.all()
    wrong = np.abs(got[finite] - want[finite])
    scale = 16 * float(jnp.finfo(dtype).eps) * np.abs(np.asarray(ct, np.float64))[finite]
    assert (wrong <= scale + float(jnp.finfo(jnp.float32).tiny)).all()


@pytest.mark.parametrize(
    "name",
    thinned(OTHERS, "relu", "exp", "tanh", "jumping", "steeper", "own_rule"),
)
def test_what_its_result_does_not_tell_is_left_alone(name):
    _, found = planned(layered(OTHERS[name]), *(array(n, 16, 16) for n in range(2)))
    assert not reads_results(found)


def test_what_is_computed_with_more_than_numbers_is_left_alone():
    x, alpha = array(0, 16, 16), jnp.float32(0.5)
    fixed = jax.lax.optimization_barrier
    for function in (jax.nn.elu, lambda x, a: jax.nn.elu(x) * a):
        _, found = planned(lambda x, a, f=function: f(jnp.sin(fixed(x)), a) @ x, x, alpha)
        assert not reads_results(found)


def test_what_no_product_keeps_is_left_alone():
    x = array(0, 16, 16)
    assert not reads_results(planned(lambda x: jnp.sum(jax.nn.elu(jnp.sin(x))), x)[1])


def test_a_spike_is_not_seen_but_known(monkeypatch):
    monkeypatch.setattr(results, "is_smooth_beside_zero", lambda _: True)
    with pytest.raises(AssertionError):
        test_what_its_result_does_not_tell_is_left_alone("spike")


def test_a_form_that_does_not_agree_is_noticed(monkeypatch):
    monkeypatch.setattr(fitting, "_agree", lambda *_: True)
    fitting.representations.cache_clear()
    wrong = FUNCTIONS["elu"][0], lambda x: 1.0001 * exponential(x, 1), False
    monkeypatch.setitem(FUNCTIONS, "elu", wrong)
    with pytest.raises(AssertionError):
        test_derivatives_that_follow_from_results_are_right_within_the_bound("elu", jnp.float32)
    for name in ("falling", "jumping"):
        with pytest.raises(AssertionError):
            test_what_its_result_does_not_tell_is_left_alone(name)
    fitting.representations.cache_clear()


def network(x, w):
    """Two layers, of which the second has what the first one makes as an operand."""
    return jnp.tanh(jax.nn.softplus(jax.nn.elu(x @ w) @ w) @ w)


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: jax.vmap(f, (0, None)),
    "scan": lambda f: lambda x, w: jax.lax.scan(lambda c, v: (f(c + v, w), None), x[0], x)[0],
    "cond": lambda f: (
        lambda x, w: jax.lax.cond(x[0, 0, 0] > 0, f, lambda x, w: f(f(x, w), w), x, w)
    ),
    "checkpoint": jax.checkpoint,
}


def compared(made: Flat, function) -> None:
    """Gradients are as near to those in float64 as JAX's are."""
    known = reference(pulled(made, made.function), made.leaves)
    assert_same(jax.jit(pulled(made, function))(*made.leaves), *known)


@pytest.mark.parametrize(
    ("outer", "where"),
    thinned(
        itertools.product(TRANSFORMED, ["inside", "around"]),
        "vmap-around",
        "scan-inside",
        "checkpoint-inside",
    ),
)
def test_gradients_are_right_under_other_transformations(outer, where):
    x, w, transformed = array(1, 3, 6, 16), array(2, 16, 16) / 3, TRANSFORMED[outer]
    made = flat(Case(transformed(network), (x, w)))
    if where == "around":
        ours, found = planned(transformed(network), x, w, regions=saving_results)
        assert reads_results(found) == (outer != "checkpoint")
    else:
        of_one = x if outer in ("cond", "checkpoint") else x[0]
        ours = transformed(planned(network, of_one, w, regions=saving_results)[0])
    compared(made, lambda *leaves: [ours(*leaves)])


def test_tangents_and_second_derivatives_are_those_of_jax():
    x, w = array(1, 6, 16), array(2, 16, 16) / 3
    made = flat(Case(network, (x, w)))
    ours, found = planned(network, x, w, regions=saving_results)
    assert reads_results(found)

    def twice(function):
        def gradient(*leaves):
            loss = lambda *leaves: jnp.sum(jnp.sin(3 * function(*leaves)[0]))  # noqa: E731
            return jax.grad(loss, argnums=range(len(leaves)))(*leaves)

        return lambda *leaves: jax.jvp(gradient, leaves, (*map(jnp.cos, leaves),))

    known = reference(twice(made.function), made.leaves)
    assert_same(jax.jit(twice(lambda *leaves: [ours(*leaves)]))(*made.leaves), *known)


@pytest.mark.parametrize(
    "shape",
    thinned(
        [pytest.param(x, id=str(x)) for x in ((0, 4), (64,), (1, 1, 65), (129, 1), ())],
        "(0, 4)",
        "()",
    ),
)
def test_odd_shapes_are_no_exception(shape):
    x = array(1, *shape)
    for function in (jax.nn.elu, jax.nn.softplus):
        made = flat(Case(layered(function), (x, x)))
        ours, _ = planned(layered(function), x, x, regions=saving_results)
        compared(made, lambda *leaves, ours=ours: [ours(*leaves)])


# ---------------------------------------------------------------------------------------- plans

LAYERS, ROWS, WIDTH = 8, 512, 64


def reading_results(graph: Graph) -> Plan:
    """The plan that runs nothing again, each derivative by its last implementation."""
    regions = []
    for s, stage in enumerate(graph.stages):
        implementations = [(op, *op.alternatives)[-1] for op in stage.backward]
        read = {i for implementation in implementations for i in implementation.inputs}
        written = [graph.values[i] for op in stage.forward for i in op.outputs if i in read]
        regions.append(Region(s, s, tuple(x.name for x in written if x.savable)))
    return certified(graph, tuple(regions), planner="test", bound_seconds=0.0)


def layers(function, params, x):
    for w in params:
        x = function(x @ w)
    return jnp.mean(jnp.square(x))


@pytest.mark.parametrize("function", thinned([jax.nn.elu, jax.nn.softplus], "softplus"))
@pytest.mark.parametrize("target", list(compiler_targets()))
def test_what_operands_took_arrives_in_the_compiled_program(target, function):
    """Of what is kept where nothing runs again, one array of two is saved in no layer."""
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    args = params, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    loss = functools.partial(layers, function)

    def taken(operators):
        known = resolve_target(target)
        compiled_plans = compiled_plans_of(
            trace_for(known, loss, args, operators=operators), known, NO_PINS
        )
        plan = reading_results(compiled_plans.graph)
        step = step_to_compile(
            compiled_plans.judge.traced, transform(compiled_plans.judge.staged, plan)
        )
        return compiled_plans.model.modelled(plan.regions), compile_bytes(
            *step, target=known
        ).temp_bytes

    before, after = taken(["mask"]), taken(["mask", "result"])
    freed_bytes = (LAYERS - 1) * 4 * math.prod((ROWS, WIDTH))
    assert before[0] - after[0] == pytest.approx(freed_bytes, rel=0.2)
    assert before[1] - after[1] >= 0.8 * freed_bytes
