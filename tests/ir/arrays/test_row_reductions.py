"""Which reductions run inside the fusion that reads them: those of which one kernel holds a row."""

import jax
import jax.numpy as jnp
import pytest

from monet_jax.analyzer.fusion import Fusions
from monet_jax.compiler.backend import backend_of
from monet_jax.ir.program import flatten

X, W = jnp.zeros((8, 64, 128), jnp.bfloat16), jnp.zeros((128, 128), jnp.bfloat16)


def wide(x):
    return x.astype(jnp.float32)


def softmax(x):
    return jax.nn.softmax(wide(x)).astype(x.dtype)


def squares(x):
    """As in a norm by the root of the mean square."""
    return wide(x) * jax.lax.rsqrt(jnp.mean(wide(x) ** 2, -1, keepdims=True) + 1e-6)


def deviations(x):
    """As in a norm by mean and variance: one value of a row follows from two reductions."""
    mean = jnp.mean(wide(x), -1, keepdims=True)
    variance = jnp.mean(wide(x) ** 2, -1, keepdims=True) - mean**2
    return (wide(x) - mean) * jax.lax.rsqrt(variance + 1e-6)


def returned(x):
    """A softmax whose sum is read elsewhere, too."""
    exponentials = jnp.exp(wide(x))
    total = jnp.sum(exponentials, -1, keepdims=True)
    return exponentials / total, total


def of_columns(x):
    return jax.nn.softmax(wide(x), axis=-2)


def spread(x):
    """What is reduced meets other rows than its own."""
    return wide(x)[::-1] * jnp.sum(jnp.sin(wide(x)), -1, keepdims=True)


def ops(function, target):
    """The primitives of the ops of a function between two products."""
    jaxpr = jax.make_jaxpr(lambda x, w: jax.tree.map(lambda y: y @ y.mT, function(x @ w)))(X, W)
    fusions = Fusions(flatten(jaxpr), backend_of(target))
    found = [op.equation.primitive for op in fusions.all()]
    return [x for x in found if x.startswith("reduce")]


@pytest.mark.parametrize(
    ("function", "reductions"),
    [(softmax, 0), (squares, 0), (deviations, 2), (returned, 1), (of_columns, 2), (spread, 1)],
)
def test_a_reduction_is_no_op_where_one_kernel_can_hold_its_row(function, reductions):
    assert len(ops(function, "gpu:h100")) == reductions


def test_other_compilers_write_what_they_reduce():
    assert ops(softmax, "cpu") == ops(softmax, "tpu:v5e") == ["reduce_max", "reduce_sum"]


def test_what_passes_a_barrier_is_written():
    def parted(x):
        exponentials = jnp.exp(wide(x))
        total = jax.lax.optimization_barrier(jnp.sum(exponentials, -1, keepdims=True))
        return exponentials / total

    assert ops(parted, "gpu:h100") == ["reduce_sum"]
