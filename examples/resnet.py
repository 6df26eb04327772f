"""Train an NNX ResNet in a step of so many bytes: batch statistics, and an average of its weights.

    python examples/resnet.py

The step changes the model, its batch statistics, the optimizer and a running average of the weights
(EMA) in place, as under `nnx.jit`. It learns to tell directions of stripes in under a minute on a
CPU. Needs Flax and Optax (`pip install ".[examples]"`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import monet_jax

BUDGET = "5MiB"
PLANNED = functools.partial(monet_jax.flax.jit, budget=BUDGET)
BATCH, SIZE, WIDTH, DEPTH, CLASSES, DECAY = 64, 16, 8, 2, 4, 0.9


class Block(nnx.Module):
    """[batch, height, width, channels] to the same: two normalized convolutions, and a residual."""

    def __init__(self, rngs: nnx.Rngs):
        make = functools.partial(nnx.Conv, WIDTH, WIDTH, (3, 3), use_bias=False, rngs=rngs)
        self.first, self.second = make(), make()
        self.norms = nnx.List([nnx.BatchNorm(WIDTH, momentum=DECAY, rngs=rngs) for _ in range(2)])

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norms[0](self.first(x)))
        return nnx.relu(x + self.norms[1](self.second(y)))


class ResNet(nnx.Module):
    """[batch, height, width, 1] images to the logits of their classes."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(1, WIDTH, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(DEPTH)])
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, (1, 2)))


def loss(model: ResNet, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy in nats."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(images), labels))


def make_objects() -> tuple[ResNet, nnx.Optimizer, ResNet]:
    """The model, its optimizer, and a model whose weights are the average.

    The average has arrays of its own: one array cannot be donated twice.
    """
    model, average = ResNet(nnx.Rngs(0)), ResNet(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param), average


def make_step(jit: Callable[..., Any] = PLANNED) -> Callable[..., Any]:
    """The whole step: planned, or by `nnx.jit` as it is."""
    marked = monet_jax.remat(loss)  # what is planned; all else runs as it is

    def step(model: ResNet, optimizer: nnx.Optimizer, average: ResNet, images, labels) -> jax.Array:
        value, gradient = nnx.value_and_grad(marked)(model, images, labels)
        optimizer.update(model, gradient)
        new, old = (nnx.state(x, nnx.Param) for x in (model, average))
        nnx.update(average, jax.tree.map(lambda a, w: DECAY * a + (1 - DECAY) * w, old, new))
        return value

    return jit(step, donate_argnums=(0, 1, 2))


def batch(n: int) -> tuple[jax.Array, jax.Array]:
    """Noisy images of stripes in one of four directions, and which."""
    key, noise, phase = jax.random.split(jax.random.key(n), 3)
    labels = jax.random.randint(key, (BATCH,), 0, CLASSES)
    angle = jnp.pi * labels[:, None, None] / CLASSES
    y, x = jnp.mgrid[:SIZE, :SIZE]
    shift = jax.random.uniform(phase, (BATCH, 1, 1), maxval=2 * jnp.pi)
    images = jnp.sin(x * jnp.cos(angle) + y * jnp.sin(angle) + shift)
    return (images + 0.3 * jax.random.normal(noise, images.shape))[..., None], labels


def train(steps: int, jit: Callable[..., Any] = PLANNED) -> tuple[list[float], Any]:
    """The losses of some batches, and the model, optimizer and average after them."""
    step, objects = make_step(jit), make_objects()
    return [float(step(*objects, *batch(n))) for n in range(steps)], objects


def main() -> None:
    """Print the plan, what becomes of the donated state, and what the loss came to."""
    step, arguments = make_step(), (*make_objects(), *batch(0))
    print(monet_jax.plan(step, *arguments))
    print(monet_jax.donation_report(step, *arguments))
    losses, (*_, average) = train(20)
    average.eval()
    print(f"Loss of the first batch {losses[0]:.2f}, of the last {losses[-1]:.2f}, and of the")
    print(f"average of the weights on another one {float(loss(average, *batch(20))):.2f}.")


if __name__ == "__main__":
    main()
