"""In which order XLA:CPU computes the gradients of a convolution."""

import jax
import jax.numpy as jnp
from model_error import off

from monet_jax.analyzer import joint


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def convolved(kernels, x):
    """Convolutions of images that pooling makes smaller: the first takes the most memory."""
    for w in kernels:
        x = jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jnp.sin(x) if w is kernels[0] else jnp.sin(x)[:, ::2, ::2]
    return jnp.mean(x**2)


def test_the_gradient_of_a_kernel_comes_after_that_of_the_operand(monkeypatch):
    args = [spec(3, 3, 3, 32), *[spec(3, 3, 32, 32)] * 4], spec(4, 64, 64, 3)
    assert abs(off(convolved, args, "cpu", whole=False)) < 0.02
    monkeypatch.setattr(joint, "with_kernels_later", lambda ops: ops)
    assert off(convolved, args, "cpu", whole=False) < -0.05
