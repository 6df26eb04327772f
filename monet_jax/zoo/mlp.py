"""A deep, wide MLP: LayerNorm, Dense and gelu in each layer, no residual connections."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .problem import BlockRemat, Problem, Scale, labelled, make_problem, rematted

# Batch, and what differs from the defaults of MLP.
_SCALES: dict[str, tuple[int, dict[str, Any]]] = {
    "full": (4096, {}),
    "bench": (1024, {}),
    "tiny": (8, {"depth": 3, "width": 32, "classes": 10}),
}


class Layer(nn.Module):
    """[batch, width] to [batch, width]: LayerNorm, Dense, gelu."""

    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.LayerNorm(dtype=self.dtype, name="norm")(x)
        return jax.nn.gelu(nn.Dense(self.width, dtype=self.dtype, name="dense")(x))


class MLP(nn.Module):
    """[batch, width] features to [batch, classes] logits through `depth` layers."""

    depth: int = 24
    width: int = 2048
    classes: int = 1000
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layer = rematted(Layer, self.block_remat)
        for i in range(self.depth):
            x = layer(self.width, self.dtype, name=f"layer{i}")(x)
        return nn.Dense(self.classes, dtype=self.dtype, name="head")(x)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Classification of [batch, width] feature vectors."""
    default_batch, changes = _SCALES[scale]
    model = MLP(dtype=dtype, block_remat=block_remat, **changes)
    batch = batch or default_batch
    return make_problem("mlp", model, labelled((batch, model.width), (batch,), model.classes))
