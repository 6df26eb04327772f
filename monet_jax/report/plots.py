"""How do a plan and a sweep look in matplotlib? Needs the extra `plot`.

Figures are made without pyplot where no axes are given, so that no window opens and nothing has to
be closed; but with it in a notebook, which shows pyplot's figures where a cell ends.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .._budget import format_bytes
from .._plan import Plan, write_whole
from .._sweep import Sweep, SweepPoint
from .._timeline import KINDS, Timeline
from .charts import COLOURS, FIXED, LAYERS, TITLES, byte_ticks, scale_of
from .figures import FAR_ABOVE, fixed_bytes

_INK, _SOFT, _BUDGET = "#1b1f24", "#57606a", "#c0271f"
_MARKERS = "s^Dv<>pPXh"
_SWEEP_SIZE = (8.0, 4.6)
#: A legend to the right of the axes, where it hides nothing.
_OUTSIDE: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (1.0, 1.0),
    "frameon": False,
    "fontsize": "small",
}


def plot_plan(plan: Plan, axes: Axes | None = None) -> Axes:
    """Memory over the step as planned, stacked by what it is for; as written, as a line.

    Raises:
        ValueError: the plan was stored by an older version, without its timeline.
    """
    if plan.after is None:
        raise ValueError("The plan was stored without its timeline; make it again to plot it.")
    axes = axes or _new_axes((8.0, 4.2))
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
    axes.legend(handles[::-1], labels[::-1], **_OUTSIDE)
    return _tidy(axes)


def _title(plan: Plan) -> str:
    title = f"{plan.overhead:.2%} more modelled seconds than as written, on {plan.target}"
    return title if plan.decisions else f"As it is, on {plan.target}"


def _stack(timeline: Timeline, fixed: int) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Where steps begin, and bytes by kind there; the last one is repeated where it ends."""
    edges = np.linspace(0, timeline.runs, len(timeline.moments) + 1)
    given = (FIXED, np.full(len(timeline.moments), fixed))
    layers = [given, *((kind, timeline.bytes_of(kind)) for kind in KINDS)]
    assert [kind for kind, _ in layers] == list(LAYERS)
    return edges, [(kind, np.append(x, x[-1])) for kind, x in layers]


def _lines(plan: Plan, top_bytes: float) -> list[tuple[str, int, str, str]]:
    if plan.devices > 1:  # the timeline is of all of them
        return []
    room = plan.budget_bytes - plan.reserved_bytes
    lines = [("budget", room, _BUDGET, "--")] if room <= FAR_ABOVE * top_bytes else []
    if plan.compiled_bytes is not None:
        lines.append(("compiled", plan.compiled_bytes, _INK, "-"))
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


def plot_sweep(sweep: Sweep, axes: Axes | None = None, against: str = "seconds") -> Axes:
    """Bytes against seconds, or FLOPs, beyond the plain program; every baseline by its name.

    Raises:
        ValueError: `against` is neither "seconds" nor "flops".
    """
    if against not in ("seconds", "flops"):
        raise ValueError(f'`against` must be "seconds" or "flops"; got {against!r}.')
    axes = axes or _new_axes(_SWEEP_SIZE)
    (plain,) = sweep.of_kind("plain")
    planned = sorted(sweep.of_kind("planned"), key=lambda p: p.total_bytes or 0)

    def draw(points: Sequence[SweepPoint], **style: Any) -> None:
        work = [getattr(p, against) / getattr(plain, against) - 1 for p in points]
        axes.plot([p.total_bytes or 0 for p in points], [100 * x for x in work], **style)

    draw(planned, color=COLOURS["saved"][0], marker="o", ms=5, lw=2, label="planned", zorder=3)
    for n, point in enumerate(sweep.of_kind("baseline")):
        draw([point], label=point.program, zorder=4, **_baseline_style(n))
    draw([plain], marker="*", ms=13, color=_INK, ls="none", label="plain", zorder=5)
    _byte_axis(axes, [p.total_bytes or 0 for p in sweep.points if not p.error])
    noun = "modelled seconds" if against == "seconds" else "FLOPs of products"
    axes.set(xlabel="compiled bytes of the step", ylabel=f"{noun} beyond plain")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:+.3g} %" if y else "0 %"))
    title = f"Bytes against time on {sweep.target}"
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.legend(**_OUTSIDE)
    return _tidy(axes)


def _baseline_style(n: int) -> dict[str, Any]:
    """A marker and a colour for the `n`-th baseline; no two of the first 36 are the same."""
    kinds = ("recomputed", "gradient", "compressed", "passing")
    return {
        "marker": _MARKERS[n % len(_MARKERS)],
        "color": COLOURS[kinds[n % len(kinds)]][0],
        "ls": "none",
        "ms": 8,
        "mec": _INK,
        "mew": 0.6,
    }


def _byte_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Across, the range of some sizes, with round numbers of bytes."""
    margin = 0.06 * (max(sizes) - min(sizes)) or 1
    low, high = min(sizes) - margin, max(sizes) + margin
    ticks = byte_ticks(low, high)
    axes.set_xlim(low, high)
    axes.set_xticks([x for x, _ in ticks], [label for _, label in ticks])


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


def save_sweep(sweep: Sweep, path: Path) -> None:
    """Write the picture of a sweep, which a notebook does not show for it."""
    save(plot_sweep(sweep, _hidden_axes(_SWEEP_SIZE)), path)


def _new_axes(size: tuple[float, float]) -> Axes:
    """Axes of a figure that a notebook shows."""
    if "ipykernel" not in sys.modules:
        return _hidden_axes(size)
    from matplotlib import pyplot  # it decides for a backend, which only notebooks need

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def _hidden_axes(size: tuple[float, float]) -> Axes:
    return Figure(figsize=size, layout="constrained").add_subplot()


def _tidy(axes: Axes) -> Axes:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#d8dee4", lw=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize="small")
    return axes
