"""Exports a program so that another process can compile it."""

import dataclasses
import re
from typing import Any

import jax
import jax.core
import jax.export

from .targets import Target

_CUSTOM_CALL = re.compile(r"custom_call @([^\s(]+)\(")

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def exported_program(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    traced: jax.stages.Traced,
    target: Target,
    mesh: Mesh | None,
) -> tuple[bytes, tuple[bool, ...]]:
    """The program, serialized for another process, and which arguments it donates."""
    if traced.effects:
        effects = ", ".join(sorted(str(type(effect).__name__) for effect in traced.effects))
        raise NotImplementedError(_cannot_leave(target, f"it has side effects ({effects})"))
    jitted, args, kwargs = without_outer_tracers(jitted, args, kwargs, traced)
    try:
        exported = _exported(jitted, args, kwargs, target.platform)
    except (ValueError, RuntimeError) as error:
        raise NotImplementedError(_cannot_leave(target, str(error))) from error
    if exported.nr_devices != (mesh.size if mesh else 1):
        reason = f"it is sharded over {exported.nr_devices} devices, and its arguments are not"
        raise NotImplementedError(_cannot_leave(target, reason))
    donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
    hoisted = len(exported.in_avals) - len(donated)
    return _serialize(exported), (False,) * hoisted + donated


def _exported(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], platform: str
) -> jax.export.Exported:
    """The program, custom calls included: it goes to a process of the same JAX, and is not kept.

    JAX refuses custom calls that may mean something else in another version, and names them.
    """
    allowed: list[str] = []
    while True:
        checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in allowed]
        try:
            export = jax.export.export(jitted, platforms=[platform], disabled_checks=checks)
            return export(*args, **kwargs)
        except ValueError as error:
            named = set(_CUSTOM_CALL.findall(str(error))) - set(allowed)
            if "custom calls" not in str(error) or not named:
                raise
            allowed += sorted(named)


def described_mesh(mesh: Mesh | None) -> dict[str, Any] | None:
    """A mesh without its devices, in plain data."""
    if mesh is None:
        return None
    kinds = tuple(kind.name for kind in mesh.axis_types)
    return {"sizes": tuple(mesh.axis_sizes), "names": tuple(mesh.axis_names), "kinds": kinds}


def without_outer_tracers(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], traced: jax.stages.Traced
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function and its arguments, closed-over tracers of an outer transformation among them.

    They are unknown arrays here: `jax.jit` makes arguments of them as well, `jax.export` fails.
    """
    consts, converted = traced.closure_convert()
    if not any(isinstance(const, jax.core.Tracer) for const in consts):
        return jitted, args, kwargs
    specs = [jax.ShapeDtypeStruct(const.shape, const.dtype) for const in consts]
    args, kwargs = traced.in_avals
    return jax.jit(converted), (specs, *args), kwargs


def _cannot_leave(target: Target, reason: str) -> str:
    return (
        f"the program cannot be compiled for {target.name} outside this process: {reason}. Take "
        "out callbacks and jax.debug.print, give one device's share of a sharded program, or run "
        "this where the device is attached"
    )


def _serialize(exported: jax.export.Exported) -> bytes:
    """The exported program with flat arguments: pytree classes need not be registered for it."""
    flat_in = jax.tree.structure(((0,) * len(exported.in_avals), {}))
    flat_out = jax.tree.structure((0,) * len(exported.out_avals))
    return bytes(dataclasses.replace(exported, in_tree=flat_in, out_tree=flat_out).serialize())
