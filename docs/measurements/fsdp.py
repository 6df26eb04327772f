"""Lays a loss and its abstract arguments out over several devices, none of which is attached."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec


def mesh_of(devices: int) -> AbstractMesh:
    """The mesh of so many devices."""
    return AbstractMesh((devices,), ("data",), axis_types=(AxisType.Auto,))


def sharded(
    loss: Callable[..., Any], params: Any, batch: Any, mesh: AbstractMesh | Mesh
) -> tuple[Callable[..., Any], Any, Any]:
    """The loss, its parameters and its batch, fully sharded (FSDP).

    Every parameter lies in equal parts along its largest axis, and every array of the batch along
    its first.

    Arguments:
        loss: of parameters first.
        params, batch: `ShapeDtypeStruct`s.
        mesh: of one axis, "data".
    """

    def along(axis: int) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, "data"))

    def put(x: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    layout = jax.tree.map(lambda x: along(max(range(x.ndim), key=lambda n: x.shape[n])), params)

    def sharded_loss(params: Any, *others: Any) -> Any:
        # Without this, the compiler leaves gradients whole.
        return loss(jax.lax.with_sharding_constraint(params, layout), *others)

    batch = jax.tree.map(lambda x: put(x, along(0)), batch)
    return sharded_loss, jax.tree.map(put, params, layout), batch
