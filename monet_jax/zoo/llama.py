"""A Llama-style decoder (Touvron et al., 2023; Grattafiori et al., 2024, Meta)

RMSNorm, rotary positions (Su et al., 2021), attention in which several queries share a key and a
value (Ainslie et al., 2023), SwiGLU (Shazeer, 2020); no biases and no dropout. The layers run under
one scan. The defaults are those of Llama 3.2 1B; at the frontier it is Llama 3 8B, whose output
layer is not tied to its embedding.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import attention_weights
from .problem import BlockRemat, Problem, Scale, make_problem, stacked, text

# Batch, sequence length, and what differs from the defaults of Llama.
_SMALL = {"depth": 12, "width": 768, "heads": 12, "groups": 4, "hidden": 2048, "vocab": 32000}
_TINY = {"depth": 3, "width": 32, "heads": 4, "groups": 2, "hidden": 64, "vocab": 128}
#: What differs from the defaults in Llama 3 8B.
LLAMA_3_8B = {"depth": 32, "width": 4096, "hidden": 14_336, "is_tied": False}
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (1, 2048, {}),
    "bench": (2, 512, _SMALL),
    "tiny": (2, 16, _TINY),
    "frontier": (8, 4096, LLAMA_3_8B),
}


def rotated(x: jax.Array, base: float = 500_000.0) -> jax.Array:
    """[batch, tokens, heads, features] turned by angles that grow with the position."""
    half = x.shape[-1] // 2
    rates = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * rates
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


class Block(nn.Module):
    """[batch, tokens, width] to the same: attention, then SwiGLU, each pre-norm residual."""

    heads: int
    groups: int
    hidden: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        dense = ft.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        norm = ft.partial(nn.RMSNorm, epsilon=1e-5, dtype=self.dtype)
        x = x + dense(width, name="out")(self._attention(norm(name="norm0")(x), dense))
        return x + self._mlp(norm(name="norm1")(x), dense)

    def _mlp(self, x: jax.Array, dense: Any) -> jax.Array:
        gate, up = dense(self.hidden, name="gate")(x), dense(self.hidden, name="up")(x)
        return dense(x.shape[-1], name="down")(jax.nn.silu(gate) * up)

    def _attention(self, x: jax.Array, dense: Any) -> jax.Array:
        batch, tokens, width = x.shape
        size, shared = width // self.heads, self.heads // self.groups

        def split(name: str, heads: int) -> jax.Array:
            return dense(heads * size, name=name)(x).reshape(batch, tokens, heads, size)

        query, key = rotated(split("query", self.heads)), rotated(split("key", self.groups))
        query = query.reshape(batch, tokens, self.groups, shared, size)
        scores = jnp.einsum("bqgsd,bkgd->bgsqk", query, key) * size**-0.5
        weights = attention_weights(scores, self.dtype, causal=True)
        y = jnp.einsum("bgsqk,bkgd->bqgsd", weights, split("value", self.groups))
        return y.reshape(x.shape)


class Llama(nn.Module):
    """[batch, tokens] token ids to [batch, tokens, vocab] logits."""

    depth: int = 16
    width: int = 2048
    heads: int = 32
    groups: int = 8
    hidden: int = 8192
    vocab: int = 128_256
    is_tied: bool = True
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        words = nn.Embed(self.vocab, self.width, dtype=self.dtype, name="words")
        x, _ = stacked(self.block(), self.depth, self.block_remat)(words(tokens))
        x = nn.RMSNorm(epsilon=1e-5, dtype=self.dtype, name="norm")(x)
        if self.is_tied:
            return words.attend(x)
        return nn.Dense(self.vocab, use_bias=False, dtype=self.dtype, name="head")(x)

    def block(self) -> Callable[..., nn.Module]:
        """Makes one layer, given its name."""
        return ft.partial(Block, self.heads, self.groups, self.hidden, self.dtype)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Prediction of the next token at every position of [batch, length] token ids."""
    default_batch, length, changes = _SCALES[scale]
    model = Llama(dtype=dtype, block_remat=block_remat, **changes)
    return make_problem("llama", model, text(batch or default_batch, length, model.vocab))
