"""Mistakes about a target, found before anything is planned or compiled for it.

A program may compute in a dtype that the target lacks, or be sharded over a mesh that does not
divide its arrays.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax

from ..compiler.host import HostMemory
from ..compiler.targets import Target
from ..ir import compat
from ..tracing.traced import Traced
from .failures import BadArgument

#: By platform, the dtypes that its matrix and vector units lack; compilers refuse or emulate them.
LACKING = {"tpu": frozenset({"float64", "complex128"})}


def refuse_for_target(traced: Traced, target: Target) -> None:
    """Refuse a program that a target cannot run.

    Raises:
        ValueError: it has a dtype that the target lacks, or shards that do not divide an array.
    """
    _refuse_shards(traced)
    _refuse_dtypes(traced, target)


def refuse_host(
    traced: Traced, host: HostMemory | None, devices: int, has_error_limit: bool = False
) -> None:
    """Refuse to move values of a program to the host where that is not possible.

    Raises:
        ValueError: it is sharded, needs forward mode, or its gradient may have errors.
    """
    if host is None or not host.allows("activations"):
        return
    why = ""
    if devices > 1:
        why = "the arguments are sharded over several devices, and copies are planned for one"
    elif traced.derivative.forward_mode:
        why = 'with `operators="none"` forward mode works everywhere, but not through copies'
    elif has_error_limit:
        why = "the error of a gradient is measured on plans that copy nothing"
    if why:
        raise BadArgument(f"`host` cannot move activations here: {why}. Leave `host` out.")


def _refuse_shards(traced: Traced) -> None:
    for n, aval in enumerate(traced.avals):
        sharding = getattr(aval, "sharding", None)
        if not isinstance(sharding, jax.sharding.NamedSharding):
            continue
        for axis, (size, parts) in enumerate(zip(aval.shape, _parts(sharding), strict=False)):
            if size % parts:
                raise BadArgument(
                    f"Array {n} of the arguments, of shape {aval.shape}, is sharded by "
                    f"{sharding.spec}: its axis {axis}, of size {size}, does not divide into "
                    f"{parts} parts. Pad the axis to {math.ceil(size / parts) * parts}, or use a "
                    f"mesh of a divisor of {size} devices along it."
                )


def _parts(sharding: jax.sharding.NamedSharding) -> Iterator[int]:
    """Into how many parts each axis is cut that the sharding's spec names."""
    sizes = dict(sharding.mesh.shape)
    for names in sharding.spec:
        several = names if isinstance(names, tuple) else (names,)
        yield math.prod(sizes.get(name, 1) for name in several)


def _refuse_dtypes(traced: Traced, target: Target) -> None:
    lacking = LACKING.get(target.platform, frozenset())
    for dtype, source in _dtypes(traced.recorded.jaxpr) if lacking else ():
        if dtype in lacking:
            where = f" at {source}" if source else ""
            raise BadArgument(
                f"The function computes in {dtype}{where}, which {target.name} lacks. Cast it to "
                "float32 or bfloat16 (complex64), leave `jax_enable_x64` off, or plan for a CPU "
                "or GPU."
            )


def _dtypes(jaxpr: Any) -> Iterator[tuple[str, str]]:
    """The dtypes of a closed jaxpr's inputs and results, and where they are computed."""
    for var in jaxpr.jaxpr.invars:
        yield str(getattr(var.aval, "dtype", "")), ""
    for eqn in jaxpr.jaxpr.eqns:
        for var in eqn.outvars:
            yield str(getattr(var.aval, "dtype", "")), compat.source_of(eqn)
        for body in compat.subjaxprs(eqn):
            yield from _dtypes(body)
