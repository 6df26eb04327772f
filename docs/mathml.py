"""Turns the formulas of a page into MathML, which browsers show without a script or a network."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

#: What `pymdownx.arithmatex` (generic) makes of a formula, in a line and by itself.
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<text>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(text: str, **_: Any) -> str:
    """The page with its formulas as MathML; called by MkDocs for each page."""
    return _FORMULA.sub(_as_mathml, text)


def _as_mathml(found: re.Match[str]) -> str:
    tag, text = found["tag"], html.unescape(found["text"])
    text = text.replace("{aligned}", "{align*}")  # of the two, the converter knows this one
    shown = convert(text, display="inline" if tag == "span" else "block")
    return f'<{tag} class="arithmatex">{shown}</{tag}>'
