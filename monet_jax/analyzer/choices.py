"""Adds conditionals to a planning graph.

The outputs of a `cond` are defined after its last branch, whichever branch has run. The gradients
of its operands are defined after the first branch's backward, which is the last to run.
"""

from typing import Any

from planners.graph import Op

from ..tracing.conditionals import Choice
from .graph_state import GraphState, added


def expect_choice(state: GraphState, choice: Choice) -> None:
    """Count the gradients that a choice will add to."""
    for i in choice.operands:
        if isinstance(i, int):
            state.pending[i] = state.pending.get(i, 0) + 1


def enter_branch(state: GraphState, choice: Choice, b: int) -> None:
    """Before a branch: the operands become its inputs."""
    pairs = zip(choice.operands, choice.branches[b].inputs, strict=True)
    state.index |= {v: state.index[i] for i, v in pairs if isinstance(i, int) and i in state.index}


def leave_branch(state: GraphState, choice: Choice, b: int) -> None:
    """After a branch; the last branch defines the results."""
    if b + 1 < len(choice.branches):
        return
    for i in choice.equation.outputs:
        state.index[i] = state.new(state.program.nbytes(i), i in state.returned)
    results = tuple(state.index[i] for i in choice.equation.outputs)
    state.forwards[-1].append(Op("join", (), results, 0.0))


def enter_branch_backward(state: GraphState, choice: Choice, b: int) -> None:
    """Before a branch's backward: gradients of the results become gradients of its outputs."""
    branch = choice.branches[b]
    for i, v in zip(choice.equation.outputs, branch.outputs, strict=True):
        if isinstance(v, int) and i in state.gradients:
            state.gradients[v] = state.gradients[i]
    pairs = zip(choice.operands, branch.inputs, strict=True)
    state.arguments.update(v for i, v in pairs if _is_final(state, i))


def leave_branch_backward(state: GraphState, choice: Choice, b: int) -> None:
    """After a branch's backward; the first branch defines the gradients of the operands."""
    ops, inputs = state.backwards[-1], choice.branches[b].inputs
    written = {state.gradients[v] for v in inputs if v in state.gradients}
    read = tuple(sorted(written))
    if b > 0:
        ops.append(Op("join", read, (), 0.0))
        return
    found: dict[int, int] = {}
    owns = zip(*(branch.inputs for branch in choice.branches), strict=True)
    for i, own in zip(choice.operands, owns, strict=True):
        known = [state.gradients[v] for v in own if v in state.gradients]
        if isinstance(i, int) and known:
            is_final = _is_final(state, i)
            found[i] = known[-1] if is_final else state.new(state.program.nbytes(i))
    joined = tuple(g for i, g in found.items() if not _is_final(state, i))
    reused_bytes = min(state.total(read), state.total(joined))
    ops.append(Op("join", read, joined, 0.0, workspace_bytes=-reused_bytes))
    for i in choice.operands:
        if isinstance(i, int):
            state.pending[i] -= 1
    for i, gradient in found.items():
        state.gradients[i] = added(state, i, gradient, ops)


def _is_final(state: GraphState, i: Any) -> bool:
    """Whether only this choice has a gradient of an argument: then it is the step's result."""
    is_known = isinstance(i, int) and i not in state.gradients
    return is_known and i in state.arguments and state.pending[i] == 1
