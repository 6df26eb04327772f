"""Plans that are made ahead are the ones that calls find."""

import jax
import jax.numpy as jnp
import pytest

import monet_jax

OPTIONS = {"budget": 0.6, "max_compilations": 2}
WEIGHTS = [jnp.eye(64) / 8] * 4


def loss(weights, x):
    for w in weights:
        x = x + jnp.sin(jnp.sin(x @ w) @ w)
    return jnp.mean(x**2)


def calls(*sizes):
    return [(WEIGHTS, jax.ShapeDtypeStruct((rows, 64), jnp.float32)) for rows in sizes]


def test_a_planned_function_finds_its_plans(tmp_path, monkeypatch):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    made = monet_jax.warm(monet_jax.remat(loss, **OPTIONS), calls(256, 128))
    assert [plan.is_cached for plan in made] == [False, False]
    again = monet_jax.remat(loss, **OPTIONS)  # as another process has it
    for args, plan in zip(calls(256, 128), made, strict=True):
        found = monet_jax.plan(again, *args)
        assert found.is_cached and found.decisions == plan.decisions
    fresh = monet_jax.remat(loss, budget=0.7, max_compilations=2)
    assert not monet_jax.plan(fresh, *calls(512)[0]).is_cached
    assert repr(fresh) == "<rematerialized loss, budget=0.7>"


def test_a_step_finds_its_plans(tmp_path, monkeypatch):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))

    def step(weights, x):
        return monet_jax.value_and_grad(loss)(weights, x)

    (made,) = monet_jax.warm(monet_jax.jit(step, **OPTIONS), calls(512))
    assert not made.is_cached and made.plans
    assert monet_jax.plan(monet_jax.jit(step, **OPTIONS), *calls(512)[0]).is_cached


def test_what_cannot_be_planned_ahead():
    with pytest.raises(TypeError, match="needs a budget"):
        monet_jax.warm(loss, calls(512))
    with pytest.raises(TypeError, match=r"must be a tuple of arguments.*got a list"):
        monet_jax.warm(loss, [list(calls(512)[0])], **OPTIONS)
    with pytest.raises(ValueError, match="cannot be given with a function of"):
        monet_jax.warm(monet_jax.remat(loss, **OPTIONS), calls(512), operators="none")
