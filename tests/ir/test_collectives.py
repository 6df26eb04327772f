"""What collectives send to other devices, and what that takes."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from monet_jax.compiler.targets import TARGETS
from monet_jax.ir.collectives import sent_bytes
from monet_jax.ir.costs import work_of
from monet_jax.ir.program import flatten
from monet_jax.seconds.attained import roofline_of

MESH = AbstractMesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
EACH = 64  # bytes of the array that each device has

#: A collective -> bytes that each device sends by a ring, of an array of 64.
SENT = {
    "sum over four": (lambda x: lax.psum(x, "a"), 2 * 3 * EACH // 4),
    "sum over all": (lambda x: lax.psum(x, ("a", "b")), 2 * 7 * EACH // 8),
    "sum of two arrays": (lambda x: sum(lax.psum((x, x[:8]), "b")[0:1]), EACH + EACH // 2),
    "largest of two": (lambda x: lax.pmax(x, "b"), 2 * EACH // 2),
    "gathered from two": (lambda x: lax.all_gather(x, "b", tiled=True), EACH),
    "added up in parts": (lambda x: lax.psum_scatter(x, "a", tiled=True), 3 * EACH // 4),
    "exchanged": (lambda x: lax.all_to_all(x, "b", 0, 0, tiled=True), EACH // 2),
    "sent on": (lambda x: lax.ppermute(x, "a", [(0, 1), (1, 0)]), EACH),
    "in pairs of four": (
        lambda x: lax.psum(x, "a", axis_index_groups=[[0, 1], [2, 3]]),
        2 * EACH // 2,
    ),
    "nothing": (lambda x: x * lax.axis_index("a"), 0),
}


def equations_of(function, *, checked):
    """The equations that each device runs."""
    local = functools.partial(
        jax.shard_map,
        mesh=MESH,
        in_specs=P(("a", "b")),
        out_specs=P(("a", "b")),
        check_vma=checked,
    )
    traced = jax.make_jaxpr(local(lambda x: jnp.sum(function(x))[None]))(jnp.ones(8 * EACH // 4))
    (mapped,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "shard_map")
    return mapped.params["jaxpr"].eqns


#: JAX has no sums in groups where types are checked.
CASES = [(name, checked) for name in SENT for checked in (False, name != "in pairs of four")]


@pytest.mark.parametrize(("name", "checked"), dict.fromkeys(CASES))
def test_a_ring_sends_what_no_algorithm_can_spare(name, checked):
    function, expected = SENT[name]
    assert sum(map(sent_bytes, equations_of(function, checked=checked))) == expected


def test_what_is_mapped_on_one_device_is_not_sent():
    mapped = jax.make_jaxpr(jax.vmap(lambda x: lax.psum(x, "i"), axis_name="i"))(jnp.ones((4, 3)))
    assert not any(map(sent_bytes, mapped.jaxpr.eqns))


@pytest.mark.parametrize(("target", "gigabytes"), [("gpu:h100", 450), ("tpu:v5e", 100)])
def test_a_collective_takes_as_long_as_its_link(target, gigabytes):
    size = 2**20
    local = jax.shard_map(
        lambda x: lax.psum(x, "a"), mesh=MESH, in_specs=P("a"), out_specs=P(), check_vma=False
    )
    (mapped,) = flatten(jax.make_jaxpr(local)(jnp.ones(4 * size))).equations
    work = work_of(mapped)
    assert work.sent_bytes == 2 * 3 * 4 * size // 4
    roofline = roofline_of(TARGETS[target])
    assert roofline.seconds(work, 8 * size) == work.sent_bytes / (1e9 * gigabytes)
    assert roofline.seconds(work, 2**40) > 1e3 * roofline.seconds(work, 8 * size)
