"""Draws a sweep's curve of bytes against seconds with matplotlib. Needs the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ..report.charts import COLOURS, byte_ticks
from ..report.plots import INK, OUTSIDE, hidden_axes, new_axes, save, tidy
from .sweep_points import SweepPoint, of_kind

_MARKERS = "s^Dv<>pPXh"
_SWEEP_SIZE = (8.0, 4.6)


def plot_sweep(
    points: Sequence[SweepPoint], target: str, axes: Axes | None = None, against: str = "seconds"
) -> Axes:
    """Bytes against seconds, or FLOPs, beyond the plain program; every baseline by its name.

    Raises:
        ValueError: `against` is neither "seconds" nor "flops".
    """
    if against not in ("seconds", "flops"):
        raise ValueError(f'`against` must be "seconds" or "flops"; got {against!r}.')
    axes = axes or new_axes(_SWEEP_SIZE)
    (plain,) = of_kind(points, "plain")
    planned = sorted(of_kind(points, "planned"), key=lambda p: p.total_bytes or 0)

    def draw(points: Sequence[SweepPoint], **style: Any) -> None:
        work = [getattr(p, against) / getattr(plain, against) - 1 for p in points]
        axes.plot([p.total_bytes or 0 for p in points], [100 * x for x in work], **style)

    draw(planned, color=COLOURS["saved"][0], marker="o", ms=5, lw=2, label="planned", zorder=3)
    for n, point in enumerate(of_kind(points, "baseline")):
        draw([point], label=point.program, zorder=4, **_baseline_style(n))
    draw([plain], marker="*", ms=13, color=INK, ls="none", label="plain", zorder=5)
    _byte_axis(axes, [p.total_bytes or 0 for p in points if not p.error])
    noun = "modelled seconds" if against == "seconds" else "FLOPs of products"
    axes.set(xlabel="compiled bytes of the step", ylabel=f"{noun} beyond plain")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:+.3g} %" if y else "0 %"))
    title = f"Bytes against time on {target}"
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.legend(**OUTSIDE)
    return tidy(axes)


def _baseline_style(n: int) -> dict[str, Any]:
    """A marker and a colour for the `n`-th baseline; no two of the first 36 are the same."""
    kinds = ("recomputed", "gradient", "compressed", "passing")
    return {
        "marker": _MARKERS[n % len(_MARKERS)],
        "color": COLOURS[kinds[n % len(kinds)]][0],
        "ls": "none",
        "ms": 8,
        "mec": INK,
        "mew": 0.6,
    }


def _byte_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Across, the range of some sizes, with round numbers of bytes."""
    margin = 0.06 * (max(sizes) - min(sizes)) or 1
    low, high = min(sizes) - margin, max(sizes) + margin
    ticks = byte_ticks(low, high)
    axes.set_xlim(low, high)
    axes.set_xticks([x for x, _ in ticks], [label for _, label in ticks])


def save_sweep(points: Sequence[SweepPoint], target: str, path: Path) -> None:
    """Write the picture of a sweep, which a notebook does not show for it."""
    save(plot_sweep(points, target, hidden_axes(_SWEEP_SIZE)), path)
