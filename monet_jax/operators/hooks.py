"""Names the residuals of rewritten equations, so that a plan can store another representation.

An operator rewrites an equation so that its derivative reads a *residual*, and passes the residual
through a residual hook. The planner sees which backward ops reach their operands through the hook
alone, and may let them read another of its *representations* instead (`representations`): a code of
fewer bytes, or other values from which the residual follows. Where a plan saves no representation,
the hook is the identity, and the program is the one that JAX would have made (`emission`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from ..ir import compat
from ..ir.program import Equation
from .codecs import Codec
from .representations import Decoded, Derived, Representation, Stored

#: The name of the primitive.
NAME = "monet_hook"


def hook(
    residual: jax.Array, *operands: jax.Array, representations: Sequence[Representation]
) -> jax.Array:
    """The residual, as a derivative is to read it. No tangent passes.

    Arguments:
        residual: what the derivative reads.
        *operands: the values from which `Derived` and `Decoded` residuals are computed.
        representations: in order of preference, the best one last.
    """
    return _hook_p.bind(residual, *operands, representations=tuple(representations))[0]


def encoded(value: jax.Array, codecs: Sequence[Codec]) -> list[jax.Array]:
    """The arrays of a value's codes, one codec after the other, for `Decoded` representations."""
    return _hook_p.bind(value, representations=tuple(map(Stored, codecs)))[1:]


def _results(
    residual: Any, *operands: Any, representations: tuple[Representation, ...]
) -> list[Any]:
    """The residual, and the arrays that each representation writes."""
    del operands
    return [residual, *(array for x in representations for array in x.arrays(residual))]


_hook_p = compat.abstract_primitive(NAME, _results)


def is_hook(equation: Equation) -> bool:
    """Whether an equation is a residual hook."""
    return equation.primitive == NAME


def representations_of(equation: Equation) -> Iterator[tuple[Representation, tuple[int, ...]]]:
    """The representations of a hooked residual, each with the values that a plan saves for it."""
    codes = iter(equation.outputs[1:])
    residual = equation.eqn.outvars[0].aval
    for representation in equation.eqn.params["representations"]:
        match representation:
            case Derived():
                selector, operand = next(codes), _numbers(equation, [representation.operand])
                yield representation, (*operand, selector) if operand else ()
            case Decoded():
                yield representation, _numbers(equation, representation.codes)
            case Stored():
                yield representation, tuple(next(codes) for _ in representation.arrays(residual))


def others_of(representation: Representation, equation: Equation) -> tuple[int, ...]:
    """The values that a representation reads beside those that a plan saves for it."""
    return _numbers(equation, representation.others) if isinstance(representation, Decoded) else ()


def _numbers(equation: Equation, places: Sequence[int]) -> tuple[int, ...]:
    operands = (equation.inputs[place] for place in places)
    return tuple(i for i in operands if isinstance(i, int))


def representation_name(equation: Equation, value: int) -> str:
    """How a value that an equation writes is stored: the name of the codec, or "exact".

    A selector, by which a derivative reads a result, goes by "result".
    """
    match _representation_of(equation, value):
        case Stored(codec):
            return codec.name
        case Derived():
            return "result"
        case _:
            return "exact"


def is_lossy_code(equation: Equation, value: int) -> bool:
    """Whether a value that an equation writes is an array of a lossy code."""
    representation = _representation_of(equation, value)
    return isinstance(representation, Stored) and representation.codec.kind.is_lossy


def _representation_of(equation: Equation, value: int) -> Representation | None:
    """The representation for which a residual hook writes a value; None where there is none."""
    representations = representations_of(equation) if is_hook(equation) else ()
    return next((x for x, values in representations if value in values), None)
