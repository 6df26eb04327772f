"""Compiles programs for a device that is not attached, in a child process.

The compilers of foreign devices load only into a fresh process, and libtpu can take its process
down, so they run in this one. It reads messages from stdin and answers on stdout, each a pickle
behind its length: first the devices to open, then programs. It imports JAX and nothing of
monet_jax: `child` starts this file by its path.

Bytes are read from the compiler's dump of its assignment of memory, since most of a compilation is
the code that comes after it: 8 of 13 seconds of a ResNet-50 for a GPU. On a TPU only
the dump is correct: `memory_analysis` counts fragmentation twice there. For an LSTM it said 925
MiB, 411 of them temporaries; the compiler's own account named 259 MiB of temporaries, 152 MiB of
them fragmentation; and the LSTM compiled for a chip of 840 MiB (JAX 0.12.0). Code, 8 MiB of that
LSTM, is not counted.
"""

import functools
import math
import os
import pickle
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

# What `open_devices` is told, by name: fields of `target_table.Target`.
DEVICE_FIELDS = ("platform", "topology", "gpu_config")

# What the compiler dumps once memory is assigned.
_ASSIGNMENT = "*-buffer-assignment.txt"
# In seconds: what a process takes to come up. Code that is ready sooner is worth waiting for.
_PATIENCE = 1.0
# What the compiler dumps of a program of which nothing but the code is to be made.
_OPTIMIZED = "*gpu_after_optimizations.txt"
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), page 0, (.*)$", re.MULTILINE)

_LENGTH = struct.Struct("!Q")
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def send(stream: BinaryIO, message: Any) -> None:
    """Writes one message."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message; EOFError where the other side has gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the other process has closed its end")
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0]))


def compiled_figures(lowered: jax.stages.Lowered, options: dict[str, Any]) -> dict[str, Any]:
    """Compiles, and returns the compiler's bytes and the seconds it took.

    The TPU compiler refuses a program that is too large for the device, but says how many bytes it
    needs: then only `total` is known.
    """
    start = time.perf_counter()
    try:
        stats: Any = lowered.compile(compiler_options=options or None).memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        total = bytes_in_refusal(str(error))
        if total is None:
            raise
        return {"total": total, "seconds": time.perf_counter() - start}
    return {
        "argument": stats.argument_size_in_bytes,
        "output": stats.output_size_in_bytes,
        "temp": stats.temp_size_in_bytes,
        "alias": stats.alias_size_in_bytes,
        "seconds": time.perf_counter() - start,
    }


def assigned_figures(
    lowered: jax.stages.Lowered, options: dict[str, Any], then: str
) -> dict[str, Any]:
    """The compiler's bytes once it has assigned them, without waiting long for the code.

    The compilation goes on, for a minute or more: if it does, the figures are marked "unfinished",
    and this process should end.

    Arguments:
        lowered: the program.
        options: of the compiler.
        then: a pattern for what the compiler dumps next.
    """
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as dump:
        compiling = ThreadPoolExecutor(1).submit(compiled_figures, lowered, _dumping(options, dump))
        is_assigned = False
        while not is_assigned:
            is_assigned = any(Path(dump).glob(then))
            try:
                figures = compiling.result(timeout=_PATIENCE if is_assigned else 0.1)
            except TimeoutError:
                continue
            return figures if "total" in figures else {**figures, **_assigned_in(dump)}
        sizes = _assigned_in(dump)
    return {**sizes, "seconds": time.perf_counter() - start, "unfinished": True}


def figures_in_full(lowered: jax.stages.Lowered, options: dict[str, Any]) -> dict[str, Any]:
    """The same, once all is compiled, in a process that must not end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as dump:
        figures = compiled_figures(lowered, _dumping(options, dump))
        return figures if "total" in figures else {**figures, **_assigned_in(dump)}


def _dumping(options: dict[str, Any], folder: str) -> dict[str, Any]:
    return {**options, "xla_dump_to": folder, "xla_dump_hlo_as_text": True}


def _assigned_in(folder: str) -> dict[str, Any]:
    """The bytes by the assignment that was dumped to a folder; none if there is no such file.

    And the compiler's estimates of seconds, where it was asked for them.
    """
    found = next(Path(folder).glob(_ASSIGNMENT), None)
    optimized = next(Path(folder).glob(_OPTIMIZED), None)
    sizes: dict[str, Any] = {} if found is None else assigned_bytes(found.read_text())
    if optimized is not None:
        sizes["estimates"] = _module("estimates.py").estimates_in(optimized.read_text())
    return sizes


def _module(path: str) -> Any:
    """The module of a file, by its path from this one's folder, without its package."""
    name = Path(path).stem
    spec = util.spec_from_file_location(name, Path(__file__).parent / path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def assigned_bytes(assignment: str) -> dict[str, int]:
    """The bytes of device memory by purpose, from a dumped assignment of buffers.

    Memory on the chip has a colour, and what belongs to a single call is local to its thread.
    """
    sizes = {"argument": 0, "output": 0, "temp": 0, "alias": 0}
    for size, what in _ALLOCATION.findall(assignment):
        is_argument, is_output = "parameter" in what, "maybe-live-out" in what
        sizes["argument"] += int(size) * is_argument
        sizes["output"] += int(size) * is_output
        sizes["alias"] += int(size) * (is_argument and is_output)
        sizes["temp"] += int(size) * what.startswith("preallocated-temp")
    return sizes


def bytes_in_refusal(message: str) -> int | None:
    """The bytes that a program needs, from the TPU compiler's out-of-memory error, or None.

    It says "the total memory required for HLO temporaries (14.02G) exceeds available HBM", but
    counts arguments and outputs as well.
    """
    found = re.search(r"memory required[^(]*\(([\d.]+)([BKMGT]?)\) exceeds available HBM", message)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def open_devices(platform: str, topology: Any, gpu_config: str | None) -> list[Any]:
    """The devices of that platform to compile for; CPUs are the only ones that are really there."""
    if platform == "cpu":
        return jax.devices("cpu")
    if platform == "tpu":
        return list(topologies.get_topology_desc(topology, platform="tpu").devices)
    # The CUDA plugin wants its topology among the keywords, beside the card.
    description = topologies.get_topology_desc(
        platform=platform, topology=topology, target_config=gpu_config
    )
    return list(description.devices)


def lower_exported(
    blob: bytes, donated: tuple[bool, ...], mesh: dict[str, Any] | None, devices: list[Any]
) -> jax.stages.Lowered:
    """Lowers an exported program of flat arguments as `jax.jit` would have lowered the original.

    Arguments that it never reads are left out, and donated ones are donated again: `Exported.call`
    alone would lose both. A program that is sharded over a mesh is compiled for as many of the
    `devices`, others for the first.
    """
    exported = jax.export.deserialize(bytearray(blob))
    avals, kept = exported.in_avals, exported.module_kept_var_idx
    shardings: Any = [jax.sharding.SingleDeviceSharding(devices[0])] * len(avals)
    if mesh is not None:
        shardings = exported.in_shardings_jax(_mesh(devices, **mesh))

    def call(*read):
        leaves = dict(zip(kept, read, strict=True))
        for i in set(range(len(avals))) - leaves.keys():
            leaves[i] = jnp.zeros(avals[i].shape, avals[i].dtype)  # dead code in the program
        return exported.call(*(leaves[i] for i in range(len(avals))))

    specs = [
        jax.ShapeDtypeStruct(avals[i].shape, avals[i].dtype, sharding=shardings[i]) for i in kept
    ]
    donate = [position for position, i in enumerate(kept) if donated[i]]
    lowered = jax.jit(call, donate_argnums=donate).lower(*specs)
    memories = _module("../ir/compat/memories.py")
    on_host = [n for n, i in enumerate(kept) if memories.is_on_host(avals[i])]
    memories.place_arguments_on_host(lowered, on_host)
    return lowered


def _mesh(devices: list[Any], sizes: tuple[int, ...], names: tuple[str, ...], kinds: Any):
    """A mesh of the first devices; which of them stand side by side changes no bytes."""
    array = np.array(devices[: math.prod(sizes)]).reshape(sizes)
    types = tuple(jax.sharding.AxisType[kind] for kind in kinds)
    return jax.sharding.Mesh(array, names, axis_types=types)


def answer(
    devices_of: Callable[[str | None], list[Any]], request: dict[str, Any]
) -> dict[str, Any]:
    """The figures of one program, or the error that compiling it raised, in words.

    Arguments:
        devices_of: the devices by the text of their card.
        request: the fields of `child._Request`.
    """
    try:
        program = request["program"], request["donated"], request["mesh"]
        lowered = lower_exported(*program, devices_of(request["gpu_config"]))
        if request["then"] is None:
            return compiled_figures(lowered, request["options"])
        return assigned_figures(lowered, request["options"], request["then"])
    except Exception as error:  # whatever it is, the parent has to raise it
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Serves one device until the parent closes the pipe."""
    # Compilers print to standard output: keep the pipe for messages, send the rest to stderr.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jax.config.update("jax_enable_x64", True)  # programs come with their own types
    try:
        opened = receive(sys.stdin.buffer)

        @functools.cache
        def devices_of(gpu_config: str | None) -> list[Any]:
            return open_devices(**{**opened, "gpu_config": gpu_config})

        devices_of(opened["gpu_config"])  # what cannot be opened ends the process at once
        while True:
            figures = answer(devices_of, receive(sys.stdin.buffer))
            send(replies, figures)
            if "unfinished" in figures:
                os._exit(0)  # the compiler's threads cannot be stopped
    except (EOFError, BrokenPipeError):
        pass


if __name__ == "__main__":
    main()
