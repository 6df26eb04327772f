"""NNX models that tests train: a ResNet, a ViT and a GPT-2 as the zoo has them in Linen.

They are small, or as deep and as wide as those that were published (`WHOLE`).
"""

import functools as ft

import jax
import jax.numpy as jnp
from flax import nnx

CLASSES, VOCABULARY, LENGTH = 10, 64, 16

#: Of models of the published depth and width.
WHOLE = {
    "resnet": {"width": 64, "depths": (3, 4, 6, 3)},
    "vit": {"width": 384, "depth": 12},
    "gpt2": {"width": 768, "depth": 12, "vocabulary": 50257},
}


class ConvNorm(nnx.Module):
    """A convolution without bias, then BatchNorm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, rngs: nnx.Rngs):
        size, strides = (kernel, kernel), (stride, stride)
        self.conv = nnx.Conv(inputs, outputs, size, strides, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs)

    def __call__(self, x, train=True):
        return self.norm(self.conv(x), use_running_average=not train)


class Bottleneck(nnx.Module):
    """1x1, 3x3, 1x1, plus the shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, rngs: nnx.Rngs):
        self.reduce = ConvNorm(inputs, width, 1, 1, rngs)
        self.spatial = ConvNorm(width, width, 3, stride, rngs)
        self.expand = ConvNorm(width, 4 * width, 1, 1, rngs)
        changes_shape = stride > 1 or inputs != 4 * width
        self.shortcut = ConvNorm(inputs, 4 * width, 1, stride, rngs) if changes_shape else None

    def __call__(self, x, train=True):
        y = nnx.relu(self.reduce(x, train))
        y = self.expand(nnx.relu(self.spatial(y, train)), train)
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x, train)))


class ResNet(nnx.Module):
    """[batch, 16, 16, 3] images to logits."""

    def __init__(self, block: type, rngs: nnx.Rngs, width: int = 8, depths=(2, 1)):
        self.stem = ConvNorm(3, width, 3, 1, rngs)
        self.blocks, size = nnx.List([]), width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                self.blocks.append(block(size, width << stage, stride, rngs))
                size = 4 * width << stage
        self.head = nnx.Linear(size, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))


class Mlp(nnx.Module):
    """Two layers of which the first is wide."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        return self.narrow(nnx.gelu(self.widen(x)))


class Layer(nnx.Module):
    """Attention, then an MLP, each pre-norm residual and with dropout."""

    def __init__(self, width: int, dropout: float, causal: bool, rngs: nnx.Rngs):
        self.causal = causal
        self.norm0, self.norm1 = (nnx.LayerNorm(width, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(
            max(2, width // 64),
            width,
            dropout_rate=dropout,
            deterministic=False,
            decode=False,
            rngs=rngs,
        )
        self.mlp = Mlp(width, rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2])) if self.causal else None
        x = x + self.dropout(self.attention(self.norm0(x), mask=mask))
        return x + self.dropout(self.mlp(self.norm1(x)))


class ViT(nnx.Module):
    """[batch, 16, 16, 3] images to logits; no dropout."""

    def __init__(self, block: type, rngs: nnx.Rngs, width: int = 16, depth: int = 2):
        self.patches = nnx.Conv(3, width, (4, 4), (4, 4), rngs=rngs)
        self.position = nnx.Param(0.02 * rngs.normal((1, 16, width)))
        self.layers = nnx.List([block(width, 0.0, False, rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(jnp.mean(x, axis=1))


class GPT2(nnx.Module):
    """[batch, length] tokens to logits, by the embedding they came in with; dropout 0.1."""

    def __init__(
        self, block: type, rngs: nnx.Rngs, width: int = 16, depth: int = 2, vocabulary=VOCABULARY
    ):
        self.words = nnx.Embed(vocabulary, width, rngs=rngs)
        self.position = nnx.Param(0.02 * rngs.normal((LENGTH, width)))
        self.layers = nnx.List([block(width, 0.1, True, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, tokens):
        x = self.words(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.words.attend(self.norm(x))


BLOCKS = {"resnet": Bottleneck, "vit": Layer, "gpt2": Layer}
MODELS = {"resnet": ResNet, "vit": ViT, "gpt2": GPT2}


def make(name: str, block: type | None = None, whole: bool = False) -> nnx.Module:
    """A model, perhaps with another class of blocks, perhaps as published."""
    sizes = WHOLE[name] if whole else {}
    return MODELS[name](block or BLOCKS[name], nnx.Rngs(0, dropout=1), **sizes)


@ft.cache
def batch(name: str, size: int = 16) -> tuple[jax.Array, jax.Array]:
    """Inputs and labels."""
    keys = jax.random.split(jax.random.key(2))
    if name == "gpt2":
        return tuple(jax.random.randint(key, (size, LENGTH), 0, VOCABULARY) for key in keys)
    images = jax.random.normal(keys[0], (size, 16, 16, 3))
    return images, jax.random.randint(keys[1], (size,), 0, CLASSES)


def loss(model, inputs, labels):
    """Mean cross-entropy."""
    logits = jax.nn.log_softmax(model(inputs))
    return -jnp.mean(jnp.take_along_axis(logits, labels[..., None], axis=-1))
