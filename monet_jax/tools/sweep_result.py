"""A sweep as data, as a table, as a curve and as JSON."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from .._disk import write_whole
from .._extras import needing_extra
from ..compiler.budget import format_bytes
from .sweep_points import SweepPoint, of_kind

#: Raised when the stored fields change.
FORMAT = 1
#: Files that a sweep can be written to, beside ".json".
PICTURES = (".svg", ".png", ".pdf")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Programs of one step, with the bytes and seconds of each.

    Attributes:
        points: the plain program, the baselines, and plans with falling budgets.
        target: what they were compiled for.
        compiler: which compiled them.
        jax_version: the version that traced them.
    """

    points: tuple[SweepPoint, ...]
    target: str
    compiler: str
    jax_version: str

    def of_kind(self, kind: str) -> tuple[SweepPoint, ...]:
        """The programs of one kind that did not fail."""
        return of_kind(self.points, kind)

    def plot(self, axes: Any = None, *, against: str = "seconds") -> Any:
        """Draws the curve of bytes against seconds; needs the extra `plot`.

        Arguments:
            axes: matplotlib's; None makes new ones.
            against: "seconds" or "flops".

        Returns:
            The matplotlib `Axes`.
        """
        return _plots().plot_sweep(self.points, self.target, axes, against)

    def to_json(self) -> str:
        """The sweep as JSON text."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sweep: as JSON, or as a picture, by the ending of the path.

        Raises:
            ValueError: the path ends neither in ".json" nor in one of `PICTURES`.
        """
        path = check_path(path)
        if path.suffix == ".json":
            write_whole(path, self.to_json())
        else:
            _plots().save_sweep(self.points, self.target, path)

    def __str__(self) -> str:
        return _described(self)


def check_path(path: str | os.PathLike[str]) -> Path:
    """A path that `Sweep.save` can write to, as far as its ending goes.

    Raises:
        ValueError: it cannot.
        ModuleNotFoundError: it is a picture, and matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix not in (".json", *PICTURES):
        raise ValueError(f"`{path}` must end in one of .json, {', '.join(PICTURES)}")
    if path.suffix in PICTURES:
        _plots()  # which says what to install, before anything is compiled
    return path


def load_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Read a sweep that `Sweep.save` wrote as JSON.

    Raises:
        ValueError: the file holds something else.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f'need a JSON object with "format": {FORMAT}; sweep again')
        points = tuple(SweepPoint(**point) for point in data.pop("points"))
        return Sweep(points, **data)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"`{path}` does not hold a stored sweep: {error}") from error


def _plots() -> Any:
    return needing_extra("monet_jax.tools.sweep_plot", "plot")


def _described(found: Sweep) -> str:
    """The programs of a sweep as a table."""
    from ..report.tables import plain_table, render  # rich is imported only where a text is wanted

    columns = ("Program", "Budget", "Compiled", "Temps", "FLOPs", "Roofline")
    title = f"On {found.target} ({found.compiler})"
    table = plain_table(*columns, right=columns[1:], title=title)
    plain = next(iter(found.of_kind("plain")), None)
    for p in found.points:
        budget = "" if p.budget_bytes is None else format_bytes(p.budget_bytes)
        if p.error or plain is None:
            table.add_row(p.program, budget, f"failed: {p.error}"[:100])
            continue
        sizes = (format_bytes(x or 0) for x in (p.total_bytes, p.temp_bytes))
        ratios = (_ratio(p.flops, plain.flops), _ratio(p.seconds, plain.seconds))
        table.add_row(p.program, budget, *sizes, *ratios)
    return render(table)


def _ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.3f}x" if a is not None and b else ""
