"""Updates that run in loops over rows are JAX's, and the bytes on the device are those of rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from compilers import foreign_target
from hosted import HOST, kinds, layout_of, movable, placed, small_counts
from steps import STEPS, assert_close, loss, updated
from thinning import thinned

import monet_jax
from monet_jax.step.updates import rows
from monet_jax.step.updates.emission import with_layout
from monet_jax.step.updates.layout import UpdateLayout
from monet_jax.step.updates.placement import placed_specs


def in_rows(layout):
    return dataclasses.replace(layout, in_rows=True)


def loops(step, layout, *arguments) -> int:
    """How many loops a step has in which its updates run."""
    traced = jax.make_jaxpr(lambda *args: with_layout(step, args, {}, layout))
    args, _ = placed_specs((jax.eval_shape(lambda *x: x, *arguments), {}), layout)
    return sum(eqn.primitive.name == "scan" for eqn in traced(*args).jaxpr.eqns)


@pytest.mark.parametrize("name", thinned(["clipped", "averaged"], "averaged"))
def test_two_steps_are_those_of_jax(name, monkeypatch):
    small_counts(monkeypatch)
    monkeypatch.setattr(rows, "SLICE", 1024)  # a quarter of a leaf
    case = STEPS[name]()
    layout = in_rows(layout_of(case))
    step = case.make(jax)
    run = jax.jit(lambda *args: with_layout(step, args, {}, layout), donate_argnums=0)
    state, expected = placed(case, layout), case.fresh()
    for _ in range(2):
        state, metrics = run(state, case.batch)
        expected, expected_metrics = case.plain(expected, case.batch)
    assert kinds(state).count(HOST) == len(layout.on_host)
    assert_close((state, metrics), (expected, expected_metrics), case.tolerance)
    assert loops(step, layout, case.state, case.batch) == 3


def test_small_leaves_and_updates_that_mix_rows_run_whole(monkeypatch):
    small_counts(monkeypatch)
    case = STEPS["plain"]()
    assert loops(case.make(jax), in_rows(layout_of(case)), case.state, case.batch) == 0
    monkeypatch.setattr(rows, "SLICE", 1024)
    mixing = optax.chain(
        optax.trace(0.9), optax.stateless(lambda u, p: jax.tree.map(lambda x: x @ x, u))
    )

    def step(state, x):
        return updated(mixing, state, jax.grad(loss)(state[0], x)), ()

    state = case.state[0], mixing.init(case.state[0])
    layout = in_rows(UpdateLayout(True, movable(step, state, case.batch)))
    assert len(layout.on_host) == 3 and loops(step, layout, state, case.batch) == 0


WIDTH, LAYERS = 2048, 3
ADAMW = optax.adamw(1e-3)
SPEC = functools.partial(jax.ShapeDtypeStruct, dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("target", [foreign_target("gpu:h100")])
def test_rows_of_the_state_are_on_the_device(target):
    def deep_step(state, x):
        def deep_loss(params):
            y = x
            for w in params:
                y = y + jnp.tanh(y @ w)
            return jnp.mean(y**2)

        return updated(ADAMW, state, jax.grad(deep_loss)(state[0]))

    params = [SPEC((WIDTH, WIDTH))] * LAYERS
    state, x = (params, jax.eval_shape(ADAMW.init, params)), SPEC((64, WIDTH))
    whole = UpdateLayout(True, movable(deep_step, state, x))

    def temporaries(layout):
        args, _ = placed_specs(((state, x), {}), layout)
        run = jax.jit(lambda *args: with_layout(deep_step, args, {}, layout), donate_argnums=0)
        return monet_jax.compiled_bytes(run, *args, target=target).temp_bytes

    leaf = WIDTH * WIDTH * 4
    assert temporaries(in_rows(whole)) <= temporaries(whole) - leaf
