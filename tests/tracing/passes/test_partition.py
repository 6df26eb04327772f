"""Cuts: networks whose long-lived values are sums and products that XLA would rather fuse."""

import jax
import jax.numpy as jnp
import pytest

import monet_jax
from monet_jax.compiler.targets import resolve_target
from monet_jax.tracing.trace import trace_for

LAYERS, TOKENS, WIDTH = 6, 1024, 32
CPU = resolve_target("cpu")


def convolved(x, kernel):
    """A causal convolution over the middle axis."""
    padded = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))
    dimensions = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(padded, kernel, (1,), "VALID", dimension_numbers=dimensions)


def layer(carry, weights):
    """One of a WaveNet: both the network and the sum of its skips run on."""
    h, skips = carry
    gate, filtered, out, skip = weights
    z = jnp.tanh(convolved(h, filtered)) * jax.nn.sigmoid(convolved(h, gate))
    return h + z @ out, skips + z @ skip


def wavenet(layer):
    def loss(params, x):
        carry = x, jnp.zeros_like(x)
        for weights in params:
            carry = layer(carry, weights)
        return jnp.mean(jnp.square(carry[1]))

    return loss


def normal(*shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(k, s) / s[-1] ** 0.5 for k, s in zip(keys, shapes, strict=True)]


def bytes_of(loss, *args):
    return monet_jax.compiled_bytes(jax.value_and_grad(loss), *args, target="cpu")


def normalized(x):
    x = x - jnp.mean(x, -1, keepdims=True)
    return x / jnp.sqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    ("between", "last"),
    [
        (lambda z: normalized(jax.nn.gelu(z)), "dot_general"),  # writing the gelu would be more
        (jax.nn.gelu, "mul"),  # the next product's operand: in memory anyway
    ],
)
def test_stages_end_with_what_is_in_memory_anyway(between, last):
    def loss(weights, x):
        for w in weights:
            x = between(x @ w)
        return jnp.sum(x)

    staged = trace_for(CPU, loss, (normal(*[(32, 32)] * 4), *normal((64, 32)))).staged()
    assert len(staged.stages) > 2
    for stage in staged.stages[:-1]:
        (writer,) = (e for e in stage.equations if {*e.outputs} & {*stage.outputs})
        assert writer.primitive == last


@pytest.mark.slow
def test_running_sums_cost_no_more_than_a_checkpoint_of_each_layer():
    kernel, matrix = (2, WIDTH, WIDTH), (WIDTH, WIDTH)
    params = [normal(kernel, kernel, matrix, matrix) for _ in range(LAYERS)]
    (x,) = normal((4, TOKENS, WIDTH))
    theirs = bytes_of(wavenet(jax.checkpoint(layer)), params, x).total_bytes
    assert theirs < 0.8 * bytes_of(wavenet(layer), params, x).total_bytes
    plan = monet_jax.plan(wavenet(layer), params, x, budget=theirs, target="cpu", cache=False)
    assert plan.compiled_bytes <= theirs


@pytest.mark.slow
def test_values_that_wait_for_a_second_derivative_are_seen_at_cuts():
    """The residual of a network's Laplacian: what the first pass leaves, the second reads last."""
    weights = normal((2, 64), (64, 64), (64, 64), (64, 1))
    (points,) = normal((1000, 2))

    def network(weights, x):
        for w in weights[:-1]:
            x = jnp.sin(x @ w)
        return (x @ weights[-1])[0]

    def loss(weights, points):
        def laplacian(x):
            return jnp.trace(jax.hessian(network, 1)(weights, x))

        return jnp.mean(jnp.square(jax.vmap(laplacian)(points)))

    plan = monet_jax.plan(loss, weights, points, budget=0.7, target="cpu", cache=False)
    assert plan.compiled_bytes <= plan.budget_bytes < 0.8 * plan.unplanned_bytes
