"""From a function and example arguments to a flat program, and back from its flat outputs."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import _compat, _nesting
from ._backend import Backend
from ._gradient import derivative_of
from ._pooling import rewritten
from ._program import Program, flatten, unchanged
from ._signature import Call, abstract_leaf, is_traced
from ._stages import Differentiation


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes:
        program: the flat program.
        derivative: which derivative of it the budget covers.
        flat: the function as `(inputs, constants) -> outputs`; it ignores the constants, which it
            closes over.
        avals: `ShapeDtypeStruct`s of the inputs, shardings included.
        constants: values of `program.constants`, in order.
        rebuild: flat outputs -> what the function returns.
    """

    program: Program
    derivative: Differentiation
    flat: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    avals: tuple[Any, ...]
    constants: tuple[Any, ...]
    rebuild: Callable[[Sequence[Any]], Any]


def trace(fun: Callable[..., Any], call: Call, backend: Backend) -> Traced:
    """Trace a function on the abstract values of a call's leaves; nothing is computed.

    What `backend` would compile badly is rewritten.
    """
    shape: dict[str, Any] = {}

    def flat(inputs: Sequence[Any]) -> list[Any]:
        args, kwargs = call.rebuild(inputs)
        with _nesting.inside():
            outputs, tree = jax.tree.flatten(fun(*args, **kwargs))
        # Python's own numbers are returned as they are, like all that is no array.
        arrays = [is_traced(x) and hasattr(x, "dtype") for x in outputs]
        shape["tree"] = tree
        shape["fixed"] = [None if a else x for a, x in zip(arrays, outputs, strict=True)]
        shape["arrays"] = arrays
        return [x for a, x in zip(arrays, outputs, strict=True) if a]

    avals = tuple(abstract_leaf(leaf) for leaf in call.leaves)
    replace = rewritten if backend.expands_pooling else unchanged
    program = flatten(jax.make_jaxpr(lambda *leaves: flat(leaves))(*avals), rewritten=replace)

    def rebuild(outputs: Sequence[Any]) -> Any:
        remaining = iter(outputs)
        pairs = zip(shape["arrays"], shape["fixed"], strict=True)
        return jax.tree.unflatten(shape["tree"], [next(remaining) if a else x for a, x in pairs])

    return Traced(
        program,
        derivative_of(program, call.differentiated),
        lambda inputs, constants: flat(inputs),
        avals,
        tuple(program.constants.values()),
        rebuild,
    )


def fingerprint(program: Program, derivative: Differentiation) -> str:
    """A hash of what a plan depends on: primitives, dataflow, shapes and dtypes.

    The bodies of loops, branches and calls count; other parameters of equations do not, since JAX
    renames them. So it holds across JAX versions that trace the function to the same equations.
    """
    digest = hashlib.sha256()
    for i in (*program.inputs, *program.constants):
        digest.update(f"{i}:{program.avals[i].str_short()}:{i in derivative.inputs};".encode())
    for e in program.equations:
        operands = [i if isinstance(i, int) else i.aval.str_short() for i in e.inputs]
        results = [(i, program.avals[i].str_short()) for i in e.outputs]
        bodies = [_describe_body(body) for body in _compat.subjaxprs(e.eqn)]
        digest.update(f"{e.primitive}{operands}{results}{bodies};".encode())
    digest.update(repr([i if isinstance(i, int) else "" for i in program.outputs]).encode())
    digest.update(repr(derivative.outputs).encode())
    return digest.hexdigest()


def _describe_body(jaxpr: Any) -> str:
    """The equations of an inner jaxpr as text: primitives, dataflow, shapes and dtypes."""
    constvars, _, invars = _compat.jaxpr_inputs(jaxpr)
    numbers: dict[Any, int] = {}

    def text(atom: Any) -> str:
        is_literal = isinstance(atom, _compat.Literal)
        number = "" if is_literal else numbers.setdefault(atom, len(numbers))
        return f"{number}:{atom.aval.str_short()}"

    parts = [f"{[text(var) for var in (*constvars, *invars)]}"]
    for eqn in jaxpr.jaxpr.eqns:
        operands, results = [text(a) for a in eqn.invars], [text(a) for a in eqn.outvars]
        bodies = [_describe_body(body) for body in _compat.subjaxprs(eqn)]
        parts.append(f"{eqn.primitive.name}{operands}{results}{bodies}")
    parts.append(f"{[text(a) for a in jaxpr.jaxpr.outvars]}")
    return ";".join(parts)


def difference(program: Program, equations: int, inputs: Sequence[str]) -> str:
    """What sets a program apart from the one with these equations and inputs, in words."""
    now = describe_inputs(program)
    if list(now) != list(inputs):
        pairs = [(a, b) for a, b in zip(now, inputs, strict=False) if a != b]
        if len(now) != len(inputs):
            return f"it takes {len(now)} arrays, the plan's took {len(inputs)}"
        return f"it takes `{pairs[0][0]}` where the plan's took `{pairs[0][1]}`"
    if len(program.equations) != equations:
        return f"it has {len(program.equations)} equations, the plan's had {equations}"
    return (
        "its equations differ in primitive, shape or order, or its gradient is taken with respect "
        "to other arguments (`argnums`)"
    )


def describe_inputs(program: Program) -> tuple[str, ...]:
    """The inputs of a program as short text: `float32[8,128]`."""
    return tuple(program.avals[i].str_short() for i in program.inputs)


def outer_axes(traced: Traced, call: Call) -> tuple[str, ...]:
    """The mapped axes of outer transformations without which a function does not compile."""
    used = {axis for e in traced.program.equations for axis in _compat.outer_axes(e.eqn)}
    given = (*call.leaves, *traced.constants)
    return tuple(sorted(used.union(*map(_compat.varying_axes, given))))


def is_batched(traced: Traced, call: Call) -> bool:
    """Whether something is seen through `vmap`, which hides the size of its axis."""
    return any(_compat.is_batch_tracer(x) for x in (*call.leaves, *traced.constants))
