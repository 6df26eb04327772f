"""Short-lived temporaries stay on a TPU's chip: they are no bytes of its main memory."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from compilers import foreign_target
from graphs import Builder
from model_error import attentions, off

from monet_jax.compiler import backend
from monet_jax.compiler.buffers.model import predicted_temp_bytes
from monet_jax.planning import judge
from planners.graph import Chip
from planners.plan import Region


@pytest.mark.parametrize(
    ("chip", "expected"),
    [
        (None, 7),  # "early" and "late" wait together
        (Chip(8, 10.0), 0),
        (Chip(6, 10.0), 4),  # room for one: for the one that waits less long
        (Chip(8, 3.0), 4),  # "early" waits for too long
        (Chip(2, 10.0), 7),
    ],
)
def test_what_is_not_live_for_long_stays_on_the_chip_as_far_as_there_is_room(chip, expected):
    make = Builder()
    forward = [make.op("f0", "", "early:4"), make.op("f1", "early", "late:3")]
    graph = make.graph([forward], [[make.op("b1", "late", ""), make.op("b0", "early", "")]])
    graph = dataclasses.replace(graph, chip=chip)
    assert predicted_temp_bytes(graph, [Region(0, 0, alone=True)], {}) == expected


@pytest.mark.parametrize(("nbytes", "expected"), [(8, 0), (4, 5)])
def test_what_each_iteration_of_a_long_loop_needs_stays_there(nbytes, expected):
    make = Builder()
    forward = [make.op("scan", "", "out:2", seconds=100.0, workspace_bytes=5)]
    graph = make.graph([forward], [[make.op("b", "out", "", seconds=100.0)]])
    graph = dataclasses.replace(graph, chip=Chip(nbytes, 10.0))
    taken = predicted_temp_bytes(graph, [Region(0, 0, alone=True)], {})
    assert taken == expected + 2  # "out" waits for too long


@pytest.mark.parametrize("name", [foreign_target("tpu:v5e")])
def test_a_small_program_takes_less_of_main_memory_than_its_arrays(name, monkeypatch):
    """Each array of these takes 7 to 28 MiB."""
    program = attentions(12, jax.ShapeDtypeStruct((24, 197, 12, 64), jnp.bfloat16))
    assert abs(off(*program, name, whole=False)) < 0.15
    other = dataclasses.replace(backend.backend_of(name), chip_fills=0.0)
    monkeypatch.setattr(judge, "backend_of", lambda target: other)
    assert off(*program, name, whole=False) > 0.5
