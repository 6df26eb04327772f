"""U-Net (Ronneberger et al., 2015, MICCAI)

With padded convolutions and BatchNorm, so that the logits are as large as the image.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import ConvNorm
from .problem import BlockRemat, Problem, Scale, labelled, make_problem, rematted

# Batch, image height and width, and what differs from the defaults of UNet.
_SCALES: dict[str, tuple[int, tuple[int, int], dict[str, Any]]] = {
    "full": (4, (416, 608), {}),
    "bench": (2, (208, 304), {}),
    "tiny": (2, (16, 24), {"widths": (8, 16, 32)}),
}


class DoubleConv(nn.Module):
    """[b, h, w, c] to [b, h, w, width] by two 3x3 convolutions."""

    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = ConvNorm(self.width, dtype=self.dtype, name="conv0")(x)
        return ConvNorm(self.width, dtype=self.dtype, name="conv1")(x)


class UNet(nn.Module):
    """[b, h, w, 3] images to [b, h, w, classes] logits; h and w are multiples of 2^levels."""

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    classes: int = 2
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = rematted(DoubleConv, self.block_remat)
        *widths, bottom = self.widths
        skips = []
        for level, width in enumerate(widths):
            skips.append(block(width, self.dtype, name=f"down{level}")(x))
            x = nn.max_pool(skips[-1], (2, 2), (2, 2))
        x = block(bottom, self.dtype, name="bottom")(x)
        for level, width in reversed(list(enumerate(widths))):
            x = self.upsample(x, width, level)
            x = jnp.concatenate((skips[level], x), axis=-1)
            x = block(width, self.dtype, name=f"up{level}")(x)
        return nn.Conv(self.classes, (1, 1), dtype=self.dtype, name="head")(x)

    def upsample(self, x: jax.Array, width: int, level: int) -> jax.Array:
        """[b, h, w, c] to [b, 2h, 2w, width] by a transposed 2x2 convolution."""
        name = f"upsample{level}"
        return nn.ConvTranspose(width, (2, 2), (2, 2), dtype=self.dtype, name=name)(x)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Segmentation of [batch, height, width, 3] images: cross-entropy per pixel."""
    default_batch, size, changes = _SCALES[scale]
    model = UNet(dtype=dtype, block_remat=block_remat, **changes)
    pixels = (batch or default_batch, *size)
    return make_problem("unet", model, labelled((*pixels, 3), pixels, model.classes))
