"""ResNet-50 (He et al., 2016, CVPR)

The stride of a stage is in its first 3x3 convolution, as in torchvision, not in the 1x1 before it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import ConvNorm
from .problem import BlockRemat, Problem, Scale, labelled, make_problem, rematted

# Batch, image side, and what differs from the defaults of ResNet.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (64, 224, {}),
    "bench": (16, 128, {}),
    "tiny": (4, 32, {"depths": (2, 1), "width": 8, "classes": 10}),
}


class Bottleneck(nn.Module):
    """[b, h, w, c] to [b, h/stride, w/stride, 4 width]: 1x1, 3x3, 1x1, plus the shortcut."""

    width: int
    stride: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        out, dtype = 4 * self.width, self.dtype
        y = ConvNorm(self.width, 1, dtype=dtype, name="reduce")(x)
        y = ConvNorm(self.width, 3, self.stride, dtype=dtype, name="spatial")(y)
        y = ConvNorm(out, 1, act=None, dtype=dtype, name="expand")(y)
        if x.shape != y.shape:
            x = ConvNorm(out, 1, self.stride, act=None, dtype=dtype, name="shortcut")(x)
        return jax.nn.relu(x + y)


class ResNet(nn.Module):
    """[b, side, side, 3] images to [b, classes] logits; the defaults are ResNet-50."""

    depths: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = rematted(Bottleneck, self.block_remat)
        x = ConvNorm(self.width, 7, 2, dtype=self.dtype, name="stem")(x)
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, depth in enumerate(self.depths):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                name = f"stage{stage}_block{i}"
                x = block(self.width << stage, stride, self.dtype, name=name)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.classes, dtype=self.dtype, name="head")(x)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Classification of [batch, side, side, 3] images."""
    default_batch, side, changes = _SCALES[scale]
    model = ResNet(dtype=dtype, block_remat=block_remat, **changes)
    batch = batch or default_batch
    sample = labelled((batch, side, side, 3), (batch,), model.classes)
    return make_problem("resnet50", model, sample)
