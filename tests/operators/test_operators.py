"""Gradients through exact operators are JAX's, bit for bit, and codes have the stated bytes.

Every case runs under a plan that saves every code there is and nothing else by name, so that the
backward pass decodes all of them.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_operators import awkward, layered, planned, pulled, same, saving_results
from programs import straight_through
from thinning import thinned

from monet_jax.operators import masks
from planners import runs
from planners.regions.simple_plans import saving_codes

FUNCTIONS = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "leaky_relu": jax.nn.leaky_relu,
    "maximum": lambda x: jnp.maximum(x, 0),
    "minimum": lambda x: jnp.minimum(x, x[::-1]),
    "clip": lambda x: jnp.clip(x, -1, 6),
    "clamp": lambda x: jax.lax.clamp(jnp.asarray(-1, x.dtype), x, jnp.asarray(1, x.dtype)),
    "where": lambda x: jnp.where(x > 1, x * 2, -x),
    "hard_tanh": jax.nn.hard_tanh,
}


def arguments(shape, dtype):
    return awkward(shape, dtype), awkward(shape, dtype, 1), jnp.trunc(awkward(shape, dtype, 2))


@pytest.mark.parametrize(
    ("name", "dtype", "regions"),
    thinned(
        itertools.product(FUNCTIONS, [jnp.float32, jnp.bfloat16], [saving_codes, saving_results]),
        *(f"{name}-float32-saving_codes" for name in list(FUNCTIONS)[::2]),
        "relu-bfloat16-saving_codes",
        "relu-float32-saving_results",
        "where-bfloat16-saving_results",
    ),
)
def test_gradients_are_those_of_jax_bit_for_bit(name, dtype, regions):
    function = layered(FUNCTIONS[name])
    x, w, ct = arguments((7, 37), dtype)
    ours, _ = planned(function, x, w, regions=regions)
    want = jax.jit(functools.partial(pulled, function))(x, w, ct)
    same(jax.jit(functools.partial(pulled, ours))(x, w, ct), want)


TRANSFORMED = {
    "vmap": jax.vmap,
    "scan": lambda f: lambda x, w: jax.lax.scan(lambda c, v: (f(c, v), None), x[0], w)[0],
    "checkpoint": jax.checkpoint,
}


@pytest.mark.parametrize(
    ("name", "outer", "where"),
    thinned(
        itertools.product(["relu", "where"], TRANSFORMED, ["inside", "around"]),
        "relu-vmap-inside",
        "relu-scan-around",
        "where-scan-inside",
        "where-vmap-around",
    ),
)
def test_gradients_are_those_of_jax_under_other_transformations(name, outer, where):
    function, transformed = layered(FUNCTIONS[name]), TRANSFORMED[outer]
    x, w, ct = arguments((3, 9, 37), jnp.float32)
    ct = ct[0] if outer == "scan" else ct
    plain = transformed(function)
    if where == "around":
        ours, _ = planned(plain, x, w)
    else:
        one = (x, w) if outer == "checkpoint" else (x[0], w[0])
        ours = transformed(planned(function, *one)[0])
    want = jax.jit(functools.partial(pulled, plain))(x, w, ct)
    same(jax.jit(functools.partial(pulled, ours))(x, w, ct), want)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_mask_is_a_bit_an_element(name):
    x, w = awkward((8, 64), jnp.float32), awkward((64, 64), jnp.float32)
    _, found = planned(lambda x, w: FUNCTIONS[name](x @ w) @ w, x, w)
    saved = [found.graph.index[name] for region in found.regions for name in region.saved]
    assert {found.graph.values[i].nbytes for i in saved} == {8 * 64 // 8}


def test_a_mask_that_frees_nothing_is_no_choice():
    x = awkward((8, 64), jnp.float32)
    _, found = planned(lambda x: jax.nn.relu(jnp.exp(jnp.sort(x))), x)
    ops = [op for stage in found.graph.stages for op in (*stage.forward, *stage.backward)]
    assert not any(op.optional for op in ops)


def test_a_mask_is_no_result_that_is_not_in_memory():
    """What a pooling reads is computed inside it: there is nothing that could be saved."""

    def pooled(x, w):
        h = jax.nn.relu(x @ w)
        return jax.lax.reduce_window(h, -np.inf, jax.lax.max, (1, 2), (1, 2), "VALID") @ w[:32]

    x, w = awkward((8, 64), jnp.float32), awkward((64, 64), jnp.float32)
    _, found = planned(pooled, x, w)
    ops = [op for stage in found.graph.stages for op in stage.backward]
    implementations = [(op, implementation) for op in ops for implementation in op.alternatives]
    assert implementations and all(
        set(implementation.inputs) - set(op.inputs) for op, implementation in implementations
    )


def test_a_wrong_mask_is_noticed(monkeypatch):
    monkeypatch.setattr(masks, "_is_positive", lambda result: result >= 0)
    with pytest.raises(AssertionError):
        test_gradients_are_those_of_jax_bit_for_bit("relu", jnp.float32, saving_results)


def test_results_that_are_saved_for_something_else_change_no_derivative(monkeypatch):
    """Nor what a plan takes: its ops run as they would without operators."""
    monkeypatch.setattr(masks, "_is_positive", lambda result: result >= 0)

    def unmarked(graph):
        selectors = {value.name for value in graph.values if not value.nbytes}
        return [
            dataclasses.replace(x, saved=tuple(name for name in x.saved if name not in selectors))
            for x in saving_results(graph)
        ]

    test_gradients_are_those_of_jax_bit_for_bit("relu", jnp.float32, unmarked)
    _, found = planned(layered(jax.nn.relu), *arguments((7, 37), jnp.float32)[:2])
    marked, plain = (runs(found.graph, x(found.graph)) for x in (saving_results, unmarked))
    assert any(run.implementation for run in marked) and not any(
        run.implementation for run in plain
    )


@pytest.mark.parametrize("regions", [saving_codes, saving_results])
def test_a_rule_of_ones_own_is_kept(regions):
    function = layered(straight_through)
    x, w, ct = arguments((7, 37), jnp.float32)
    ours, _ = planned(function, x, w, regions=regions)
    want = jax.jit(functools.partial(pulled, function))(x, w, ct)
    same(jax.jit(functools.partial(pulled, ours))(x, w, ct), want)
