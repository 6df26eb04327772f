"""Residuals of a scan's iterations on the host: plain JAX's gradients, and fewer device bytes.

XLA:CPU ignores host memory, so values are tested there and bytes by the GPU's compiler.
"""

import dataclasses
import itertools
import math
import random

import emission
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import foreign_target
from jax import lax
from moves import (
    ALLOWANCE,
    HOST,
    MIB,
    assert_as_plain,
    assert_mapped_as_plain,
    assert_same,
    function_of,
    planned,
    plans_for,
    random_regions,
    residuals_on_host,
    temps,
)
from programs import random_recipe
from thinning import thinned

import planners
from monet_jax.candidates import movable
from monet_jax.transformer import scan_host
from planners.regions.simple_plans import whole_iterations, with_inputs_moved
from planners.transfers import host_bytes

FOREIGN = pytest.mark.parametrize("target", [foreign_target("gpu:h100"), foreign_target("tpu:v5e")])


def array(n, *shape):
    return jnp.asarray(np.random.default_rng(n).normal(size=shape) * 0.3, jnp.float32)


def mlp(params, x):
    """A scan that carries an argument, and collects what it returns besides."""

    def layer(x, p):
        x = x + jnp.tanh(x @ p[0]) @ p[1]
        return x, jnp.mean(x)

    x, means = lax.scan(layer, x, params)
    return jnp.sum(x * x) + jnp.sum(means**2)


def mlp_args(trips=6, rows=32, width=8):
    params = array(0, trips, width, 4 * width), array(1, trips, 4 * width, width)
    return params, array(2, rows, width)


def block(p, x):
    q, k, v = jnp.split(x @ p["qkv"], 3, -1)
    x = x + jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2), -1) @ v @ p["out"]
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def transformer(params, x, keys):
    """Blocks with dropout in reverse; what is carried is a value, and has an integer beside it."""

    def layer(carry, item):
        (x, n), (p, key) = carry, item
        y = block(p, x)
        return (jnp.where(jax.random.bernoulli(key, 0.9, x.shape), y, x), n + 1), None

    carry = jnp.tanh(x), jnp.int32(0)
    (x, n), _ = lax.scan(layer, carry, (params, keys), reverse=True)
    return jnp.mean(x**2) + 0.0 * n


def shapes(width):
    found = {"qkv": (width, 3 * width), "out": (width, width)}
    return found | {"up": (width, 4 * width), "down": (4 * width, width)}


def transformer_args(trips=4, width=8):
    params = {name: array(n, trips, *s) for n, (name, s) in enumerate(shapes(width).items())}
    return params, array(9, 4, 16, width), jax.random.split(jax.random.key(1), trips)


def two_loops(params, x):
    """Two scans, of which the second one is nested, with a layer in front of each."""
    (first, second), (w, v) = params

    def inner(x, p):
        return lax.scan(lambda x, q: (x + jnp.tanh(x @ q), None), x, p)

    x, _ = lax.scan(lambda x, q: (jnp.sin(x @ q) + x, jnp.sum(x)), jnp.tanh(x @ w), first)
    x, _ = lax.scan(inner, jnp.tanh(x @ v), second)
    return jnp.mean(x**2)


def two_loops_args():
    first, second = array(0, 5, 8, 8), array(1, 3, 2, 8, 8)
    return ((first, second), (array(2, 8, 8), array(3, 8, 8))), array(4, 32, 8)


CASES = {
    "mlp": (mlp, mlp_args()),
    "long": (mlp, mlp_args(trips=20)),  # blocks of several iterations
    "transformer": (transformer, transformer_args()),
    "two loops": (two_loops, two_loops_args()),
}


@pytest.fixture
def every_size(monkeypatch):
    monkeypatch.setattr(movable, "LEAST_BYTES", 1)


# -------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("case", "seed"),
    thinned(itertools.product(CASES, range(2)), "long-1", "two loops-0"),
)
def test_values_and_gradients_are_those_of_plain_jax(case, seed, every_size):
    fun, args = CASES[case]
    plans, rng = plans_for(fun, args, "cpu"), random.Random(seed)
    regions = random_regions(plans.judge.graph, rng)
    assert any(x.offloaded for x in regions if x.first in plans.judge.graph.looped)
    assert_as_plain(fun, args, jax.jit(planned(plans, regions)))


@pytest.mark.parametrize("ahead", thinned([0, 1], "1"))
def test_without_jit_and_under_vmap(ahead, every_size):
    args = mlp_args()
    plans = plans_for(mlp, args, "cpu")
    run = planned(plans, every_value_moved(plans.judge.graph, ahead))
    assert_as_plain(mlp, args, run)
    assert_mapped_as_plain(mlp, args, run)


def every_value_moved(graph, ahead):
    """Regions that save nothing, and in loops move all that may move."""

    def moved(region):
        names = tuple(x.name for x in graph.values if x.reader == region.first)
        if region.first not in graph.looped or not names:
            return region
        return dataclasses.replace(region, offloaded=names, ahead=ahead)

    return tuple(map(moved, planners.save_nothing(graph).regions))


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_host_has_a_stack_for_each_value_and_nothing_else(ahead, every_size):
    args = mlp_args()
    plans = plans_for(mlp, args, "cpu")
    graph = plans.judge.graph
    regions = every_value_moved(graph, ahead)
    found = residuals_on_host(plans, regions, args)
    # The hidden values of all six iterations, and what they carry: an argument for the first.
    assert sorted(found) == [(6, 32, 8), (6, 32, 32)]
    assert 4 * sum(map(math.prod, found)) == host_bytes(graph, regions)


def test_a_loop_that_moves_nothing_leaves_nothing_on_the_host(every_size):
    args = mlp_args()
    plans = plans_for(mlp, args, "cpu")
    assert not residuals_on_host(plans, planners.save_nothing(plans.judge.graph).regions, args)


@pytest.mark.parametrize("ahead", [0, 1])
def test_other_results_are_as_they_are(ahead, every_size):
    def with_others(params, x):
        x, means = lax.scan(lambda x, p: (x + jnp.tanh(x @ p), jnp.mean(x)), x, params)
        return jnp.sum(x * x), {"means": means, "last": x}

    args = array(0, 6, 8, 8), array(1, 32, 8)
    plans = plans_for(with_others, args, "cpu")
    function = function_of(plans, every_value_moved(plans.judge.graph, ahead))
    loss = jax.value_and_grad(lambda some: (function(some)[0], function(some)[1:]), has_aux=True)
    ours, plain = jax.jit(loss)(args), jax.value_and_grad(with_others, (0, 1), True)(*args)
    assert len(jax.tree.leaves(ours)) == len(jax.tree.leaves(plain)) == 5
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        assert_same(x, y)


def moved_by(recipe, seed):
    """How many values some plan of a random program moves; its gradients are compared."""
    rng = random.Random(seed)
    rewrite = dataclasses.replace(emission.EXACT, waits_in_stacks=rng.random() < 0.5)
    flat = emission.flat(recipe.case(), rewrite)
    graph, staged = emission.analyzed(flat, rng, rng.randint(1, 4))
    graph = movable.with_host(graph, staged, HOST)
    regions = random_regions(graph, rng)
    made = emission.emitted(flat, graph, staged, regions)
    ours = jax.jit(emission.pulled(flat, made.function))(*flat.leaves)
    plain = emission.reference(emission.pulled(flat, flat.function), flat.leaves)
    emission.assert_same(ours, *plain)
    return sum(len(region.offloaded) for region in regions)


def check_many(rng, programs):
    moved = [moved_by(random_recipe(rng), rng.randrange(2**30)) for _ in range(programs)]
    assert sum(map(bool, moved)) >= 0.8 * programs


@pytest.mark.parametrize("programs", thinned([1, 3], "1"))
def test_random_programs_keep_value_and_gradient(programs, every_size):
    check_many(random.Random(100), programs)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs_keep_value_and_gradient(part, every_size):
    check_many(random.Random(part), 50)


# --------------------------------------------------------------------------------------- bytes


def wide():
    """A scanned MLP whose hidden values have 64 MiB, and its inputs 16."""
    shape = jax.ShapeDtypeStruct
    params = shape((8, 512, 2048), jnp.float32), shape((8, 2048, 512), jnp.float32)
    return params, shape((8192, 512), jnp.float32)


def wide_blocks():
    shape = jax.ShapeDtypeStruct
    params = {name: shape((8, *s), jnp.float32) for name, s in shapes(512).items()}
    return params, shape((8, 512, 512), jnp.float32)


def blocks(params, x):
    return jnp.mean(lax.scan(lambda x, p: (block(p, x), None), x, params)[0] ** 2)


def own_moved(graph, ahead):
    """Iterations that move what they compute themselves, of 8 MiB or more."""

    def moved(region):
        written = (
            i for s in stages_of(region) for op in graph.stages[s].forward for i in op.outputs
        )
        values = [
            x for x in map(graph.values.__getitem__, written) if x.reader in stages_of(region)
        ]
        names = tuple(x.name for x in values if x.nbytes >= 8 * MIB)
        is_looped = region.first in graph.looped
        return dataclasses.replace(region, offloaded=names, ahead=ahead) if is_looped else region

    return tuple(map(moved, whole_iterations(graph).regions))


def inputs_moved(graph, regions, ahead):
    """The same, which move what is carried to them as well."""

    def moved(region):
        found = with_inputs_moved(graph, region)
        return next((x for x in found if x.ahead == ahead), region)

    return tuple(map(moved, regions))


def stages_of(region):
    return range(region.first, region.last + 1)


def moved_bytes(graph, region):
    return sum(graph.values[graph.index[name]].nbytes for name in region.offloaded)


@FOREIGN
@pytest.mark.parametrize(
    ("fun", "args", "carried"),
    thinned(
        [
            pytest.param(mlp, wide(), 16 * MIB, id="mlp"),
            pytest.param(blocks, wide_blocks(), 8 * MIB, id="blocks"),
        ],
        "mlp",
    ),
)
@pytest.mark.parametrize("ahead", thinned([0, 1], "1"))
def test_the_device_keeps_what_is_in_flight_and_nothing_else(fun, args, carried, ahead, target):
    plans = plans_for(fun, args, target)
    graph = plans.judge.graph
    base, trips = temps(plans, whole_iterations(graph).regions), graph.loops[0].trips
    is_tpu = target.startswith("tpu")
    moved = own_moved(graph, ahead)
    window = max(moved_bytes(graph, region) for region in moved)
    assert window >= 64 * MIB
    more = temps(plans, moved) - base
    slack = ALLOWANCE * (base + window if is_tpu else base)
    # What is recomputed for a product by cuBLAS has operands beside it; what is fetched is one.
    assert (ahead - 1) * window - slack <= more <= (ahead + 1) * window + slack
    # What is carried to an iteration is there while it runs, and `ahead` more of them. A part
    # of the stack lies in the memory of results, on a TPU most of it.
    less = temps(plans, moved) - temps(plans, inputs_moved(graph, moved, ahead))
    waiting = 1 if is_tpu else trips - 2 - ahead
    assert less >= waiting * carried - slack


@FOREIGN
def test_copies_that_are_left_out_bring_the_bytes_back(target, monkeypatch):
    plans = plans_for(mlp, wide(), target)
    graph = plans.judge.graph
    regions = own_moved(graph, ahead=1)
    right = temps(plans, regions)
    monkeypatch.setattr(scan_host, "on_host", lambda array: array)
    stacked = graph.loops[0].trips * moved_bytes(graph, regions[0])
    assert temps(plans, regions) >= right + 0.8 * stacked
