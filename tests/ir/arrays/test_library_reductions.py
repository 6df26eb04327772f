"""What XLA:CPU writes for a library's sums, and so that it computes costly work only once."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from model_error import off

from monet_jax.analyzer.fusion import Fusions
from monet_jax.compiler import backend
from monet_jax.ir.program import flatten
from monet_jax.planning import judge


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def normed(layers, x):
    """Norms whose scale is spread over rows, and read again by sums of the gradient."""
    for w, scale in layers:
        y = x - jnp.mean(x, -1, keepdims=True)
        y = y * (jax.lax.rsqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-6) * scale)
        x = x + y @ w
    return jnp.mean(x**2)


def activated(layers, x):
    """An activation by a hyperbolic tangent, which its derivative reads, too."""
    for w, _ in layers:
        x = jax.nn.gelu(x @ w)
    return jnp.mean(x**2)


def depthwise(kernels, x):
    """Convolutions of single channels: their gradients are those of all channels to all."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    for w in kernels:
        groups = {"dimension_numbers": dimensions, "feature_group_count": 256}
        x = jnp.sin(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", **groups))
    return jnp.mean(x**2)


LAYERS = [(spec(512, 512), spec(512))] * 6, spec(2048, 512)
CHANNELS = [spec(3, 3, 1, 256)] * 3, spec(2, 16, 16, 256)


@pytest.mark.parametrize(
    ("loss", "args", "whole", "without"),
    [
        (normed, LAYERS, True, {"leaves_reductions": False}),
        (activated, LAYERS, True, {"computes_once": False}),
        (depthwise, CHANNELS, False, {"needs_scratch": False}),
    ],
)
def test_the_model_counts_what_is_written(loss, args, whole, without, monkeypatch):
    assert abs(off(loss, args, "cpu", whole)) < 0.2
    other = dataclasses.replace(backend.backend_of("cpu"), **without)
    monkeypatch.setattr(judge, "backend_of", lambda target: other)
    assert off(loss, args, "cpu", whole) < -0.25


def kept(function, late=False):
    """The primitives whose results are arrays, between a product and a sum of all."""
    jaxpr = jax.make_jaxpr(lambda x, w: function(x @ w))(jnp.zeros((64, 64)), jnp.zeros((64, 256)))
    program = flatten(jaxpr)
    first = program.equations[-1].outputs
    fusions = Fusions(program, backend.backend_of("cpu"), late={*first} if late else frozenset())
    written = [e.primitive for e in program.equations if fusions.kept.intersection(e.outputs)]
    return [x for x in written if not x.startswith(("dot", "reduce"))]


@pytest.mark.parametrize(
    ("function", "late", "arrays"),
    [
        (lambda x: jnp.sum(jnp.sqrt(x * 2)), False, []),  # the library computes all of it
        (lambda x: jnp.sum(jnp.where(x > 0, x, 0)), False, ["select_n"]),  # which it has not
        (lambda x: (y := x * 2, jnp.sum(y * x))[1], False, []),
        (lambda x: (jnp.sum(y := x - 1), jnp.max(y)), False, ["sub"]),
        (lambda x: (jnp.sum(y := x - 1), jnp.max(y)), True, []),  # at another time
        (lambda x: (jnp.cos(y := jnp.tanh(x)), y[:, ::-1] * 2), False, ["tanh", "cos", "mul"]),
        (lambda x: (jnp.cos(y := x * 3), y[:, ::-1] * 2), False, ["cos", "mul"]),
        (lambda x: jnp.sum((x - 1)[:8, :8]), False, []),  # left to the compiler itself
    ],
)
def test_what_others_read_is_an_array_where_the_library_reads_it(function, late, arrays):
    assert kept(function, late) == arrays
