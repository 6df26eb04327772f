"""How is an array cut into groups of consecutive elements?"""

import math
from typing import Any

import jax
import jax.numpy as jnp


def split(x: jax.Array, group: int) -> jax.Array:
    """[groups, elements]: of the flat array; the last group is filled up with its last element.

    An array of fewer elements than a group is one group of its own size.
    """
    flat = x.reshape(-1)
    group = min(group, max(flat.size, 1))
    missing = -flat.size % group
    if missing:
        flat = jnp.pad(flat, (0, missing), mode="edge")
    return flat.reshape(-1, group)


def joined(groups: jax.Array, aval: Any) -> jax.Array:
    """The array again, of the shape and dtype of `aval`."""
    return groups.reshape(-1)[: math.prod(aval.shape)].reshape(aval.shape).astype(aval.dtype)
