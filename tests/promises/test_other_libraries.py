"""Equinox and Haiku models train through the plain decorator as without it.

A stand-in plans: it recomputes all it can, and no program is compiled.
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from networks import assert_same, recomputes
from networks import planning_calls as planning_calls

import monet_jax

planned = ft.partial(monet_jax.remat, budget=0.5, cache=False)
X = jax.random.normal(jax.random.key(3), (8, 4))


def trained(loss, params, state, steps=3):
    """Losses, parameters and state after some steps of AdamW."""
    optimizer = optax.adamw(1e-2, eps=1e-3)

    @jax.jit
    def step(params, state, samples, key):
        (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(params, state, key)
        updates, samples = optimizer.update(gradient, samples, params)
        return value, optax.apply_updates(params, updates), state, samples

    losses, samples = [], optimizer.init(params)
    for n in range(steps):
        key = jax.random.fold_in(jax.random.key(7), n)
        value, params, state, samples = step(params, state, samples, key)
        losses.append(value)
    return losses, params, state


def check(loss, params, state):
    lean, key = planned(loss), jax.random.key(0)
    assert recomputes(jax.grad(lambda p: lean(p, state, key)[0]), params)
    got, plain = trained(lean, params, state), trained(loss, params, state)
    assert_same(got, plain)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(got[2]), strict=True):
        assert not np.array_equal(before, after)
    assert (
        got[0][0] != trained(lambda p, s, key: loss(p, s, jax.random.key(1)), params, state)[0][0]
    )


def test_equinox(planning_calls):
    """A partitioned model with static parts, statistics and dropout."""
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        last: eqx.nn.Linear
        dropout: eqx.nn.Dropout
        act: object

        def __init__(self, key):
            first, last = jax.random.split(key)
            self.first, self.last = eqx.nn.Linear(4, 16, key=first), eqx.nn.Linear(16, 4, key=last)
            self.norm = eqx.nn.BatchNorm(16, axis_name="batch", mode="batch")
            self.dropout, self.act = eqx.nn.Dropout(0.5), jnp.sin

        def __call__(self, x, state, key):
            x, state = self.norm(self.act(self.first(x)), state)
            return self.last(self.dropout(self.act(x), key=key)), state

    model, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, state, key):
        model, keys = eqx.combine(params, static), jax.random.split(key, len(X))
        batched = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        out, state = batched(X, state, keys)
        return jnp.mean(out**2), state

    check(loss, params, state)


@pytest.mark.slow
def test_haiku(planning_calls):
    """A transformed function with parameters, state and random keys."""
    hk = pytest.importorskip("haiku")

    def forward(x):
        x = hk.Linear(16, with_bias=False)(x)  # BatchNorm would take a bias away again
        x = jnp.sin(hk.BatchNorm(True, True, 0.9)(x, is_training=True))
        return hk.Linear(4)(hk.dropout(hk.next_rng_key(), 0.5, x))

    model = hk.transform_with_state(forward)
    params, state = model.init(jax.random.key(0), X)

    def loss(params, state, key):
        out, state = model.apply(params, state, key, X)
        return jnp.mean(out**2), state

    check(loss, params, state)
    paths = {str(e.name_stack) for e in planning_calls[0].program.equations}
    assert any("linear_1" in path for path in paths)
