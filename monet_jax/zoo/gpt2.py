"""GPT-2 small (Radford et al., 2019, OpenAI)

The embedding is tied to the output layer, and dropout is 0.1 on the embeddings, the attention
weights and the residual branches. The layers are written one after another, or run under a scan.
"""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import attention_weights
from .problem import BlockRemat, Problem, Scale, make_problem, rematted, stacked, text

_INIT = nn.initializers.normal(0.02)

# Batch, sequence length, and what differs from the defaults of GPT2.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (8, 1024, {}),
    "bench": (2, 512, {}),
    "frontier": (32, 1024, {"depth": 12, "width": 1600, "heads": 25}),  # 12 of GPT-2 XL's 48 layers
    "tiny": (2, 16, {"depth": 2, "width": 32, "heads": 2, "vocab": 128, "context": 16}),
}


def _dense(features: int, dtype: Any, name: str) -> nn.Dense:
    return nn.Dense(features, dtype=dtype, kernel_init=_INIT, name=name)


class Attention(nn.Module):
    """[batch, tokens, width] to the same: every token attends to itself and those before it."""

    heads: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, tokens, width = x.shape
        qkv = _dense(3 * width, self.dtype, "qkv")(x)
        qkv = qkv.reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        weights = attention_weights(scores, self.dtype, causal=True)
        weights = nn.Dropout(self.dropout, deterministic=False, name="dropout")(weights)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        return _dense(width, self.dtype, "proj")(y)


class Block(nn.Module):
    """[batch, tokens, width] to the same: attention, then a gelu MLP, each pre-norm residual."""

    heads: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, dtype = x.shape[-1], self.dtype
        y = nn.LayerNorm(epsilon=1e-5, dtype=dtype, name="norm0")(x)
        y = Attention(self.heads, self.dropout, dtype, name="attention")(y)
        x = x + nn.Dropout(self.dropout, deterministic=False, name="dropout0")(y)
        y = nn.LayerNorm(epsilon=1e-5, dtype=dtype, name="norm1")(x)
        y = jax.nn.gelu(_dense(4 * width, dtype, "widen")(y))
        y = _dense(width, dtype, "narrow")(y)
        return x + nn.Dropout(self.dropout, deterministic=False, name="dropout1")(y)


class GPT2(nn.Module):
    """[batch, tokens] token ids to [batch, tokens, vocab] logits; the defaults are GPT-2 small."""

    depth: int = 12
    width: int = 768
    heads: int = 12
    vocab: int = 50257
    context: int = 1024
    dropout: float = 0.1
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None
    scanned: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        words = nn.Embed(
            self.vocab, self.width, embedding_init=_INIT, dtype=self.dtype, name="words"
        )
        position = self.param("position", _INIT, (self.context, self.width))
        x = words(tokens) + position[: tokens.shape[1]].astype(self.dtype)
        x = nn.Dropout(self.dropout, deterministic=False, name="dropout")(x)
        if self.scanned:
            block = ft.partial(Block, self.heads, self.dropout, self.dtype)
            x, _ = stacked(block, self.depth, self.block_remat)(x)
        else:
            block = rematted(Block, self.block_remat)
            for i in range(self.depth):
                x = block(self.heads, self.dropout, self.dtype, name=f"block{i}")(x)
        x = nn.LayerNorm(epsilon=1e-5, dtype=self.dtype, name="norm")(x)
        return words.attend(x)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Prediction of the next token at every position of [batch, length] token ids."""
    return _problem("gpt2", scale, batch, dtype, block_remat, scanned=False)


def scanned(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """The same with the layers under one scan."""
    return _problem("gpt2_scan", scale, batch, dtype, block_remat, scanned=True)


def _problem(name: str, scale: Scale, batch, dtype, block_remat, scanned: bool) -> Problem:
    default_batch, length, changes = _SCALES[scale]
    model = GPT2(dtype=dtype, block_remat=block_remat, scanned=scanned, **changes)
    return make_problem(name, model, text(batch or default_batch, length, model.vocab))
