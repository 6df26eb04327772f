"""A flat program as data: its equations, its values, and the rewrites that were applied."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .. import compat
from .tiles import tiled_size


@dataclasses.dataclass(frozen=True, slots=True)
class Equation:
    """One equation of a flat program.

    Attributes:
        eqn: the JAX equation: primitive, parameters, context, source.
        inputs: a value number, or a `Literal`, for each operand.
        outputs: a value number for each result.
        name_stack: module path and transformations, outer calls included.
        apart: the note in reports of an equation that begins a stage; "" for all others.
    """

    eqn: Any
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    name_stack: Any
    apart: str = ""

    @property
    def primitive(self) -> str:
        """The name of the primitive."""
        return compat.primitive_name(self.eqn)

    @property
    def reads(self) -> tuple[int, ...]:
        """The value numbers among the inputs."""
        return tuple(i for i in self.inputs if isinstance(i, int))


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What is listed in the place of an equation.

    Attributes:
        jaxpr: closed; of the equation's operands and results.
        changes_what_is_kept: whether its gradient, without a plan, saves other residuals than
            the equation's own gradient.
    """

    jaxpr: Any
    changes_what_is_kept: bool = False


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """How a program may run other than as it was traced.

    Attributes:
        equation: a JAX equation -> its replacement, or None.
        codecs: encodings of residuals whose derivatives are linear in them, the preferred codec
            last.
        programs: `(program, derivative)` -> the program with several equations replaced by one, or
            itself. They come before single equations are replaced, and leave out the bodies of
            loops and branches.
        bodies: the same for the bodies of loops that are planned.
        stages: `(stage, avals)` -> the stage with some of its equations replaced by others that
            have the same results (`stage.Replaced`); `avals` are the abstract values
            of all value numbers; new ones are appended. They come last, and everywhere.
        separates_convolutions: whether both gradients of a convolution leave together.
        flattens_kernels: whether the kernel's gradient then leaves as one row.
        delays_tables: whether the gradient of a table begins when that of what is looked up has
            come.
        writes_saved_once: whether the readers of a saved value read it behind a barrier.
        waits_in_stacks: whether an array that waits in the host's memory is a slot of a stack
            there, so that it comes back when the slot's index is known.
        rounds_slices: whether a loop rounds the slices that it casts (see `transformer/slices`).
        tile: rows and columns of the tiles that arrays are padded to, if they are.
    """

    equation: Callable[[Any], Replacement | None]
    codecs: tuple[Any, ...] = ()
    programs: tuple[Callable[["Program", Any], "Program"], ...] = ()
    bodies: tuple[Callable[["Program", Any], "Program"], ...] = ()
    stages: tuple[Callable[[Any, list[Any]], Any], ...] = ()
    separates_convolutions: bool = False
    flattens_kernels: bool = False
    delays_tables: bool = False
    writes_saved_once: bool = False
    waits_in_stacks: bool = False
    rounds_slices: bool = False
    tile: tuple[int, int] | None = None


def _itself(eqn: Any) -> None:
    del eqn


#: Replaces no equation.
unchanged = Rewrite(_itself)


@dataclasses.dataclass(frozen=True)
class Program:
    """A flat program.

    Attributes:
        avals: the abstract value of every value number.
        inputs: value numbers of the arguments.
        constants: value number -> array (or outer tracer) that the function closed over.
        equations: in execution order, free of dead code.
        outputs: a value number or a `Literal` for each result.
        given: values that are in memory throughout: arguments and constants. Of the body of a loop,
            only what is given to the loop itself.
        rewrite: the rewrite that replaced its equations; it applies to the bodies of its loops too.
        keeps_other: whether, run as it is, it saves other residuals than the traced function.
        inlines_checkpoints: whether regions of `jax.checkpoint` are inlined, also in the bodies of
            its loops.
        tile: in which its values are laid out, if they are (see `tiles`).
    """

    avals: tuple[Any, ...]
    inputs: tuple[int, ...]
    constants: Mapping[int, Any]
    equations: tuple[Equation, ...]
    outputs: tuple[Any, ...]
    given: frozenset[int]
    rewrite: Rewrite = dataclasses.field(default=unchanged, compare=False)
    keeps_other: bool = False
    inlines_checkpoints: bool = False
    tile: tuple[int, int] | None = None

    def nbytes(self, value: int) -> int:
        """Bytes of one value, padded to whole tiles."""
        aval = self.avals[value]
        nbytes = aval_nbytes(aval)
        if self.tile is None or not nbytes:
            return nbytes
        return nbytes * tiled_size(aval.shape, self.tile) // math.prod(aval.shape)


#: Integers of less than a byte, which XLA packs (`nbytes` of such an array does not say so).
_PACKED = ("int2", "uint2", "int4", "uint4")


def aval_nbytes(aval: Any) -> int:
    """Bytes of an array of this abstract value, as XLA stores it."""
    if compat.is_key(aval):
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    dtype = jax.numpy.dtype(aval.dtype)
    bits = jax.dtypes.itemsize_bits(dtype) if dtype.name in _PACKED else 0
    size = math.prod(aval.shape)
    return (size * bits + 7) // 8 if bits else size * dtype.itemsize


def device_nbytes(aval: Any) -> int:
    """Bytes of one device's part of an array of this abstract value, sharded or not."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return aval_nbytes(aval)
    return aval_nbytes(jax.ShapeDtypeStruct(sharding.shard_shape(aval.shape), aval.dtype))


def aval_of(program: Program, atom: Any) -> Any:
    """The abstract value of a value number or a literal."""
    return program.avals[atom] if isinstance(atom, int) else atom.aval


def shape_of(aval: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an abstract value, for tracing; and how it lies on the axes of a mesh."""
    return compat.shape_on_axes(aval, compat.explicit_sharding(aval))
