"""Asks a child process for the compiled bytes of a program.

The compilers of foreign devices load only into a fresh process. Each target has one child
(`worker`), which lives until this process exits, and a second one for programs that are begun ahead
of time: a compiler keeps little more than one core busy. Where code generation takes longer than
another process does to start, the child ends once memory is assigned: code generation is nine
tenths of a compilation for a TPU, and two thirds of one for a GPU.
"""

import atexit
import dataclasses
import hashlib
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import IO, Any, BinaryIO, cast

from . import worker
from .targets import Target, topology_of
from .waiting import waited_for

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


class CompilerFailed(RuntimeError):
    """The compiler of a target fails on a program, under every option that was tried."""

    __module__ = "monet_jax"


class CompilerDied(CompilerFailed):
    """The child process that compiles for a target ended twice in a row."""

    __module__ = "monet_jax"


@dataclasses.dataclass(frozen=True)
class _Request:
    """One program for a child: what the worker calls it, and what tells it from others.

    Bytes are the assignment's as soon as files called `then` are dumped; None waits for all. The
    card is the target's, or one that differs in its memory.
    """

    program: bytes
    donated: tuple[bool, ...]
    mesh: dict[str, Any] | None
    options: dict[str, Any]
    gpu_config: str | None
    then: str | None

    @property
    def devices(self) -> int:
        """How many it is sharded over."""
        return math.prod(self.mesh["sizes"]) if self.mesh else 1

    def key(self, target: Target) -> bytes:
        """Equal for programs that compile to the same bytes."""
        digest = hashlib.sha256(self.program)
        how = (target.name, self.donated, self.mesh, self.options, self.gpu_config, self.then)
        digest.update(repr(how).encode())
        return digest.digest()


def compiled_in_child(
    target: Target,
    program: bytes,
    donated: tuple[bool, ...],
    mesh: dict[str, Any] | None,
    in_full: bool = False,
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Options -> the figures of a program, once memory is assigned or, `in_full`, code made."""
    end = _end(target, in_full)
    return lambda options: _ask(target, _Request(program, donated, mesh, options, *end))


def begin_in_child(
    target: Target,
    program: bytes,
    donated: tuple[bool, ...],
    mesh: dict[str, Any] | None,
    options: dict[str, Any],
) -> None:
    """Begin to compile a program in the second child, for `compiled_in_child` to wait less."""
    request = _Request(program, donated, mesh, options, *_end(target))
    key, reply = request.key(target), Future[dict[str, Any]]()
    if key in _cache or (os.getpid(), key) in _begun:
        return
    _begun[os.getpid(), key] = reply

    def compile_it() -> None:
        try:
            reply.set_result(_compiler_child(target, request.devices, 1).ask(vars(request)))
        except Exception as error:  # whatever it is, who asks for the program has to raise it
            reply.set_exception(error)

    # A daemon: this process ends though nobody asks for the program in the end.
    threading.Thread(target=compile_it, daemon=True).start()


def _end(target: Target, in_full: bool = False) -> tuple[Any, Any]:
    """The end of a request: the card, and after which step the child stops the compiler."""
    return target.gpu_config, None if in_full else _AFTER_ASSIGNMENT[target.platform]


_cache: dict[bytes, dict[str, Any]] = {}
# By process: a fork has no thread that waits for the child of its parent.
_begun: dict[tuple[int, bytes], Future[dict[str, Any]]] = {}


def _ask(target: Target, request: _Request) -> dict[str, Any]:
    """The figures of one program; one that is traced again from the same lines is not compiled."""
    key = request.key(target)
    if key not in _cache:
        begun = _begun.pop((os.getpid(), key), None)
        if begun is None:
            reply = _compiler_child(target, request.devices).ask(vars(request))
        else:
            reply = waited_for(begun.result)
        if "error" in reply:
            raise CompilerFailed(f"the compiler of {target.name} says: {reply['error']}")
        _cache[key] = reply
    return _cache[key]


@dataclasses.dataclass(frozen=True)
class _Process:
    """A running worker, its pipes, and its standard error."""

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
        return waited_for(worker.receive, self.pipes[1])

    def end(self) -> str:
        """Ends the process, and returns the last lines that it wrote."""
        self.popen.kill()
        self.popen.communicate()  # closes both pipes and reaps it
        with self.stderr:
            self.stderr.seek(0)
            lines = self.stderr.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-20:])


class _CompilerChild:
    """The process that compiles for devices of one target; it starts with the first request."""

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
_children: dict[tuple[int, str, int, int], _CompilerChild] = {}
_children_lock = threading.Lock()


def _compiler_child(target: Target, devices: int = 1, n: int = 0) -> _CompilerChild:
    """The n-th child for so many devices of `target`, one for the whole process."""
    place = os.getpid(), target.name, devices, n
    with _children_lock:
        return _children.setdefault(place, _CompilerChild(target, devices))


@atexit.register
def _stop_children() -> None:
    for (process, *_), child in _children.items():
        if process == os.getpid():
            child.end()
