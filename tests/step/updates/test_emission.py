"""Steps whose updates are in order, with state on the host, are JAX's; and take fewer bytes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compilers import foreign_target
from hosted import HOST, kinds, layout_of, movable, placed, small_counts
from steps import STEPS, assert_close, plain
from thinning import thinned

import monet_jax
from monet_jax.step.updates import emission
from monet_jax.step.updates.emission import with_layout
from monet_jax.step.updates.layout import UpdateLayout
from monet_jax.step.updates.placement import placed_specs


def laid_out(step, layout):
    return jax.jit(lambda *args: with_layout(step, args, {}, layout), donate_argnums=0)


@pytest.mark.parametrize(
    "name", thinned(["clipped", "adversarial", "every_second"], "clipped", "every_second")
)
def test_three_steps_are_those_of_jax(name, monkeypatch):
    small_counts(monkeypatch)
    case = STEPS[name]()
    layout = layout_of(case)
    state, expected = placed(case, layout), case.fresh()
    step, plain_step = laid_out(case.make(jax), layout), case.plain
    for _ in range(3):
        state, metrics = step(state, case.batch)
        expected, expected_metrics = plain_step(expected, case.batch)
    assert kinds(state).count(HOST) == len(layout.on_host)
    assert_close((state, metrics), (expected, expected_metrics), case.tolerance)


def test_the_state_comes_back_bit_for_bit(monkeypatch):
    """Factors that are powers of two round nothing, however XLA fuses them."""
    small_counts(monkeypatch)
    case = plain(optax.sgd(0.25, momentum=0.5))
    layout = layout_of(case)
    assert len(layout.on_host) == 3
    state, expected = placed(case, layout), case.fresh()
    step, plain_step = laid_out(case.make(jax), layout), case.plain
    for _ in range(3):
        (state, _), (expected, _) = step(state, case.batch), plain_step(expected, case.batch)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(a, b)


def test_static_arguments_are_those_that_were_given():
    marker = object()

    def step(scale, x, kept):
        assert kept is marker
        return scale["by"] * x

    run = jax.jit(
        lambda scale, x, kept: with_layout(step, (scale, x, kept), {}, UpdateLayout(True)),
        static_argnames="kept",
    )
    assert run({"by": 2.0}, jnp.ones(()), marker) == 2.0


# ---------------------------------------------------------------- bytes, by the compiler

# A weight has more bytes than the workspace of a product.
WIDTH, LAYERS = 2048, 6
ADAMW = optax.adamw(1e-3)


def stage(x, w):
    return x + jnp.tanh(x @ w[0]) @ w[1]


def deep_step(state, x):
    """Layers whose backward recomputes them one by one, as in a planned step, and AdamW."""

    def deep_loss(params):
        y = x
        for w in params:
            y = jax.checkpoint(stage)(*jax.lax.optimization_barrier((y, w)))
        return jnp.mean(y**2)

    gradient = jax.grad(deep_loss)(state[0])
    updates, inner = ADAMW.update(gradient, state[1], state[0])
    return optax.apply_updates(state[0], updates), inner


SPEC = functools.partial(jax.ShapeDtypeStruct, dtype="float32")
PARAMS = [(SPEC((WIDTH, 4 * WIDTH)), SPEC((4 * WIDTH, WIDTH)))] * LAYERS
LEAF = WIDTH * 4 * WIDTH * 4


def temporaries(target, layout, run=laid_out):
    state = PARAMS, jax.eval_shape(ADAMW.init, PARAMS)
    args, _ = placed_specs(((state, SPEC((2 * WIDTH, WIDTH))), {}), layout)
    found = monet_jax.compiled_bytes(run(deep_step, layout), *args, target=target)
    assert found.argument_bytes < (6 * LAYERS + 1) * LEAF - layout.host_bytes
    return found.temp_bytes


@pytest.mark.parametrize("target", [foreign_target("gpu:h100")])
def test_updates_in_order_free_gradients_and_one_state_at_a_time_is_on_the_device(
    target, monkeypatch
):
    state = PARAMS, jax.eval_shape(ADAMW.init, PARAMS)
    layout = UpdateLayout(True, movable(deep_step, state, SPEC((2 * WIDTH, WIDTH))))
    assert layout.host_bytes == 4 * LAYERS * LEAF
    plain_step = jax.jit(deep_step, donate_argnums=0)
    as_traced = temporaries(target, UpdateLayout(), run=lambda *_: plain_step)
    ordered = temporaries(target, UpdateLayout(True))
    assert ordered < as_traced - (LAYERS - 1) * LEAF
    assert temporaries(target, layout) <= ordered + 4 * LEAF
    monkeypatch.setattr(emission, "barrier", lambda values: values)
    assert temporaries(target, layout) > ordered + 2 * LAYERS * LEAF
