"""Elementwise equations and programs, evaluated on numbers while tracing.

An elementwise program is a function of numbers, whatever the shapes that it was traced with. It can
be evaluated while tracing, for example on all numbers of 16 bits.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...ir import compat
from ...ir.program import Equation, Program, flatten, parameters_of, values_of
from ..hooks import is_hook

#: Functions of numbers; applied to arrays, element by element.
ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp
    convert_element_type copy copy_p cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt
    integer_pow is_finite le log log1p log2 logistic lt max min mul ne neg not one_minus_square or
    polynomial pow reduce_precision rem round rsqrt select_n shift_left shift_right_logical sign sin
    sinh sqrt square stop_gradient sub tan tanh xor
    """.split()
)


def is_number(atom: Any, uniform: set[int]) -> bool:
    """Whether an operand is one number, known while tracing, or an array of it."""
    return atom in uniform if isinstance(atom, int) else np.ndim(atom.val) == 0


def is_uniform(equation: Equation, uniform: set[int]) -> bool:
    """Whether all elements of an equation's results are one number, known while tracing."""
    numbers = [is_number(i, uniform) for i in equation.inputs]
    known = equation.primitive in ELEMENTWISE or equation.primitive == "broadcast_in_dim"
    return known and bool(numbers) and all(numbers) and not compat.has_effects(equation.eqn)


def is_elementwise(equation: Equation, uniform: set[int], shape: tuple[int, ...]) -> bool:
    """Whether an equation computes each element from the elements in the same place.

    Arguments:
        equation: the equation.
        uniform: values whose elements are one number.
        shape: of the arrays.
    """
    if is_hook(equation):
        return equation.eqn.invars[0].aval.shape == shape
    if len(equation.outputs) != 1 or compat.has_effects(equation.eqn):
        return False
    if equation.eqn.outvars[0].aval.shape != shape:
        return False
    pairs = zip(equation.inputs, equation.eqn.invars, strict=True)
    if any(not is_number(i, uniform) and var.aval.shape != shape for i, var in pairs):
        return False
    if equation.primitive == "custom_jvp_call":
        return is_elementwise_program(flatten(equation.eqn.params["call_jaxpr"]), shape)
    return equation.primitive in ELEMENTWISE


def is_elementwise_program(program: Program, shape: tuple[int, ...]) -> bool:
    """Whether all equations of a program are elementwise, for arrays of a shape."""
    if program.constants:
        return False
    uniform = {i for i in program.inputs if program.avals[i].shape == ()}
    for e in program.equations:
        if is_uniform(e, uniform):
            uniform.update(e.outputs)
        elif not is_elementwise(e, uniform, shape):
            return False
    return True


@dataclasses.dataclass(frozen=True)
class ElementwiseFunction:
    """An elementwise program as a function of numbers; equal for the same text and dtype."""

    text: str
    dtype: str
    program: Program = dataclasses.field(compare=False)

    @staticmethod
    def of(program: Program, dtype: Any) -> "ElementwiseFunction":
        """The function of a program whose varying inputs have a dtype."""
        return ElementwiseFunction(_text(program), jnp.dtype(dtype).name, program)

    def __call__(self, *inputs: jax.Array) -> list[jax.Array]:
        """The results for arrays of any one shape."""
        found = _evaluated(self.program, inputs)
        return [jnp.broadcast_to(x, inputs[0].shape) for x in found]

    def on(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The results for these arrays, computed even while something is traced."""
        return computed(self.__call__, *inputs)


def computed(function: Callable[..., Any], *inputs: np.ndarray) -> Any:
    """The results of a function of arrays, computed even while something is traced."""
    with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.debug_infs(False):
        return jax.device_get(jax.jit(function)(*inputs))


def numbers(dtype: str) -> np.ndarray:
    """All numbers of a 16-bit dtype, and NaN; for float32, the numbers of both 16-bit dtypes."""
    patterns = np.arange(2**16, dtype=np.uint16)
    of_16_bits = [np.dtype(jnp.float16), np.dtype(jnp.bfloat16)]
    chosen = [x for x in of_16_bits if x.name == dtype] or of_16_bits
    found = np.concatenate([patterns.view(x).astype(np.float32) for x in chosen])
    special = np.asarray([-np.inf, np.inf, np.nan], np.float32)
    return np.concatenate([found[np.isfinite(found)], special]).astype(jnp.dtype(dtype))


def _evaluated(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The results of an elementwise program for arrays of another shape."""
    env: dict[int, Any] = dict(zip(program.inputs, inputs, strict=True))
    for e in program.equations:
        operands = values_of(env, e.inputs)
        if e.primitive == "broadcast_in_dim":
            results = operands
        elif e.primitive == "custom_jvp_call":
            results = _evaluated(flatten(e.eqn.params["call_jaxpr"]), operands)
        else:
            results = compat.bind_here(e.eqn, jnp.broadcast_arrays(*operands))
        env.update(zip(e.outputs, results, strict=True))
    return values_of(env, program.outputs)


def _text(program: Program) -> str:
    """The same text for programs that differ in the shapes of arrays alone."""

    def text(atom: Any) -> str:
        return str(atom) if isinstance(atom, int) else repr(np.asarray(atom.val).tolist())

    parts = [text(x) for x in (*program.inputs, *program.outputs)]
    for e in program.equations:
        shapes = e.primitive == "broadcast_in_dim"
        dtypes = [program.avals[i].dtype for i in e.outputs]
        parameters = "" if shapes else parameters_of(e.eqn)
        parts.append(f"{e.primitive}{[text(x) for x in e.inputs]}{e.outputs}{dtypes}{parameters}")
    return ";".join(parts)
