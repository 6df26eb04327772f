"""Which bytes does XLA:CPU take for an op beside its inputs and outputs?

Other backends fuse or stream what is counted here.
"""

import math

import numpy as np

from ._program import Equation, aval_nbytes

_POOLING = "select_and_scatter_add"


def workspace_bytes(equation: Equation) -> int:
    """Bytes that an equation needs only while it runs."""
    if equation.primitive == "conv_general_dilated":
        return _convolution_bytes(equation)
    return _window_bytes(equation) if equation.primitive == _POOLING else 0


def standing_bytes(equation: Equation) -> int:
    """Bytes that are written when the step starts, and live until the equation has run.

    The gradient of max pooling scatters into zeros, to coordinates: one integer array more of the
    padded operand's shape for each axis. Nothing holds them back, so the scheduler runs them first.
    """
    if equation.primitive != _POOLING:
        return 0
    itemsize = equation.eqn.invars[1].aval.dtype.itemsize
    return math.prod(_padded_shape(equation)) * (itemsize + _coordinate_bytes(equation))


def copied_operand(equation: Equation) -> int | None:
    """The value that an equation reads in another layout than it is in, as its left operand."""
    if equation.primitive != "conv_general_dilated" or not _is_transposed(equation):
        return None
    operand = equation.inputs[0]
    return operand if isinstance(operand, int) else None


def _is_transposed(equation: Equation) -> bool:
    """Whether a convolution's operands have to be copied into another layout.

    XLA:CPU convolves batch-first, feature-last; a gradient with respect to a kernel sums over the
    batch, so its operands stand the other way round.
    """
    lhs, _, _ = equation.eqn.params["dimension_numbers"]
    return not (lhs[0] == 0 and lhs[1] == len(lhs) - 1)


def _convolution_bytes(equation: Equation) -> int:
    """Copies of operands and result in another layout."""
    if not _is_transposed(equation):
        return 0
    return sum(aval_nbytes(v.aval) for v in (*equation.eqn.invars, *equation.eqn.outvars))


def _window_bytes(equation: Equation) -> int:
    """The padded operand, and the maximum of each window with its coordinates.

    They are gone before the result is written, over the zeros that stand ready.
    """
    source, operand = (v.aval for v in equation.eqn.invars)
    padded = math.prod(_padded_shape(equation)) * operand.dtype.itemsize
    copied = padded if padded > aval_nbytes(operand) else 0
    maxima = source.size * (source.dtype.itemsize + _coordinate_bytes(equation))
    return max(0, copied + maxima - aval_nbytes(equation.eqn.outvars[0].aval))


def _padded_shape(equation: Equation) -> list[int]:
    shape, padding = equation.eqn.invars[1].aval.shape, equation.eqn.params["padding"]
    return [size + low + high for size, (low, high) in zip(shape, padding, strict=True)]


def _coordinate_bytes(equation: Equation) -> int:
    """Of one element's coordinates."""
    return len(equation.eqn.invars[1].aval.shape) * np.dtype(np.int32).itemsize
