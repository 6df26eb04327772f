"""A tap: what a derivative reads of the forward pass, made a value that a plan may keep otherwise.

An operator rewrites an equation so that its derivative reads a *residual*, and passes that residual
through a tap. The planner sees which backward ops reach their operands through the tap alone, and
may have them read one of its *forms* instead: a code of fewer bytes, or another value from which
the residual follows. Where a plan saves none of the forms, a tap is the identity, and the program
is the one that JAX would have made.

| form | what is kept | what the derivative reads |
|---|---|---|
| `Stored` | the code of the residual | the decoded residual |
| `Derived` | another value of the program | the residual, computed from it |
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from .. import _compat
from .._program import Equation, values_of
from .codecs import Codec, arrays

#: What equations of this kind are called.
NAME = "monet_tap"


@dataclasses.dataclass(frozen=True)
class Stored:
    """A residual is kept as its code.

    Attributes:
        codec: how.
    """

    codec: Codec

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """The arrays of the code of a residual."""
        return arrays(self.codec, aval)


@dataclasses.dataclass(frozen=True)
class Derived:
    """A residual is computed from another value, which may be kept for more than one reason.

    Attributes:
        compute: the residual from that value. A function of a module, so that it can be compared.
        operand: the place of the value among the operands of the tap.
    """

    compute: Callable[[jax.Array], jax.Array]
    operand: int = 1

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """None that would not be there otherwise."""
        del aval
        return ()


Form = Stored | Derived


def tap(residual: jax.Array, *operands: jax.Array, forms: Sequence[Form]) -> jax.Array:
    """The residual, as a derivative is to read it. No tangent passes.

    Arguments:
        residual: what the derivative reads.
        *operands: the values from which `Derived` forms are computed.
        forms: in order of preference, the best one last.
    """
    return _tap_p.bind(residual, *operands, forms=tuple(forms))[0]


def _results(residual: Any, *operands: Any, forms: tuple[Form, ...]) -> list[Any]:
    """The residual, and the arrays of each form."""
    del operands
    return [residual, *(array for form in forms for array in form.arrays(residual))]


_tap_p = _compat.abstract_primitive(NAME, _results)


def is_tap(equation: Equation) -> bool:
    """Whether an equation is a tap."""
    return equation.primitive == NAME


def forms_of(equation: Equation) -> Iterator[tuple[Form, tuple[int, ...]]]:
    """The forms of a tap, each with the values that a plan saves to use it."""
    codes = iter(equation.outputs[1:])
    residual = equation.eqn.outvars[0].aval
    for form in equation.eqn.params["forms"]:
        if isinstance(form, Derived):
            yield form, tuple(i for i in [equation.inputs[form.operand]] if isinstance(i, int))
        else:
            yield form, tuple(next(codes) for _ in form.arrays(residual))


def form_name(equation: Equation, value: int) -> str:
    """How a value is stored that an equation writes: by which codec, or "exact"."""
    if is_tap(equation):
        for form, values in forms_of(equation):
            if isinstance(form, Stored) and value in values:
                return form.codec.name
    return "exact"


def run_tap(equation: Equation, env: dict[int, Any], names: Mapping[int, str]) -> None:
    """Run a tap as a plan says, reading and writing `env`.

    Arguments:
        equation: the tap.
        env: value number -> array.
        names: value number -> name, of what the plan saves.
    """
    (residual,) = values_of(env, equation.inputs[:1])
    env[equation.outputs[0]] = residual
    for form, values in reversed(list(forms_of(equation))):
        if values and all(i in names for i in values):
            env[equation.outputs[0]] = _by(form, values, residual, env, names)
            return


def _by(form: Form, values: tuple[int, ...], residual: Any, env, names) -> jax.Array:
    """The residual by one of its forms."""
    if isinstance(form, Derived):
        return form.compute(jax.lax.stop_gradient(env[values[0]]))
    # Behind the barrier, what is decoded is not what was encoded, whatever the compiler knows.
    code = jax.lax.optimization_barrier(form.codec.encode(jax.lax.stop_gradient(residual)))
    code = [checkpoint_name(x, names[i]) for x, i in zip(code, values, strict=True)]
    return form.codec.decode(tuple(code), jax.typeof(residual))
