"""What an operator is told of where a program runs, and the interface of all operators."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ..compiler.backend import Backend
from ..ir.program import Program, Replacement
from ..ir.stage import Differentiation, Replaced, Stage
from .codecs import Codec, Kind
from .compression.local_derivatives import OfLocalDerivatives
from .compression.operands import OfOperands


@dataclasses.dataclass(frozen=True)
class Context:
    """What a function is planned for, as far as operators are concerned.

    Attributes:
        backend: the compiler.
        is_sharded: whether arguments are spread over several devices. Then nothing should be kept
            in another shape than its own, since the compiler might gather it first.
        in_loop: whether it is the body of a loop, in which other loops are not planned.
    """

    backend: Backend
    is_sharded: bool = False
    in_loop: bool = False


@dataclasses.dataclass(frozen=True)
class Operator:
    """A residual operator.

    Attributes:
        name: for people, and to choose it by.
        kind: how gradients differ from those of JAX.
        rewrite: `(equation, context)` -> what replaces the equation, or None.
        program: `(program, derivative, context)` -> the program with several equations replaced by
            one, or itself.
        stage: `(stage, avals, context)` -> the stage with some of its equations replaced by others
            that have the same results; `avals` are of all values, and those of new ones are added.
        codec: how what a derivative is linear in may be kept, if in any other way: operands, or the
            slopes of elementwise chains.
        by_name: whether it is used only where it is asked for by its name.
    """

    name: str
    kind: Kind
    rewrite: Callable[[Any, Context], Replacement | None] | None = None
    program: Callable[[Program, Differentiation, Context], Program] | None = None
    stage: Callable[[Stage, list[Any], Context], Replaced] | None = None
    codec: Codec | OfOperands | OfLocalDerivatives | None = None
    by_name: bool = False
