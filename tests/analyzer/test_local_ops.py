"""How compilers compute the gradients of a convolution: in which order, and over which operands."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from model_error import off
from networks import skip_without_compiler

from monet_jax.analyzer import joint, local_ops
from monet_jax.analyzer.traced_stage import traced_stage
from monet_jax.compiler import backend
from monet_jax.planning import judge


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def convolution(x, w):
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dimensions)


def convolved(kernels, x):
    """Convolutions of images that pooling makes smaller: the first takes the most memory."""
    for w in kernels:
        x = jnp.sin(convolution(x, w))
        x = x if w is kernels[0] else x[:, ::2, ::2]
    return jnp.mean(x**2)


def biased(layers, x):
    """The same, with a bias, whose gradient sums what follows a derivative."""
    for n, (w, bias) in enumerate(layers):
        x = jax.nn.relu(convolution(x, w) + bias)
        x = x[:, ::2, ::2] if n % 2 else x
    return jnp.mean(x**2)


def test_the_gradient_of_a_kernel_comes_after_that_of_the_operand(monkeypatch):
    args = [spec(3, 3, 3, 32), *[spec(3, 3, 32, 32)] * 4], spec(4, 64, 64, 3)
    assert abs(off(convolved, args, "cpu", whole=False)) < 0.02
    monkeypatch.setattr(joint, "with_kernels_later", lambda ops, backward: ops)
    assert off(convolved, args, "cpu", whole=False) < -0.05


def dense(layers, x):
    """Products whose kernels' gradients read arrays that are larger than the cotangents."""
    for up, down in layers:
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.mean(x**2)


DENSE = [(spec(64, 512), spec(512, 64))] * 4, spec(2048, 64)


def test_that_of_a_product_does_so_too(monkeypatch):
    assert abs(off(dense, DENSE, "cpu", whole=False)) < 0.04
    monkeypatch.setattr(joint, "with_kernels_later", lambda ops, backward: ops)
    assert off(dense, DENSE, "cpu", whole=False) < -0.15


def test_costly_work_of_the_last_stage_is_kept_for_the_backward_that_follows(monkeypatch):
    assert abs(off(dense, DENSE, "cpu", whole=False)) < 0.03
    monkeypatch.setattr(joint, "traced_stage", lambda *args: traced_stage(*args[:-1], False))
    assert off(dense, DENSE, "cpu", whole=False) < -0.05
    # The stages that run again keep theirs, too.
    monkeypatch.setattr(joint, "with_kept_again", lambda forward, backward, shared: forward)
    assert off(dense, DENSE, "cpu", whole=False) < -0.15


@pytest.mark.gpu
def test_what_is_summed_as_it_is_written_is_written_over_nothing(monkeypatch):
    skip_without_compiler("gpu:h100")
    layers = [(spec(3, 3, n, 64), spec(64)) for n in (4, 64, 64, 64, 64)]
    args = layers, spec(4, 128, 128, 4)
    assert abs(off(biased, args, "gpu:h100", whole=False)) < 0.02
    other = dataclasses.replace(backend.backend_of("gpu:h100"), sums_what_it_writes=False)
    monkeypatch.setattr(judge, "backend_of", lambda target: other)
    assert off(biased, args, "gpu:h100", whole=False) < -0.1


def normed(layers, x):
    """The same, normalized: the gradient of a bias reads the cotangent that the operand's does."""
    for n, (w, scale, bias) in enumerate(layers):
        x = convolution(x, w)
        centred = x - x.mean((0, 1, 2))
        x = centred * jax.lax.rsqrt((centred**2).mean((0, 1, 2)) + 1e-5)
        x = jax.nn.relu(scale * x + bias)
        x = x[:, ::2, ::2] if n % 2 else x
    return jnp.mean(x**2)


@pytest.mark.gpu
def test_what_is_summed_in_the_same_kernel_is_not_written_over(monkeypatch):
    skip_without_compiler("gpu:h100")
    layers = [(spec(3, 3, n, 64), spec(64), spec(64)) for n in (4, 64, 64, 64, 64)]
    args = layers, spec(4, 64, 64, 4)
    assert abs(off(normed, args, "gpu:h100", whole=False)) < 0.08
    monkeypatch.setattr(local_ops, "_summed_beside", lambda *args: set())
    assert off(normed, args, "gpu:h100", whole=False) < -0.2


def wide(kernels, x):
    """Convolutions whose kernels are larger than the images."""
    for w in kernels:
        x = jax.nn.relu(convolution(x, w))
    return jnp.mean(x**2)


@pytest.mark.gpu
def test_copies_of_kernels_wait_in_results_where_images_would(monkeypatch):
    skip_without_compiler("gpu:h100")
    args = [spec(3, 3, 256, 256)] * 5, spec(4, 16, 16, 256)
    assert abs(off(wide, args, "gpu:h100")) < 0.12
    other = dataclasses.replace(backend.backend_of("gpu:h100"), keeps_kernels=False)
    monkeypatch.setattr(judge, "backend_of", lambda target: other)
    assert off(wide, args, "gpu:h100") < -0.3
