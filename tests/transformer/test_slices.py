"""A loop that rounds the slices that it casts: the same bits, and no cast of the whole."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import foreign_target

import monet_jax
from monet_jax import zoo
from monet_jax.analyzer.pins import Pins
from monet_jax.analyzer.step_costs import step_costs
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.seconds.attained import modelled
from monet_jax.tracing import trace
from monet_jax.transformer import slices
from monet_jax.transformer.transform import transform

BFLOAT16 = jnp.bfloat16


def layers(weights, x):
    """Layers in bfloat16 under a scan, of weights in float32."""

    def layer(x, some):
        for w in some:
            x = x + jnp.tanh(x @ w.astype(x.dtype))
        return x, None

    return jnp.mean(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2)


def others(weights, x):
    """The same, where each slice is read or cast otherwise as well."""

    def layer(x, some):
        a, b, c = some
        x = x + jnp.tanh(x @ a.astype(x.dtype) + jnp.max(a).astype(x.dtype))
        x = x @ b.astype(jnp.float16).astype(x.dtype) + x @ c.astype(x.dtype)
        return x, -c

    x, c = jax.lax.scan(layer, x, weights)
    return jnp.mean(x.astype(jnp.float32) ** 2) + jnp.mean(c)


def specs(width, rows, depth=8):
    weights = jax.ShapeDtypeStruct((depth, width, width), jnp.float32)
    return [weights] * 3, jax.ShapeDtypeStruct((rows, width), BFLOAT16)


def traced_as(loss, args, name, monkeypatch, rounds):
    """A loss, traced as if its compiler cast before loops, or did not."""
    other = dataclasses.replace(backend_of(name), casts_before_loops=rounds)
    monkeypatch.setattr(trace, "backend_of", lambda target: other)
    return trace_loss(loss, args, resolve_target(name))


def saving_nothing(traced, name):
    """The smallest plan of a loss, its bytes, and its function."""
    target = resolve_target(name)
    plans = compiled_plans_of(traced, target, Pins())
    plan = plans.calibration_plan
    return plans.of(plan).figures.temp_bytes, transform(traced.staged(), plan)


def roundings(function, args):
    jaxpr = str(jax.make_jaxpr(function)(*args))
    return jaxpr.count("reduce_precision")


@pytest.mark.parametrize(("loss", "is_rounded"), [(layers, True), (others, False)])
def test_values_and_gradients_are_the_same_bits(loss, is_rounded, monkeypatch):
    weights, x = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), specs(16, 4, depth=3))
    rng = np.random.default_rng(0)
    for w in weights:
        w[:] = rng.normal(size=w.shape) / 4
        w[:, :2] *= 1e-38  # whose casts are denormal
        w[:, 2] = np.float32(1 + 2**-8)  # halfway between two of bfloat16
    args = [*weights, jnp.asarray(rng.normal(size=x.shape), x.dtype)]
    found = []
    for rounds in (True, False):
        traced = traced_as(loss, (weights, args[-1]), "cpu", monkeypatch, rounds)
        _, planned = saving_nothing(traced, "cpu")

        def value(*args, planned=planned, traced=traced):
            return planned(args, traced.constants)[0]

        gradient = jax.value_and_grad(value, argnums=tuple(range(len(args))))
        assert bool(roundings(gradient, args)) == (rounds and is_rounded)
        found.append(jax.tree.leaves(jax.jit(gradient)(*args)))
    for ours, other in zip(*found, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(other))
        assert np.any(ours)


@pytest.mark.parametrize("name", [foreign_target("tpu:v5e")])
def test_a_tpu_casts_no_whole_stack(name, monkeypatch):
    """Three of 64 MiB each, where a step that saves nothing keeps 16 of the loop's carries."""
    args = specs(2048, 512)
    with_rounding, without = (
        saving_nothing(traced_as(layers, args, name, monkeypatch, rounds), name)[0]
        for rounds in (True, False)
    )
    assert without - with_rounding >= 3 * 64 * 2**20


@pytest.mark.parametrize(
    ("shape", "keeps_order"), [((16, 256), True), ((16, 8, 64), False), ((256,), False)]
)
def test_a_slice_keeps_the_layout_of_a_whole_that_no_tile_pads(shape, keeps_order):
    def constraints(tile):
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        return str(jax.make_jaxpr(lambda x: slices.rounded(x, tile))(x)).count("layout_constraint")

    assert constraints((8, 128)) == keeps_order
    assert constraints(None) == 0


def test_keeping_the_layout_takes_no_time():
    def seconds(tile):
        function, x = lambda x: jnp.sum(slices.rounded(x, tile)), jnp.ones((64, 256))
        target = "tpu:v5e"
        return step_costs(
            function, [x], modelled(resolve_target(target)), backend_of(target)
        ).seconds

    assert seconds((8, 128)) == seconds(None) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [foreign_target("tpu:v5e")])
def test_a_tpu_keeps_no_stack_in_another_layout(name, monkeypatch):
    """Of 27 and 9 MiB, where iterations have several plans."""
    problem = zoo.build("llama", scale="bench", dtype="bfloat16")
    plain = monet_jax.plan(problem.loss, *problem.args, budget="1TiB", target=name)
    temps = plain.unplanned_bytes - plain.fixed_bytes
    budget = plain.fixed_bytes + int(0.12 * temps)
    plan = monet_jax.plan(problem.loss, *problem.args, budget=budget, target=name)

    def temp_bytes():
        step = jax.value_and_grad(plan.apply(problem.loss), has_aux=True)
        return monet_jax.compiled_bytes(step, *problem.args, target=name).temp_bytes

    as_planned = temp_bytes()
    monkeypatch.setattr(slices, "with_layout_constraint", lambda x, layout: x)
    assert temp_bytes() - as_planned >= 36 * 10**6
