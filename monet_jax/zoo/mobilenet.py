"""MobileNetV2 (Sandler et al., 2018, CVPR)"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import ConvNorm
from .problem import BlockRemat, Problem, Scale, labelled, make_problem, rematted

Stages = tuple[tuple[int, int, int, int], ...]

# The paper's Table 2, per stage: expansion t, channels c, blocks n, stride s.
_STAGES: Stages = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_TINY = {
    "stages": ((1, 8, 1, 1), (6, 8, 2, 2)),
    "stem": 8,
    "last": 32,
    "classes": 10,
}

# Batch, image side, and what differs from the defaults of MobileNetV2.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (64, 224, {}),
    "bench": (32, 128, {}),
    "tiny": (4, 32, _TINY),
}


class InvertedResidual(nn.Module):
    """[b, h, w, c] to [b, h/stride, w/stride, features]: widen, depthwise 3x3, narrow."""

    features: int
    expansion: int
    stride: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = functools.partial(ConvNorm, act=jax.nn.relu6, dtype=self.dtype)
        y, hidden = x, x.shape[-1] * self.expansion
        if self.expansion > 1:
            y = conv(hidden, 1, name="expand")(y)
        y = conv(hidden, 3, self.stride, groups=hidden, name="depthwise")(y)
        y = conv(self.features, 1, act=None, name="project")(y)
        return x + y if x.shape == y.shape else y


class MobileNetV2(nn.Module):
    """[b, side, side, 3] images to [b, classes] logits."""

    stages: Stages = _STAGES
    stem: int = 32
    last: int = 1280
    classes: int = 1000
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = functools.partial(ConvNorm, act=jax.nn.relu6, dtype=self.dtype)
        block = rematted(InvertedResidual, self.block_remat)
        x = conv(self.stem, 3, 2, name="stem")(x)
        for stage, (expansion, features, depth, stride) in enumerate(self.stages):
            for i in range(depth):
                name, step = f"stage{stage}_block{i}", stride if i == 0 else 1
                x = block(features, expansion, step, self.dtype, name=name)(x)
        x = jnp.mean(conv(self.last, 1, name="last_conv")(x), axis=(1, 2))
        x = nn.Dropout(0.2, deterministic=False, name="dropout")(x)
        return nn.Dense(self.classes, dtype=self.dtype, name="head")(x)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Classification of [batch, side, side, 3] images."""
    default_batch, side, changes = _SCALES[scale]
    model = MobileNetV2(dtype=dtype, block_remat=block_remat, **changes)
    batch = batch or default_batch
    sample = labelled((batch, side, side, 3), (batch,), model.classes)
    return make_problem("mobilenet_v2", model, sample)
