"""Attention in tiles and a loss in chunks, small enough to be compared number by number."""

import jax
import jax.numpy as jnp

from monet_jax.operators.tiling.attention import Attention
from monet_jax.operators.tiling.chunked_loss import Head

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 96, 90, 2


#: In tiles of a fourth of the scores, or so.
SMALL_TILES = Attention(tile_bytes=BATCH * HEADS * QUERIES * KEYS, least_bytes=1)


def plain_attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * WIDTH**-0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


SMALL_CHUNKS = Head(rows=8, least_rows=4)
