"""Static arguments are seen as they are, also without a hash, or changed between calls."""

import enum
import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import assert_same
from networks import planning_calls as planning_calls
from thinning import thinned

import monet_jax
from monet_jax.tracing.signature import make_options, take_apart

planned = ft.partial(monet_jax.remat, budget=0.5, cache=False)
W = jax.random.normal(jax.random.key(0), (8, 8)) / 3
X = jax.random.normal(jax.random.key(1), (4, 8))


class Mode(enum.Enum):
    """A static argument."""

    MEAN = "mean"


def loss(w, x):
    """A few layers."""
    for _ in range(3):
        x = jnp.sin(x @ w)
    return jnp.sum(x**2)


@pytest.mark.parametrize(
    "options",
    thinned(
        [pytest.param({}, id="found"), pytest.param({"static_argnums": 2}, id="said")], "found"
    ),
)
def test_a_static_value_without_a_hash_is_never_stale(options, planning_calls):
    class Config:
        __hash__ = None
        power = 1.0

    def scaled(w, x, config):
        return config.power * loss(w, x)

    fun, config = planned(scaled, **options), Config()
    steps = jax.grad(fun), jax.jit(jax.grad(lambda w, x: fun(w, x, config)))
    for power in (1.0, 2.0, 3.0):
        config.power = power  # the same object, changed
        expected = jax.grad(scaled)(W, X, config)
        assert_same(steps[0](W, X, config), expected)
        jax.clear_caches()  # JAX's own hold the jitted function as it was
        assert_same(steps[1](W, X), expected)
    assert len(planning_calls) == 1


def test_objects_without_a_hash_are_static(planning_calls):
    def named(w, x, names, sizes=()):
        return loss(w, x) * len(names) * len(sizes)

    given = W, X, np.array(["a", "b"])
    assert_same(jax.grad(planned(named))(*given, sizes="abc"), jax.grad(named)(*given, "abc"))
    fun = planned(named, static_argnames=("names", "sizes"))
    assert_same(jax.grad(fun)(*given, [1, 2]), jax.grad(named)(*given, [1, 2]))
    assert_same(jax.grad(fun)(*given, {"a": [1]}), jax.grad(named)(*given, {"a": [1]}))
    assert planning_calls


@pytest.mark.parametrize(
    ("static", "is_final"),
    [
        ("text", True),
        (np.dtype("float32"), True),
        ((jnp.float32, jax.nn.relu, slice(0, 2)), True),
        (Mode.MEAN, True),
        (object(), False),
        ((1, object()), False),
        ([1], False),
    ],
)
def test_traces_may_be_shared_where_nothing_static_can_change(static, is_final):
    options = make_options(lambda w, static: w, 0, 1, ())
    assert take_apart(options, (W, static), {}).is_final == is_final
