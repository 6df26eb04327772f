"""Do networks learn as much from gradients that were read from lossy codes?

    python docs/measurements/digits.py    # writes digits.json; the extra `examples`; minutes

A small convolutional network and a small transformer learn scikit-learn's handwritten digits, from
several seeds, by plain JAX and by plans that save every code of one operator, whether that pays or
not. Rows have the accuracy on held-back digits, mean and spread over the seeds, and what share of
the saved bytes is in codes.
"""

import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from codes import reading_codes
from flax import linen as nn
from keeping import keep
from sklearn.datasets import load_digits

HELD_BACK, BATCH, EPOCHS, SEEDS = 360, 128, 30, 5
LOSSY = "bf16 fp8 int8 int4 int2 pool2 softpool2 pixel2 rows0.3 blocks0.25 slope8 slope4".split()
OPERATORS = {"exact": ["mask", "pool"]} | {name: ["mask", "pool", name] for name in LOSSY}


class Convolutions(nn.Module):
    """Convolutions, each with a normalization over the batch and a relu."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images[..., None]
        for n in range(10):
            x = nn.Conv(16, (3, 3))(x)
            x = x - x.mean((0, 1, 2))
            x = x * jax.lax.rsqrt(jnp.square(x).mean((0, 1, 2)) + 1e-5)
            x = nn.relu(x * self.param(f"scale{n}", nn.initializers.ones, (16,)))
        return nn.Dense(10)(x.mean((1, 2)))


class Transformer(nn.Module):
    """Rows of an image as tokens."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Dense(64)(images)
        x = x + self.param("places", nn.initializers.normal(0.02), x.shape[1:])
        for _ in range(4):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
            x = x + nn.Dense(64)(nn.gelu(nn.Dense(256)(nn.LayerNorm()(x))))
        return nn.Dense(10)(nn.LayerNorm()(x).mean(1))


def data() -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Digits to learn from, and held-back ones."""
    images, labels = load_digits(return_X_y=True)
    x, y = jnp.asarray(images.reshape(-1, 8, 8) / 16, jnp.float32), jnp.asarray(labels)
    return (x[:-HELD_BACK], y[:-HELD_BACK]), (x[-HELD_BACK:], y[-HELD_BACK:])


def accuracies(model: nn.Module, loss: Callable[..., jax.Array]) -> list[float]:
    """Of a model that has learned by a loss, from several seeds."""
    (x, y), (held_back, labels) = data()
    optimizer = optax.adam(2e-3)

    @jax.jit
    def step(params, state, key):
        batch, noise = jax.random.split(key)
        chosen = jax.random.choice(batch, len(x), (BATCH,), replace=False)
        grads = jax.grad(loss)(params, x[chosen], y[chosen], noise)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def accuracy(params):
        return jnp.mean(jnp.argmax(model.apply(params, held_back), -1) == labels)

    found = []
    for key in map(jax.random.key, range(SEEDS)):
        params = model.init(key, x[:1])
        state = optimizer.init(params)
        for n in range(EPOCHS * (len(x) // BATCH)):
            params, state = step(params, state, jax.random.fold_in(key, n))
        found.append(float(accuracy(params)))
    return found


def rows(model: nn.Module) -> list[dict[str, Any]]:
    """Plain, and each of the operators."""

    def loss(params, x, y, key):
        del key  # from which the noise of codes is drawn
        logits = model.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    (x, y), _ = data()
    args = model.init(jax.random.key(0), x[:1]), x[:BATCH], y[:BATCH], jax.random.key(0)
    found, bits = [row(model, "plain", loss)], 0.0
    for name, operators in OPERATORS.items():
        coded, in_codes = reading_codes(loss, args, operators)
        if name == "exact" or in_codes > bits:  # or there is nothing that it applies to
            found.append(row(model, name, coded) | {"in_codes": round(in_codes, 3)})
        bits = in_codes if name == "exact" else bits
    return found


def row(model: nn.Module, name: str, loss: Callable[..., jax.Array]) -> dict[str, Any]:
    """The accuracies of one loss."""
    found = accuracies(model, loss)
    spread = {"mean": statistics.mean(found), "spread": statistics.stdev(found)}
    made = {"model": type(model).__name__, "operators": name}
    made |= {key: round(x, 4) for key, x in spread.items()}
    print(made, file=sys.stderr, flush=True)
    return made


if __name__ == "__main__":
    every = functools.reduce(list.__add__, map(rows, (Convolutions(), Transformer())))
    versions = {"jax": jax.__version__, "device": jax.devices()[0].platform, "seeds": SEEDS}
    keep(Path(__file__).parent / "digits.json", "digits.py", every, **versions)
