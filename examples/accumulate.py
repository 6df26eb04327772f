"""Train a small GPT in a step of so many bytes: AdamW, gradients accumulated over four batches.

    python examples/accumulate.py

It learns to write Python from the source of a module of the standard library, one character at a
time, in a minute or two on a CPU. Needs Flax and Optax (`pip install ".[examples]"`).
"""

import argparse
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import monet_jax

BUDGET = "12MiB"
PLANNED = functools.partial(monet_jax.jit, budget=BUDGET)
ACCUMULATED, BATCH, LENGTH, WIDTH, HEADS, DEPTH, VOCABULARY = 4, 16, 64, 64, 4, 3, 128


class Block(nnx.Module):
    """[batch, length, width] to the same: attention, then an MLP, each pre-norm residual."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm0, self.norm1 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        # A bias of the keys has no gradient but rounding, of which Adam makes steps.
        self.attention = nnx.MultiHeadAttention(
            HEADS, WIDTH, use_bias=False, decode=False, rngs=rngs
        )
        self.widen = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.dropout(self.attention(self.norm0(x), mask=mask))
        return x + self.dropout(self.narrow(nnx.gelu(self.widen(self.norm1(x)))))


class Gpt(nnx.Module):
    """[batch, length] characters to the logits of those that follow."""

    def __init__(self, rngs: nnx.Rngs):
        self.characters = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.places = nnx.Param(0.02 * rngs.normal((LENGTH, WIDTH)))
        self.blocks = nnx.List([Block(rngs) for _ in range(DEPTH)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.characters(text) + self.places
        for block in self.blocks:
            x = block(x)
        return self.characters.attend(self.norm(x))


def loss(model: Gpt, text: jax.Array, following: jax.Array) -> jax.Array:
    """Mean cross-entropy in nats per character."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(text), following))


def batches(steps: int):
    """Random stretches of text, and the same moved by one."""
    text = np.frombuffer(inspect.getsource(argparse).encode("ascii", "replace"), np.uint8)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - LENGTH - 1, BATCH)
        rows = np.stack([text[start : start + LENGTH + 1] for start in starts]).astype(np.int32)
        yield jnp.asarray(rows[:, :-1]), jnp.asarray(rows[:, 1:])


def make_optimizer() -> optax.GradientTransformation:
    """AdamW, which moves parameters after every fourth batch, by the mean of four gradients."""
    adamw = optax.adamw(3e-3, weight_decay=0.01)
    return optax.MultiSteps(adamw, every_k_schedule=ACCUMULATED).gradient_transformation()


def make_step(jit: Callable[..., Any] = PLANNED) -> tuple[Any, nnx.State]:
    """The whole step, from a batch to new parameters, and the state that it begins with."""
    model = Gpt(nnx.Rngs(0, dropout=1))
    optimizer = nnx.Optimizer(model, make_optimizer(), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))
    marked = monet_jax.remat(loss)  # what is planned; all else runs as it is

    def step(state: nnx.State, text: jax.Array, following: jax.Array):
        model, optimizer = nnx.merge(graph, state)
        value, gradient = nnx.value_and_grad(marked)(model, text, following)
        optimizer.update(model, gradient)
        return nnx.state((model, optimizer)), value

    return jit(step, donate_argnums=0), state


def train(steps: int, jit: Callable[..., Any] = PLANNED) -> tuple[list[float], nnx.State]:
    """The losses of some batches, and the state after them; by `jax.jit`, unplanned."""
    step, state = make_step(jit)
    losses = []
    for batch in batches(steps):
        state, value = step(state, *batch)
        losses.append(float(value))
    return losses, state


def main() -> None:
    """Print the plan and what the loss came to."""
    step, state = make_step()
    print(monet_jax.plan(step, state, *next(batches(1))))
    losses, _ = train(160)
    print(f"Loss of the first batch {losses[0]:.2f}, of the last {losses[-1]:.2f}.")


if __name__ == "__main__":
    main()
