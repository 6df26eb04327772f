"""Gradients that leave a region in the dtype of the cast that they come through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from monet_jax.analyzer.pins import make_pins
from monet_jax.compiler.targets import TARGETS
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer.transform import transform

WIDTH = 96


def once(params, x):
    """Each weight is cast once, as with float32 masters."""
    for w in params:
        x = x + jnp.tanh(x @ w.astype(x.dtype))
    return jnp.mean(x.astype(jnp.float32) ** 2)


def twice(params, x):
    """Each weight is cast twice, so that its gradient is a sum."""
    for w in params:
        x = x + jnp.tanh(x @ (w.astype(x.dtype) + jnp.sin(w.astype(x.dtype))))
    return jnp.mean(x.astype(jnp.float32) ** 2)


def gradient_of(loss, *, narrows):
    """The gradient of a loss whose plan saves nothing, and its arguments."""
    rng, bfloat16 = np.random.default_rng(0), jnp.bfloat16
    params = [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / 10, jnp.float32) for _ in range(4)]
    x = jnp.asarray(rng.normal(size=(64, WIDTH)), bfloat16)
    traced = trace_for(TARGETS["cpu"], loss, (params, x))
    plan = compiled_plans_of(traced, TARGETS["cpu"], make_pins(None)).calibration_plan
    used = traced.narrowing if narrows else traced
    planned = transform(used.staged(), plan)
    return jax.grad(lambda p: planned([*p, x], used.constants)[0]), params


def narrow_barriers(gradient, params):
    """How many arrays of a weight's shape pass barriers in half precision."""
    found, pending = 0, [jax.make_jaxpr(gradient)(params).jaxpr]
    while pending:
        for eqn in pending.pop().eqns:
            pending += [x for x in eqn.params.values() if hasattr(x, "eqns")]
            pending += [x.jaxpr for x in eqn.params.values() if hasattr(x, "jaxpr")]
            if eqn.primitive.name == "optimization_barrier":
                avals = [v.aval for v in eqn.outvars]
                found += sum(a.shape == (WIDTH, WIDTH) and a.dtype == "bfloat16" for a in avals)
    return found


@pytest.mark.parametrize("loss", [once, twice])
def test_gradients_are_those_of_the_wider_dtype_bit_for_bit(loss):
    wide, params = gradient_of(loss, narrows=False)
    narrow, _ = gradient_of(loss, narrows=True)
    for a, b in zip(jax.jit(wide)(params), jax.jit(narrow)(params), strict=True):
        assert a.dtype == b.dtype == "float32"
        np.testing.assert_array_equal(a, b)


def test_what_is_cast_once_leaves_in_the_dtype_of_the_cast_and_nothing_else():
    counts = {
        (loss, narrows): narrow_barriers(*gradient_of(loss, narrows=narrows))
        for loss in (once, twice)
        for narrows in (True, False)
    }
    assert counts[once, True] >= counts[once, False] + 3  # all but the last stage, left alone
    assert counts[twice, True] == counts[twice, False]
