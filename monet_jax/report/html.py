"""A plan as an HTML page: one file that needs no other.

`page` is for `Plan.to_html`: verdict, memory before and after, memory over the step, values and
stages. `snippet` is for notebooks. Every figure is in the plan: nothing is computed from JAX, so a
plan that was read from a file looks as it did when it was made.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2

from .._version import __version__
from ..compiler.budget import format_bytes
from ..plans.record import PlanRecord, ValueRow
from ..plans.timeline import Band, Timeline
from .charts import COLOURS, HEIGHT, LAYERS, TITLES, Chart, Scale, chart_of, scale_of
from .figures import FAR_ABOVE, bars, figures, fixed_bytes, format_flops, format_seconds, peaks
from .notes import notes
from .peak import kinds_at_peak, modules_at_peak, values_at_peak
from .text import baseline_cells, merge_stages, outcome, verdict
from .trade import trade_of
from .values import DECISIONS, SMALL, merge_rows, reason, recompute_share, shorten_source

#: Verdicts, by how they begin, and how they look.
_MOODS = {"BREAKS": "bad", "Planned": "open"}
#: Decisions that are drawn in another colour than what is saved.
_SWATCHES = {"recomputed": "recomputed", "unread": "passing"}
#: A title, a timeline, and the bytes of its program as compiled.
_Named = tuple[str, Timeline, int | None]


@dataclasses.dataclass(frozen=True)
class Line:
    """A number of bytes that is drawn across a chart.

    Attributes:
        kind: "budget" or "compiled".
        height: its share of the chart's height.
        label: what it says.
    """

    kind: str
    height: float
    label: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """A chart in a page.

    Attributes:
        title: what it shows.
        chart: its shapes.
        lines: across it.
        data: what the page's script looks up.
    """

    title: str
    chart: Chart
    lines: tuple[Line, ...]
    data: dict[str, Any]


def page(plan: PlanRecord) -> str:
    """The whole report as an HTML file."""
    return _render(
        "page.html",
        plan,
        _timelines(plan),
        notes=notes(plan),
        figures=figures(plan),
        peaks=peaks(plan),
        reasons=_reasons(plan),
        trade=trade_of(plan),
        baselines=baseline_cells(plan) if plan.baselines else (),
        values=_values(plan),
        stages=merge_stages(plan.stages) if plan.decisions else (),
        decisions=sorted({_decision(row) for row in plan.values}) if plan.decisions else (),
        layers=LAYERS,
        target=_target(plan),
        title=f"{plan.name or 'A function'}: {outcome(plan)}",
        version=__version__,
    )


def _reasons(plan: PlanRecord) -> list[dict[str, Any]]:
    """What is in memory at the peaks of the function as written and as planned."""
    made = []
    for title, timeline, _ in _timelines(plan):
        modules = modules_at_peak(plan, timeline)
        values = values_at_peak(plan, timeline)
        kinds = kinds_at_peak(modules)
        made.append({"title": title, "modules": modules, "kinds": kinds, "values": values})
    return made


def snippet(plan: PlanRecord) -> str:
    """Verdict, compiled bytes and the planned step, without script: for a notebook."""
    return _render("snippet.html", plan, _timelines(plan)[-1:])


def _render(template: str, plan: PlanRecord, timelines: Sequence[_Named], **more: Any) -> str:
    scale, panels = _panels(plan, timelines)
    return (
        _environment()
        .get_template(template)
        .render(
            plan=plan,
            verdict=verdict(plan),
            outcome=outcome(plan),
            mood=_MOODS.get(outcome(plan).split()[0], "good"),
            bars=bars(plan),
            scale=scale,
            panels=panels,
            titles=TITLES,
            colours=COLOURS,
            height=HEIGHT,
            **more,
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("monet_jax.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": format_bytes,
        "percent": _percent,
        "flops": format_flops,
        "time": format_seconds,
    }
    return made


def _percent(share: float) -> str:
    """For CSS: enough digits to place a thing."""
    return f"{100 * share:.2f}%"


def _target(plan: PlanRecord) -> str:
    return plan.target if plan.devices == 1 else f"each of {plan.devices} {plan.target}"


# -------------------------------------------------------------------------------------- charts


def _timelines(plan: PlanRecord) -> list[_Named]:
    """The timelines of a plan; none where it was stored without."""
    if plan.after is None:
        return []
    if plan.before is None:
        return [("As it is: nothing is recomputed", plan.after, plan.compiled_bytes)]
    return [
        ("As written: nothing is recomputed", plan.before, plan.unplanned_bytes),
        ("As planned", plan.after, plan.compiled_bytes),
    ]


def _panels(plan: PlanRecord, named: Sequence[_Named]) -> tuple[Scale | None, list[Panel]]:
    """The charts of timelines, on one scale."""
    if not named:
        return None, []
    fixed, limit = fixed_bytes(plan), plan.budget_bytes - plan.reserved_bytes
    compiled = [nbytes for *_, nbytes in named if nbytes and plan.devices == 1]
    timelines = [timeline for _, timeline, _ in named]
    scale = scale_of(timelines, fixed, compiled)
    shows_budget = plan.devices == 1 and limit <= FAR_ABOVE * scale.top_bytes
    if shows_budget:
        scale = scale_of(timelines, fixed, [*compiled, limit])
    rows = {row.name: row for row in plan.values}
    return scale, [
        Panel(
            title,
            chart_of(timeline, fixed, scale),
            tuple(_lines(scale, limit if shows_budget else None, nbytes if compiled else None)),
            _data(timeline, fixed, scale, rows),
        )
        for title, timeline, nbytes in named
    ]


def _lines(scale: Scale, limit: int | None, compiled: int | None) -> Iterator[Line]:
    for kind, nbytes in (("budget", limit), ("compiled", compiled)):
        if nbytes:
            yield Line(kind, scale.height(nbytes), f"{kind} {format_bytes(nbytes)}")


def _data(
    timeline: Timeline, fixed: int, scale: Scale, rows: dict[str, ValueRow]
) -> dict[str, Any]:
    """A timeline as the page's script reads it; `report.js` describes its fields."""
    return {
        "runs": timeline.runs,
        "across": scale.runs,
        "top": scale.top_bytes,
        "fixed": fixed,
        "samples": [[m.run, m.phase, m.stage, m.op] for m in timeline.samples],
        "bands": [[b.kind, b.start, b.stop, b.nbytes, *_named(b, rows)] for b in timeline.bands],
        "rest": {kind: list(nbytes) for kind, nbytes in timeline.rest},
    }


def _named(band: Band, rows: dict[str, ValueRow]) -> tuple[str, str, str]:
    """The title, module and line of a band."""
    row = rows.get(band.name)
    if row is not None:
        return f"{row.name}: {row.dtype}{list(row.shape)}", row.path, shorten_source(row.source)
    if band.name:
        return f"{band.name}: written by {band.op}", "", shorten_source(band.source)
    if band.kind == "workspace":
        return f"workspace of {band.op}", "", ""
    return f"kept by stage {band.stage} beside its values", band.op, ""


# -------------------------------------------------------------------------------------- tables


def _decision(row: ValueRow) -> str:
    return DECISIONS.get(row.decision, row.decision)


def _values(plan: PlanRecord) -> list[dict[str, Any]]:
    """Rows of the table of values; small ones are one row at the end."""
    rows = merge_rows(plan.values)
    least = SMALL * sum(row.nbytes for row in rows)
    large = [row for row in rows if row.nbytes >= least]
    small = rows[len(large) :]
    cells = [
        {
            "decision": _decision(row.example),
            "swatch": _SWATCHES.get(row.example.decision, "saved"),
            "again": recompute_share(row, plan.base_seconds),
            "again_seconds": row.recompute_seconds or 0.0,
            "reason": reason(row, plan.base_seconds),
            "name": row.label,
            "names": row.names,
            "operator": row.example.operator,
            "count": row.count,
            "each": row.example.nbytes,
            "nbytes": row.nbytes,
            "shape": "×".join(map(str, row.example.shape)) or "scalar",
            "dtype": row.example.dtype,
            "primitive": row.example.primitive,
            "path": row.path,
            "source": shorten_source(row.example.source),
        }
        for row in large
    ]
    if small:
        empty = (
            "decision",
            "swatch",
            "again",
            "reason",
            "operator",
            "shape",
            "dtype",
            "path",
            "source",
            "name",
            "names",
        )
        blank = dict.fromkeys(empty, "")
        sums = {"count": sum(r.count for r in small), "nbytes": sum(r.nbytes for r in small)}
        cells.append(
            {**blank, **sums, "each": None, "again_seconds": 0.0, "primitive": "smaller values"}
        )
    return cells
