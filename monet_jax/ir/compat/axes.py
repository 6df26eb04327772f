"""The mesh axes of a `shard_map` round a trace: entered again, parts of it can be traced later.

JAX makes them known only while the `shard_map` is traced.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax._src import config, core
from jax.sharding import AxisType


@dataclasses.dataclass(frozen=True)
class MappedAxes:
    """The axes that a `shard_map` maps over where something is traced.

    Attributes:
        mesh: the mesh inside of the `shard_map`; None where there is none.
        is_checked: whether types say along which axes arrays differ.
    """

    mesh: Any = None
    is_checked: bool = False

    @property
    def sizes(self) -> Mapping[str, int]:
        """Name of an axis -> its size."""
        return {x: self.mesh.shape[x] for x in self.mesh.manual_axes} if self.mesh else {}

    @property
    def devices(self) -> int:
        """Over how many devices a `shard_map` spreads what each computes of its own."""
        return math.prod(self.sizes.values())


#: Those of a function that nothing is mapped round.
NO_AXES = MappedAxes()


def mapped_axes() -> MappedAxes:
    """The axes that a `shard_map` maps over where the caller stands."""
    mesh = jax.sharding.get_abstract_mesh()
    is_mapped = AxisType.Manual in mesh.axis_types
    return MappedAxes(mesh, config._check_vma.value) if is_mapped else NO_AXES


@contextlib.contextmanager
def within_axes(axes: MappedAxes) -> Iterator[None]:
    """What is traced under it may use the axes."""
    if axes in (NO_AXES, mapped_axes()):
        yield
        return
    with (
        core.extend_axis_env_nd(axes.sizes.items()),
        jax.sharding.use_abstract_mesh(axes.mesh),
        config._check_vma(axes.is_checked),
    ):
        yield


def parts(aval: Any) -> int:
    """How many devices have an array of this abstract value: those that a `shard_map` maps over."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return MappedAxes(mesh).devices if mesh else 1


def mapped_devices(eqn: Any) -> int:
    """How many devices take part in a collective; 1 where its axes are of no mesh."""
    if groups := eqn.params.get("axis_index_groups"):
        return len(groups[0])
    names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    names = names if isinstance(names, tuple) else (names,)
    mesh = eqn.invars[0].aval.sharding.mesh
    return math.prod(mesh.shape.get(name, 1) for name in names)
