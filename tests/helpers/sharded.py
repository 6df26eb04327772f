"""Losses and arguments on meshes of devices, and the check of a program that runs on one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from monet_jax import zoo
from monet_jax.zoo.llama import Llama
from monet_jax.zoo.problem import make_problem, text

AXES = "data", "model"


def loss(blocks, x):
    for up, down in blocks:
        x = x + jnp.tanh(jax.nn.gelu(x @ up) @ down)
    return jnp.mean(x**2)


def specs(mesh, model="model", batch=2048, width=256):
    """Examples split over the first axis of a mesh, weights over the second, `model`, if any."""

    def array(shape, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    block = array((width, 2 * width), None, model), array((2 * width, width), model, None)
    return [block] * 6, array((batch, width), "data", None)


def abstract(*sizes):
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * 2)


def bytes_of_one_device(arrays):
    shares = [x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(arrays)]
    return sum(4 * math.prod(share) for share in shares)


def fully_sharded(path, leaf):
    """FSDP: every parameter split over all devices, a stack of layers within each layer."""
    first = int("layers" in path)
    axis = max(range(first, leaf.ndim), key=lambda n: leaf.shape[n])
    return PartitionSpec(*[None] * axis, AXES)


def split_by_features(path, leaf):
    """Tensor parallelism: what widens is split by its results, what narrows by its operands."""
    if "words" in path:
        return PartitionSpec("model")
    if {"query", "key", "value", "gate", "up"}.intersection(path):
        return PartitionSpec(None, None, "model")
    return PartitionSpec(None, "model") if {"out", "down"}.intersection(path) else PartitionSpec()


#: How parameters lie, and the axes that examples are split over.
LAYOUTS = {"fsdp": (fully_sharded, AXES), "tensor parallel": (split_by_features, "data")}


def tiny_llama():
    """Of 16 examples."""
    return zoo.build("llama", scale="tiny", batch=16)


def wider_llama():
    """What its layers keep is more than sixteen TPU chips hold beside their memory."""
    sizes = {"depth": 3, "width": 128, "heads": 2, "groups": 1, "hidden": 256, "vocab": 128}
    return make_problem("llama", Llama(**sizes), text(512, 128, sizes["vocab"]))


def llama(mesh, layout, problem):
    """A Llama's arguments on a mesh."""
    rule, over = LAYOUTS[layout]

    def placed(leaf, spec):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    params, state, batch, key = problem.args
    params = jax.tree.map_with_path(
        lambda path, leaf: placed(leaf, rule([k.key for k in path], leaf)), params
    )
    batch = jax.tree.map(lambda leaf: placed(leaf, PartitionSpec(over)), batch)
    return params, state, batch, placed(key, PartitionSpec())


def scalar(problem):
    return lambda *args: problem.loss(*args)[0]


def check(fun, plan, arrays, plain):
    """Runs a planned loss on all devices: against its budget, and against what one of them says."""
    planned = jax.jit(jax.value_and_grad(fun))
    check_bytes(planned, plan, arrays)
    ours = planned(*arrays)
    assert len(jax.tree.leaves(ours[1])[0].sharding.device_set) == 8
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), ours, plain)


def check_bytes(planned, plan, arrays):
    """The compiled program against the budget of one device."""
    stats = planned.lower(*arrays).compile().memory_analysis()
    taken = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert taken <= plan.budget_bytes and plan.overhead > 0 and plan.devices == 8, (taken, plan)
