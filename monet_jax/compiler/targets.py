"""Resolves a target by its name, with its usable memory, its topology and its compiler."""

import contextlib
import dataclasses
import importlib.metadata
import os
import re
from collections.abc import Iterator
from typing import Any

import jax

from .._extras import install_command
from .target_table import COMPILER_PACKAGES, COMPILERS, DEVICE_KINDS, GPUS_OF_A_HOST, TPU_TOPOLOGIES
from .target_table import TARGETS as TARGETS
from .target_table import Target as Target

# The share of a GPU that JAX's pool takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
JAX_GPU_POOL_FRACTION = 0.75


class TargetUnavailable(RuntimeError):
    """The compiler of a target is not installed."""

    __module__ = "monet_jax"


def resolve_target(target: str | None) -> Target:
    """The target of that name, or for None the default JAX device of this process.

    Raises:
      ValueError: no target has that name.
    """
    device = default_device()
    if target is None or target == _target_name(device):
        return _attached_target(device)
    if target not in TARGETS:
        names = ", ".join(TARGETS)
        raise ValueError(f"unknown target {target!r}; use one of: {names}, or None for this device")
    return TARGETS[target]


def usable_bytes(target: Target) -> int:
    """The bytes that one JAX process can have on `target`.

    An attached device says so itself. Elsewhere: all of a TPU's memory, the pool that JAX takes
    from a GPU, the machine's (or the container's) memory for the CPU.
    """
    if target.platform == "cpu":
        return _host_memory_bytes()
    if target.attached:
        limit = (default_device().memory_stats() or {}).get("bytes_limit")
        if limit:
            return int(limit)
    if target.memory_bytes is None:
        raise ValueError(f"{target.name} does not tell its memory; give the budget in bytes")
    return int(target.memory_bytes * (_pool_fraction() if target.platform == "cuda" else 1))


def topology_of(target: Target, devices: int) -> str | None:
    """What the ahead-of-time compiler calls so many devices of a target; None on the CPU.

    Raises:
        NotImplementedError: it knows no such number of them.
    """
    if devices == 1 or target.platform == "cpu":
        return target.topology
    if target.platform == "cuda":
        hosts, rest = divmod(devices, GPUS_OF_A_HOST)
        if hosts == 0 or rest == 0:
            return f"1x{max(hosts, 1)}x{min(devices, GPUS_OF_A_HOST)}"
        known = f"up to {GPUS_OF_A_HOST}, and multiples of that"
    else:
        generation = target.name.partition(":")[2]
        shapes = TPU_TOPOLOGIES[generation]
        if devices in shapes:
            return f"{generation}:{shapes[devices]}"
        known = ", ".join(map(str, shapes))
    raise NotImplementedError(
        f"{target.name} cannot be compiled for {devices} devices ahead of time: give a mesh of "
        f"{known}."
    )


def require_compiler(target: Target) -> None:
    """Checks that the ahead-of-time compiler of `target` is installed, without starting it.

    Raises:
      TargetUnavailable: it is not; the message names the packages and the extra.
    """
    if target.platform == "cpu":
        return
    extra = "aot-gpu" if target.platform == "cuda" else "aot-tpu"
    missing = [name for name in COMPILER_PACKAGES[target.platform] if _version(name) is None]
    if missing:
        raise TargetUnavailable(
            f"compiling for {target.name} needs {' and '.join(missing)}, not installed here, "
            f"which the extra `{extra}` brings; run: {install_command(extra)} "
            f"(no {target.name} has to be attached)"
        )


@contextlib.contextmanager
def naming_cudnn() -> Iterator[None]:
    """Says what to install where JAX does not find cuDNN, which it looks for while tracing.

    Raises:
        TargetUnavailable: in the place of JAX's error.
    """
    try:
        yield
    except RuntimeError as error:
        if "cuDNN" not in str(error):
            raise
        raise TargetUnavailable(
            f"JAX cannot trace the attention of cuDNN here: {error} The library is enough, no GPU "
            f"is needed for it; run: {install_command('aot-cudnn')}. Or leave "
            '`implementation="cudnn"` out, which takes XLA\'s attention.'
        ) from error


def compiler_version(target: Target) -> str:
    """The compiler of `target` and its version, as in "XLA:GPU, jax-cuda13-plugin 0.12.0.1"."""
    label, package = COMPILERS[target.platform]
    return f"{label}, {package} {_version(package) or 'of unknown version'}"


def default_device() -> Any:
    """The device that this process computes on when nothing else is said."""
    chosen = jax.config.jax_default_device
    if isinstance(chosen, jax.Device):
        return chosen
    return jax.devices(chosen)[0]  # the name of a platform, or None


def _attached_target(device: Any) -> Target:
    """The table's row for `device`, or a stand-in where the table has none."""
    name = _target_name(device)
    row = TARGETS.get(name) or _stand_in(device, name)
    return dataclasses.replace(row, attached=True)


def _stand_in(device: Any, name: str) -> Target:
    """A device that is not in the table: its own memory, and the rates of the nearest row."""
    nearest = TARGETS["tpu:v5e" if device.platform == "tpu" else "gpu:a100"]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return dataclasses.replace(nearest, name=name, memory_bytes=limit, topology=None)


def _target_name(device: Any) -> str:
    """The name of the target that `device` is: "NVIDIA H200" is "gpu:h200"."""
    if device.platform == "cpu":
        return "cpu"
    kind = device.device_kind
    for pattern, name in DEVICE_KINDS:
        if re.search(pattern, kind):
            return name
    slug = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
    return f"{device.platform}:{slug}"


def _host_memory_bytes() -> int:
    """The machine's memory, or the container's limit where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_container_limits()])


def _container_limits() -> Iterator[int]:
    """The memory limits of control groups, version 2 and 1, that this process can see."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                yield int(file.read())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue


def _pool_fraction() -> float:
    """The share of a GPU that JAX's allocator may use."""
    return float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") or JAX_GPU_POOL_FRACTION)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
