"""Arrays take what the compiler of a device with tiles pads them to."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from compilers import foreign_target
from model_error import attentions, off

from monet_jax.compiler import backend
from monet_jax.ir.program.tiles import tiled_size
from monet_jax.planning import judge

TILE = 8, 128


@pytest.mark.parametrize(
    ("shape", "padded"),
    [
        ((), 1),
        ((197,), 197),  # one axis is laid out row by row
        ((1, 197, 1), 197),
        ((4096, 0), 0),
        ((512, 768), 512 * 768),
        ((8, 6, 197, 197), 8 * 6 * 197 * 256),
        ((8, 6, 197, 64), 8 * 6 * 256 * 64),  # the features in rows
        ((2, 56, 56, 64), 2 * 56 * 56 * 128),
        ((512, 3), 512 * 4),
    ],
)
def test_the_layout_that_takes_least(shape, padded):
    assert tiled_size(shape, TILE) == padded


@pytest.mark.parametrize("name", [foreign_target("tpu:v5e")])
def test_attention_weights_of_few_more_tokens_than_a_tile_has_take_twice_as_much(name, monkeypatch):
    program = attentions(4, jax.ShapeDtypeStruct((64, 129, 12, 64), jnp.float32))
    assert abs(off(*program, name)) < 0.15
    other = dataclasses.replace(backend.backend_of(name), tile=None)
    monkeypatch.setattr(judge, "backend_of", lambda target: other)
    assert off(*program, name) < -0.4
