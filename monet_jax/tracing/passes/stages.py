"""Cuts a draft into stages, and rewrites the stages."""

import dataclasses

from ...ir.program import Equation
from ...ir.stage import Replaced, active_values
from ...operators.compression.encoding import with_codes
from . import branches, loops
from .draft import Draft, Place, Planned
from .partition import split


def cut(draft: Draft) -> None:
    """Cuts the program between equations across which few bytes are live.

    Loops and conditionals that are planned are pieces of their own.
    """
    program, derivative = draft.program, draft.derivative
    if draft.hoisted:
        inputs = derivative.inputs.union(draft.hoisted.differentiated_outputs)
        derivative = dataclasses.replace(derivative, inputs=inputs)
    draft.active = active_values(program, derivative)
    draft.avals, draft.given = list(program.avals), set(program.given)
    draft.keeps_other = program.keeps_other
    planned = {n: e for n, e in enumerate(program.equations) if _is_planned(draft, e)}
    written = {e.outputs for e in planned.values()}
    for stage in split(program, derivative, alone=planned):
        is_planned = len(stage.equations) == 1 and stage.equations[0].outputs in written
        piece = Planned(stage.equations[0]) if is_planned else Replaced(stage)
        draft.pieces.append(piece)


def _is_planned(draft: Draft, equation: Equation) -> bool:
    """Whether what an equation runs inside has stages of its own."""
    is_loop = loops.may_be_planned(equation, draft.active)
    is_choice = branches.may_be_planned(equation, draft.active)
    return (is_loop and draft.place is Place.FUNCTION) or is_choice


def rewrite_stages(draft: Draft) -> None:
    """Replaces equations by others with the same results and other residuals."""
    for n, piece in enumerate(draft.pieces):
        if isinstance(piece, Replaced):
            for rewrite in draft.program.rewrite.stages:
                piece = piece.then(rewrite(piece.stage, draft.avals))
            draft.keeps_other |= piece.is_changed
            draft.pieces[n] = piece


def compress_residuals(draft: Draft) -> None:
    """Adds what encodes residuals, where codecs may be chosen."""
    codecs = draft.program.rewrite.codecs
    for n, piece in enumerate(draft.pieces if codecs else ()):
        if isinstance(piece, Replaced):
            program = dataclasses.replace(draft.program, avals=tuple(draft.avals))
            draft.pieces[n] = piece.then(with_codes(program, piece, codecs, draft.avals))
