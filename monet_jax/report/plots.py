"""Draws a plan's memory over the step with matplotlib. Needs the extra `plot`.

Figures are made without pyplot where no axes are given, so that no window opens and nothing has to
be closed; but with it in a notebook, which shows pyplot's figures where a cell ends.
"""

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._disk import write_whole
from ..compiler.budget import format_bytes
from ..plans.record import PlanRecord
from ..plans.timeline import KINDS, Timeline
from .charts import COLOURS, FIXED, LAYERS, TITLES, scale_of
from .figures import FAR_ABOVE, fixed_bytes

INK, _SOFT, _BUDGET = "#1b1f24", "#57606a", "#c0271f"
#: A legend to the right of the axes, where it hides nothing.
OUTSIDE: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (1.0, 1.0),
    "frameon": False,
    "fontsize": "small",
}


def plot_plan(plan: PlanRecord, axes: Axes | None = None) -> Axes:
    """Memory over the step: as planned, stacked by kind; as written, as a line.

    Raises:
        ValueError: the plan was stored by an older version, without its timeline.
    """
    if plan.after is None:
        raise ValueError("The plan was stored without its timeline; make it again to plot it.")
    axes = axes or new_axes((8.0, 4.2))
    fixed = fixed_bytes(plan)
    shown = [plan.after, *filter(None, [plan.before])]
    edges, layers = _stack(plan.after, fixed)
    colours = [COLOURS[kind][0] for kind, _ in layers]
    # matplotlib leaves labels that begin with an underscore out of legends.
    labels = [TITLES[kind] if x.any() else f"_{kind}" for kind, x in layers]
    heights = [x for _, x in layers]
    axes.stackplot(edges, heights, colors=colours, labels=labels, step="post", lw=0)
    if plan.before:
        edges, layers = _stack(plan.before, fixed)
        live = np.sum([x for _, x in layers], axis=0)
        axes.step(edges, live, where="post", color=_SOFT, lw=1.2, label="as written")
    lines = _lines(plan, scale_of(shown, fixed, []).top_bytes)
    for label, nbytes, colour, style in lines:
        axes.axhline(nbytes, color=colour, ls=style, lw=1.3)
        _label_line(axes, f"{label} {format_bytes(nbytes)}", nbytes, colour, label == "compiled")
    scale = scale_of(shown, fixed, [nbytes for _, nbytes, *_ in lines])
    axes.set(xlim=(0, scale.runs), ylim=(0, scale.top_bytes), xlabel="runs of ops, in order")
    axes.set_ylabel("bytes in memory, by the model")
    ticks = scale.ticks()
    axes.set_yticks([at * scale.top_bytes for at, _ in ticks], [label for _, label in ticks])
    axes.set_title(_title(plan), loc="left", fontsize="medium", fontweight="bold")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], **OUTSIDE)
    return tidy(axes)


def _title(plan: PlanRecord) -> str:
    more = "fewer" if plan.overhead < 0 else "more"
    title = f"{abs(plan.overhead):.2%} {more} modelled seconds than as written, on {plan.target}"
    return title if plan.decisions else f"As it is, on {plan.target}"


def _stack(timeline: Timeline, fixed: int) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Where steps begin, and bytes by kind there; the last one is repeated where it ends."""
    edges = np.linspace(0, timeline.runs, len(timeline.samples) + 1)
    lowest = (FIXED, np.full(len(timeline.samples), fixed))
    layers = [lowest, *((kind, timeline.bytes_of(kind)) for kind in KINDS)]
    assert [kind for kind, _ in layers] == list(LAYERS)
    return edges, [(kind, np.append(x, x[-1])) for kind, x in layers]


def _lines(plan: PlanRecord, top_bytes: float) -> list[tuple[str, int, str, str]]:
    if plan.devices > 1:  # the timeline is of all of them
        return []
    limit = plan.budget_bytes - plan.reserved_bytes
    lines = [("budget", limit, _BUDGET, "--")] if limit <= FAR_ABOVE * top_bytes else []
    if plan.compiled_bytes is not None:
        lines.append(("compiled", plan.compiled_bytes, INK, "-"))
    return lines


def _label_line(axes: Axes, text: str, y: float, colour: str, below: bool) -> None:
    """Text at the right end of a line, above or below it."""
    axes.annotate(
        text,
        (1, y),
        xycoords=("axes fraction", "data"),
        xytext=(-4, -3 if below else 3),
        textcoords="offset points",
        ha="right",
        va="top" if below else "bottom",
        color=colour,
        fontsize="small",
        fontweight="bold",
    )


def save(axes: Axes, path: Path) -> None:
    """Write the figure of some axes, whole or not at all; the same plot gives the same file."""
    figure = axes.figure.get_figure(root=True)
    assert figure is not None
    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix)
    with matplotlib.rc_context({"svg.hashsalt": "monet_jax"}):
        metadata = {dated: None} if dated else None
        picture = io.BytesIO()
        kind = path.suffix.removeprefix(".")
        figure.savefig(picture, format=kind, metadata=metadata, dpi=150, facecolor="white")
    write_whole(path, picture.getvalue())


def new_axes(size: tuple[float, float]) -> Axes:
    """Axes of a figure that a notebook shows."""
    if "ipykernel" not in sys.modules:
        return hidden_axes(size)
    from matplotlib import pyplot  # it decides for a backend, which only notebooks need

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def hidden_axes(size: tuple[float, float]) -> Axes:
    """Axes of a figure that no notebook shows by itself."""
    return Figure(figsize=size, layout="constrained").add_subplot()


def tidy(axes: Axes) -> Axes:
    """The axes without a frame, with lines across."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#d8dee4", lw=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize="small")
    return axes
