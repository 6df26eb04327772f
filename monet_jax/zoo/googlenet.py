"""GoogLeNet (Szegedy et al., 2015, CVPR)

The variant of torchvision: BatchNorm after every convolution, and 3x3 where the paper has 5x5.
The auxiliary classifiers are left out.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import ConvNorm
from .problem import BlockRemat, Problem, Scale, labelled, make_problem, rematted

Widths = tuple[int, int, int, int, int, int]

# Per stage and module: 1x1; 3x3 reduction, 3x3; 5x5 reduction, 5x5; pool projection.
_STAGES: tuple[tuple[Widths, ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
_TINY = {
    "stages": (((8, 6, 8, 4, 8, 8),), ((8, 8, 8, 4, 8, 8),)),
    "width": 8,
    "classes": 10,
}

# Batch, image side, and what differs from the defaults of GoogLeNet.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (64, 224, {}),
    "bench": (32, 128, {}),
    "tiny": (4, 32, _TINY),
}


def _conv(features: int, kernel: int, dtype: Any, name: str, stride: int = 1) -> ConvNorm:
    return ConvNorm(features, kernel, stride, epsilon=1e-3, dtype=dtype, name=name)


class Inception(nn.Module):
    """[b, h, w, c] to [b, h, w, the four branches' widths together]."""

    widths: Widths
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        one, reduce3, three, reduce5, five, project = self.widths
        pooled = nn.max_pool(x, (3, 3), (1, 1), padding="SAME")
        branches = (
            _conv(one, 1, self.dtype, "one")(x),
            _conv(three, 3, self.dtype, "three")(_conv(reduce3, 1, self.dtype, "reduce3")(x)),
            _conv(five, 3, self.dtype, "five")(_conv(reduce5, 1, self.dtype, "reduce5")(x)),
            _conv(project, 1, self.dtype, "project")(pooled),
        )
        return jnp.concatenate(branches, axis=-1)


class GoogLeNet(nn.Module):
    """[b, side, side, 3] images to [b, classes] logits."""

    stages: tuple[tuple[Widths, ...], ...] = _STAGES
    width: int = 64
    classes: int = 1000
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        block = rematted(Inception, self.block_remat)
        for stage, modules in enumerate(self.stages):
            x = _halve(x)
            for i, widths in enumerate(modules):
                x = block(widths, self.dtype, name=f"stage{stage}_inception{i}")(x)
        x = jnp.mean(x, axis=(1, 2))
        x = nn.Dropout(0.2, deterministic=False, name="dropout")(x)
        return nn.Dense(self.classes, dtype=self.dtype, name="head")(x)

    def stem(self, x: jax.Array) -> jax.Array:
        """[b, side, side, 3] to [b, side/4, side/4, 3 width]."""
        x = _halve(_conv(self.width, 7, self.dtype, "stem0", stride=2)(x))
        x = _conv(self.width, 1, self.dtype, "stem1")(x)
        return _conv(3 * self.width, 3, self.dtype, "stem2")(x)


def _halve(x: jax.Array) -> jax.Array:
    return nn.max_pool(x, (3, 3), (2, 2), padding="SAME")


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Classification of [batch, side, side, 3] images."""
    default_batch, side, changes = _SCALES[scale]
    model = GoogLeNet(dtype=dtype, block_remat=block_remat, **changes)
    batch = batch or default_batch
    sample = labelled((batch, side, side, 3), (batch,), model.classes)
    return make_problem("googlenet", model, sample)
