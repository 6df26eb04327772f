"""A traced function as one flat list of equations, and how to run a part of it.

Nested `jit` calls are inlined as data: their equations are listed where the call stood, with
fresh value numbers. Nothing is retraced, so every equation keeps its own source line, module path
and differentiation rules. `Jaxpr` objects are read, never built (FACTS: JAX changes them often).
An equation may be replaced by others, which then stand for its source line and module path.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from . import compat


@dataclasses.dataclass(frozen=True, slots=True)
class Equation:
    """One equation of a flat program.

    Attributes:
        eqn: the JAX equation: primitive, parameters, context, source.
        inputs: a value number, or a `Literal`, for each operand.
        outputs: a value number for each result.
        name_stack: module path and transformations, outer calls included.
        apart: what reports say of it, if it is to begin a stage; "" if it is not.
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
        changes_what_is_kept: whether its gradient, with no plan to say so, needs other things than
            that of the equation.
    """

    jaxpr: Any
    changes_what_is_kept: bool = False


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """How a program may run other than as it was traced.

    Attributes:
        equation: of a JAX equation what replaces it, or None.
        codecs: how values may be kept for derivatives that are linear in them, the preferred codec
            last.
        programs: `(program, derivative)` -> the program with several equations replaced by one, or
            itself. They come before single equations are replaced, and not in the bodies of loops
            and branches.
        bodies: the same for the bodies of loops that are planned.
        stages: `(stage, avals)` -> the stage with some of its equations replaced by others that
            have the same results (`_stages.Replaced`); `avals` are of all values, and those of new
            ones are added. They come last, and everywhere.
        separates_convolutions: whether both gradients of a convolution leave together.
        flattens_kernels: whether that of the kernel then leaves as one row.
    """

    equation: Callable[[Any], Replacement | None]
    codecs: tuple[Any, ...] = ()
    programs: tuple[Callable[["Program", Any], "Program"], ...] = ()
    bodies: tuple[Callable[["Program", Any], "Program"], ...] = ()
    stages: tuple[Callable[[Any, list[Any]], Any], ...] = ()
    separates_convolutions: bool = False
    flattens_kernels: bool = False


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
        rewrite: by which equations were replaced, for the bodies of its loops; and how values may
            be kept for derivatives.
        keeps_other: whether, run as it is, it keeps other things for its gradient than what was
            traced.
        inlines_checkpoints: whether regions of `jax.checkpoint` are listed as what they hold; so
            are those in the bodies of its loops, then.
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

    def nbytes(self, value: int) -> int:
        """Bytes of one value."""
        return aval_nbytes(self.avals[value])


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


def has_checkpoints(jaxpr: Any) -> bool:
    """Whether a closed jaxpr, or one inside it, has regions of `jax.checkpoint`."""
    return any(
        compat.checkpointed(eqn) is not None or any(map(has_checkpoints, compat.subjaxprs(eqn)))
        for eqn in jaxpr.jaxpr.eqns
    )


def mutable_references(program: Program) -> bool:
    """Whether a program reads or writes references that it has not made: it must run as it is."""
    return any(compat.has_references(e.eqn) for e in program.equations)


def flatten(
    jaxpr: Any,
    *,
    rewrite: Rewrite = unchanged,
    inline_checkpoints: bool = False,
    closed_over: Sequence[Any] = (),
) -> Program:
    """The flat program of a closed jaxpr.

    Arguments:
        jaxpr: what `jax.make_jaxpr` returns.
        rewrite: what to list in the place of an equation. It is not asked about the bodies of
            loops, branches and calls with rules of their own.
        inline_checkpoints: also inline `jax.checkpoint` regions. Run as it is, such a program
            recomputes nothing.
        closed_over: values of the first of the jaxpr's inputs, which are constants of the program.
    """
    jaxpr = compat.without_references(jaxpr)
    flattener = _Flattener(rewrite, inline_checkpoints)
    constvars, consts, invars = compat.jaxpr_inputs(jaxpr)
    numbers = [flattener.new(var.aval) for var in invars]
    env = dict(zip(invars, numbers, strict=True))
    inputs = tuple(numbers[len(closed_over) :])
    flattener.constants.update(zip(numbers, closed_over, strict=False))
    outputs = flattener.inline(jaxpr, env, constvars, consts, None)
    equations = without_dead_code(flattener.equations, outputs)
    return Program(
        tuple(flattener.avals),
        inputs,
        flattener.constants,
        equations,
        tuple(outputs),
        frozenset((*inputs, *flattener.constants)),
        rewrite,
        flattener.keeps_other or inline_checkpoints,
        inline_checkpoints,
    )


def with_replaced(
    program: Program, replacement: Callable[[Equation], Replacement | None]
) -> Program:
    """A program with some of its equations replaced; inputs and constants keep their numbers."""
    flattener = _Flattener(unchanged, program.inlines_checkpoints)
    flattener.avals, flattener.constants = list(program.avals), dict(program.constants)
    flattener.keeps_other = program.keeps_other
    instead: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return instead.get(atom, atom) if isinstance(atom, int) else atom

    for equation in program.equations:
        inputs = tuple(map(read, equation.inputs))
        found = replacement(equation)
        if found is None:
            flattener.equations.append(dataclasses.replace(equation, inputs=inputs))
        else:
            stack = equation.name_stack
            results = flattener._inline_replacement(found, equation.eqn, inputs, stack)
            instead.update(zip(equation.outputs, results, strict=True))
    outputs = tuple(map(read, program.outputs))
    return dataclasses.replace(
        program,
        avals=tuple(flattener.avals),
        constants=flattener.constants,
        equations=without_dead_code(flattener.equations, outputs),
        outputs=outputs,
        given=program.given | flattener.constants.keys(),
        keeps_other=flattener.keeps_other,
    )


def flatten_changed(
    jaxpr: Any,
    changes: Sequence[Callable[[Program, Any], Program]],
    derivative_of: Callable[[Program], Any],
    rewrite: Rewrite,
    inline_checkpoints: bool,
    closed_over: Sequence[Any] = (),
) -> Program:
    """The flat program of a closed jaxpr, changed as a whole before single equations are replaced.

    Arguments:
        jaxpr: as for `flatten`, like `rewrite`, `inline_checkpoints` and `closed_over`.
        changes: as `Rewrite.programs`.
        derivative_of: of the program as it was traced.
    """
    if changes:
        plain = flatten(jaxpr, inline_checkpoints=inline_checkpoints, closed_over=closed_over)
        derivative = derivative_of(plain)
        changed = functools.reduce(lambda p, change: change(p, derivative), changes, plain)
        if changed is not plain:
            replaced = with_replaced(changed, lambda e: rewrite.equation(e.eqn))
            return dataclasses.replace(replaced, rewrite=rewrite)
    return flatten(
        jaxpr, rewrite=rewrite, inline_checkpoints=inline_checkpoints, closed_over=closed_over
    )


class _Flattener:
    """The state of one flattening: values and equations so far."""

    def __init__(self, rewrite: Rewrite, inline_checkpoints: bool):
        self.rewrite, self.inline_checkpoints = rewrite, inline_checkpoints
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[Equation] = []
        self.keeps_other = False

    def new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def inline(self, jaxpr, env: dict[Any, Any], constvars, consts, outer) -> list[Any]:
        """List the equations of `jaxpr`; returns its outputs as value numbers or literals."""

        def read(atom):
            return atom if isinstance(atom, compat.Literal) else env[atom]

        for var, value in zip(constvars, consts, strict=True):
            env[var] = self.new(var.aval)
            self.constants[env[var]] = value
        for eqn in jaxpr.jaxpr.eqns:
            inputs = tuple(map(read, eqn.invars))
            stack = compat.name_stack_of(eqn)
            stack = stack if outer is None else outer + stack
            region = compat.checkpointed(eqn) if self.inline_checkpoints else None
            if _is_plain_call(eqn) or region is not None:
                results = self._inline_call(region or eqn.params["jaxpr"], inputs, stack)
            elif (replacement := self.rewrite.equation(eqn)) is not None:
                results = self._inline_replacement(replacement, eqn, inputs, stack)
            else:
                results = [self.new(var.aval) for var in eqn.outvars]
                self.equations.append(Equation(eqn, inputs, tuple(results), stack))
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(var) for var in jaxpr.jaxpr.outvars]

    def _inline_replacement(self, replacement: Replacement, eqn, inputs, stack) -> list[Any]:
        """List what stands for an equation, which is itself not replaced again."""
        self.keeps_other |= replacement.changes_what_is_kept
        inside = _Flattener(unchanged, self.inline_checkpoints)
        inside.avals, inside.constants = self.avals, self.constants
        results = inside._inline_call(replacement.jaxpr, inputs, stack)
        self.equations += [
            dataclasses.replace(e, eqn=compat.placed_like(e.eqn, eqn), name_stack=stack)
            for e in inside.equations
        ]
        return results

    def _inline_call(self, inner, inputs, stack) -> list[Any]:
        constvars, consts, invars = compat.jaxpr_inputs(inner)
        return self.inline(inner, dict(zip(invars, inputs, strict=True)), constvars, consts, stack)


def _is_plain_call(eqn: Any) -> bool:
    """Whether an equation is a `jit` call that says nothing about placement."""
    if eqn.primitive is not compat.jit_p:
        return False
    placed = (*eqn.params["in_shardings"], *eqn.params["out_shardings"])
    layouts = (*eqn.params["in_layouts"], *eqn.params["out_layouts"])
    return (
        all(type(s).__name__ == "UnspecifiedValue" for s in placed)
        and all(layout is None for layout in layouts)
        and not eqn.params["compiler_options_kvs"]
    )


def parameters_of(eqn: Any) -> str:
    """The parameters of an equation as text, without what only identifies the call."""
    shown = {name: str(v) for name, v in eqn.params.items() if not callable(v)}
    return repr(sorted(shown.items()))


def without_dead_code(
    equations: Sequence[Equation], outputs: Iterable[Any]
) -> tuple[Equation, ...]:
    """The equations that the outputs need, and those with effects."""
    needed = {i for i in outputs if isinstance(i, int)}
    kept = []
    for equation in reversed(equations):
        if equation.eqn.effects or needed.intersection(equation.outputs):
            needed.update(equation.reads)
            kept.append(equation)
    return tuple(reversed(kept))


def dependents(equations: Iterable[Equation], sources: Iterable[int]) -> set[int]:
    """The values that some reach, through equations in execution order, themselves included."""
    found = set(sources)
    for equation in equations:
        if found.intersection(equation.reads):
            found.update(equation.outputs)
    return found


def values_of(env: Mapping[int, Any], atoms: Iterable[Any]) -> list[Any]:
    """What value numbers stand for in `env`, and literals for themselves."""
    return [env[i] if isinstance(i, int) else i.val for i in atoms]


def run(equations: Iterable[Equation], env: dict[int, Any], names: Mapping[int, str]) -> None:
    """Run equations in order, reading and writing `env`.

    Arguments:
        equations: in execution order.
        env: value number -> array; the results are added to it.
        names: value number -> the name to give it with `checkpoint_name`.
    """
    base = compat.current_name_stack()
    for equation in equations:
        inputs = values_of(env, equation.inputs)
        outputs = compat.bind(equation.eqn, inputs, base + equation.name_stack)
        for i, output in zip(equation.outputs, outputs, strict=True):
            name = names.get(i)
            env[i] = output if name is None else checkpoint_name(output, name)


def listed(
    function: Callable[..., Any],
    operands: Sequence[Any],
    like: Equation,
    avals: list[Any],
    outputs: Sequence[int] = (),
) -> list[Equation]:
    """The equations of a function of some values, in the place of another equation.

    Arguments:
        function: of arrays.
        operands: value numbers and literals, for its arguments.
        like: an equation whose source line and module path they have.
        avals: of all values; those of new ones are added.
        outputs: the numbers of its results, where these have some already.
    """
    shapes = [shape_of(avals[i] if isinstance(i, int) else i.aval) for i in operands]
    inner = flatten(jax.make_jaxpr(function)(*shapes))
    known = dict(zip(inner.inputs, operands, strict=True))
    known |= dict(zip(inner.outputs, outputs, strict=False))
    for e in inner.equations:
        for i in e.outputs:
            if i not in known:
                known[i] = len(avals)
                avals.append(inner.avals[i])
    return [
        Equation(
            compat.placed_like(e.eqn, like.eqn),
            tuple(known[i] if isinstance(i, int) else i for i in e.inputs),
            tuple(known[i] for i in e.outputs),
            like.name_stack,
        )
        for e in inner.equations
    ]


def aval_of(program: Program, atom: Any) -> Any:
    """The abstract value of a value number or a literal."""
    return program.avals[atom] if isinstance(atom, int) else atom.aval


def shape_of(aval: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an abstract value, for tracing; and how explicit axes shard it."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=compat.explicit_sharding(aval))
