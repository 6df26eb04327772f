"""Rewrites stages, one by one: other residuals of the same results, and codes of residuals."""

import dataclasses

from ...ir.stage import Replaced
from ...operators.compression.encoding import with_codes
from .draft import Draft


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
