"""What do fewer bytes cost in FLOPs: planned, and with `jax.checkpoint` placed by hand?

    python docs/measurements/curves.py    # draws curves.svg beside this file; needs matplotlib

Nothing is measured here: the rows are those that `monet-jax bench` kept in `MODEL-h100.json`.
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from monet_jax.report.charts import COLOURS
from monet_jax.report.plots import save

HERE = Path(__file__).parent
MODELS = {"resnet50": "ResNet-50", "gpt2": "GPT-2"}
#: Where baselines put their regions -> how they are drawn. Each is tried under three policies.
PLACES = {"loss": ("X", "round the loss"), "blocks": ("s", "round each block")}
#: The baseline beside which our plan of the same bytes is pointed out.
USUAL = "blocks: nothing"
INK, RIVAL = "#1b1f24", COLOURS["recomputed"][0]
MIB = 2**20


def rows(model: str) -> list[dict[str, Any]]:
    """Every program of a model that compiled, the smallest first."""
    found = json.loads((HERE / f"{model}-h100.json").read_text())["rows"]
    return sorted((row for row in found if row["temp_bytes"]), key=lambda row: row["temp_bytes"])


def at(row: dict[str, Any]) -> tuple[float, float]:
    """Where a program stands: MiB of temporaries, and FLOPs beyond plain in percent."""
    return row["temp_bytes"] / MIB, 100 * (row["flops_ratio"] - 1)


def draw(axes: Axes, model: str) -> None:
    """Draws the programs of one model."""
    found = rows(model)
    ours = [at(row) for row in found if row["kind"] == "ours"]
    blue = COLOURS["saved"][0]
    axes.plot(*zip(*ours, strict=True), "o-", color=blue, lw=2, label="monet_jax", zorder=4)
    for place, (marker, words) in PLACES.items():
        some = [at(row) for row in found if row["program"].startswith(f"{place}: ")]
        style = {"color": RIVAL, "ms": 8, "mec": INK, "mew": 0.6, "ls": "none", "zorder": 5}
        axes.plot(*zip(*some, strict=True), marker, label=f"jax.checkpoint {words}", **style)
    (plain,) = [at(row) for row in found if row["kind"] == "plain"]
    axes.plot(*plain, "*", color=INK, ms=14, ls="none", label="plain JAX", zorder=6)
    point_out(axes, found)
    axes.set(xlim=(0, 1.15 * plain[0]), ylim=(-1.5, 38))
    axes.set_xlabel("temporaries as compiled for an H100, MiB", color=INK)
    axes.set_title(MODELS[model], loc="left", fontsize="medium", fontweight="bold", color=INK)
    axes.yaxis.set_major_formatter(lambda y, _: f"+{y:g} %" if y else "0 %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d8dee4", lw=0.7)
    axes.set_axisbelow(True)


def point_out(axes: Axes, found: list[dict[str, Any]]) -> None:
    """Draws an arrow from the usual baseline to our plan with its bytes as the budget."""
    (usual,) = [at(row) for row in found if row["program"] == USUAL]
    (ours,) = [at(row) for row in found if row["baseline"] == USUAL]
    # Both ends leave room for the markers.
    arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 6, "shrinkB": 6}
    axes.annotate("", ours, usual, arrowprops=arrow, zorder=5)
    words = f"same bytes:\n+{usual[1]:.1f} % becomes +{ours[1]:.1f} %"
    middle = (usual[0], (usual[1] + ours[1]) / 2)
    axes.annotate(
        words, middle, (8, 0), textcoords="offset points", va="center", color=INK, fontsize="small"
    )


def main() -> None:
    """Draws the picture."""
    figure = Figure(figsize=(9, 3.7), layout="constrained")
    panels = figure.subplots(1, len(MODELS))
    for axes, model in zip(panels, MODELS, strict=True):
        draw(axes, model)
    panels[0].set_ylabel("more FLOPs than plain JAX", color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(), unique, loc="outside upper center", ncols=len(unique), frameon=False
    )
    save(panels[0], HERE / "curves.svg")


if __name__ == "__main__":
    main()
