"""An optimizer makes a budget reserve the bytes of its state."""

import jax
import jax.numpy as jnp
import nnx_models
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from networks import made, net, specs

import monet_jax
from monet_jax.planning import pipeline
from monet_jax.planning.reserved import as_reserved, reserved_bytes

PARAMS = {"w": jax.ShapeDtypeStruct((32, 64), jnp.float32), "b": jnp.zeros(64, jnp.bfloat16)}
X = np.ones(3)
WEIGHTS = 32 * 64 + 64
EACH = 32 * 64 * 4 + 64 * 2  # bytes of one copy
COUNT = 4  # bytes of a step counter

OPTIMIZERS = {
    "sgd": (optax.sgd(0.1), 0),
    "momentum": (optax.sgd(0.1, momentum=0.9), EACH),
    "adamw": (optax.adamw(1e-3), 2 * EACH + COUNT),
    "wide_adamw": (optax.adamw(1e-3, mu_dtype=jnp.float32), EACH + 4 * WEIGHTS + COUNT),
    "chain": (optax.chain(optax.clip(1.0), optax.adam(1e-3)), 2 * EACH + COUNT),
    "masked": (optax.masked(optax.sgd(0.1, momentum=0.9), {"w": True, "b": False}), 32 * 64 * 4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_of_an_optimizer(name):
    optimizer, expected = OPTIMIZERS[name]
    assert reserved_bytes(optimizer, PARAMS) == expected
    params = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), PARAMS)
    real = sum(x.nbytes for x in jax.tree.leaves(optimizer.init(params)))
    assert real == expected


def test_accumulated_gradients_count():
    accumulating = optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=4)
    params = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), PARAMS)
    real = sum(x.nbytes for x in jax.tree.leaves(accumulating.init(params)))
    assert reserved_bytes(accumulating, PARAMS) == real > 3 * EACH


def test_of_sharded_parameters_one_device_counts():
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = {
        "w": jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=rows),
        "b": jax.ShapeDtypeStruct((64,), jnp.bfloat16, sharding=everywhere),
    }
    expected = 2 * (32 * 64 * 4 // 4 + 64 * 2) + COUNT
    assert reserved_bytes(optax.adamw(1e-3), params) == expected


@pytest.fixture
def reserved(monkeypatch):
    """The bytes that plans made so far reserve; nothing is compiled."""
    found = []

    def find_plan(traced, settings, target):
        found.append(settings.reserved_bytes)
        return made(traced, settings, target)

    monkeypatch.setattr(pipeline, "_find_plan", find_plan)
    return found


def bytes_of_moments(params) -> int:
    return 2 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params)) + COUNT


def test_the_arguments_of_argnums_are_its_parameters(reserved):
    params, x = specs(8)
    optimizer = optax.adamw(1e-3)
    for argnums, chosen in [(0, params), (1, x), ((0, 1), (params, x))]:
        monet_jax.plan(net, params, x, budget=1.0, argnums=argnums, reserved=optimizer, cache=False)
        assert reserved.pop() == bytes_of_moments(chosen)


def test_the_parameters_of_a_flax_module_are_its_parameters(reserved):
    given = {"budget": 1.0, "reserved": optax.adamw(1e-3), "cache": False}
    module, images = nnx_models.ConvNorm(3, 4, 3, 1, nnx.Rngs(0)), jnp.ones((2, 8, 8, 3))
    lean = monet_jax.flax.remat(lambda module, images: jnp.sum(module(images) ** 2), **given)
    nnx.grad(lean)(module, images)
    assert reserved.pop() == bytes_of_moments(nnx.state(module, nnx.Param))

    dense, x = monet_jax.flax.remat(nn.Dense(3), **given), jnp.ones((2, 5))
    params = dense.init(jax.random.key(0), x)
    jax.grad(lambda params: jnp.sum(dense.apply(params, x)))(params)
    assert reserved.pop() == bytes_of_moments(params)


def test_the_reserve_is_part_of_the_budget():
    params, x = specs(512)
    given = {"budget": "1MiB", "verify": False, "cache": False, "target": "cpu", "time_limit": 60}
    by_bytes = monet_jax.plan(net, params, x, reserved=bytes_of_moments(params), **given)
    by_optimizer = monet_jax.plan(net, params, x, reserved=optax.adamw(1e-3), **given)
    assert by_optimizer.reserved_bytes == bytes_of_moments(params)
    assert by_optimizer.decisions == by_bytes.decisions


@pytest.mark.parametrize("wrong", [optax.adamw, 0.5, True, None, nnx.Optimizer, X, object()])
def test_what_is_no_optimizer_is_refused(wrong):
    with pytest.raises(TypeError, match="optimizer with `init` and `update`") as caught:
        monet_jax.remat(net, budget=1.0, reserved=wrong)
    assert len(str(caught.value)) < 250  # arrays are not printed


def test_what_holds_a_state_is_the_bytes_of_the_state():
    model = nnx.Linear(32, 64, rngs=nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    expected = reserved_bytes(optax.adamw(1e-3), params)
    state = optax.adamw(1e-3).init(params)
    assert as_reserved(optimizer) == as_reserved(state) == expected > 0
    assert as_reserved(jax.eval_shape(lambda: state)) == expected
    assert as_reserved("2GiB") == as_reserved(np.int64(2**31)) == 2**31


@pytest.mark.parametrize("text", ["nope", "50%", "auto"])
def test_amounts_that_are_none_name_the_argument(text):
    with pytest.raises(ValueError, match="`reserved` must be bytes or an amount"):
        monet_jax.remat(net, budget=1.0, reserved=text)


def test_an_optimizer_for_other_parameters_is_refused():
    params, x = specs(8)
    other = optax.masked(optax.adam(1e-3), {"another": True})
    for argnums, message in [(0, "cannot make a state"), ((), "hold no parameters")]:
        with pytest.raises(ValueError, match=message):
            monet_jax.plan(net, params, x, budget=1.0, reserved=other, argnums=argnums)
