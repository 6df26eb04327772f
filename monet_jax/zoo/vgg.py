"""VGG-16 (Simonyan and Zisserman, 2015, ICLR)

Configuration D: no BatchNorm, and most parameters in the first fully connected layer.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .problem import BlockRemat, Problem, Scale, labelled, make_problem, rematted

Groups = tuple[tuple[int, int], ...]

_GROUPS: Groups = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))

# Batch, image side, and what differs from the defaults of VGG.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (32, 224, {}),
    "bench": (8, 224, {}),
    "tiny": (4, 32, {"groups": ((8, 2), (16, 2)), "hidden": 32, "classes": 10}),
}


class ConvGroup(nn.Module):
    """[b, h, w, c] to [b, h, w, width] by `depth` 3x3 convolutions with relu."""

    width: int
    depth: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(self.depth):
            x = jax.nn.relu(nn.Conv(self.width, (3, 3), dtype=self.dtype, name=f"conv{i}")(x))
        return x


class VGG(nn.Module):
    """[b, side, side, 3] images to [b, classes] logits; the defaults are VGG-16."""

    groups: Groups = _GROUPS
    hidden: int = 4096
    classes: int = 1000
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = rematted(ConvGroup, self.block_remat)
        for i, (width, depth) in enumerate(self.groups):
            x = block(width, depth, self.dtype, name=f"group{i}")(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for i in range(2):
            x = jax.nn.relu(nn.Dense(self.hidden, dtype=self.dtype, name=f"hidden{i}")(x))
            x = nn.Dropout(0.5, deterministic=False, name=f"dropout{i}")(x)
        return nn.Dense(self.classes, dtype=self.dtype, name="head")(x)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Classification of [batch, side, side, 3] images."""
    default_batch, side, changes = _SCALES[scale]
    model = VGG(dtype=dtype, block_remat=block_remat, **changes)
    batch = batch or default_batch
    sample = labelled((batch, side, side, 3), (batch,), model.classes)
    return make_problem("vgg16", model, sample)
