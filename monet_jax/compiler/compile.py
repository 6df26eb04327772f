"""Compiles a program for a target, attached or not, and reads the bytes that it takes.

A program for the device of this process is compiled in this process. For every other target it is
exported (`export`) and compiled by a child process (`child`).
"""

import dataclasses
import functools
import itertools as it
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.export

from ..ir import compat
from ..ir.program import aval_nbytes, device_nbytes
from . import worker
from .budget import format_bytes
from .child import CompilerDied as CompilerDied
from .child import CompilerFailed as CompilerFailed
from .child import begin_in_child, compiled_in_child
from .estimates import Estimate as Estimate
from .export import Mesh, described_mesh, exported_program
from .options import Options
from .targets import Target, compiler_version, require_compiler, resolve_target
from .waiting import waited_for


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
      estimates: the compiler's, of the seconds of instructions; only XLA:GPU's ahead of time.
    """

    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    target: str
    compiler: str
    compile_seconds: float = dataclasses.field(default=0.0, compare=False)
    estimates: tuple[Estimate, ...] = dataclasses.field(default=(), compare=False, repr=False)

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
      CompilerFailed: the compiler fails on the program under every option that was tried.
      CompilerDied: the same, by taking its process down, twice.
    """
    options = options or Options(target)
    jitted = fun if hasattr(fun, "trace") else jax.jit(fun)
    traced = jitted.trace(*args, **(kwargs or {}))
    mesh = mesh_of((args, kwargs))
    if target.attached and not isinstance(mesh, jax.sharding.AbstractMesh):
        compiled = functools.partial(_compiled_here, target, traced.lower())
    else:
        require_compiler(target)
        program = exported_program(jitted, args, dict(kwargs or {}), traced, target, mesh)
        compiled = compiled_in_child(target, *program, described_mesh(mesh))
    try:
        figures = options.figures(compiled, xla_remat=xla_remat)
    except NotImplementedError:
        raise
    except RuntimeError as error:
        kind = CompilerDied if isinstance(error, CompilerDied) else CompilerFailed
        raise kind(_failure(str(error), traced, target)) from error
    if "total" in figures:
        figures = _split_total(figures, traced, jax.tree.leaves((args, kwargs)))
    return _to_compiled_bytes(figures, target, str(options))


def begin_to_compile(
    fun: Callable[..., Any], args: tuple[Any, ...], *, target: Target, options: Options
) -> None:
    """Begin to compile a program on a second core, if there is one.

    `compile_bytes` of the same program then waits for it. Nothing else changes: this process's own
    device compiles nothing ahead, and what fails is raised there.

    Args:
      fun, args, target, options: as in `compile_bytes`.
    """
    if target.attached or (os.cpu_count() or 1) < 2:
        return
    mesh, jitted = mesh_of(args), jax.jit(fun)
    program = exported_program(jitted, args, {}, jitted.trace(*args), target, mesh)
    begin_in_child(target, *program, described_mesh(mesh), options.of_next)


def _compiled_here(
    target: Target, lowered: jax.stages.Lowered, options: dict[str, Any]
) -> dict[str, Any]:
    """The figures of a program, compiled in this process."""
    is_dumped = target.platform == "tpu"
    figures_of = worker.figures_in_full if is_dumped else worker.compiled_figures
    return waited_for(figures_of, lowered, options)


def _failure(said: str, traced: jax.stages.Traced, target: Target) -> str:
    """What to tell of a failed compilation: the program's size, the compiler's words, advice."""
    arguments = sum(map(aval_nbytes, jax.tree.leaves(traced.args_info)))
    results = sum(map(aval_nbytes, jax.tree.leaves(traced.out_info)))
    return (
        f"{target.name}: the compiler fails on a program of {_equations_in(traced.jaxpr):,} "
        f"equations, with {format_bytes(arguments)} of arguments and {format_bytes(results)} of "
        f"results, under every option that was tried. It says: {textwrap.shorten(said, 2000)} "
        "Compile it once with a smaller batch and fewer layers: if that succeeds, its size is too "
        "much for the compiler. Otherwise try another version of JAX; the same program fails "
        "without monet_jax, so that JAX's or XLA's developers can help."
    )


def _equations_in(jaxpr: Any) -> int:
    """How many equations a closed jaxpr has, those of loops, branches and calls included."""
    bodies = (body for eqn in jaxpr.jaxpr.eqns for body in compat.subjaxprs(eqn))
    return len(jaxpr.jaxpr.eqns) + sum(map(_equations_in, bodies))


def _to_compiled_bytes(figures: dict[str, Any], target: Target, conditions: str) -> CompiledBytes:
    """The worker's figures under their public names."""
    compiler = f"{compiler_version(target)}, {conditions}"
    if "total" in figures:
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
        estimates=tuple(it.starmap(Estimate, figures.get("estimates", ()))),
    )


def _split_total(
    figures: dict[str, Any], traced: jax.stages.Traced, leaves: Sequence[Any]
) -> dict[str, Any]:
    """Takes the arguments and outputs, which the avals give, out of a total.

    An output with an argument's shape, such as a gradient, is taken to be sharded like it.
    """
    sharded = (x for x in leaves if getattr(x, "sharding", None) is not None)
    shares = {(x.shape, x.dtype): device_nbytes(x) for x in sharded}

    def nbytes(infos: Iterable[Any]) -> int:
        return sum(shares.get((x.shape, x.dtype), aval_nbytes(x)) for x in infos)

    inputs = jax.tree.leaves(traced.args_info)
    argument, output = nbytes(inputs), nbytes(jax.tree.leaves(traced.out_info))
    alias = min(output, nbytes(info for info in inputs if info.donated))
    rest = figures["total"] - output + alias
    argument = min(argument, rest)  # less where the program does not read them all
    temp = rest - argument
    return {**figures, "argument": argument, "output": output, "temp": temp, "alias": alias}


def mesh_of(arguments: Any) -> Mesh | None:
    """The mesh of several devices that arguments are sharded over, if there is one."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    named = (s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding))
    return next((mesh for mesh in named if mesh.size > 1), None)


def devices_of(arguments: Any) -> int:
    """How many devices arguments are sharded over."""
    mesh = mesh_of(arguments)
    return mesh.size if mesh else 1
