"""Is attention in tiles the attention that it replaces, is nothing else, and what does it spare?"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from monet_jax import _compat, _gradient, _program, operators
from monet_jax._backend import backend_of
from monet_jax.operators.attention import Attention

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 96, 90, 2
#: In tiles of a fourth of the scores, or so.
SMALL = Attention(tile_bytes=BATCH * HEADS * QUERIES * KEYS, least_bytes=1)

_random = np.random.default_rng(0)


def _array(*shape, dtype=jnp.float32):
    return jnp.asarray(_random.normal(size=shape), dtype)


def _qkv(dtype=jnp.float32, groups=HEADS, batch=BATCH, heads=HEADS):
    query = _array(batch, QUERIES, heads, WIDTH, dtype=dtype)
    return query, *(_array(batch, KEYS, groups, WIDTH, dtype=dtype) for _ in range(2))


def _tiled(function, *args, attention=SMALL, sharded=False):
    """A function as the planner sees it, its flat program, and that without the operator."""
    jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    plain = _program.flatten(jaxpr)
    derivative = _gradient.derivative_of(plain, [True] * len(plain.inputs))
    program = attention(plain, derivative, operators.Context(backend_of("gpu"), sharded))

    def run(*args):
        env = dict(zip(program.inputs, jax.tree.leaves(args), strict=True))
        env |= program.constants
        _program.run(program.equations, env, {})
        results = _program.values_of(env, program.outputs)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run, program, plain


def _tiles(program):
    """How many there are of each attention."""
    return [e.eqn.params["length"] for e in program.equations if e.primitive == "scan"]


def _pulled(function, *args):
    """What a function returns, and the gradients by all arguments for some cotangent."""
    results, pull = jax.vjp(function, *args)
    cotangents = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape), results)
    return results, pull(jax.tree.map(lambda c, x: c.astype(x.dtype), cotangents, results))


def _assert_same(got, want, tolerance=2e-5):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        other = np.asarray(other, np.float64)
        scale = np.max(np.abs(other), initial=0, where=np.isfinite(other))
        np.testing.assert_allclose(np.asarray(one, np.float64), other, tolerance, tolerance * scale)


def own(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * WIDTH**-0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def causal(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool), -2), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, where=scores > -jnp.inf), v)


def of_jax(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def capped_with_alibi(q, k, v):
    scores = 5 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 5)
    far = jnp.abs(jnp.arange(QUERIES)[:, None] - jnp.arange(KEYS))
    scores -= 2.0 ** -jnp.arange(1, HEADS + 1)[:, None, None] * far
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def with_sums(q, k, v):
    """The log of the sum of exponentials is returned as well."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    sums = jax.nn.logsumexp(scores, -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(scores - sums[..., None]), v), sums


def own_squares(q, k, v):
    """Keys are queries, and no function is a softmax."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, q)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.square(scores) / QUERIES, q) + k.mean() + v.mean()


FORMS = [own, causal, of_jax, capped_with_alibi, with_sums, own_squares]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_values_and_gradients_are_those_of_the_attention(form):
    args = _qkv()
    tiled, program, _ = _tiled(form, *args)
    assert _tiles(program) == [4]
    assert _largest(program.equations) <= BATCH * HEADS * QUERIES * KEYS // 4
    _assert_same(jax.jit(_pulled, static_argnums=0)(tiled, *args), _pulled(form, *args))


def _largest(equations):
    """Elements of the largest array that equations, or loops among them, compute."""
    found = [v.aval.size for e in equations for v in e.eqn.outvars]
    for e in equations:
        for body in _compat.subjaxprs(e.eqn):
            found.append(_largest(_program.flatten(body).equations))
    return max(found, default=0)
