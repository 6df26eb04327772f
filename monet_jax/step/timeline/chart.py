"""The memory of a whole step over time as a part of an HTML page: areas, and the peak as text."""

from collections.abc import Iterator
from html import escape

from ...compiler.budget import format_bytes
from ...report.charts import COLOURS
from .liveness import GRADIENT, SAVED, TEMPORARY
from .step_timeline import KINDS, OTHERS, PARAMETERS, RESULTS, STATE, StepTimeline

#: Units of the chart across and upwards.
WIDTH, HEIGHT = 1000, 300
_SHADES = {PARAMETERS: "#4d5763", STATE: "#7b8794", OTHERS: "#a9b3bd", RESULTS: "#c9cfd6"}
_COLOURS = _SHADES | {
    SAVED: COLOURS["saved"][0],
    GRADIENT: COLOURS["gradient"][0],
    TEMPORARY: COLOURS["recomputed"][0],
}


def section(timeline: StepTimeline) -> str:
    """A heading, the areas by kind with their names, and the peak as text."""
    top = max(timeline.total_bytes) or 1
    paths = "".join(_paths(timeline, top))
    x = WIDTH * (timeline.peak + 0.5) / len(timeline.moments)
    line = f'<path d="M{x:.1f},0V{HEIGHT}" stroke="currentColor" stroke-dasharray="4"/>'
    names = " ".join(
        f'<span style="color:{_COLOURS[kind]}">&#9632;</span> {kind}'
        for kind in KINDS
        if max(timeline.live[kind])
    )
    return (
        "<section><h2>The whole step, by the model</h2>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" '
        f'aria-label="Live bytes over the step, at most {format_bytes(top)}">{paths}{line}</svg>'
        f"<p>{names}; the dashed line is the peak.</p><pre>{escape(str(timeline))}</pre></section>"
    )


def _paths(timeline: StepTimeline, top: int) -> Iterator[str]:
    """An area for each kind, on top of those before it; each moment is as wide as the others."""
    count = len(timeline.moments)
    below = [0] * count
    for kind in KINDS:
        above = [a + b for a, b in zip(below, timeline.live[kind], strict=True)]
        points = [*_steps(above, top), *reversed([*_steps(below, top)])]
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polygon points="{shape}" fill="{_COLOURS[kind]}"/>'
        below = above


def _steps(nbytes: list[int], top: int) -> Iterator[tuple[float, float]]:
    """The upper edge of an area, level over each moment."""
    for n, height in enumerate(nbytes):
        y = HEIGHT * (1 - height / top)
        yield WIDTH * n / len(nbytes), y
        yield WIDTH * (n + 1) / len(nbytes), y
