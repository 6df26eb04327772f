"""Steps under `shard_map` whose losses talk to other devices, as people write them by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

DEPTH, WIDTH, BATCH = 3, 64, 2048
AXIS = "x"


def by_examples(params, x):
    """Data parallelism: every device has all parameters, and a part of the batch."""
    for up, down in params:
        x = x + jnp.tanh(jax.nn.gelu(x @ up) @ down)
    return lax.pmean(jnp.mean(x**2), AXIS)


def by_features(params, x):
    """Tensor parallelism: a block adds up what the devices make of their parts of its weights."""
    for up, down in params:
        x = _by_features(x, up, down)
    return jnp.mean(x**2)


def in_a_scan(params, x):
    """The same, the blocks under a scan."""
    stacked = jax.tree.map(lambda *w: jnp.stack(w), *params)
    x, _ = lax.scan(lambda x, w: (_by_features(x, *w), None), x, stacked)
    return jnp.mean(x**2)


def _by_features(x, up, down):
    return x + jnp.tanh(lax.psum(jax.nn.gelu(x @ up) @ down, AXIS))


def gathered(params, x):
    """FSDP: each block gathers its weights, of which every device has a part."""
    for up, down in params:
        up = lax.all_gather(up, AXIS, axis=1, tiled=True)
        down = lax.all_gather(down, AXIS, axis=0, tiled=True)
        x = x + jnp.tanh(jax.nn.gelu(x @ up) @ down)
    return lax.pmean(jnp.mean(x**2), AXIS)


#: A loss, and how its weights and its batch lie on the axis.
LOSSES = {
    "examples": (by_examples, (P(), P()), P(AXIS)),
    "features": (by_features, (P(None, AXIS), P(AXIS, None)), P()),
    "scanned": (in_a_scan, (P(None, AXIS), P(AXIS, None)), P()),
    "gathered": (gathered, (P(None, AXIS), P(AXIS, None)), P(AXIS)),
}


def step_of(name, api, mesh, *, checked=True, outside=False):
    """The value and gradient of a loss, taken in the `shard_map`, or of it.

    Without checked types, a gradient of what all devices have is of a device's own part.
    """
    loss, weights, batch = LOSSES[name]
    specs = [weights] * DEPTH, batch
    options = {"mesh": mesh, "in_specs": specs, "check_vma": checked}
    if outside:
        mark = loss if api is jax else api.remat(loss)
        return jax.value_and_grad(jax.shard_map(mark, out_specs=P(), **options))

    def local(params, x):
        value, gradient = api.value_and_grad(loss)(params, x)
        own = not checked and name == "examples"
        return value, lax.pmean(gradient, AXIS) if own else gradient

    return jax.shard_map(local, out_specs=(P(), specs[0]), **options)


def arguments(name, mesh):
    """Shapes of the parameters and the batch, on a mesh."""
    _, (up, down), batch = LOSSES[name]
    devices = mesh.size if name in ("examples", "gathered") else 1

    def array(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    pair = array((WIDTH, 4 * WIDTH), up), array((4 * WIDTH, WIDTH), down)
    return [pair] * DEPTH, array((BATCH * devices, WIDTH), batch)


def values(name, mesh):
    """Arrays of these shapes, random and as large as what they are multiplied with asks for."""
    rng = np.random.default_rng(0)

    def array(shape):
        made = rng.normal(size=shape.shape, scale=shape.shape[0] ** -0.5).astype("f4")
        return jax.device_put(made, shape.sharding)

    params, x = arguments(name, mesh)
    return jax.tree.map(array, params), array(x)
