"""Programs outside of the zoo, as other people write them.

    python docs/measurements/predictions.py cpu float32 mlp_mixer radiance_field

`predictions.py` takes their names. What holds for these should hold for strangers' programs.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: Two arrays: of a product and of its bias.
type Dense = tuple[jax.Array, jax.Array]
type Problem = tuple[Callable[..., jax.Array], tuple[Any, ...]]

IMAGE = ("NHWC", "HWIO", "NHWC")


def parameters(*shape: int) -> np.ndarray:
    """Random numbers with the variance that keeps that of what they are multiplied with."""
    fan_in = math.prod(shape[:-1])
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32) / fan_in**0.5


def dense(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    return parameters(inputs, outputs), np.zeros(outputs, np.float32)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def classes(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, count, shape).astype(np.int32)


def applied(layer: Dense, x: jax.Array) -> jax.Array:
    weights, bias = layer
    return x @ weights + bias


def normalized(x: jax.Array, axes: tuple[int, ...] = (-1,)) -> jax.Array:
    """Statistics in float32, as people write them."""
    wide = x.astype(jnp.float32)
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-5)).astype(x.dtype)


def convolved(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    strides, more = (stride, stride), {"feature_group_count": groups}
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=IMAGE, **more)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logs, labels[..., None], -1).mean()


def mlp_mixer() -> Problem:
    """Tolstikhin et al., 2021: products along patches and along channels, in turns."""
    patches, width = 64, 192
    blocks = [
        (dense(patches, 128), dense(128, patches), dense(width, 768), dense(768, width))
        for _ in range(6)
    ]

    def loss(params, x, labels):
        first, blocks, last = params
        h = applied(first, x)
        for token_up, token_down, up, down in blocks:
            mixed = jax.nn.gelu(applied(token_up, jnp.swapaxes(normalized(h), 1, 2)))
            h = h + jnp.swapaxes(applied(token_down, mixed), 1, 2)
            h = h + applied(down, jax.nn.gelu(applied(up, normalized(h))))
        return cross_entropy(applied(last, h.mean(1)), labels)

    params = dense(48, width), blocks, dense(width, 10)
    return loss, (params, normal(64, patches, 48), classes(10, 64))


def radiance_field() -> Problem:
    """Mildenhall et al., 2020: eight layers along rays, the encoding read again by the fifth."""
    encoded, width = 63, 256
    sizes = [encoded, width, width, width, width + encoded, width, width, width]
    frequencies = 2.0 ** np.arange(10, dtype=np.float32)

    def loss(params, origins, directions, colours):
        layers, last = params
        depths = jnp.linspace(2.0, 6.0, 32, dtype=origins.dtype)
        points = origins[:, None] + directions[:, None] * depths[:, None]
        waves = (points[..., None] * frequencies.astype(points.dtype)).reshape(
            *points.shape[:2], -1
        )
        encoding = h = jnp.concatenate([points, jnp.sin(waves), jnp.cos(waves)], -1)
        for n, layer in enumerate(layers):
            h = jnp.concatenate([h, encoding], -1) if n == 4 else h
            h = jax.nn.relu(applied(layer, h))
        found = applied(last, h).astype(jnp.float32)
        opaque = 1 - jnp.exp(-jax.nn.relu(found[..., 3]) / 8)
        passed = jnp.cumprod(1 - opaque + 1e-10, -1)
        weights = opaque * jnp.concatenate([jnp.ones_like(passed[:, :1]), passed[:, :-1]], -1)
        seen = (weights[..., None] * jax.nn.sigmoid(found[..., :3])).sum(1)
        return jnp.mean((seen - colours) ** 2)

    rays = normal(512, 3)
    return loss, (([dense(n, width) for n in sizes], dense(width, 4)), rays, rays[::-1], rays)


def convnext() -> Problem:
    """Liu et al., 2022: depthwise convolutions, then products along channels."""
    widths = (48, 96, 192)

    def block(width: int) -> tuple[np.ndarray, Any, Any]:
        return parameters(7, 7, 1, width), dense(width, 4 * width), dense(4 * width, width)

    stages = [
        (parameters(2 if before else 4, 2 if before else 4, before or 3, width), [block(width)] * 2)
        for before, width in zip((0, *widths), widths, strict=False)
    ]

    def loss(params, x, labels):
        stages, last = params
        for kernel, blocks in stages:
            x = normalized(convolved(x, kernel, stride=kernel.shape[0]))
            for depthwise, up, down in blocks:
                h = normalized(convolved(x, depthwise, groups=x.shape[-1]))
                x = x + applied(down, jax.nn.gelu(applied(up, h)))
        return cross_entropy(applied(last, normalized(x.mean((1, 2)))), labels)

    return loss, ((stages, dense(widths[-1], 10)), normal(16, 64, 64, 3), classes(10, 16))


def efficientnet() -> Problem:
    """Tan & Le, 2019: convolutions in turn wide and depthwise, channels weighted by their means."""
    sizes = [(24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]

    def block(inputs: int, outputs: int) -> tuple[Any, ...]:
        wide, narrow = 4 * inputs, inputs // 4
        kernels = parameters(1, 1, inputs, wide), parameters(5, 5, 1, wide)
        weighing = dense(wide, narrow), dense(narrow, wide)
        return *kernels, *weighing, parameters(1, 1, wide, outputs)

    def loss(params, x, labels):
        first, blocks, last = params
        images = (0, 1, 2)
        x = convolved(x, first, stride=2)
        for (up, depthwise, squeeze, excite, down), (_, _, stride) in zip(
            blocks, sizes, strict=True
        ):
            h = jax.nn.silu(normalized(convolved(x, up), images))
            h = convolved(h, depthwise, stride, groups=h.shape[-1])
            h = jax.nn.silu(normalized(h, images))
            weights = applied(excite, jax.nn.silu(applied(squeeze, h.mean((1, 2)))))
            h = normalized(convolved(h * jax.nn.sigmoid(weights)[:, None, None], down), images)
            x = x + h if h.shape == x.shape else h
        return cross_entropy(applied(last, x.mean((1, 2))), labels)

    params = parameters(3, 3, 3, 24), [block(n, m) for n, m, _ in sizes], dense(80, 10)
    return loss, (params, normal(16, 96, 96, 3), classes(10, 16))


def graph_network() -> Problem:
    """Messages along the edges of a graph, added up where they arrive."""
    nodes, edges, width = 4000, 20000, 64

    def loss(params, x, senders, receivers, targets):
        layers, last = params
        for message, update in layers:
            sent = jnp.concatenate([x[senders], x[receivers]], -1)
            arrived = jax.ops.segment_sum(jax.nn.relu(applied(message, sent)), receivers, nodes)
            x = x + normalized(jax.nn.relu(applied(update, jnp.concatenate([x, arrived], -1))))
        return jnp.mean((applied(last, x)[:, 0].astype(jnp.float32) - targets) ** 2)

    layers = [(dense(2 * width, width), dense(2 * width, width)) for _ in range(5)]
    ends = classes(nodes, 2, edges)
    return loss, ((layers, dense(width, 1)), normal(nodes, width), *ends, normal(nodes))


PROBLEMS = (mlp_mixer, radiance_field, convnext, efficientnet, graph_network)


def names() -> Iterator[str]:
    return (x.__name__ for x in PROBLEMS)


def build(name: str, dtype: str) -> Problem:
    """A loss that computes in `dtype` with float32 parameters, and its arguments."""
    loss, args = next(x for x in PROBLEMS if x.__name__ == name)()

    def cast(x: Any) -> Any:
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def computed(*args: Any) -> jax.Array:
        return loss(*jax.tree.map(cast, args))

    return computed, args
