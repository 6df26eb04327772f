"""Train a GPT in a step of so many bytes: bfloat16, float32 masters, four micro-batches, clipping.

    python examples/mixed_precision.py

The step is the one that people compile: gradients of micro-batches are added up by `lax.scan`,
clipped by their global norm and handed to AdamW, and the state is donated. It learns to write the
alphabet in a few seconds on a CPU. Needs Optax (`pip install ".[examples]"`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import monet_jax

BUDGET = "10MiB"
PLANNED = functools.partial(monet_jax.jit, budget=BUDGET)
PARTS, BATCH, LENGTH, WIDTH, HEADS, DEPTH, LETTERS = 4, 8, 64, 64, 4, 4, 26

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


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
    """Mean cross-entropy of the letters that follow, computed in bfloat16 but for the logits."""
    params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
    x = params["letters"][text[:, :-1]]
    for one in params["blocks"]:
        x = block(one, x)
    logits = (x @ params["letters"].T).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]))


def step(value_and_grad: Callable[..., Any], state: Any, text: jax.Array) -> tuple[Any, jax.Array]:
    """New parameters and optimizer's state, and the mean loss of the micro-batches."""
    params, inner = state

    def add(total: Any, part: jax.Array) -> tuple[Any, jax.Array]:
        value, gradient = value_and_grad(loss)(params, part)
        return jax.tree.map(jnp.add, total, gradient), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, values = jax.lax.scan(add, zeros, text.reshape(PARTS, BATCH, -1))
    mean = jax.tree.map(lambda g: g / PARTS, total)
    updates, inner = OPTIMIZER.update(mean, inner, params)
    return (optax.apply_updates(params, updates), inner), jnp.mean(values)


def make_step(jit: Callable[..., Any] = PLANNED) -> Callable[..., Any]:
    """The step: planned, or by `jax.jit` as it is."""
    api = jax if jit is jax.jit else monet_jax
    return jit(functools.partial(step, api.value_and_grad), donate_argnums=0)


def make_state() -> Any:
    """Parameters and optimizer's state."""
    params = make_params(jax.random.key(0))
    return params, OPTIMIZER.init(params)


def batch(n: int) -> jax.Array:
    """Stretches of the alphabet, again and again, from random letters on."""
    starts = jax.random.randint(jax.random.key(n), (PARTS * BATCH, 1), 0, LETTERS)
    return (starts + jnp.arange(LENGTH + 1)) % LETTERS


def train(steps: int, jit: Callable[..., Any] = PLANNED) -> list[float]:
    """The losses of some batches."""
    run, state, losses = make_step(jit), make_state(), []
    for n in range(steps):
        state, value = run(state, batch(n))
        losses.append(float(value))
    return losses


def main() -> None:
    """Print the plan, what becomes of the donated state, and what the loss came to."""
    run, state = make_step(), make_state()
    print(monet_jax.plan(run, state, batch(0)))
    print(monet_jax.donation_report(run, state, batch(0)))
    losses = train(20)
    print(f"Loss of the first batch {losses[0]:.2f}, of the last {losses[-1]:.2f}.")


if __name__ == "__main__":
    main()
