"""Representations of a residual: its code, another value that it follows from, or decoded values.

| representation | what is saved | what the derivative reads |
|---|---|---|
| `Stored` | the code of the residual | the decoded residual |
| `Derived` | another value of the program, and a selector | the residual, computed from it |
| `Decoded` | codes that other hooks write | the residual, computed from the decoded values |

The value that a `Derived` representation reads may be saved for another reason. Its *selector*, a
value without elements, is saved where the derivative is to read that value. No program has it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .codecs import Codec, arrays
from .compression.windows import Direct

#: An array that is nothing but a name to save.
_SELECTOR = jax.ShapeDtypeStruct((0,), jnp.uint8)


@dataclasses.dataclass(frozen=True)
class Stored:
    """A residual is saved as its code.

    Attributes:
        codec: writes and reads the code.
    """

    codec: Codec

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """The arrays of the code of a residual."""
        return arrays(self.codec, aval)


@dataclasses.dataclass(frozen=True)
class Derived:
    """A residual is computed from another value, which may be saved for more than one reason.

    Attributes:
        compute: the residual from that value. A function of a module, or data, so that it can be
            compared; its derivative is the derivative of the residual.
        operand: the place of the value among the operands of the residual hook.
    """

    compute: Callable[[jax.Array], jax.Array]
    operand: int = 1

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """The selector."""
        del aval
        return (_SELECTOR,)


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A residual is computed from codes of other residual hooks, and from values saved anyway.

    Attributes:
        codec: of the first code; others are exact.
        compute: the residual from the codes and the other values. Its `repr` says what it does.
        codes: the places of the codes' arrays among the operands of the residual hook.
        others: the places of the other values.
        direct: how the derivative reads the codes as they are, if it can; then it does so.
    """

    codec: Codec
    compute: Callable[..., jax.Array]
    codes: tuple[int, ...]
    others: tuple[int, ...] = ()
    direct: Direct | None = dataclasses.field(default=None, repr=False)

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """No arrays of its own: other residual hooks write the codes."""
        del aval
        return ()


Representation = Stored | Derived | Decoded
