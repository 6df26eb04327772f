"""The context in which operators rewrite a program, and the interface of all operators."""

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
    """The target of a function, as far as operators depend on it.

    Attributes:
        backend: the compiler.
        devices: over how many devices arguments are spread.
        in_loop: whether the program is the body of a loop, in which other loops are not planned.
    """

    backend: Backend
    devices: int = 1
    in_loop: bool = False

    @property
    def is_sharded(self) -> bool:
        """Whether arguments are spread over several devices.

        Then no residual should be saved in another shape than its own, since the compiler might
        gather it first.
        """
        return self.devices > 1


@dataclasses.dataclass(frozen=True)
class Operator:
    """A residual operator.

    Attributes:
        name: by which users choose it.
        kind: how gradients differ from JAX's.
        rewrite: `(equation, context)` -> the equation's replacement, or None.
        program: `(program, derivative, context)` -> the program with several equations replaced by
            one, or itself.
        stage: `(stage, avals, context)` -> the stage with some of its equations replaced by others
            that have the same results; `avals` are of all values; avals of new values are added.
        codec: another storage of operands that derivatives are linear in, or of the local
            derivatives of elementwise chains.
        by_name: whether it is used only where it is selected by its name.
    """

    name: str
    kind: Kind
    rewrite: Callable[[Any, Context], Replacement | None] | None = None
    program: Callable[[Program, Differentiation, Context], Program] | None = None
    stage: Callable[[Stage, list[Any], Context], Replaced] | None = None
    codec: Codec | OfOperands | OfLocalDerivatives | None = None
    by_name: bool = False
