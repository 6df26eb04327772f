"""The bytes that XLA:CPU takes for a convolution beside its inputs and outputs.

It convolves batch-first, feature-last; a gradient with respect to a kernel sums over the batch, so
its operands are copied into another layout. Other backends fuse or stream what is counted here.
"""

from ..ir.program import Equation, aval_nbytes


def workspace_bytes(equation: Equation) -> int:
    """Bytes that an equation needs only while it runs: copies of its operands and its result."""
    if not _is_transposed(equation):
        return 0
    return sum(aval_nbytes(v.aval) for v in (*equation.eqn.invars, *equation.eqn.outvars))


def copied_operand(equation: Equation) -> int | None:
    """The value that an equation reads in another layout than it is in, as its left operand."""
    if not _is_transposed(equation):
        return None
    operand = equation.inputs[0]
    return operand if isinstance(operand, int) else None


def _is_transposed(equation: Equation) -> bool:
    if equation.primitive != "conv_general_dilated":
        return False
    lhs, _, _ = equation.eqn.params["dimension_numbers"]
    return not (lhs[0] == 0 and lhs[1] == len(lhs) - 1)
