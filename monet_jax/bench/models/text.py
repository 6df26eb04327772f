"""The results of a benchmark of models as tables."""

import collections
from collections.abc import Sequence
from typing import Any

from ...compiler.budget import format_bytes
from ...report.tables import plain_table, render
from ..claims import Claim
from .claims import check_claims
from .rows import Results, Row

_COLUMNS = (
    "Program",
    "Budget",
    "Compiled",
    "Temps",
    "of plain's",
    "FLOPs",
    "Roofline",
    "Measured",
    "of plain's time",
    "Estimated",
    "Used",
    "Predicted",
    "Planning",
    "Compilations",
)


def describe(results: Results) -> str:
    """A table for each model and target, then the claims."""
    cells: dict[tuple[str, str, str], list[Row]] = collections.defaultdict(list)
    for row in results.rows:
        cells[row.cell].append(row)
    tables = [_cell_table(f"{m} on {t}, {d}", rows) for (m, t, d), rows in cells.items()]
    return "\n\n".join([*tables, claims_table(check_claims(results.rows))])


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims, each with its figure and the cells against it."""
    table = plain_table("Claim", "Found", "Holds", title="Claims")
    for claim in claims:
        table.add_row(claim.title, claim.figure, {None: "", True: "yes", False: "NO"}[claim.holds])
    against = [f"against {c.title!r}: {name}" for c in claims for name in c.against]
    return "\n".join([render(table), *against])


def one_line(row: Row) -> str:
    """A row for a running log."""
    name = f"{row.cell_name} {row.program}"
    if row.status != "ok":
        return f"{name}: {row.status}: {row.message[:160]}"
    if row.kind == "xla":
        kept = "kept" if row.is_kept else "not kept"
        return f"{name}: {format_bytes(row.total_bytes)}, {kept}"
    seconds = f", {row.planning_seconds:.1f} s" if row.planning_seconds is not None else ""
    return (
        f"{name}: {format_bytes(row.total_bytes)}, {row.flops_ratio:.3f}x FLOPs, "
        f"{row.seconds_ratio:.3f}x roofline{seconds}"
    )


def _cell_table(title: str, rows: Sequence[Row]) -> str:
    table = plain_table(*_COLUMNS, right=_COLUMNS[1:], title=title)
    plain = next((r.temp_bytes for r in rows if r.kind == "plain"), None)
    for row in rows:
        table.add_row(*_cells(row, plain))
    return render(table)


def _cells(row: Row, plain_temp_bytes: int | None) -> tuple[str, ...]:
    budget = "" if row.budget_bytes is None else format_bytes(row.budget_bytes)
    if row.status != "ok" or not plain_temp_bytes:
        return row.program, budget, row.status
    return (
        row.program,
        budget,
        format_bytes(row.total_bytes),
        format_bytes(row.temp_bytes),
        f"{row.temp_bytes / plain_temp_bytes:.1%}",
        _times(row.flops_ratio),
        _times(row.seconds_ratio),
        _milliseconds(row.measured_seconds),
        _interval(row),
        _estimated(row),
        _used(row),
        "" if row.prediction_error is None else f"{row.prediction_error:.1%} off",
        "" if row.planning_seconds is None else f"{row.planning_seconds:.1f} s",
        "" if row.compilations is None else str(row.compilations),
    )


def _interval(row: Row) -> str:
    """The ratio to the plain program's seconds, by the clock."""
    if row.measured_ratio is None:
        return ""
    return f"{row.measured_ratio:.3f} ({row.measured_low:.3f} to {row.measured_high:.3f})"


def _estimated(row: Row) -> str:
    """The compiler's seconds; and the share of FLOPs that they are of, where some are missing."""
    if row.estimated_seconds is None:
        return ""
    is_whole = row.estimated_share > 0.99
    share = "" if is_whole else f" for {row.estimated_share:.0%} of FLOPs"
    return _milliseconds(row.estimated_seconds) + share


def _used(row: Row) -> str:
    """The share of the budget; XLA may exceed its own."""
    if row.used is None:
        return ""
    return f"{row.used:.1%}" if row.is_kept else f"{row.used:.1%}, not kept"


def _times(ratio: Any) -> str:
    return "" if ratio is None else f"{ratio:.3f}x"


def _milliseconds(seconds: Any) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f} ms"
