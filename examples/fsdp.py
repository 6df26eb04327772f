"""Train a GPT that is sharded over 8 devices, in a step of so many bytes on each (FSDP).

    python examples/fsdp.py

Parameters and AdamW's state are split over all devices, as is the batch; XLA gathers the weights of
a layer where it is computed. The budget is that of one device. It runs on a CPU, which stands for 8
devices, and learns to write the alphabet in a minute. Needs Optax (`pip install ".[examples]"`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import monet_jax

DEVICES = 8
BUDGET = "3MiB"
PLANNED = functools.partial(monet_jax.jit, budget=BUDGET)
BATCH, LENGTH, WIDTH, HEADS, DEPTH, LETTERS = 32, 64, 64, 4, 3, 26
OPTIMIZER = optax.adamw(3e-3)


def make_mesh() -> Mesh:
    """One axis of 8 devices; on a CPU they must be asked for before JAX is used."""
    if jax.config.jax_num_cpu_devices < DEVICES:
        jax.config.update("jax_num_cpu_devices", DEVICES)
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))


def sharding_of(mesh: Mesh, array: Any) -> NamedSharding:
    """Split over all devices along the longest axis that they divide; whole where none is."""
    axes = [n for n, size in enumerate(array.shape) if size % DEVICES == 0]
    longest = max(axes, key=lambda n: array.shape[n], default=None)
    names = ["data" if n == longest else None for n in range(array.ndim)]
    return NamedSharding(mesh, PartitionSpec(*names))


def make_params(key: jax.Array) -> Any:
    """Float32 parameters."""
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
    shapes |= {"widen": (WIDTH, 4 * WIDTH), "narrow": (4 * WIDTH, WIDTH)}

    def matrix(n: int, shape: tuple[int, int]) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, n), shape) * shape[0] ** -0.5

    blocks = [
        {name: matrix(10 * n + k, shape) for k, (name, shape) in enumerate(shapes.items())}
        for n in range(1, DEPTH + 1)
    ]
    return {"letters": matrix(0, (LETTERS, WIDTH)), "blocks": blocks}


def block(params: Any, x: jax.Array) -> jax.Array:
    """Causal attention, then an MLP, each a residual of what is normalized before."""
    q, k, v = jnp.split(jax.nn.standardize(x) @ params["qkv"], 3, axis=-1)
    q, k, v = (y.reshape(*y.shape[:2], HEADS, -1) for y in (q, k, v))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    x = x + mixed @ params["out"]
    return x + jax.nn.gelu(jax.nn.standardize(x) @ params["widen"]) @ params["narrow"]


def loss(params: Any, text: jax.Array) -> jax.Array:
    """Mean cross-entropy of the letters that follow."""
    x = params["letters"][text[:, :-1]]
    for one in params["blocks"]:
        x = block(one, x)
    logits = x @ params["letters"].T
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]))


def step(value_and_grad: Callable[..., Any], state: Any, text: jax.Array) -> tuple[Any, jax.Array]:
    """New parameters and optimizer's state, and the loss."""
    params, inner = state
    value, gradient = value_and_grad(loss)(params, text)
    updates, inner = OPTIMIZER.update(gradient, inner, params)
    return (optax.apply_updates(params, updates), inner), value


def make_step(mesh: Mesh, jit: Callable[..., Any] = PLANNED) -> tuple[Callable[..., Any], Any]:
    """The step, planned or by `jax.jit` as it is, and a sharded state.

    The new state is sharded as the old one, so that it can lie in its memory.
    """
    params = make_params(jax.random.key(0))
    state = params, OPTIMIZER.init(params)
    shardings = jax.tree.map(functools.partial(sharding_of, mesh), state)
    api = jax if jit is jax.jit else monet_jax
    whole = functools.partial(step, api.value_and_grad)
    jitted = jit(whole, donate_argnums=0, out_shardings=(shardings, None))
    return jitted, jax.device_put(state, shardings)


def batch(mesh: Mesh, n: int) -> jax.Array:
    """Stretches of the alphabet, again and again, from random letters on; split over devices."""
    starts = jax.random.randint(jax.random.key(n), (BATCH, 1), 0, LETTERS)
    text = (starts + jnp.arange(LENGTH + 1)) % LETTERS
    return jax.device_put(text, NamedSharding(mesh, PartitionSpec("data")))


def train(mesh: Mesh, steps: int, jit: Callable[..., Any] = PLANNED) -> list[float]:
    """The losses of some batches."""
    run, state = make_step(mesh, jit)
    losses = []
    for n in range(steps):
        state, value = run(state, batch(mesh, n))
        losses.append(float(value))
    return losses


def main() -> None:
    """Print the plan for one device, and what the loss came to."""
    mesh = make_mesh()
    run, state = make_step(mesh)
    print(monet_jax.plan(run, state, batch(mesh, 0)))
    losses = train(mesh, 20)
    print(f"Loss of the first batch {losses[0]:.2f}, of the last {losses[-1]:.2f}.")


if __name__ == "__main__":
    main()
