"""What the model counts of gathers, loops and sums is what the compilers keep of them."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from compilers import foreign_target

import planners
from monet_jax.analyzer import analyze, builder, joint
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler import backend, buffer_model
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning import judge
from monet_jax.planning.judge import compiled_plans_of

ON_A_GPU = pytest.mark.parametrize("name", [foreign_target("gpu:h100")])


def spec(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def cross_entropy(x, labels):
    """Logits in bfloat16, the loss in float32."""
    logits = jax.nn.softmax(x).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[:, None], -1)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen[:, 0])


def tied(w, x):
    """A large weight that two stages read."""
    narrow = w.astype(x.dtype)
    x = jnp.tanh(jnp.tanh(x @ narrow) @ narrow.T)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def looped(w, slices):
    """A loop with a derivative of its own, which computes the gradient at once."""

    def one(w, x):
        return jnp.sum(jnp.sin(x @ w) @ jnp.cos(x @ w).T)

    def forward(w, slices):
        def step(totals, x):
            value, gradient = jax.value_and_grad(one)(w, x)
            return (totals[0] + value, totals[1] + gradient), None

        start = jnp.zeros(()), jnp.zeros_like(w)
        return jax.lax.scan(step, start, slices)[0]

    loss = jax.custom_vjp(lambda w, slices: forward(w, slices)[0])
    loss.defvjp(forward, lambda gradient, ct: (ct * gradient, None))
    return loss(jnp.tanh(w), slices)


def off(loss, args, name, whole=True):
    """By how much the model misses the compiled temporaries of saving all, or nothing."""
    target = resolve_target(name)
    plans = compiled_plans_of(trace_loss(loss, args, target), target, Pins())
    nothing = plans.calibration_plan
    decisions = planners.save_all(plans.judge.graph) if whole else nothing
    figures = plans.unplanned if whole else plans.of(nothing).figures
    assert figures is not None
    return plans.model.modelled(decisions.regions, plans.judge.graph) / figures.temp_bytes - 1


LABELLED = spec(512, 8192, dtype=jnp.bfloat16), spec(512, dtype=jnp.int32)


@ON_A_GPU
def test_a_gather_computes_what_it_takes(name, monkeypatch):
    """Logits are not widened as a whole for the label's."""
    assert abs(off(cross_entropy, LABELLED, name)) < 0.02
    other = dataclasses.replace(backend.backend_of(name), fuses_into_gathers=False)
    monkeypatch.setattr(judge, "backend_of", lambda target: other)
    assert off(cross_entropy, LABELLED, name) > 0.3


def test_a_loop_takes_what_its_body_keeps(monkeypatch):
    args = spec(512, 512), spec(4, 1024, 512)
    assert abs(off(looped, args, "cpu")) < 0.15
    monkeypatch.setattr(joint, "_temporary_bytes", lambda body, backend: 0)
    assert off(looped, args, "cpu") < -0.8


def layers(weights, x):
    """Iterations whose derivative reads values that no product or reduction writes."""

    def layer(x, w):
        y = jax.nn.softmax(x @ w)
        return x + jnp.tanh(y * jnp.exp(-y)) * y, None

    return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)


@pytest.mark.parametrize("name", ["cpu", foreign_target("gpu:h100")])
def test_a_loop_stacks_all_that_jax_saves(name, monkeypatch):
    args = spec(8, 256, 256), spec(8192, 256)
    assert abs(off(layers, args, name)) < 0.15
    monkeypatch.setattr(analyze, "with_stacks", lambda graph, *_: graph)
    assert off(layers, args, name) < -0.3


TIED = {
    "cpu": (spec(2048, 1024), spec(8, 2048)),
    # Beside it, the workspace of a product (32 MiB at most) is no matter.
    "gpu:h100": (spec(8192, 4096), spec(8, 8192, dtype=jnp.bfloat16)),
}


@pytest.mark.parametrize("name", ["cpu", foreign_target("gpu:h100")])
def test_a_sum_of_gradients_lies_in_the_memory_of_the_result(name, monkeypatch):
    assert abs(off(tied, TIED[name], name, whole=False)) < 0.1
    if name == "cpu":  # products write terms of their own
        monkeypatch.setattr(buffer_model, "begun_in_results", lambda buffers, _: buffers)
    else:  # and here, what is widened to float32 is computed in the sum
        monkeypatch.setattr(builder, "fused_into_sums", lambda joint: set())
    assert off(tied, TIED[name], name, whole=False) > 0.3
