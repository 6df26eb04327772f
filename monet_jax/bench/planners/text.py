"""The results of a benchmark of planners as tables and as Markdown."""

import collections
from collections.abc import Sequence

from ...report.tables import plain_table, render
from ..claims import Claim
from .claims import check_claims
from .rows import Results, Row

_COLUMNS = (
    "Budget",
    "Planner",
    "Objective",
    "Peak (bytes)",
    "of budget",
    "Bound",
    "Gap",
    "Seconds",
    "Published",
    "its bound",
    "its seconds",
    "Ratio",
    "Remarks",
)
_LEFT = ("Planner", "Remarks")
_TITLES = {
    "published": "at the published budgets",
    "sweep": "over a sweep of budgets",
    "limits": "under time limits",
    "read": "not read",
}
_VERDICTS = {True: "holds", False: "does not hold", None: "not measured"}


def describe(results: Results) -> str:
    """A table for each instance and purpose, then the claims."""
    right = [column for column in _COLUMNS if column not in _LEFT]
    parts = []
    for title, rows in _tables(results.rows):
        table = plain_table(*_COLUMNS, right=right, title=title)
        for row in rows:
            table.add_row(*_cells(row))
        parts.append(render(table))
    return "\n\n".join([*parts, _claims_text(check_claims(results.rows))])


def to_markdown(results: Results) -> str:
    """The same as Markdown, with its context at the end."""
    parts = []
    for title, rows in _tables(results.rows):
        alignments = [":--" if column in _LEFT else "--:" for column in _COLUMNS]
        lines = [_line(_COLUMNS), _line(alignments), *(_line(_cells(row)) for row in rows)]
        parts.append("\n".join([f"### {title}", "", *lines]))
    claims = check_claims(results.rows)
    lines = [_line((c.title, c.figure, _VERDICTS[c.holds])) for c in claims]
    parts.append("\n".join(["### Claims", "", "| Claim | Found | |", "|:--|:--|:--|", *lines]))
    against = _against(claims)
    if against:
        parts.append("\n".join(f"- {line}" for line in against))
    context = ", ".join(f"{key}: {value}" for key, value in results.context.items())
    return "\n\n".join([*parts, f"Made under {context}."]) + "\n"


def one_line(row: Row) -> str:
    """A row for a running log."""
    seconds = "" if row.planning_seconds is None else f", {row.planning_seconds:.1f} s"
    if row.status != "ok":
        return f"{row.name}: {row.status}: {row.message[:160]}{seconds}"
    ratio = "" if row.ratio is None else f", {row.ratio:.4f} of the published"
    return f"{row.name}: {row.objective:,.0f}, gap {row.gap:.2%}{ratio}{seconds}"


def _tables(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    found: dict[tuple[str, str], list[Row]] = collections.defaultdict(list)
    for row in rows:
        found[row.instance, row.purpose].append(row)
    return [(f"{name} {_TITLES[purpose]}", rows) for (name, purpose), rows in found.items()]


def _claims_text(claims: Sequence[Claim]) -> str:
    table = plain_table("Claim", "Found", "", title="Claims")
    for claim in claims:
        table.add_row(claim.title, claim.figure, _VERDICTS[claim.holds])
    return "\n".join([render(table), *_against(claims)])


def _against(claims: Sequence[Claim]) -> list[str]:
    return [f"against {c.title!r}: {'; '.join(c.against)}" for c in claims if c.against]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cells(row: Row) -> tuple[str, ...]:
    budget = f"{row.budget_bytes or 0:,}" if row.budget is None else f"{row.budget:g}"
    published = _number(row.published_objective)
    return (
        budget,
        row.planner,
        _number(row.objective) if row.status == "ok" else row.status,
        _number(row.peak_bytes),
        "" if row.used is None else f"{row.used:.1%}",
        _number(row.bound),
        "" if row.gap is None else f"{row.gap:.2%}",
        "" if row.planning_seconds is None else f"{row.planning_seconds:.1f}",
        published or (row.published or ""),
        _number(row.published_bound),
        "" if row.published_seconds is None else f"{row.published_seconds:,.1f}",
        "" if row.ratio is None else f"{row.ratio:.4f}",
        "; ".join(_remarks(row)),
    )


def _number(amount: float | None) -> str:
    return "" if amount is None else f"{amount:,.0f}"


def _remarks(row: Row) -> list[str]:
    found = [row.baseline] if row.baseline and row.baseline != "Gurobi" else []
    found += [f"not clean: {doubt}" for doubt in row.doubts]
    if row.purpose == "limits":
        found.append(f"limit {row.time_limit:g} s")
    if row.status == row.published == "infeasible":
        found.append("agrees")
    elif row.status in ("refused", "error"):  # of the others, the status says it
        found.append(row.message)
    return found
