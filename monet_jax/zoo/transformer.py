"""The encoder-decoder Transformer (Vaswani et al., 2017, NeurIPS, the base model)

Six layers read the source, six write the target and look at what the encoder made of the source;
each half is a scan over its layers. One embedding serves source, target and output; norms come
after the residual sums, and dropout is 0.1 on the sums of embeddings and on every sublayer.
"""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from .layers import attention_weights
from .problem import BlockRemat, Problem, Sample, Scale, make_problem, stacked, text

# Batch, sequence length, and what differs from the defaults of Transformer.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (64, 256, {}),
    "bench": (4, 256, {}),
    "tiny": (2, 12, {"depth": 2, "width": 32, "heads": 2, "hidden": 64, "vocab": 128}),
}


def positions(length: int, width: int) -> np.ndarray:
    """[length, width] sines and cosines of the position, section 3.5 of the paper."""
    rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width).astype(np.float32)


class Attention(nn.Module):
    """[batch, queries, width] and a memory, [batch, keys, width], to [batch, queries, width]."""

    heads: int
    causal: bool
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array) -> jax.Array:
        width = x.shape[-1]
        dense = ft.partial(nn.DenseGeneral, use_bias=False, dtype=self.dtype)
        split = (self.heads, width // self.heads)
        query, key = dense(split, name="query")(x), dense(split, name="key")(memory)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * split[1] ** -0.5
        weights = attention_weights(scores, self.dtype, self.causal)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, dense(split, name="value")(memory))
        return dense(width, axis=(-2, -1), name="out")(y)


class Block(nn.Module):
    """[batch, tokens, width] to the same: attention, to a memory as well if there is one, ReLU MLP.

    With a memory, [batch, keys, width], it is a layer of the decoder: no token sees a later one.
    """

    heads: int
    hidden: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None) -> jax.Array:
        attention = ft.partial(Attention, self.heads, dtype=self.dtype)
        x = self._sum("self", x, attention(memory is not None, name="attention")(x, x))
        if memory is not None:
            x = self._sum("memory", x, attention(False, name="reading")(x, memory))
        y = jax.nn.relu(nn.Dense(self.hidden, dtype=self.dtype, name="widen")(x))
        return self._sum("mlp", x, nn.Dense(x.shape[-1], dtype=self.dtype, name="narrow")(y))

    def _sum(self, name: str, x: jax.Array, y: jax.Array) -> jax.Array:
        y = nn.Dropout(self.dropout, deterministic=False, name=f"dropout_{name}")(y)
        return nn.LayerNorm(dtype=self.dtype, name=f"norm_{name}")(x + y)


class Transformer(nn.Module):
    """[batch, tokens] ids of source and of target to [batch, tokens, vocab] logits."""

    depth: int = 6
    width: int = 512
    heads: int = 8
    hidden: int = 2048
    vocab: int = 37_000
    dropout: float = 0.1
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, texts: tuple[jax.Array, jax.Array]) -> jax.Array:
        init = nn.initializers.normal(self.width**-0.5)
        words = nn.Embed(self.vocab, self.width, embedding_init=init, dtype=self.dtype)

        def embedded(tokens: jax.Array, name: str) -> jax.Array:
            x = words(tokens) * self.width**0.5
            x = x + positions(tokens.shape[1], self.width).astype(self.dtype)
            return nn.Dropout(self.dropout, deterministic=False, name=name)(x)

        block = ft.partial(Block, self.heads, self.hidden, self.dropout, self.dtype)
        source, target = texts
        half = ft.partial(stacked, block, self.depth, self.block_remat)
        memory, _ = half(name="encoder")(embedded(source, "dropout_source"))
        x, _ = half(shared=1, name="decoder")(embedded(target, "dropout_target"), memory)
        return words.attend(x)


def pairs(batch: int, length: int, vocab: int) -> Sample:
    """Draws [batch, length] ids of source and of target, and the ids that follow in the target."""
    draw = text(batch, length, vocab)

    def sample(key: jax.Array) -> tuple[Any, jax.Array]:
        source_key, target_key = jax.random.split(key)
        target, following = draw(target_key)
        return (draw(source_key)[0], target), following

    return sample


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Prediction of the next token of a target from a source, both [batch, length] ids."""
    default_batch, length, changes = _SCALES[scale]
    model = Transformer(dtype=dtype, block_remat=block_remat, **changes)
    return make_problem("transformer", model, pairs(batch or default_batch, length, model.vocab))
