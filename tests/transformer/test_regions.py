"""What a region saves is in memory once, in whatever shape it is read."""

import jax
import jax.numpy as jnp
import pytest

import monet_jax
from monet_jax.transformer import names

MATRIX, ROW = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.float32)
BATCH = jax.ShapeDtypeStruct((64, 16, 64), jnp.float32)


def layers(params, x):
    """Products of what has three axes, which are flattened; the masks are read as they were."""
    for matrix, row in params:
        x = jax.nn.relu(x @ matrix + row)
    return jnp.sum(x**2)


@pytest.fixture(scope="module")
def planned():
    """By the model alone, at two thirds of what the function takes as it is."""
    args = [(MATRIX, ROW)] * 8, BATCH
    return args, monet_jax.plan(layers, *args, budget=0.66, verify=False, cache=False)


def compiled(planned):
    args, plan = planned
    step = jax.value_and_grad(plan.apply(layers))
    return monet_jax.compiled_bytes(step, *args).total_bytes


def test_a_saved_value_that_is_flattened_is_written_once(planned):
    assert compiled(planned) <= 1.05 * planned[1].predicted_bytes


def test_without_a_barrier_it_is_written_twice(planned, monkeypatch):
    monkeypatch.setattr(names, "written_once", lambda value: value)
    assert compiled(planned) > 1.3 * planned[1].predicted_bytes
