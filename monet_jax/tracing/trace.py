"""Traces a function on example arguments to a flat program, and rebuilds its outputs."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core

from ..compiler.backend import backend_of
from ..compiler.compile import devices_of
from ..compiler.targets import Target, naming_cudnn
from ..ir import compat
from ..ir.fingerprint import program_hash
from ..ir.gradient import derivative_of
from ..ir.program import Program, Rewrite, has_checkpoints, unchanged
from ..ir.stage import Differentiation
from ..operators import Context, rewriter, selected
from . import nesting
from .modules import on_arrays
from .passes.draft import Listing
from .pipeline import list_program, stage
from .signature import Call, abstract_leaf, is_traced
from .staged import StagedProgram

#: What may be done with `jax.checkpoint` regions of the user's.
CHECKPOINTS = ("keep", "plan")


@dataclasses.dataclass(frozen=True)
class Terms:
    """The options that a function is planned with, beside its budget.

    Attributes:
        operators: names of the residual operators that a plan may use; with none, nothing in it
            has a derivative of its own, so that forward mode works.
        checkpoints: "keep" the user's `jax.checkpoint` regions as they are, or "plan" through them.
    """

    operators: tuple[str, ...] = dataclasses.field(
        default_factory=lambda: tuple(x.name for x in selected("exact"))
    )
    checkpoints: str = "keep"

    @staticmethod
    def of(operators: str | Sequence[str], checkpoints: str) -> "Terms":
        """The terms that the arguments of `plan` mean.

        Raises:
            ValueError: there are no such operators, or `checkpoints` is another word.
        """
        if checkpoints not in CHECKPOINTS:
            raise ValueError(f"`checkpoints` must be one of {CHECKPOINTS}; got {checkpoints!r}.")
        return Terms(tuple(x.name for x in selected(operators)), checkpoints)

    @property
    def forward_mode(self) -> bool:
        """Whether tangents must pass a plan forward, `jax.jit` round it or not."""
        return not self.operators


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A function's jaxpr before any rewrite.

    Attributes:
        jaxpr: closed; of `closed_over`, and of the flat inputs behind that.
        closed_over: tracers of outer transformations among what the function closes over, and all
            arrays beside them; nothing if there are none of them.
        tracers: for each of these, whether it is a tracer: arrays have no gradient.
        avals: `ShapeDtypeStruct`s of the inputs, shardings included.
        rebuild: flat outputs -> what the function returns.
    """

    jaxpr: Any
    closed_over: tuple[Any, ...]
    tracers: tuple[bool, ...]
    avals: tuple[Any, ...]
    rebuild: Callable[[Sequence[Any]], Any]


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes:
        program: the flat program.
        derivative: which derivative of it the budget covers.
        recorded: the function as it is.
        terms: the options that it is planned with.
    """

    program: Program
    derivative: Differentiation
    recorded: Recorded
    terms: Terms = Terms()

    def staged(self, nested_lengths: tuple[int, ...] | None = None) -> StagedProgram:
        """The program in stages, made once; with nested scans of these lengths, if any."""
        made = self._staged
        if nested_lengths not in made:
            letter = "n" if nested_lengths else "s" if self.terms.operators else "p"
            staged = stage(self.program, self.derivative, nested_lengths)
            made[nested_lengths] = dataclasses.replace(staged, letter=letter)
        return made[nested_lengths]

    @functools.cached_property
    def _staged(self) -> dict[tuple[int, ...] | None, StagedProgram]:
        return {}

    @functools.cached_property
    def plain(self) -> dict[str, "Traced"]:
        """Target -> the same function without operators (see `without_operators`)."""
        return {}

    @functools.cached_property
    def program_hash(self) -> str:
        """A hash of the program and its derivative, however it is cut."""
        return program_hash(self.program, self.derivative)

    @property
    def fingerprint(self) -> str:
        """A hash of the program and its derivative, and a hash of its cut into stages."""
        return self.staged().fingerprint

    @property
    def avals(self) -> tuple[Any, ...]:
        """`ShapeDtypeStruct`s of the inputs, shardings included."""
        return self.recorded.avals

    @property
    def constants(self) -> tuple[Any, ...]:
        """Values of `program.constants`, in order."""
        return tuple(self.program.constants.values())

    def flat(self, inputs: Sequence[Any], constants: Sequence[Any] = ()) -> list[Any]:
        """The function as it is: flat outputs from flat inputs.

        It ignores the program's constants, for it closes over its own.
        """
        del constants
        given = (*self.recorded.closed_over, *inputs)
        return compat.as_function(self.recorded.jaxpr)(*given)

    def closing_over(self, values: Sequence[Any]) -> "Traced":
        """The same function, closing over other values of the same types."""
        if not values:
            return self
        known = dict(zip(map(id, self.recorded.closed_over), values, strict=True))
        constants = {i: known.get(id(x), x) for i, x in self.program.constants.items()}
        made = dataclasses.replace(
            self,
            program=dataclasses.replace(self.program, constants=constants),
            recorded=dataclasses.replace(self.recorded, closed_over=tuple(values)),
        )
        made._staged.update({n: x.with_constants(constants) for n, x in self._staged.items()})
        return made


def trace(fun: Callable[..., Any], call: Call, rewrite: Rewrite, terms: Terms = Terms()) -> Traced:
    """Trace a function on the abstract values of a call's leaves; nothing is computed.

    Equations are replaced as `rewrite` says.
    """
    return traced_as(record(fun, call), call.differentiated, rewrite, terms)


def record(fun: Callable[..., Any], call: Call) -> Recorded:
    """The jaxpr of a function for a call, before any rewrite.

    Raises:
        TypeError: a backward rule closes over a tracer of this trace.
        TargetUnavailable: the function asks for attention of cuDNN, which is not installed.
    """
    shape: dict[str, Any] = {}

    def flat(*inputs: Any) -> list[Any]:
        args, kwargs = call.rebuild(inputs)
        shape["trace"] = compat.current_trace()
        with nesting.inside():
            outputs, tree = jax.tree.flatten(fun(*args, **kwargs))
        # Python's own numbers are returned as they are, like all that is no array.
        arrays = [is_traced(x) and hasattr(x, "dtype") for x in outputs]
        shape["tree"] = tree
        shape["fixed"] = [None if a else x for a, x in zip(arrays, outputs, strict=True)]
        shape["arrays"] = arrays
        return [x for a, x in zip(arrays, outputs, strict=True) if a]

    def rebuild(outputs: Sequence[Any]) -> Any:
        remaining = iter(outputs)
        pairs = zip(shape["arrays"], shape["fixed"], strict=True)
        return jax.tree.unflatten(shape["tree"], [next(remaining) if a else x for a, x in pairs])

    avals = tuple(abstract_leaf(leaf) for leaf in call.leaves)
    with naming_cudnn():
        jaxpr = jax.make_jaxpr(flat)(*avals)
    if compat.closes_over_its_own(jaxpr, shape.pop("trace")):
        raise TypeError(
            "the backward rule of a `custom_vjp` closes over a value that the function computes; "
            "let the forward rule return it among its residuals"
        )
    _, closed_over, _ = compat.jaxpr_inputs(jaxpr)
    tracers = tuple(isinstance(x, jax.core.Tracer) for x in closed_over)
    if not any(tracers):
        return Recorded(jaxpr, (), (), avals, rebuild)
    # A tracer must not outlive its trace, and what is recorded may: see `_wrapped`.
    return Recorded(compat.of_constants(jaxpr), tuple(closed_over), tracers, avals, rebuild)


def traced_as(
    recorded: Recorded, differentiated: Sequence[bool], rewrite: Rewrite, terms: Terms
) -> Traced:
    """A recorded function as a flat program whose equations are replaced as `rewrite` says."""
    inlines = terms.checkpoints == "plan" and has_checkpoints(recorded.jaxpr)
    covered = functools.partial(
        derivative_of,
        differentiated=differentiated,
        forward_mode=terms.forward_mode,
        tracers=[*itertools.compress(recorded.closed_over, recorded.tracers)],
    )
    program = list_program(
        Listing(recorded.jaxpr, rewrite, inlines, rewrite.programs, covered, recorded.closed_over)
    )
    return Traced(program, covered(program), recorded, terms)


def without_rewrites(traced: Traced) -> tuple[Program, Differentiation]:
    """The program of a function as it was before any operator, and its derivative."""
    plain = _traced_again(traced, unchanged, traced.terms)
    return plain.program, plain.derivative


def without_operators(traced: Traced, target: str) -> Traced:
    """The function, traced for a target as `operators="none"` does."""
    made = traced.plain
    if target not in made:
        rewrite = rewriter((), context_for(target, traced.avals))
        terms = dataclasses.replace(traced.terms, operators=())
        made[target] = _traced_again(traced, rewrite, terms)
    return made[target]


def _traced_again(traced: Traced, rewrite: Rewrite, terms: Terms) -> Traced:
    differentiated = [i in traced.derivative.inputs for i in traced.program.inputs]
    return traced_as(traced.recorded, differentiated, rewrite, terms)


def trace_for(
    target: Target,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
) -> Traced:
    """Trace a function on its arguments, as `plan` does for a target.

    Raises:
        TypeError, ValueError: there is no function, or the options do not fit its arguments.
    """
    terms = Terms.of(operators, checkpoints)
    given = argnums, static_argnums, static_argnames
    pure, call = on_arrays(fun, args, kwargs or {}, given)
    return trace(pure, call, rewrite_for(terms, target.name, call), terms)


def rewrite_for(terms: Terms, target: str, call: Call) -> Rewrite:
    """The rewrite of a function's equations for a target.

    Arguments:
        terms: the options that it is planned with.
        target: the name of the target.
        call: the arguments; whether they are sharded over devices counts.
    """
    avals = [abstract_leaf(leaf) for leaf in call.leaves]
    return rewriter(selected(terms.operators), context_for(target, avals))


def context_for(target: str, avals: Sequence[Any]) -> Context:
    """The context of operators: the backend, and whether the inputs are sharded."""
    return Context(backend_of(target), is_sharded=devices_of(avals) > 1)


def outer_axes(traced: Traced, call: Call) -> tuple[str, ...]:
    """The mapped axes of outer transformations without which a function does not compile."""
    used = {axis for e in traced.program.equations for axis in compat.outer_axes(e.eqn)}
    given = (*call.leaves, *traced.constants)
    return tuple(sorted(used.union(*map(compat.varying_axes, map(jax.typeof, given)))))


def is_batched(traced: Traced, call: Call) -> bool:
    """Whether something is seen through `vmap`, which hides the size of its axis."""
    return any(compat.is_batch_tracer(x) for x in (*call.leaves, *traced.constants))
