"""Residuals on the host: values and gradients are plain JAX's, and the device's bytes shrink.

XLA:CPU ignores host memory, so values are tested there and bytes by the GPU's compiler.
"""

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import foreign_target
from moves import (
    ALLOWANCE,
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
from thinning import thinned

import planners
from monet_jax.candidates import movable
from monet_jax.compiler import backend
from monet_jax.compiler.backend import backend_of
from monet_jax.transformer import host, host_stacks
from planners.regions.simple_plans import moving_inputs


def mlp(params, x):
    """Stages whose hidden values are four times as large as their inputs."""
    for w, v in params:
        x = x + jnp.tanh(x @ w) @ v
    return jnp.sum(x * x)


def mlp_args(rows=32, width=8, layers=5):
    def array(n, *shape):
        return jnp.asarray(np.random.default_rng(n).normal(size=shape) * 0.3, jnp.float32)

    params = [(array(n, width, 4 * width), array(9 + n, 4 * width, width)) for n in range(layers)]
    return params, array(99, rows, width)


def transformer(params, x, keys):
    """Blocks of attention with dropout and an MLP; keys and booleans pass their stages."""
    for p, key in zip(params, keys, strict=True):
        q, k, v = jnp.split(x @ p["qkv"], 3, -1)
        weights = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2), -1)
        attended = jnp.where(jax.random.bernoulli(key, 0.9, v.shape), weights @ v, 0.0)
        x = x + attended @ p["out"]
        x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
    return jnp.mean(x**2)


def transformer_args(width=8, blocks=3):
    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    rng = np.random.default_rng(0)
    params = [
        {
            name: jnp.asarray(rng.normal(size=shape) * 0.2, jnp.float32)
            for name, shape in shapes.items()
        }
        for _ in range(blocks)
    ]
    x = jnp.asarray(rng.normal(size=(4, 16, width)), jnp.float32)
    return params, x, jax.random.split(jax.random.key(1), blocks)


@pytest.fixture
def every_size(monkeypatch):
    monkeypatch.setattr(movable, "LEAST_BYTES", 1)


@pytest.fixture(params=["whole", "slots"])
def each_way(request, monkeypatch):
    """As XLA:GPU brings arrays back, and as XLA:TPU has to be made to."""
    changed = dataclasses.replace(backend_of("cpu"), fetches_at_once=request.param == "slots")
    monkeypatch.setitem(backend._BACKENDS, "cpu", changed)


# -------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("seed", thinned(range(4), "0"))
@pytest.mark.parametrize(
    ("fun", "args"),
    [
        pytest.param(mlp, mlp_args(), id="mlp"),
        pytest.param(transformer, transformer_args(), id="blocks", marks=pytest.mark.slow),
    ],
)
def test_values_and_gradients_are_those_of_plain_jax(fun, args, seed, every_size, each_way):
    plans, rng = plans_for(fun, args, "cpu"), random.Random(seed)
    regions = random_regions(plans.judge.graph, rng)
    assert any(region.offloaded for region in regions)
    assert_as_plain(fun, args, jax.jit(planned(plans, regions)))


def test_without_jit_and_under_vmap(every_size, each_way):
    args = mlp_args(layers=3)
    plans = plans_for(mlp, args, "cpu")
    run = planned(plans, random_regions(plans.judge.graph, random.Random(0)))
    assert_as_plain(mlp, args, run)
    assert_mapped_as_plain(mlp, args, run)


def with_other_results(params, x):
    """An MLP, of which the second half serves another result than the first one's loss."""
    half = mlp(params[:2], x)
    for w, v in params[:2]:
        x = x + jnp.tanh(x @ w) @ v
    return half, mlp(params[2:], x)


@pytest.mark.parametrize("chosen", [0, 1])
def test_each_result_has_its_gradient_whatever_else_the_plan_is_for(chosen, every_size, each_way):
    """Also where nothing is differentiated of the region behind which something is fetched."""
    args = mlp_args()
    plans = plans_for(with_other_results, args, "cpu")
    regions = random_regions(plans.judge.graph, random.Random(0), ahead=1)
    function = function_of(plans, regions)
    ours = jax.jit(jax.grad(lambda leaves: function(leaves)[chosen]))(jax.tree.leaves(args))
    plain = jax.grad(lambda *some: with_other_results(*some)[chosen], (0, 1))(*args)
    for x, y in zip(ours, jax.tree.leaves(plain), strict=True):
        assert_same(x, y)


def test_what_is_moved_waits_on_the_host_and_not_on_the_device(every_size, each_way):
    args = mlp_args()
    plans = plans_for(mlp, args, "cpu")
    regions = random_regions(plans.judge.graph, random.Random(3))
    # An array that a later gate fetches is held by that gate and by the region itself.
    moved = sum(len(region.offloaded) * (1 + region.ahead) for region in regions)
    assert len(residuals_on_host(plans, regions, args)) == moved > 0


@pytest.mark.parametrize(("target", "slots"), [("tpu:v5e", 2), ("gpu:h100", 1)])
def test_on_a_tpu_an_array_takes_a_stack_of_two_slots(target, slots):
    assert plans_for(mlp, wide(), target).judge.graph.link.least_slots == slots


# --------------------------------------------------------------------------------------- bytes


def wide():
    """An MLP whose hidden values have 64 MiB, and its inputs 16."""
    width, layers = 512, 8
    shape = jax.ShapeDtypeStruct
    pair = shape((width, 4 * width), jnp.float32), shape((4 * width, width), jnp.float32)
    return [pair] * layers, shape((8192, width), jnp.float32)


def square():
    """An MLP whose arrays have 128 MiB; each layer is cut into two stages."""
    weight = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    return [(weight, weight)] * 4, jax.ShapeDtypeStruct((16384, 2048), jnp.float32)


def hidden_moved(graph, ahead):
    """Regions that move what each stage but the last computes from its first product.

    Or, on a TPU, where a product computes that of its operand, what it computes that from.
    """

    def hidden(stage):
        names = f"s{stage}.1", f"s{stage}.0"
        return next(name for name in names if name in graph.index)

    return [
        dataclasses.replace(x, offloaded=(hidden(x.first),), ahead=ahead)
        if x.last < len(graph.stages) - 1
        else x
        for x in planners.save_nothing(graph).regions
    ]


@pytest.mark.slow
@pytest.mark.parametrize("target", [foreign_target("gpu:h100"), foreign_target("tpu:v5e")])
def test_the_device_keeps_what_is_in_flight_and_nothing_else(target):
    plans = plans_for(mlp, wide(), target)
    graph, largest = plans.judge.graph, 64 * MIB
    base = temps(plans, planners.save_nothing(graph).regions)
    saved = [dataclasses.replace(x, saved=x.kept, offloaded=()) for x in hidden_moved(graph, 0)]
    assert temps(plans, saved) > base + 5 * largest
    for ahead in (0, 1):
        more = temps(plans, hidden_moved(graph, ahead)) - base
        slack = ALLOWANCE * base
        # Products by cuBLAS read their operands from memory: what is recomputed for one is there
        # beside it, and what is fetched is the operand itself. On a TPU, too, it is in memory.
        assert (ahead - 1) * largest - slack <= more <= (ahead + 1) * largest + slack


def unbarred_fetches(hosts, cotangents, in_stacks):
    back = functools.partial(host_stacks.slot, index=0) if in_stacks else host.on_device
    return list(map(back, hosts)), list(cotangents)


#: A barrier by its place, without it, and what the bytes come to at least, then.
PLANTED = {
    "copies out": ("_together", lambda results, copies: (list(results), copies), 1.2),
    "copies back": ("_fetched", unbarred_fetches, 1.2),
    "gradients": ("_joined", lambda cotangents: cotangents, 1.08),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", [foreign_target("gpu:h100"), foreign_target("tpu:v5e")])
@pytest.mark.parametrize("barrier", PLANTED)
def test_without_a_barrier_the_bytes_come_back(target, barrier, monkeypatch):
    # An input that two stages read passes no barrier of its region: its gradients need their own.
    is_shared = barrier == "gradients"
    plans = plans_for(mlp, square() if is_shared else wide(), target)
    graph = plans.judge.graph
    regions = moving_inputs(graph) if is_shared else hidden_moved(graph, 0)
    right = temps(plans, regions)
    name, without, factor = PLANTED[barrier]
    monkeypatch.setattr(host, name, without)
    assert temps(plans, regions) > factor * right
