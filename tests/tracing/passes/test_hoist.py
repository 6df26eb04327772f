"""What iterations share runs once before their loop, and gradients stay the same."""

import functools as ft
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from emission import assert_same, graph_and_stages, in_double
from jax import lax
from programs import array

import monet_jax
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir import compat
from monet_jax.planning import plan_search
from monet_jax.tracing.passes import hoist

WIDTH, BATCH, STEPS = 32, 16, 48


def joined(left, right):
    """Weights as LSTMs join them."""
    return jnp.concatenate([left, right], 1)


#: What an iteration makes of its weights, and the primitives of it that are hoisted.
BODIES = {
    "joined": (lambda a, b, h: h @ joined(a, b), {"concatenate"}),
    "made positive, then joined": (
        lambda a, b, h: h @ joined(jnp.exp(a), b),
        {"exp", "concatenate"},
    ),
    "a product of weights": (lambda a, b, h: h @ (a @ b.T), {"transpose", "dot_general"}),
    "cast": (
        lambda a, b, h: (h.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16)).astype(jnp.float32),
        {"convert_element_type"},
    ),
    "a view": (lambda a, b, h: h @ a @ b.T, set()),
    "larger than what it comes from": (lambda a, b, h: h @ joined(a, a), set()),
    "read by elementwise work only": (lambda a, b, h: h * jnp.exp(a[0]).sum(), set()),
    "carried": (lambda a, b, h: h @ joined(h[0, 0] * a, b), set()),
}


def loss_of(body):
    """A loss of two halves of a square matrix, and of what is carried and stacked."""

    def loss(a, b, h, xs):
        def step(h, x):
            return jnp.tanh(h + x + body(a, b, h).sum(-1, keepdims=True)), h[0]

        h, rows = lax.scan(step, h, xs)
        return jnp.mean(h**2) + jnp.mean(rows)

    return loss


ARGS = (
    array(0, WIDTH, WIDTH // 2),
    array(1, WIDTH, WIDTH // 2),
    array(2, BATCH, WIDTH),
    array(3, STEPS, BATCH, WIDTH),
)


@pytest.mark.parametrize("body", BODIES)
def test_what_a_compiler_would_write_out_is_hoisted(body):
    function, expected = BODIES[body]
    traced = trace_loss(loss_of(function), ARGS, resolve_target("cpu"))
    _, staged = graph_and_stages(traced, backend_of("cpu"))
    (loop,) = staged.loops
    found = [e.primitive for stage in loop.stages if stage.hoisted for e in stage.equations]
    assert {*found} == expected
    assert loop.hoists == bool(expected)


def lstm(left, right, bias, x):
    """Mean square of the last state of a cell that joins its weights at each step."""

    def cell(state, row):
        h, c = state
        z = jnp.concatenate([row, h], 1) @ jnp.concatenate([left, right]) + bias
        i, f, g, o = jnp.split(z, 4, 1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros_like(x[0])
    (h, _), _ = lax.scan(cell, (zeros, zeros), x)
    return jnp.mean(h**2)


LSTM_ARGS = (
    array(0, WIDTH, 4 * WIDTH),
    array(1, WIDTH, 4 * WIDTH),
    array(2, 4 * WIDTH),
    array(3, STEPS, BATCH, WIDTH),
)


def hoisting_plan(fun, *args, budget):
    """A plan by operators, though one without any might do in so small a loop."""
    with mock.patch.object(plan_search, "_without_operators", return_value=None):
        return monet_jax.plan(fun, *args, budget=budget, cache=False)


@ft.cache
def planned_lstm():
    """The LSTM in half of its temporaries."""
    free = monet_jax.compiled_bytes(jax.value_and_grad(lstm), *LSTM_ARGS)
    budget = free.total_bytes - free.temp_bytes // 2
    plan = hoisting_plan(lstm, *LSTM_ARGS, budget=budget)
    assert plan.decisions.flops > plan.base_flops
    assert plan.compiled_bytes <= budget
    return plan


def computed(jaxpr, inside=False):
    """Primitive, shape, and whether it is in a loop, of all that a step computes."""
    for eqn in jaxpr.jaxpr.eqns:
        primitive = compat.primitive_name(eqn)
        for var in eqn.outvars:
            yield primitive, getattr(var.aval, "shape", None), inside
        for inner in compat.subjaxprs(eqn):
            yield from computed(inner, inside or primitive in ("scan", "while"))


def joins(gradient, args=LSTM_ARGS):
    """How often a gradient joins weights in loops, and outside."""
    found = computed(jax.make_jaxpr(gradient)(*args))
    places = [place for *what, place in found if what == ["concatenate", (2 * WIDTH, 4 * WIDTH)]]
    return [places.count(True), places.count(False)]


@pytest.mark.slow
def test_a_loop_that_runs_again_joins_its_weights_once_forward_and_once_backward(monkeypatch):
    plan = planned_lstm()
    gradient = jax.value_and_grad(plan.apply(lstm), (0, 1, 2))
    assert joins(gradient) == [0, 2]
    plain = jax.value_and_grad(lstm, (0, 1, 2))
    ours, theirs = (jax.jit(f)(*LSTM_ARGS) for f in (gradient, plain))
    assert_same(ours, theirs, in_double(plain, LSTM_ARGS))
    rows = [r for r in plan.values if r.primitive == "concatenate" and r.shape[0] == 2 * WIDTH]
    assert [r.decision for r in rows] == ["recomputed"]

    monkeypatch.setattr(hoist, "hoisted", lambda body, consts: ((), ()))
    gradient = jax.value_and_grad(planned_lstm.__wrapped__().apply(lstm), (0, 1, 2))
    assert joins(gradient)[0] > 0


@pytest.mark.slow
def test_frozen_weights_have_no_gradient_for_being_joined():
    def frozen(bias, left, right, x):
        return lstm(left, right, bias, x)

    left, right, *others = LSTM_ARGS
    args = others[0], left, right, others[1]
    free = monet_jax.compiled_bytes(jax.value_and_grad(frozen), *args)
    budget = free.total_bytes - free.temp_bytes // 3
    gradient = jax.grad(hoisting_plan(frozen, *args, budget=budget).apply(frozen))
    assert joins(gradient, args) == [0, 2]

    def products(gradient, args):
        found = computed(jax.make_jaxpr(gradient)(*args))
        return {shape for primitive, shape, _ in found if primitive == "dot_general"}

    of_weights = {(2 * WIDTH, 4 * WIDTH), (4 * WIDTH, 2 * WIDTH)}
    assert products(gradient, args).isdisjoint(of_weights)
    trained = jax.grad(planned_lstm().apply(lstm), (0, 1))
    assert not products(trained, LSTM_ARGS).isdisjoint(of_weights)


def summed(weights, xs, of_step=lambda weights: weights.astype(jnp.bfloat16)):
    """A sum over many iterations, each of which rounds its weights to 16 bits."""

    def step(total, x):
        z = x.astype(jnp.bfloat16) @ of_step(weights)
        return total + jnp.sum(jnp.tanh(z.astype(jnp.float32))), None

    return lax.scan(step, 0.0, xs)[0]


def hoisted_by_hand(weights, xs):
    """The same; a sum of gradients of the rounded weights is rounded again at each step."""
    return summed(weights.astype(jnp.bfloat16), xs, lambda weights: weights)


def test_gradients_are_added_up_in_the_precision_of_the_constants():
    args = array(0, 16, 16), 0.5 + 0.1 * array(1, 1024, 16, 16)
    free = monet_jax.compiled_bytes(jax.value_and_grad(summed), *args)
    budget = free.total_bytes - free.temp_bytes // 2
    plan = monet_jax.plan(summed, *args, budget=budget, cache=False)
    ours, plain, other = (
        jax.jit(jax.grad(f))(*args) for f in (plan.apply(summed), summed, hoisted_by_hand)
    )
    scale = 2e-3 * jnp.linalg.norm(plain)
    assert jnp.linalg.norm(ours - plain) < scale < jnp.linalg.norm(other - plain)
