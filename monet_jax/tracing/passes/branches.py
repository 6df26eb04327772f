"""Branches of conditionals that are planned one by one.

To the planner a `lax.cond` or `lax.switch` is all of its branches, one after the other: each has
stages and values of its own. Emitted, it is a `lax.switch` of planned branches. JAX gives residuals
of one shape in different branches one buffer.

Known limit: where branches keep different shapes, JAX has a buffer for each, and the branch that
runs fills the other buffers with zeros. The model counts what the largest branch keeps.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...ir import compat
from ...ir.costs import work_of
from ...ir.program import Equation, Program
from ...ir.stage import Differentiation, Stage
from ..conditionals import Branch, Choice, renamed_stage, shifted
from .draft import Draft, Listed, Listing, Place, Planned, is_in


def may_be_planned(equation: Equation, active: frozenset[int]) -> bool:
    """Whether an equation is a `cond` that can be run again and has products to save."""
    if equation.primitive != "cond" or compat.has_effects(equation.eqn):
        return False
    if not active.intersection(equation.outputs) or not active.intersection(equation.reads):
        return False
    # Which platform it is compiled for chooses some branches while lowering.
    is_plain = equation.eqn.params.keys() == {"branches"}
    has_constants = any(branch.consts for branch in equation.eqn.params["branches"])
    return is_plain and not has_constants and work_of(equation).flops > 0


def list_branches(draft: Draft) -> None:
    """Lists the stages of all branches of conditionals."""
    for n, piece in enumerate(draft.pieces):
        if isinstance(piece, Planned) and piece.equation.primitive == "cond":
            draft.pieces[n] = _listed(draft, piece.equation)


def _listed(draft: Draft, equation: Equation) -> Listed:
    """A conditional with the stages of its branches."""
    branches, stages = list[Branch](), list[Stage]()
    for jaxpr in equation.eqn.params["branches"]:
        branch, own = _branch(draft, equation, jaxpr)
        branches.append(branch.renamed(lambda atom: atom, len(stages)))
        stages += own
    return Listed(Choice(equation, tuple(branches)), tuple(stages))


def _branch(draft: Draft, equation: Equation, jaxpr: Any) -> tuple[Branch, list[Stage]]:
    """A branch by its own stages, and these by the values of the draft."""
    inlines = draft.program.inlines_checkpoints
    body = draft.passes.listed(Listing(jaxpr, draft.program.rewrite, inlines, caller=equation.eqn))
    operands = dict(zip(body.inputs, equation.inputs[1:], strict=True))
    derivative = _derivative(draft, equation, body, operands)
    given = frozenset(v for v, atom in operands.items() if draft.is_given(atom))
    body = dataclasses.replace(body, given=given)
    inner = draft.passes.staged(Draft(body, derivative, Place.BRANCH, draft.passes))
    draft.keeps_other |= inner.program.keeps_other
    atom = shifted(len(draft.avals))
    draft.avals += inner.program.avals
    draft.given.update(map(atom, inner.program.given))
    stages = [renamed_stage(stage, equation, atom) for stage in inner.stages]
    branch = Branch(0, len(inner.stages), body.inputs, body.outputs, inner.choices)
    return branch.renamed(atom, 0), stages


def _derivative(
    draft: Draft, equation: Equation, body: Program, operands: Mapping[int, Any]
) -> Differentiation:
    """The derivative of a branch: by its active operands."""
    avals, active = draft.program.avals, draft.active
    outputs = tuple(
        n for n, i in enumerate(equation.outputs) if i in active and compat.is_float(avals[i])
    )
    floats = (v for v in operands if compat.is_float(body.avals[v]))
    inputs = frozenset(v for v in floats if is_in(operands[v], active))
    return Differentiation(inputs, outputs, draft.derivative.forward_mode)
