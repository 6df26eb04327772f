"""Layers that several networks of the zoo share.

The convolutional ones a convolution with BatchNorm, the others attention weights.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class ConvNorm(nn.Module):
    """Convolution without bias, BatchNorm on batch statistics, then maybe an activation.

    Maps [batch, height, width, channels] to [batch, height/stride, width/stride, features];
    the parameters and the running statistics are float32, the computation is in `dtype`.
    """

    features: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    act: Callable[[jax.Array], jax.Array] | None = jax.nn.relu
    epsilon: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(
            self.features,
            (self.kernel, self.kernel),
            self.stride,
            padding=self.kernel // 2,
            feature_group_count=self.groups,
            use_bias=False,
            dtype=self.dtype,
            name="conv",
        )(x)
        norm = nn.BatchNorm(
            use_running_average=False,
            momentum=0.9,
            epsilon=self.epsilon,
            dtype=self.dtype,
            name="norm",
        )
        x = norm(x)
        return x if self.act is None else self.act(x)


def attention_weights(scores: jax.Array, dtype: Any, causal: bool = False) -> jax.Array:
    """Attention weights [..., queries, keys] of scores, in `dtype`.

    Where they are `causal`, no query sees a later key.
    """
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores.astype(jnp.float32), -jnp.inf)
    return jax.nn.softmax(scores.astype(jnp.float32)).astype(dtype)
