"""Arguments that live on the host, of programs compiled for devices that list no memories.

Devices that the CUDA compiler opens ahead of time list no memories. JAX then forgets the memory
kinds of arguments: copies from the host become nothing, and kernels read the host's memory. So the
kinds are written into the lowered program. The file imports nothing of monet_jax: `worker` starts
it by its path.
"""

from collections.abc import Collection
from typing import Any

import jax
from jaxlib.mlir import ir

#: What XLA calls the memory of the host that devices copy from without a detour.
PINNED_HOST = "pinned_host"
_KIND = "mhlo.memory_kind"


def is_on_host(aval: Any) -> bool:
    """Whether arrays of an abstract value, or of a shape with a sharding, live on the host."""
    kind = getattr(getattr(aval, "sharding", None), "memory_kind", None)
    return kind == PINNED_HOST or getattr(aval, "memory_space", None) == jax.memory.Space.Host


def place_arguments_on_host(lowered: Any, places: Collection[int]) -> None:
    """Say in a lowered program that some of its arguments live on the host.

    Arguments:
        lowered: what `jax.jit(...).lower` returned.
        places: positions of the arguments.
    """
    if not places:
        return
    module = lowered.compiler_ir()
    with module.context:
        (main,) = (op for op in module.body.operations if op.attributes["sym_name"].value == "main")
        found = [dict(_items(attributes)) for attributes in main.arg_attrs]
        for n in places:
            found[n][_KIND] = ir.StringAttr.get(PINNED_HOST)
        main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(x) for x in found])


def _items(attributes: Any) -> list[tuple[str, Any]]:
    return [(x.name, x.attr) for x in attributes]
