"""Random bits that are computed where they are used, as a hash of each element's index.

XLA draws bits that depend on a key alone for all layers at once when the step starts, and keeps
them in memory until they are used. The bits here are computed in the fusion that reads them: no
array of them ever exists.

The hash is the finalizer of MurmurHash3 (Appleby, public domain), twice, with two words mixed in.
Both words are first mixed with each other: else two words that differ in one bit would give the
same bits in another order. Indices wrap after 2^32 elements.
"""

import jax
import jax.numpy as jnp
from jax import lax

NO_WORDS = "an unbiased codec needs `noise`: two uint32 words, such as `words_of(key)`"

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio, odd


def words_of(key: jax.Array) -> jax.Array:
    """The two words of a JAX key, of any implementation."""
    return jax.random.bits(key, (2,), jnp.uint32)


def fold(words: jax.Array | None, number: jax.Array | int) -> jax.Array:
    """New words for the draw with a number: 32 bits, a Python integer or an array.

    Raises:
        TypeError: there are no words.
    """
    first, second = _mixed(words)
    number = jnp.asarray(number).astype(jnp.uint32) * jnp.uint32(_GOLDEN)
    again = _finalize(first ^ _finalize(number + second))
    return jnp.stack([again, _finalize(again + second)])


def bits(words: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
    """Random uint32 of that shape.

    Raises:
        TypeError: there are no words.
    """
    first, second = _mixed(words)
    return _finalize(_finalize(_index(shape, first) ^ first) + second)


def uniform(words: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
    """Random multiples of 2^-24 in [0, 1), float32."""
    return (bits(words, shape) >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def _mixed(words: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Two words, each of which depends on all bits of both."""
    if words is None:
        raise TypeError(NO_WORDS)
    first = _finalize(words[0] + jnp.uint32(_GOLDEN))
    second = _finalize(words[1] ^ first)
    return _finalize(first + second), second


def _index(shape: tuple[int, ...], start: jax.Array) -> jax.Array:
    """The position of each element in the flat array, computed from `start`, which cancels.

    `start` differs between the iterations of a loop. Without it, XLA may hoist the positions out of
    the loop and keep them for as long.
    """
    index, first = jnp.broadcast_to(start, shape), start
    for axis, size in enumerate(shape):
        count = jnp.uint32(size % 2**32)
        index = index * count + lax.broadcasted_iota(jnp.uint32, shape, axis)
        first = first * count
    return index - first


def _finalize(h: jax.Array) -> jax.Array:
    """MurmurHash3's `fmix32`: a bijection, in which each bit of h flips half of the others."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
