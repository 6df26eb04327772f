"""The U-Net of a diffusion model (Ho et al., 2020, NeurIPS)

It predicts the noise in an image from the image and the time. Two residual blocks with GroupNorm at
each resolution on the way down, three on the way up, attention at one of the resolutions. The
defaults are those for CIFAR-10; at the frontier those for images of 256 x 256.
"""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .layers import attention_weights
from .problem import BlockRemat, Problem, Sample, Scale, make_problem, rematted, squared_error

_LARGE = {"multipliers": (1, 1, 2, 2, 4, 4), "attended": 16, "dropout": 0.0}
_TINY = {"width": 8, "multipliers": (1, 2), "attended": 4, "groups": 4}

# Batch, image side, and what differs from the defaults of DiffusionUNet.
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (128, 32, {}),
    "bench": (16, 32, {}),
    "tiny": (2, 8, _TINY),
    "frontier": (128, 256, _LARGE),
}


def embedded(time: jax.Array, width: int) -> jax.Array:
    """[batch] times to [batch, width] sines and cosines, in float32."""
    rates = 10_000.0 ** (-jnp.arange(width // 2, dtype=jnp.float32) / (width // 2 - 1))
    angles = time.astype(jnp.float32)[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


class ResBlock(nn.Module):
    """[b, h, w, c] and [b, features of the time] to [b, h, w, width]; maybe with attention."""

    width: int
    is_attended: bool
    groups: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        norm = ft.partial(nn.GroupNorm, self.groups, epsilon=1e-6, dtype=self.dtype)
        conv = ft.partial(nn.Conv, self.width, (3, 3), dtype=self.dtype)
        y = conv(name="conv0")(jax.nn.silu(norm(name="norm0")(x)))
        y += nn.Dense(self.width, dtype=self.dtype, name="time")(time)[:, None, None]
        y = jax.nn.silu(norm(name="norm1")(y))
        y = nn.Dropout(self.dropout, deterministic=False, name="dropout")(y)
        y = conv(name="conv1")(y)
        if x.shape != y.shape:
            x = nn.Dense(self.width, dtype=self.dtype, name="shortcut")(x)
        return self._attended(x + y, norm) if self.is_attended else x + y

    def _attended(self, x: jax.Array, norm: Any) -> jax.Array:
        """The sum of an image and the attention of its pixels to each other, in one head."""
        dense = ft.partial(nn.Dense, x.shape[-1], dtype=self.dtype)
        y = norm(name="norm2")(x).reshape(x.shape[0], -1, x.shape[-1])
        query, key, value = (dense(name=name)(y) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqd,bkd->bqk", query, key) * x.shape[-1] ** -0.5
        y = jnp.einsum("bqk,bkd->bqd", attention_weights(scores, self.dtype), value)
        return x + dense(name="out")(y).reshape(x.shape)


class DiffusionUNet(nn.Module):
    """[b, side, side, 3] noisy images and [b] times to [b, side, side, 3] noise."""

    width: int = 128
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    attended: int = 16
    blocks: int = 2
    groups: int = 32
    dropout: float = 0.1
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        images, time = inputs
        dense = ft.partial(nn.Dense, 4 * self.width, dtype=self.dtype)
        moment = dense(name="time0")(embedded(time, self.width))
        moment = jax.nn.silu(dense(name="time1")(jax.nn.silu(moment)))
        conv = ft.partial(nn.Conv, kernel_size=(3, 3), dtype=self.dtype)
        skips = self._down(conv(self.width, name="stem")(images), moment, conv)
        x = self._block("middle0", skips[-1], moment, self.multipliers[-1], True)
        x = self._block("middle1", x, moment, self.multipliers[-1], False)
        x = self._up(x, skips, moment, conv)
        x = jax.nn.silu(nn.GroupNorm(self.groups, epsilon=1e-6, dtype=self.dtype, name="norm")(x))
        return conv(images.shape[-1], name="head")(x)

    def _down(self, x: jax.Array, moment: jax.Array, conv: Any) -> list[jax.Array]:
        skips = [x]
        for level, multiplier in enumerate(self.multipliers):
            for i in range(self.blocks):
                skips.append(self._block(f"down{level}_{i}", skips[-1], moment, multiplier))
            if level < len(self.multipliers) - 1:
                wide = self.width * multiplier
                skips.append(conv(wide, strides=2, name=f"half{level}")(skips[-1]))
        return skips

    def _up(self, x: jax.Array, skips: list[jax.Array], moment: jax.Array, conv: Any) -> jax.Array:
        for level, multiplier in reversed([*enumerate(self.multipliers)]):
            for i in range(self.blocks + 1):
                x = jnp.concatenate([x, skips.pop()], -1)
                x = self._block(f"up{level}_{i}", x, moment, multiplier)
            if level:
                x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
                x = conv(x.shape[-1], name=f"twice{level}")(x)
        return x

    def _block(
        self,
        name: str,
        x: jax.Array,
        moment: jax.Array,
        multiplier: int,
        is_attended: bool | None = None,
    ) -> jax.Array:
        if is_attended is None:
            is_attended = x.shape[1] == self.attended
        make = rematted(ResBlock, self.block_remat)
        sizes = self.width * multiplier, is_attended, self.groups, self.dropout
        return make(*sizes, self.dtype, name=name)(x, moment)


def noisy(batch: int, side: int) -> Sample:
    """Draws [batch, side, side, 3] noisy images with [batch] times, and the noise in them."""

    def sample(key: jax.Array) -> tuple[Any, jax.Array]:
        image_key, time_key, noise_key = jax.random.split(key, 3)
        noise = jax.random.normal(noise_key, (batch, side, side, 3))
        images = (jax.random.normal(image_key, noise.shape) + noise) / 2**0.5
        return (images, jax.random.randint(time_key, (batch,), 0, 1000)), noise

    return sample


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Prediction of the noise in [batch, side, side, 3] images."""
    default_batch, side, changes = _SCALES[scale]
    model = DiffusionUNet(dtype=dtype, block_remat=block_remat, **changes)
    sample = noisy(batch or default_batch, side)
    return make_problem("diffusion_unet", model, sample, squared_error)
