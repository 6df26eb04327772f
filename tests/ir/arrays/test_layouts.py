"""What lies in another order of axes is written before a kernel sums it up, as XLA:GPU does."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from compilers import foreign_target
from model_error import off

from monet_jax.analyzer.fusion import Fusions
from monet_jax.compiler.backend import backend_of
from monet_jax.ir.program import flatten
from monet_jax.planning import judge

GROUPED = "bqgsd,bkgd->bgsqk", "bgsqk,bkgd->bqgsd"
#: With this order of the scores' axes no product's result is transposed.
NATURAL = "bqgsd,bkgd->bgqsk", "bgqsk,bkgd->bqgsd"


def attention(q, k, v, axes=GROUPED):
    """Heads of queries in groups that share keys and values, with a softmax in float32."""
    scores = jnp.einsum(axes[0], jnp.tanh(q), jnp.tanh(k)).astype(jnp.float32)
    shares = jax.nn.softmax(scores).astype(q.dtype)
    return jnp.mean(jnp.tanh(jnp.einsum(axes[1], shares, jnp.tanh(v))).astype(jnp.float32) ** 2)


def arguments(dtype, tokens=512):
    shapes = (8, tokens, 4, 3, 64), (8, tokens, 4, 64), (8, tokens, 4, 64)
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def written_across(fun, *args):
    """Dtype and shape of what a GPU writes in another order."""
    program = flatten(jax.make_jaxpr(fun)(*args))
    across = Fusions(program, backend_of("gpu:h100")).across
    found = [program.avals[e.outputs[0]] for e in program.equations if id(e) in across]
    return [(str(x.dtype), x.shape) for x in found]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_gradient_of_grouped_shares_is_written_in_the_order_of_the_scores(dtype):
    args, gradient = arguments(dtype, tokens=16), jax.grad(attention, argnums=(0, 1, 2))
    assert written_across(gradient, *args) == [("float32", (8, 4, 3, 16, 16))]
    assert not written_across(lambda *args: jax.grad(attention)(*args, axes=NATURAL), *args)


def crossed(w, x, is_summed):
    """A product, and another one's result across it."""
    y = (x @ w) * (w @ x).T
    return jax.nn.logsumexp(y, 0) if is_summed else y @ w


@pytest.mark.parametrize("is_summed", [True, False])
def test_what_a_product_reads_is_transposed_in_passing(is_summed):
    args = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2
    expected = [("float32", (8, 8))] * is_summed
    assert written_across(lambda *args: crossed(*args, is_summed=is_summed), *args) == expected


@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_takes_memory(name, dtype, monkeypatch):
    assert abs(off(attention, arguments(dtype), name)) < 0.1
    other = dataclasses.replace(backend_of(name), sums_in_one_order=False)
    monkeypatch.setattr(judge, "backend_of", lambda target: other)
    assert off(attention, arguments(dtype), name) < -0.2
