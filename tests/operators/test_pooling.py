"""Pooling by indices returns what pooling returns, and its gradient reads indices alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_operators import rewritten
from jax import lax
from thinning import thinned

from monet_jax.compiler.backend import Backend, backend_of
from monet_jax.ir import compat

#: Window, strides, padding, window dilation.
WINDOWS = [
    ((2, 2), (2, 2), "VALID", (1, 1)),
    ((3, 3), (2, 2), "SAME", (1, 1)),
    ((3, 2), (1, 1), ((1, 0), (2, 3)), (1, 1)),
    ((1, 3), (1, 2), "VALID", (1, 2)),
]


def _pool(combine, window, strides, padding, spread=None):
    worst = -jnp.inf if combine is lax.max else jnp.inf

    def pool(x):
        initial = np.array(worst, x.dtype)
        return lax.reduce_window(x, initial, combine, window, strides, padding, None, spread)

    return pool


def _rewritten(function, *args):
    return rewritten("pool", Backend(), function, *args)


def _with_ties(dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).integers(0, 4, (9, 7)), dtype)


def _primitives(program):
    return {e.primitive for e in program.equations}


@pytest.mark.parametrize("combine", [lax.max, lax.min])
@pytest.mark.parametrize("dtype", thinned([jnp.float32, jnp.bfloat16], "float32"))
@pytest.mark.parametrize("window", WINDOWS)
def test_values_are_those_of_jax(combine, dtype, window):
    x = _with_ties(dtype)
    pool = _pool(combine, *window)
    ours, program = _rewritten(pool, x)
    assert not any(name.startswith("reduce_window") for name in _primitives(program))
    np.testing.assert_array_equal(ours(x), pool(x))


@pytest.mark.parametrize("combine", [lax.max, lax.min])
@pytest.mark.parametrize("window", [w for w in WINDOWS if w[-1] == (1, 1)])
def test_gradients_go_to_the_first_of_equals_as_in_jax(combine, window):
    """Whole numbers, so that sums over overlapping windows are exact in any order."""
    x = _with_ties()
    pool = _pool(combine, *window)
    ours, _ = _rewritten(pool, x)
    cotangent = jnp.arange(pool(x).size, dtype=jnp.float32).reshape(pool(x).shape)
    (got,), (want,) = (jax.vjp(f, x)[1](cotangent) for f in (ours, pool))
    np.testing.assert_array_equal(got, want)


def test_no_number_is_passed_on_like_in_jax():
    x = _with_ties().at[2, 3].set(jnp.nan)
    pool = _pool(lax.max, *WINDOWS[1])
    ours, _ = _rewritten(pool, x)
    assert np.isnan(ours(x)).any()
    np.testing.assert_array_equal(ours(x), pool(x))


@pytest.mark.parametrize("x, window", [(_with_ties(jnp.int32), (2, 2)), (_with_ties(), (9, 8))])
def test_whole_numbers_and_large_windows_stay_as_they_are(x, window):
    low = jnp.iinfo(x.dtype).min if x.dtype == jnp.int32 else -jnp.inf
    initial = np.array(low, x.dtype)
    _, program = _rewritten(
        lambda x: lax.reduce_window(x, initial, lax.max, window, (1, 1), "SAME"), x
    )
    assert _primitives(program) == {"reduce_window_max"}


def test_all_that_replaces_an_equation_stands_for_its_module_and_its_line():
    def function(x):
        with jax.named_scope("pools"):
            return _pool(lax.max, *WINDOWS[0])(x)

    x = _with_ties()
    (eqn,) = jax.make_jaxpr(function)(x).jaxpr.eqns
    _, program = _rewritten(function, x)
    assert {str(e.name_stack) for e in program.equations} == {"pools"}
    assert {compat.source_of(e.eqn) for e in program.equations} == {compat.source_of(eqn)}


def test_the_gradient_takes_no_coordinates():
    """An array as large as what was pooled, at most; JAX's takes more than five."""
    x = jax.ShapeDtypeStruct((8, 128, 128, 16), jnp.float32)

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    ours, _ = _rewritten(pool, x)

    def temporaries(pool):
        step = jax.grad(lambda x: jnp.sum(jnp.sin(pool(jnp.cos(x)))))
        return jax.jit(step).lower(x).compile().memory_analysis().temp_size_in_bytes

    nbytes = x.size * x.dtype.itemsize
    assert temporaries(ours) < 1.1 * nbytes
    assert temporaries(pool) > 5 * nbytes


@pytest.mark.parametrize("apart", [True, False])
def test_cotangents_of_windows_are_added_up_once_for_all_that_read_the_sum(apart):
    """Parts of a concatenation read it. Nine windows of 3 x 3 take nine arrays otherwise."""
    parts = [jax.ShapeDtypeStruct((8, 16, 16, n), jnp.float32) for n in (32, 24, 8)]
    pool = _pool(lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    def joined(*parts):
        return pool(jnp.concatenate([jnp.tanh(x) for x in parts], -1))

    def loss(function, *parts):
        return jnp.sum(jnp.sin(function(*parts)))

    backend = dataclasses.replace(backend_of("cpu"), sums_for_each_reader=apart)
    ours, _ = rewritten("pool", backend, joined, *parts)
    gradient = jax.jit(jax.grad(functools.partial(loss, ours), argnums=(0, 1, 2)))
    taken = gradient.lower(*parts).compile().memory_analysis().temp_size_in_bytes
    operand = 4 * 8 * 16 * 16 * 64
    assert (taken < 4 * operand) is apart, taken / operand
