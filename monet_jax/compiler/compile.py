"""How many bytes does the compiled program take on a target, attached or not?

The device of this process is compiled for in this process. For every other target the program is
exported and compiled by a child process (`worker`), one a target, kept until this process
exits: the compilers of foreign devices load only into a fresh process. Where code takes longer
than another process does to come up, it ends once memory is assigned: code is nine tenths of a
compilation for a TPU, and two thirds of one for a GPU.
"""

import atexit
import dataclasses
import functools
import hashlib
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any, BinaryIO, cast

import jax
import jax.core
import jax.export

from . import worker
from .budget import format_bytes
from .options import Options
from .targets import Target, compiler_version, require_compiler, resolve_target, topology_of

_Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh

# What a compiler child needs to come up without its device. It must not look for a real one.
_CHILD_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
}

# What a compiler dumps next when it has dumped its assignment of memory.
_AFTER_ASSIGNMENT = {
    "cpu": "*after_optimizations.txt",
    "cuda": "*after_optimizations.txt",
    "tpu": "*after_buffer_assignment.txt",
}


def _enough_cpus(devices: int) -> dict[str, str]:
    """What a child needs to have so many CPUs; the last of a flag's values counts."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}".strip()}


class CompilerDied(RuntimeError):
    """The child process that compiles for a target ended twice in a row."""


@dataclasses.dataclass(frozen=True)
class CompiledBytes:
    """What the compiler says a program takes on one device.

    Attributes:
      argument_bytes: the arguments that the program reads.
      output_bytes: the results.
      temp_bytes: everything between them: what rematerialization can change.
      alias_bytes: results that are written over donated arguments.
      target: the name of the target.
      compiler: which compiler said so, and under which conditions.
      compile_seconds: how long it took.
    """

    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    target: str
    compiler: str
    compile_seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def total_bytes(self) -> int:
        """The bytes that must be free for the program to run."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes

    def __str__(self) -> str:
        parts = [
            f"arguments {format_bytes(self.argument_bytes)}",
            f"outputs {format_bytes(self.output_bytes)}",
            f"temporaries {format_bytes(self.temp_bytes)}",
        ]
        if self.alias_bytes:
            parts.append(f"less {format_bytes(self.alias_bytes)} donated")
        return f"{format_bytes(self.total_bytes)} on {self.target} ({', '.join(parts)})"


def compiled_bytes(
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
) -> CompiledBytes:
    """The compiled bytes of `fun(*args, **kwargs)` as written, on a device that may not be here.

    Nothing is run. To see what a training step takes, pass the step, not the loss: a jitted
    function keeps its donated arguments.

    Args:
      fun: a pure function of arrays, jitted or not.
      *args: example arguments, or `jax.ShapeDtypeStruct`s in their place.
      kwargs: keyword arguments of `fun`, the same.
      target: "cpu", "gpu:h100", "tpu:v5e", ...; None for the default device of this process.

    Returns:
      The compiler's figures, in bytes. XLA's own rematerialization is on, as it is for users.
    """
    return compile_bytes(fun, args, kwargs=kwargs, target=resolve_target(target), xla_remat=True)


def compile_bytes(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    target: Target,
    kwargs: Mapping[str, Any] | None = None,
    xla_remat: bool = False,
    options: Options | None = None,
) -> CompiledBytes:
    """The compiled bytes of `fun(*args, **kwargs)` on `target`.

    Args:
      fun: a pure function of arrays, jitted or not.
      args: example arguments: arrays or `jax.ShapeDtypeStruct`s.
      target: what to compile for.
      kwargs: keyword arguments of `fun`.
      xla_remat: leave XLA's own rematerialization on; off, the program is taken as written.
      options: those for programs of one function, if there will be more.

    Raises:
      TargetUnavailable: the target's compiler is not installed.
      NotImplementedError: the program cannot be compiled outside this process.
      CompilerDied: the compiler took its process down, twice.
    """
    options = options or Options(target)
    jitted = fun if hasattr(fun, "trace") else jax.jit(fun)
    traced = jitted.trace(*args, **(kwargs or {}))
    mesh = mesh_of((args, kwargs))
    if target.attached and not isinstance(mesh, jax.sharding.AbstractMesh):
        figures_of = worker.compiled_figures
        if target.platform == "tpu":
            figures_of = worker.figures_in_full
        compiled = functools.partial(figures_of, traced.lower())
    else:
        require_compiler(target)
        program = _export(jitted, args, dict(kwargs or {}), traced, target, mesh)
        compiled = _in_child(target, *program, _described(mesh))
    figures = options.figures(compiled, xla_remat=xla_remat)
    return _to_compiled_bytes(figures, traced, target, str(options))


def _to_compiled_bytes(
    figures: dict[str, Any], traced: jax.stages.Traced, target: Target, conditions: str
) -> CompiledBytes:
    """The worker's figures under their public names."""
    compiler = f"{compiler_version(target)}, {conditions}"
    if "total" in figures:
        figures = _split_total(figures, traced)
        compiler += ", from its refusal (4 digits)"
    elif target.platform == "tpu":
        compiler += ", from its assignment of memory"
    return CompiledBytes(
        argument_bytes=figures["argument"],
        output_bytes=figures["output"],
        temp_bytes=figures["temp"],
        alias_bytes=figures["alias"],
        target=target.name,
        compiler=compiler,
        compile_seconds=figures["seconds"],
    )


def _split_total(figures: dict[str, Any], traced: jax.stages.Traced) -> dict[str, Any]:
    """Takes the arguments and outputs, which the avals give, out of a total."""
    inputs = jax.tree.leaves(traced.args_info)
    argument = sum(_nbytes(info) for info in inputs)
    output = sum(_nbytes(info) for info in jax.tree.leaves(traced.out_info))
    alias = min(output, sum(_nbytes(info) for info in inputs if info.donated))
    rest = figures["total"] - output + alias
    argument = min(argument, rest)  # less where the program does not read them all
    temp = rest - argument
    return {**figures, "argument": argument, "output": output, "temp": temp, "alias": alias}


def _nbytes(info: Any) -> int:
    """The bytes of an array of that shape and type (without the target's padding)."""
    return math.prod(info.shape) * info.dtype.itemsize


def _export(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    traced: jax.stages.Traced,
    target: Target,
    mesh: _Mesh | None,
) -> tuple[bytes, tuple[bool, ...]]:
    """The program in a form that another process can compile, and which arguments it donates."""
    if traced.effects:
        effects = ", ".join(sorted(str(type(effect).__name__) for effect in traced.effects))
        raise NotImplementedError(_cannot_leave(target, f"it has side effects ({effects})"))
    jitted, args, kwargs = _without_outer_tracers(jitted, args, kwargs, traced)
    try:
        exported = jax.export.export(jitted, platforms=[target.platform])(*args, **kwargs)
    except (ValueError, RuntimeError) as error:
        raise NotImplementedError(_cannot_leave(target, str(error))) from error
    if exported.nr_devices != (mesh.size if mesh else 1):
        reason = f"it is sharded over {exported.nr_devices} devices, and its arguments are not"
        raise NotImplementedError(_cannot_leave(target, reason))
    donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
    hoisted = len(exported.in_avals) - len(donated)
    return _serialize(exported), (False,) * hoisted + donated


def mesh_of(arguments: Any) -> _Mesh | None:
    """The mesh of several devices that arguments are sharded over, if there is one."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    named = (s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding))
    return next((mesh for mesh in named if mesh.size > 1), None)


def devices_of(arguments: Any) -> int:
    """How many devices arguments are sharded over."""
    mesh = mesh_of(arguments)
    return mesh.size if mesh else 1


def _described(mesh: _Mesh | None) -> dict[str, Any] | None:
    """A mesh without its devices, in plain data."""
    if mesh is None:
        return None
    kinds = tuple(kind.name for kind in mesh.axis_types)
    return {"sizes": tuple(mesh.axis_sizes), "names": tuple(mesh.axis_names), "kinds": kinds}


def _without_outer_tracers(
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


@dataclasses.dataclass(frozen=True)
class _Request:
    """One program for a child: what the worker calls it, and what tells it from others.

    Bytes are the assignment's as soon as files called `then` are dumped; None waits for all.
    """

    program: bytes
    donated: tuple[bool, ...]
    mesh: dict[str, Any] | None
    options: dict[str, Any]
    then: str | None

    @property
    def devices(self) -> int:
        """How many it is sharded over."""
        return math.prod(self.mesh["sizes"]) if self.mesh else 1

    def key(self, target: Target) -> bytes:
        """Equal for programs that compile to the same bytes."""
        digest = hashlib.sha256(self.program)
        how = (target.name, self.donated, self.mesh, self.options, self.then)
        digest.update(repr(how).encode())
        return digest.digest()


def _in_child(
    target: Target, program: bytes, donated: tuple[bool, ...], mesh: dict[str, Any] | None
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Options -> the figures of a program."""
    then = _AFTER_ASSIGNMENT[target.platform]
    return lambda options: _ask(target, _Request(program, donated, mesh, options, then))


_cache: dict[bytes, dict[str, Any]] = {}


def _ask(target: Target, request: _Request) -> dict[str, Any]:
    """The figures of one program; one that is traced again from the same lines is not compiled."""
    key = request.key(target)
    if key not in _cache:
        reply = _compiler_child(target, request.devices).ask(vars(request))
        if "error" in reply:
            raise RuntimeError(f"the compiler of {target.name} says: {reply['error']}")
        _cache[key] = reply
    return _cache[key]


@dataclasses.dataclass(frozen=True)
class _Process:
    """A running worker and what it writes beside its answers."""

    popen: subprocess.Popen[bytes]
    pipes: tuple[BinaryIO, BinaryIO]
    stderr: IO[bytes]

    @classmethod
    def start(cls, target: Target, devices: int) -> "_Process":
        """Starts a worker, which opens devices of `target` while this process goes on."""
        opened = {name: getattr(target, name) for name in worker.DEVICE_FIELDS}
        opened["topology"] = topology_of(target, devices)
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        popen = subprocess.Popen(
            # -P: this package's folder, where the file lies, must not shadow other packages.
            [sys.executable, "-P", worker.__file__],
            env={**os.environ, **_CHILD_ENVIRONMENT, **_enough_cpus(devices)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        pipes = cast(tuple[BinaryIO, BinaryIO], (popen.stdin, popen.stdout))
        worker.send(pipes[0], opened)
        return cls(popen, pipes, stderr)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """One message there and one back."""
        worker.send(self.pipes[0], message)
        return worker.receive(self.pipes[1])

    def end(self) -> str:
        """Ends the process, and returns the last lines that it wrote."""
        self.popen.kill()
        self.popen.communicate()  # closes both pipes and reaps it
        with self.stderr:
            self.stderr.seek(0)
            lines = self.stderr.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-20:])


class _CompilerChild:
    """The process that compiles for devices of one target; it starts when it is first asked."""

    def __init__(self, target: Target, devices: int):
        self._target, self._devices = target, devices
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one program; a child that died is replaced once."""
        last_words = ""
        with self._lock:
            for _ in range(2):
                try:
                    reply = self._running().ask(request)
                    if "unfinished" in reply:  # then the next one comes up while we plan
                        self.end()
                        self._running()
                    return reply
                except (EOFError, OSError):
                    last_words = self.end()
                except BaseException:  # an interrupt: the next answer would be to this request
                    self.end()
                    raise
        raise CompilerDied(
            f"the compiler of {self._target.name} ended twice without an answer (the program may "
            f"be too large for this machine, or the compiler broken). Its last lines:\n{last_words}"
        )

    def end(self) -> str:
        """Ends the process, if there is one, and returns its last lines."""
        process, self._process = self._process, None
        return process.end() if process else ""

    def _running(self) -> _Process:
        """The process; one that cannot open its device ends before it answers."""
        if self._process is None:
            self._process = _Process.start(self._target, self._devices)
        return self._process


# By process: a fork must not write into its parent's pipes.
_children: dict[tuple[int, str, int], _CompilerChild] = {}
_children_lock = threading.Lock()


def _compiler_child(target: Target, devices: int = 1) -> _CompilerChild:
    """The child for so many devices of `target`, one for the whole process."""
    place = os.getpid(), target.name, devices
    with _children_lock:
        return _children.setdefault(place, _CompilerChild(target, devices))


@atexit.register
def _stop_children() -> None:
    for (process, *_), child in _children.items():
        if process == os.getpid():
            child.end()
