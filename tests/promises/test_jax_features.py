"""A planned program runs whatever JAX lets a program do.

Rules that close over arrays, mutable references, explicit mesh axes, callbacks, strict promotion:
each is planned at random, and compared with plain JAX.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coming_rules import either_rules as either_rules
from coming_rules import fault_of_jax
from emission import flat, numpy_of, pulled, random_emissions
from jax import lax
from jax.experimental.ode import odeint
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from programs import Case, array
from thinning import thinned

from monet_jax.ir.primitives import must_run_once, runs_once
from monet_jax.ir.program import flatten, mutable_references
from monet_jax.tracing.passes import hoist, nested_scans

W, X = array(1, 6, 6), array(2, 4, 6)
TABLE = array(3, 6, 6)


def assert_planned_as_plain(function, *args, eager=True):
    """Two random plans, one of which recomputes, have the value and gradient of plain JAX."""
    f = flat(Case(function, args))
    plain = jax.jit(pulled(f, f.function))(*f.leaves)
    made = list(random_emissions(f, 0, 2))
    assert any(x.recomputes for x in made)
    for x in made:
        assert_close(jax.jit(pulled(f, x.function))(*f.leaves), plain)
    if eager:
        assert_close(pulled(f, made[0].function)(*f.leaves), plain)


def assert_close(got, want):
    for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(numpy_of(a), numpy_of(b), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------ rules that close


def product_with(table):
    """`tanh(x @ table)` with a rule of its own, which closes over the table."""

    @jax.custom_vjp
    def function(x):
        return jnp.tanh(x @ table)

    def backward(y, cotangent):
        return ((cotangent * (1 - y**2)) @ table.T,)

    function.defvjp(lambda x: (function(x),) * 2, backward)
    return function


def in_layers(p, x):
    for _ in range(3):
        x = product_with(TABLE)(jnp.sin(x @ p))
    return jnp.sum(x**2)


def in_numpy(p, x):
    for _ in range(3):
        x = product_with(np.asarray(TABLE))(jnp.sin(x @ p))
    return jnp.sum(x**2)


def in_loop(p, x):
    rule = product_with(TABLE)
    x, _ = lax.scan(lambda x, _: (rule(jnp.sin(x @ p)), None), x, length=4)
    return jnp.sum(x**2)


def in_loop_in_loop(p, x):
    rule = product_with(TABLE)

    def body(x, _):
        return lax.scan(lambda x, _: (rule(jnp.sin(x @ p)), None), x, length=2)

    return jnp.sum(lax.scan(body, x, length=3)[0] ** 2)


def in_branch(p, x):
    rule = product_with(TABLE)
    x = lax.cond(x.sum() > 0, lambda x: rule(x @ p), lambda x: rule(jnp.sin(x @ p) @ p), x)
    return jnp.sum(rule(x @ p) ** 2)


def in_a_rule(p, x):
    inner = product_with(TABLE)

    @jax.custom_vjp
    def outer(x):
        return inner(x) * 2

    def forward(x):
        y, pull = jax.vjp(inner, x)
        return y * 2, pull

    outer.defvjp(forward, lambda pull, cotangent: pull(2 * cotangent))
    for _ in range(3):
        x = outer(jnp.sin(x @ p))
    return jnp.sum(x**2)


def carried_number(p, x):
    """A function closes over a float that is carried, and is no part of the derivative."""

    def body(state, _):
        x, scale = state

        @jax.custom_vjp
        def scaled(x):
            return jnp.sin(x) * scale

        scaled.defvjp(lambda x: (jnp.sin(x), x), lambda x, c: (c * jnp.cos(x),))
        x = jnp.tanh(scaled(x @ p) @ p)
        return (x, scale * 1.5), x.sum()

    (x, _), sums = lax.scan(body, (x, jnp.float32(0.5)), length=5)
    return jnp.sum(x**2) + sums.sum()


def solution(p, x):
    y = odeint(lambda y, t, p: jnp.tanh(y @ p @ TABLE), x, jnp.linspace(0.0, 1.0, 3), p)
    return jnp.sum((y[-1] @ p) ** 2)


CLOSING = [in_layers, in_numpy, in_loop, in_loop_in_loop, in_branch, in_a_rule, carried_number]


@pytest.mark.parametrize(
    "function",
    thinned([*CLOSING, solution], "in_branch", "in_a_rule"),
)
def test_rules_may_close_over_arrays(function):
    assert_planned_as_plain(function, W, X)


def test_bytes_of_a_loop_whose_rule_closes_over_an_array_are_counted():
    f = flat(Case(in_loop_in_loop, (W, X)))
    assert nested_scans.chunking(f.program, f.derivative).spared_bytes >= 0


# ------------------------------------------------------------------------------ literals


def number_in(p, x):
    """A loop carries a Python number, and stacks it; what goes in is a literal."""

    def body(state, k):
        x, scale = state
        return (jnp.tanh(x @ p) * k, scale * 2), scale

    (x, scale), scales = lax.scan(body, (x, 1.0), jnp.ones(5), reverse=True)
    return jnp.sum(x) * scale + scales.sum()


def number_out(p, x):
    """A loop hands on a number that its body writes; what comes out is a literal."""

    def body(state, _):
        x, scale = state
        return (jnp.tanh(x @ p) * scale, 2.0), (scale, 1.5)

    (x, scale), stacked = lax.scan(body, (x, 1.0), length=5)
    return jnp.sum(x), scale, stacked


@pytest.mark.parametrize("function", thinned([number_in, number_out], "number_out"))
def test_loops_may_carry_numbers(function):
    assert_planned_as_plain(function, W, X)


# ------------------------------------------------------------------------------ keys


def drawn(key, x):
    return jnp.where(jax.random.bernoulli(key, jnp.float32(0.7), x.shape), x, 0)


def keys_in_layers(p, x, data):
    keys = jax.random.split(jax.random.wrap_key_data(data), 4)
    for n in range(4):
        x = jnp.sin(drawn(keys[n], jnp.tanh(x @ p)) @ p)
    return jnp.sum(x**2)


def keys_stacked(p, x, data):
    def body(x, key):
        return drawn(key, jnp.tanh(x @ p)), None

    keys = jax.random.split(jax.random.wrap_key_data(data), 5)
    return jnp.sum(lax.scan(body, x, keys)[0] ** 2)


def keys_carried(p, x, data):
    def body(state, _):
        x, key = state
        key, used = jax.random.split(key)
        return (jnp.sin(drawn(used, jnp.tanh(x @ p)) @ p), key), None

    (x, key), _ = lax.scan(body, (x, jax.random.wrap_key_data(data)), length=5)
    return jnp.sum(drawn(key, x) ** 2)


def keys_folded(p, x, data):
    key = jax.random.wrap_key_data(data)

    def body(x, n):
        return jnp.sin(drawn(jax.random.fold_in(key, n), jnp.tanh(x @ p)) @ p), None

    return jnp.sum(lax.scan(body, x, jnp.arange(5))[0] ** 2)


def keys_in_branches(p, x, data):
    def some(x, key):
        return drawn(key, x @ p) @ p

    def others(x, key):
        return jnp.sin(x @ p) @ p + drawn(key, x)

    for key in jax.random.split(jax.random.wrap_key_data(data)):
        x = lax.cond(x.sum() > 0, some, others, x, key)
    return jnp.sum(x**2)


KEYS = [keys_in_layers, keys_stacked, keys_carried, keys_folded, keys_in_branches]


@fault_of_jax("the barriers of `jax.checkpoint` use keys up")
@pytest.mark.parametrize("function", thinned(KEYS, "keys_in_branches"))
def test_no_key_is_taken_to_be_used_twice(function):
    with jax.debug_key_reuse(True):
        assert_planned_as_plain(function, W, X, jax.random.key_data(jax.random.key(0)))


# ------------------------------------------------------------------------------ callbacks


def counting(calls):
    """The half of an array, computed by a callback, and by one in a rule alone."""

    def halved(x):
        calls.append(1)
        return np.asarray(x) * np.float32(0.5)

    def called(x):
        return jax.pure_callback(halved, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    in_function = jax.custom_jvp(called)
    in_function.defjvp(lambda primals, tangents: (called(*primals), tangents[0] * 0.5))
    in_rule = jax.custom_vjp(lambda x: x * 0.5)
    in_rule.defvjp(lambda x: (called(x), None), lambda _, cotangent: (cotangent * 0.5,))
    return {"function": in_function, "rule": in_rule}


def test_a_rule_that_calls_its_own_function_is_followed_once():
    """As rules often do; following each call in each rule took as long as Python's stack allows."""
    runs = []

    @jax.custom_vjp
    def halved(x):
        return x * 0.5

    def forward(x):
        runs.append(1)
        return halved(x), None

    halved.defvjp(forward, lambda _, cotangent: (cotangent * 0.5,))
    (equation,) = jax.make_jaxpr(halved)(X).jaxpr.eqns
    assert not runs_once(equation)
    assert 1 <= len(runs) <= 3


@pytest.mark.usefixtures("either_rules")
@pytest.mark.parametrize(
    ("nested", "where"),
    thinned(itertools.product([False, True], ["function", "rule"]), "True-rule"),
)
def test_callbacks_of_nested_scans_run_once(where, nested):
    calls = []
    halved = counting(calls)[where]

    def step(x, _):
        return jnp.tanh(halved(jnp.sin(x @ W)) @ W), None

    def steps(x, _):
        return lax.scan(step, x, length=3 if nested else 20)

    def loss(x):
        return jnp.sum(lax.scan(steps, x, length=6)[0] ** 2 if nested else steps(x, None)[0] ** 2)

    f = flat(Case(loss, (X,)))
    lengths = nested_scans.chunking(f.program, f.derivative).lengths
    assert not any(lengths)
    chunked = dataclasses.replace(f, program=nested_scans.as_nested_scans(f.program, lengths))
    plain = jax.jit(pulled(f, f.function))(X)
    jax.effects_barrier()
    assert len(calls) == (18 if nested else 20)
    for made in random_emissions(chunked, 0, 2):
        calls.clear()
        assert_close(jax.jit(pulled(chunked, made.function))(X), plain)
        jax.effects_barrier()
        assert len(calls) == (18 if nested else 20)


def test_callbacks_stay_in_the_body_of_a_loop():
    halved = counting([])["function"]

    def body(x, p):
        return x @ halved(jnp.sin(p))

    f = flat(Case(body, (X, W)))
    before, _ = hoist.hoisted(f.program, f.program.inputs[1:])
    assert [e.primitive for e in before] == ["sin"]


# ------------------------------------------------------------------------------ explicit axes


def row_wise(a, b, x):
    """Layers whose operators and selects must be sharded as what they select from."""
    for _ in range(2):
        x = jax.nn.softmax(jax.nn.elu(jax.nn.relu(x @ a) @ b), -1)
    order = jnp.argsort(x, -1)
    scaled = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)
    return jnp.sum(jnp.sort(x, -1) * jnp.take_along_axis(scaled, order, -1))


def column_then_row(a, b, x):
    for _ in range(2):
        hidden = jax.nn.gelu(x @ a)
        x = jnp.matmul(hidden, b, out_sharding=P("data", None))
    return jnp.sum(x**2)


def sharded_loop(a, b, x):
    def body(x, _):
        hidden = jax.nn.relu(x @ jnp.concatenate([a, jnp.sin(a)], 1))[:, :6]
        return jnp.matmul(hidden, b, out_sharding=P("data", None)), hidden

    x, stacked = lax.scan(body, x, length=4)
    return jnp.sum(x**2) + jnp.sum(stacked)


def sharded_branches(a, b, x):
    def some(x):
        return jnp.matmul(jax.nn.relu(x @ a), b, out_sharding=P("data", None))

    for _ in range(2):
        x = lax.cond(jnp.sum(x) > 0, some, lambda x: jnp.sin(some(x)), x)
    return jnp.sum(x**2)


SHARDED = [(row_wise, None), (column_then_row, "model"), (sharded_loop, "model")]
SHARDED += [(sharded_branches, "model")]


@pytest.mark.parametrize("function, axis", thinned(SHARDED, "column_then_row-model"))
def test_arrays_may_be_sharded_by_explicit_axes(function, axis):
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        a = jax.device_put(W, P(None, axis))
        b = jax.device_put(TABLE, P(axis, None))
        assert_planned_as_plain(function, a, b, jax.device_put(X, P("data", None)))


# ------------------------------------------------------------------------------ references


def summed_in_layers(p, x):
    total = jax.new_ref(jnp.zeros_like(x))
    for _ in range(3):
        x = jnp.tanh(x @ p)
        total[...] += x
    return jnp.sum(jnp.sin(jax.freeze(total) @ p) ** 2)


def filled_in_a_loop(p, x):
    rows, count = jax.new_ref(jnp.zeros((5, *x.shape))), jax.new_ref(jnp.zeros((), jnp.int32))

    def body(n, x):
        x = jnp.tanh(x @ p)
        rows[n] = x
        count[...] += 1
        return x

    lax.fori_loop(0, 5, body, x)
    return jnp.sum((rows[...] @ p) ** 2), count[...]


def filled_in_branches(p, x):
    total = jax.new_ref(jnp.zeros_like(x))

    def some(x):
        total[...] += x
        return jnp.tanh(x @ p) @ p

    def others(x):
        total[0] = x[1]
        return jnp.sin(x @ p)

    for _ in range(3):
        x = lax.cond(x.sum() > 0, some, others, x)
    return jnp.sum(total[...] ** 2) + jnp.sum(product_with(TABLE)(x))


REFERENCES = [summed_in_layers, filled_in_a_loop, filled_in_branches]


@pytest.mark.parametrize(
    "function",
    thinned(REFERENCES, "filled_in_a_loop", "summed_in_layers"),
    ids=lambda f: f.__name__,
)
def test_a_function_may_make_references(function):
    assert_planned_as_plain(function, W, X, eager=False)  # JAX 0.11.2 takes no integers then


def test_references_of_others_are_recognised():
    given = jax.new_ref(X)

    def function(p, x):
        given[...] = lax.stop_gradient(x)
        return jnp.sum((x @ p) ** 2)

    assert mutable_references(flatten(jax.make_jaxpr(function)(W, X)))
    assert not mutable_references(flatten(jax.make_jaxpr(summed_in_layers)(W, X)))


@pytest.mark.parametrize(
    "function", thinned([in_layers, in_loop], "in_layers"), ids=lambda f: f.__name__
)
def test_gradients_may_be_added_to_references(function):
    f = flat(Case(function, (W, X)))
    plain = jax.grad(function, argnums=(0, 1))(W, X)

    def added(function):
        sums = jax.new_ref(jnp.zeros_like(W)), jax.new_ref(jnp.ones_like(X))
        _, pull = jax.vjp(lambda p, x: function(p, x)[0], W, X)
        pull.with_refs(*sums)(jnp.float32(1))
        return [jax.freeze(x) for x in sums]

    for made in random_emissions(f, 0, 2):
        of_p, of_x = jax.jit(lambda made=made: added(made.function))()
        assert_close((of_p, of_x - 1), plain)


# ------------------------------------------------------------------------------ weak types


def of_numbers(p, x):
    """Results of a weak type: from a literal, a Python number, a carry and what is stacked."""

    def body(state, _):
        x, scale = state
        return (jnp.tanh(x @ p), scale * 2), scale

    (x, scale), scales = lax.scan(body, (x, 1.0), length=4)
    return jnp.sum(x), scale, scales, jnp.asarray(2.0), jnp.exp(3.0)


def test_results_keep_their_weak_types():
    f = flat(Case(of_numbers, (W, X)))
    plain = jax.make_jaxpr(f.function)(W, X).out_avals
    assert [x.weak_type for x in plain] == [False, True, True, True, True]
    for made in random_emissions(f, 0, 2):
        assert jax.make_jaxpr(made.function)(W, X).out_avals == plain
        results = made.function(W, X)
        assert all(isinstance(x, jax.Array) for x in results)
        assert [x.weak_type for x in results] == [x.weak_type for x in plain]


@pytest.mark.parametrize("generator, once", [("threefry2x32", 0), ("rbg", 2), ("unsafe_rbg", 2)])
def test_only_threefry_draws_again(generator, once):
    def drawn(data):
        first, second = jax.random.split(jax.random.wrap_key_data(data, impl=generator))
        return jax.random.normal(second), jax.random.gamma(first, 2.0)

    program = flatten(jax.make_jaxpr(drawn)(jax.random.key_data(jax.random.key(0, impl=generator))))
    assert sum(map(must_run_once, program.equations)) == once
