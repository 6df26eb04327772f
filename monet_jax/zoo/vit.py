"""The vision transformer ViT-S/16 (Dosovitskiy et al., 2021, ICLR)

Twelve blocks of width 384, the S size of DeiT (Touvron et al., 2021, ICML). No dropout.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import attention_weights
from .problem import BlockRemat, Problem, Scale, labelled, make_problem, rematted

# Batch, image side, and what differs from the defaults of ViT.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (64, 224, {}),
    "bench": (8, 224, {}),
    "frontier": (256, 224, {"depth": 24, "width": 1024, "heads": 16}),  # ViT-L/16
    "tiny": (4, 32, {"depth": 2, "width": 32, "heads": 2, "classes": 10}),
}


class Attention(nn.Module):
    """[batch, tokens, width] to the same: every token attends to every other."""

    heads: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, tokens, width = x.shape
        qkv = nn.Dense(3 * width, dtype=self.dtype, name="qkv")(x)
        qkv = qkv.reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        weights = attention_weights(scores, self.dtype)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        return nn.Dense(width, dtype=self.dtype, name="proj")(y)


class Block(nn.Module):
    """[batch, tokens, width] to the same: attention, then a gelu MLP, each pre-norm residual."""

    heads: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, dtype = x.shape[-1], self.dtype
        y = nn.LayerNorm(dtype=dtype, name="norm0")(x)
        x = x + Attention(self.heads, dtype, name="attention")(y)
        y = nn.LayerNorm(dtype=dtype, name="norm1")(x)
        y = nn.Dense(4 * width, dtype=dtype, name="widen")(y)
        y = jax.nn.gelu(y, approximate=False)
        return x + nn.Dense(width, dtype=dtype, name="narrow")(y)


class ViT(nn.Module):
    """[b, side, side, 3] images to [b, classes] logits; the defaults are ViT-S/16."""

    depth: int = 12
    width: int = 384
    heads: int = 6
    patch: int = 16
    classes: int = 1000
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.embed(x)
        block = rematted(Block, self.block_remat)
        for i in range(self.depth):
            x = block(self.heads, self.dtype, name=f"block{i}")(x)
        x = nn.LayerNorm(dtype=self.dtype, name="norm")(x)
        return nn.Dense(self.classes, dtype=self.dtype, name="head")(x[:, 0])

    def embed(self, x: jax.Array) -> jax.Array:
        """[b, side, side, 3] to [b, 1 + patches, width]: a class token, the patches, positions."""
        size = (self.patch, self.patch)
        x = nn.Conv(self.width, size, size, dtype=self.dtype, name="patches")(x)
        x = x.reshape(x.shape[0], -1, self.width)
        token = self.param("token", nn.initializers.zeros, (1, 1, self.width))
        token = jnp.broadcast_to(token.astype(self.dtype), (x.shape[0], 1, self.width))
        x = jnp.concatenate((token, x), axis=1)
        position = self.param("position", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        return x + position.astype(self.dtype)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Classification of [batch, side, side, 3] images."""
    default_batch, side, changes = _SCALES[scale]
    model = ViT(dtype=dtype, block_remat=block_remat, **changes)
    batch = batch or default_batch
    sample = labelled((batch, side, side, 3), (batch,), model.classes)
    return make_problem("vit_s16", model, sample)
