"""Puts the leaves of a step's arguments where its plan wants them, and refuses those elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from ...compiler.budget import format_bytes
from ...compiler.targets import default_device
from ...ir import compat
from ...plans.record import PlanMismatch
from .layout import UpdateLayout


def on_host(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The abstract leaf in the host's memory."""
    # Of the shardings of one device, JAX reads the memory kind of those on a mesh only.
    sharding = spec.sharding or NamedSharding(
        Mesh(np.array([default_device()]), ("device",), axis_types=(AxisType.Auto,)),
        PartitionSpec(),
    )
    return spec.update(sharding=sharding.with_memory_kind(compat.PINNED_HOST))


def on_device(sharding: Sharding) -> Sharding:
    """The sharding in the memory of the devices."""
    device = min(sharding.device_set, key=lambda x: x.id)
    return sharding.with_memory_kind(device.default_memory().kind)


def placed_specs(
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]], layout: UpdateLayout
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The abstract arguments of a step, some of their leaves in the host's memory."""
    if not layout.on_host:
        return arguments[0], dict(arguments[1])
    places = {leaf.argument for leaf in layout.on_host}
    leaves, structure = jax.tree.flatten((arguments[0], dict(arguments[1])))
    arrays = [n for n, x in enumerate(leaves) if isinstance(x, jax.ShapeDtypeStruct)]
    for n in (arrays[place] for place in places):
        leaves[n] = on_host(leaves[n])
    return jax.tree.unflatten(structure, leaves)


def arrays_in(arguments: Any) -> list[Any]:
    """The tracers among the leaves of a step's arguments, in order."""
    return [x for x in jax.tree.leaves(arguments) if isinstance(x, jax.core.Tracer)]


def placed_arguments(
    abstract: tuple[tuple[Any, ...], Mapping[str, Any]],
    args: Sequence[Any],
    donated: Sequence[bool],
    layout: UpdateLayout,
) -> Any:
    """The donated positional arguments of a step, each leaf where the layout has it.

    Arrays are copied where they lie elsewhere; the sharding of abstract ones is replaced.

    Arguments:
        abstract: the arguments, arrays as shapes; all else is static.
        args: the positional arguments.
        donated: for each array among the arguments, whether it is donated.
        layout: of the step's updates.

    Returns:
        The argument, or a tuple where several are donated.

    Raises:
        ValueError: none is.
    """
    places = {leaf.argument for leaf in layout.on_host}
    found, n = [], 0
    for spec, argument in zip(abstract[0], args, strict=True):
        is_array = [isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(spec)]
        numbers = range(n, n + sum(is_array))
        n = numbers.stop
        if any(donated[k] for k in numbers):
            leaves, structure = jax.tree.flatten(argument)
            leaves = [_moved(x, k in places) for k, x in zip(numbers, leaves, strict=True)]
            found.append(jax.tree.unflatten(structure, leaves))
    if not found:
        raise ValueError(
            "`place` returns what is donated, and this step donates no positional argument: give "
            "`donate_argnums` to `monet_jax.jit`."
        )
    return found[0] if len(found) == 1 else tuple(found)


def _moved(leaf: Any, to_host: bool) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        is_there = compat.is_on_host(leaf)
        if to_host:
            return on_host(leaf)
        return leaf.update(sharding=on_device(leaf.sharding)) if is_there else leaf
    if compat.is_on_host(jax.typeof(leaf)) == to_host:
        return leaf
    array = leaf if isinstance(leaf, jax.Array) else jax.numpy.asarray(leaf)
    sharding = array.sharding
    kind = sharding.with_memory_kind(compat.PINNED_HOST) if to_host else on_device(sharding)
    return jax.device_put(array, kind)


def refuse_shardings(jit_options: Mapping[str, Any]) -> None:
    """Refuse options of `jax.jit` that say in whose memory arguments and results are.

    Raises:
        ValueError: there are some.
    """
    given = [x for x in ("in_shardings", "out_shardings", "device", "backend") if x in jit_options]
    if given:
        raise ValueError(
            f'{given} cannot be given with `host="states"`: they name the memory of each argument, '
            "and so does the plan. Shard the arrays of the state themselves, as in "
            "`jax.device_put(state, shardings)`; their layout is kept."
        )


def check_placed(tracers: Sequence[Any], layout: UpdateLayout, step: str) -> None:
    """Refuse the arguments of a step that do not lie where its plan has them.

    Raises:
        PlanMismatch: some do not; it names the call that places them.
    """
    wanted = {leaf.argument for leaf in layout.on_host}
    found = {n for n, x in enumerate(tracers) if compat.is_on_host(jax.typeof(x))}
    if found == wanted:
        return
    first = next((x for x in layout.on_host if x.argument not in found), None)
    where = (
        f"`{first.path}` lies on the device"
        if first
        else f"{len(found - wanted)} of its arrays lie on the host, which stay on the device"
    )
    raise PlanMismatch(
        f"The plan of `{step}` has {len(wanted)} leaves of the state, "
        f"{format_bytes(layout.host_bytes)}, on the host, and {where}. Place the state once before "
        f"the first step, with all the arguments of a call, as in `state = {step}.place(state, "
        "batch)`."
    )
