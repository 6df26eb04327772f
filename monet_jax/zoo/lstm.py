"""A recurrent language model (Zaremba et al., 2014, the large model)

Two layers of LSTM, each a scan over time, 1500 units wide; dropout on what is not recurrent. The
weights are the same at every step, so a scan's gradient adds to them step by step.
"""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .problem import BlockRemat, Problem, Scale, make_problem, repeated, text

_INIT = nn.initializers.uniform(0.08)

# Batch, sequence length, and what differs from the defaults of LSTM.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (20, 1024, {}),
    "bench": (8, 256, {}),
    "tiny": (2, 12, {"width": 16, "vocab": 64}),
}


class Step(nn.Module):
    """One step in time: the carried (cell, hidden) and [batch, width] to the same."""

    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        return nn.OptimizedLSTMCell(self.width, dtype=self.dtype, name="cell")(carry, x)


class LSTM(nn.Module):
    """[batch, tokens] token ids to [batch, tokens, vocab] logits."""

    depth: int = 2
    width: int = 1500
    vocab: int = 10_000
    dropout: float = 0.65
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        drop = ft.partial(nn.Dropout, self.dropout, deterministic=False)
        embed = nn.Embed(self.vocab, self.width, embedding_init=_INIT, dtype=self.dtype)
        x = drop(name="dropout")(embed(tokens))
        over_time = repeated(Step, self.block_remat, axis=1)
        start = jnp.zeros((tokens.shape[0], self.width), self.dtype)
        for i in range(self.depth):
            _, x = over_time(self.width, self.dtype, name=f"layer{i}")((start, start), x)
            x = drop(name=f"dropout{i}")(x)
        return nn.Dense(self.vocab, dtype=self.dtype, kernel_init=_INIT, name="head")(x)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Prediction of the next token at every position of [batch, length] token ids."""
    default_batch, length, changes = _SCALES[scale]
    model = LSTM(dtype=dtype, block_remat=block_remat, **changes)
    return make_problem("lstm", model, text(batch or default_batch, length, model.vocab))
