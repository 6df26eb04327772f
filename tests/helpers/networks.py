"""A small network that tests of the API plan, and comparisons of planned with plain functions."""

import functools as ft
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planners
from monet_jax import Plan
from monet_jax.analyzer.analyze import analyze
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import TARGETS, TargetUnavailable, require_compiler
from monet_jax.ir.fingerprint import describe_inputs
from monet_jax.planning import pipeline
from monet_jax.seconds.attained import modelled

WIDTH, BATCH, DEPTH = 32, 1024, 4


def net(params, x):
    """The loss of a residual network whose activations take most of its memory."""
    for w in params:
        x = x + jnp.sin(jnp.sin(x @ w) @ w)
    return jnp.mean(x**2)


def by_hand(params, x):
    """The network with a checkpoint round each layer."""

    @jax.checkpoint
    def layer(w, x):
        return x + jnp.sin(jnp.sin(x @ w) @ w)

    for w in params:
        x = layer(w, x)
    return jnp.mean(x**2)


def compiled(fun, *arguments) -> int:
    """Bytes of a value and gradient, as JAX's own compiler says."""
    step = jax.jit(jax.value_and_grad(fun))
    found = step.lower(*arguments).compile().memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )


@ft.cache
def args(batch: int = BATCH) -> tuple:
    """Arguments of `net`."""
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)), jnp.float32) / 8 for _ in range(DEPTH)]
    return params, jnp.asarray(rng.normal(size=(batch, WIDTH)), jnp.float32)


def specs(batch: int = BATCH, depth: int = DEPTH) -> tuple:
    """The same as shapes alone."""
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return [square] * depth, jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32)


def assert_same(got, expected, least=0.0):
    """Equal structure, shapes and dtypes; floats up to rounding, all else exactly.

    Rounding is relative to the largest number of an array, and at least `least`: what has no
    gradient but rounding needs it.
    """
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        if not hasattr(b, "dtype"):
            assert type(a) is type(b) and a == b
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        tolerance = 2e-2 if b.dtype == jnp.bfloat16 else 1e-5
        a, b = np.asarray(a), np.asarray(b)
        if jnp.issubdtype(b.dtype, jnp.inexact):
            a, b = a.astype(np.float64), b.astype(np.float64)
            atol = max(tolerance * np.abs(b).max(), least)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=atol)
        else:
            np.testing.assert_array_equal(a, b)


def assert_near(got, expected, tolerance=1e-5):
    """Equal structure; every array of floats within a part of its norm, all else exactly.

    In fifty layers some activation is so near to zero that rounding decides on its `relu`, and the
    few weights that it moves are off by more than rounding.
    """
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        if not jnp.issubdtype(jnp.result_type(b), jnp.inexact):
            assert_same(a, b)
            continue
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        # What has no gradient but rounding has no norm but that; then the mean square counts.
        assert np.linalg.norm(a - b) <= tolerance * max(np.linalg.norm(b), np.sqrt(b.size))


def recomputes(fun, *arguments) -> bool:
    """Whether the traced gradient of `fun` holds a region that is run again."""
    return checkpoint_regions(jax.make_jaxpr(fun)(*arguments)) > 0


def checkpoint_regions(jaxpr) -> int:
    """How many regions of `jax.checkpoint` a jaxpr holds, in a gradient those that run again."""
    text = str(jaxpr)
    return text.count("remat2[") + text.count("RematTraced[")  # the second under `jax_remat3`


def made(traced, settings, target, decide=planners.save_nothing) -> Plan:
    """The plan of a function of the graph, which recomputes all it can; nothing is compiled."""
    time.sleep(0.01)  # other threads may come in
    prices = modelled(target)
    pins, backend = settings.options.pinned, backend_of(target.name)
    graph, _ = analyze(traced.staged(), prices, backend, pins)
    return Plan(
        decisions=decide(graph),
        fingerprint=traced.fingerprint,
        inputs=describe_inputs(traced.program),
        equations=len(traced.program.equations),
        target=target.name,
        compiler="none",
        jax_version=jax.__version__,
        budget_bytes=1,
        reserved_bytes=0,
        predicted_bytes=1,
        compiled_bytes=None,
        unplanned_bytes=None,
        base_seconds=graph.seconds,
        base_flops=0,
        planning_seconds=0.0,
        compilations=0,
    )


@pytest.fixture
def planning_calls(monkeypatch):
    """The functions planned so far; every plan recomputes all it can, and none is compiled."""
    calls = []

    def find_plan(traced, settings, target):
        calls.append(traced)
        return made(traced, settings, target)

    monkeypatch.setattr(pipeline, "_find_plan", find_plan)
    return calls


def skip_without_compiler(target: str) -> None:
    """Skips a test where a target cannot be compiled for."""
    try:
        require_compiler(TARGETS[target])
    except TargetUnavailable as error:
        pytest.skip(str(error))
