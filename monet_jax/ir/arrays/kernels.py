"""What XLA:GPU makes of the reversed kernels in JAX's gradients of convolutions.

The gradient of a convolution's operand is a convolution with the reversed kernel. cuDNN's reads the
kernel as it is, in cuDNN's own layout. A parameter comes in another one: its copy, which is made
for the forward, waits for the gradient (118 MiB of a U-Net's). A kernel of one element has the
layout that the gradient reads.
"""

from collections.abc import Iterator

from ..program import Equation, Program


def read_as_they_are(program: Program) -> set[int]:
    """By identity, reversals that are no op: what they reverse is read in its place."""
    return {id(e) for e, is_copy in _reversals(program) if not is_copy}


def copied_for_both(program: Program) -> set[int]:
    """By identity, reversals that stand for the copy which the forward reads, too."""
    return {id(e) for e, is_copy in _reversals(program) if is_copy}


def _reversals(program: Program) -> Iterator[tuple[Equation, bool]]:
    """Reversals of kernels, and whether a copy is read in their place.

    A convolution that takes strides is the gradient of one that spreads its operand out: cuDNN has
    none, and XLA reverses the kernel for it alone.
    """
    convolutions = (e for e in program.equations if e.primitive == "conv_general_dilated")
    reader = {e.inputs[1]: e.eqn.params for e in convolutions if isinstance(e.inputs[1], int)}
    for equation in program.equations:
        params = reader.get(equation.outputs[0]) if equation.primitive == "rev" else None
        if params is None or max(params["window_strides"], default=1) > 1:
            continue
        shape, axes = equation.eqn.outvars[0].aval.shape, equation.eqn.params["dimensions"]
        is_one = all(shape[axis] == 1 for axis in axes)
        is_spread = max(params["lhs_dilation"], default=1) > 1
        yield equation, equation.inputs[0] in program.given and (is_spread or not is_one)
