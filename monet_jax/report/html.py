"""What does a plan look like in a browser? One file, with all that it needs inside it.

`page` is what `Plan.to_html` writes: verdict, memory before and after, memory over the step, values
and stages. `snippet` is what a notebook shows. Every figure is in the plan: nothing is computed
from JAX, so a plan that was read from a file looks as it did when it was made.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2

from .._budget import format_bytes
from .._plan import Plan, ValueRow
from .._timeline import Band, Timeline
from .charts import COLOURS, FIXED, HEIGHT, LAYERS, TITLES, Chart, Scale, chart_of, scale_of
from .text import (
    SMALL,
    merge_rows,
    merge_stages,
    outcome,
    shorten_source,
    use_of_budget,
    verdict,
)

#: A budget above so many times all else would leave a chart empty; then it is only named.
_FAR_ABOVE = 1.6
#: Verdicts, by how they begin, and how they look.
_MOODS = {"BREAKS": "bad", "Planned": "open"}
#: Thousands of floating-point operations, and what they are called.
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


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


def page(plan: Plan) -> str:
    """The whole report as an HTML file."""
    return _render(
        "page.html",
        plan,
        _timelines(plan),
        notes=use_of_budget(plan),
        figures=_figures(plan),
        peaks=_peaks(plan),
        values=_values(plan),
        stages=merge_stages(plan.stages) if plan.decisions else (),
        layers=LAYERS,
        target=_target(plan),
    )


def snippet(plan: Plan) -> str:
    """Verdict, compiled bytes and the planned step, without script: for a notebook."""
    return _render("snippet.html", plan, _timelines(plan)[-1:])


def _render(template: str, plan: Plan, timelines: Sequence[_Named], **more: Any) -> str:
    scale, panels = _panels(plan, timelines)
    return (
        _environment()
        .get_template(template)
        .render(
            plan=plan,
            verdict=verdict(plan),
            outcome=outcome(plan),
            mood=_MOODS.get(outcome(plan).split()[0], "good"),
            bars=_bars(plan),
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
    made.filters |= {"bytes": format_bytes, "percent": _percent, "flops": _flops, "time": _time}
    return made


def _percent(share: float) -> str:
    """For CSS: enough digits to place a thing."""
    return f"{100 * share:.2f}%"


def _flops(flops: float) -> str:
    """FLOPs for people: "1.2 GFLOP"."""
    unit = 0
    while flops >= 999.95 and unit < len(_FLOPS) - 1:
        flops, unit = flops / 1000, unit + 1
    return f"{flops:.1f} {_FLOPS[unit]}" if unit else f"{flops:,.0f} FLOP"


def _time(seconds: float) -> str:
    """Seconds for people: "1.2 ms"."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    unit, name = next((x for x in units if seconds >= x[0]), units[-1])
    return f"{seconds / unit:,.2f} {name}"


def _target(plan: Plan) -> str:
    return plan.target if plan.devices == 1 else f"each of {plan.devices} {plan.target}"


# ------------------------------------------------------------------------------------- figures


def _figures(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """The few numbers that matter: what it is, the number, and what to compare it with."""
    taken = plan.compiled_bytes
    yield (
        "compiled",
        "not compiled" if taken is None else format_bytes(taken),
        f"of a budget of {format_bytes(plan.budget_bytes)}",
    )
    if plan.unplanned_bytes:
        spared = 1 - (plan.predicted_bytes if taken is None else taken) / plan.unplanned_bytes
        yield "spared", f"{spared:.1%}", f"of {format_bytes(plan.unplanned_bytes)} as written"
    bound = plan.bound_seconds / plan.base_seconds - 1 if plan.base_seconds else 0.0
    yield "overhead", f"{plan.overhead:.2%}", f"proven to be at least {bound:.2%}"
    rounds = f"{plan.rounds} plan{'' if plan.rounds == 1 else 's'} compiled"
    yield "planned in", f"{plan.planning_seconds:.1f} s", rounds


@dataclasses.dataclass(frozen=True)
class Bar:
    """The compiled bytes of a program, and its work.

    Attributes:
        title: which program.
        nbytes, temp_bytes: all of it, and without arguments and results; None where not known.
        fixed, rest: shares of the widest bar that arguments and results take, and all else.
        flops, seconds: of a step.
    """

    title: str
    nbytes: int | None
    temp_bytes: int | None
    fixed: float
    rest: float
    flops: int
    seconds: float


def _bars(plan: Plan) -> dict[str, Any]:
    """Compiled bytes as written and as planned, and the budget as a share of the widest bar."""
    rows = [("as written", plan.unplanned_bytes, plan.base_flops, plan.base_seconds)]
    if plan.decisions:
        rows.append(("as planned", plan.compiled_bytes, plan.flops, plan.seconds))
    room = plan.budget_bytes - plan.reserved_bytes
    widest = max((nbytes for _, nbytes, *_ in rows if nbytes), default=1)
    near = room <= _FAR_ABOVE * widest
    widest = max(widest, room) if near else widest
    fixed = plan.fixed_bytes
    made = [
        Bar(
            title,
            nbytes,
            None if nbytes is None or fixed is None else nbytes - fixed,
            min(fixed or 0, nbytes or 0) / widest,
            max(0, (nbytes or 0) - (fixed or 0)) / widest,
            flops,
            seconds,
        )
        for title, nbytes, flops, seconds in rows
    ]
    return {"rows": made, "budget": room / widest if near else None, "room": room}


def _peaks(plan: Plan) -> list[tuple[str, int | None, int | None]]:
    """What is in memory at the peak of each timeline: kind, bytes before, bytes after."""
    fixed = _fixed_bytes(plan)

    def at_peak(timeline: Timeline | None, kind: str) -> int | None:
        if timeline is None:
            return None
        return fixed if kind == FIXED else int(timeline.bytes_of(kind)[timeline.peak])

    rows = [(kind, at_peak(plan.before, kind), at_peak(plan.after, kind)) for kind in LAYERS]
    return [row for row in rows if row[1] or row[2]]


def _fixed_bytes(plan: Plan) -> int:
    """What lies under a timeline; nothing where values are those of several devices."""
    return (plan.fixed_bytes or 0) if plan.devices == 1 else 0


# -------------------------------------------------------------------------------------- charts


def _timelines(plan: Plan) -> list[_Named]:
    """The timelines of a plan; none where it was stored without."""
    if plan.after is None:
        return []
    if plan.before is None:
        return [("As it is: nothing is recomputed", plan.after, plan.compiled_bytes)]
    return [
        ("As written: nothing is recomputed", plan.before, plan.unplanned_bytes),
        ("As planned", plan.after, plan.compiled_bytes),
    ]


def _panels(plan: Plan, named: Sequence[_Named]) -> tuple[Scale | None, list[Panel]]:
    """The charts of timelines, on one scale."""
    if not named:
        return None, []
    fixed, room = _fixed_bytes(plan), plan.budget_bytes - plan.reserved_bytes
    compiled = [nbytes for *_, nbytes in named if nbytes and plan.devices == 1]
    timelines = [timeline for _, timeline, _ in named]
    scale = scale_of(timelines, fixed, compiled)
    shows_budget = plan.devices == 1 and room <= _FAR_ABOVE * scale.top_bytes
    if shows_budget:
        scale = scale_of(timelines, fixed, [*compiled, room])
    rows = {row.name: row for row in plan.values}
    return scale, [
        Panel(
            title,
            chart_of(timeline, fixed, scale),
            tuple(_lines(scale, room if shows_budget else None, nbytes if compiled else None)),
            _data(timeline, fixed, scale, rows),
        )
        for title, timeline, nbytes in named
    ]


def _lines(scale: Scale, room: int | None, compiled: int | None) -> Iterator[Line]:
    for kind, nbytes in (("budget", room), ("compiled", compiled)):
        if nbytes:
            yield Line(kind, scale.height(nbytes), f"{kind} {format_bytes(nbytes)}")


def _data(
    timeline: Timeline, fixed: int, scale: Scale, rows: dict[str, ValueRow]
) -> dict[str, Any]:
    """A timeline as the page's script reads it; `report.js` says what is where."""
    return {
        "runs": timeline.runs,
        "across": scale.runs,
        "top": scale.top_bytes,
        "fixed": fixed,
        "moments": [[m.run, m.phase, m.stage, m.op] for m in timeline.moments],
        "bands": [[b.kind, b.start, b.stop, b.nbytes, *_named(b, rows)] for b in timeline.bands],
        "rest": {kind: list(nbytes) for kind, nbytes in timeline.rest},
    }


def _named(band: Band, rows: dict[str, ValueRow]) -> tuple[str, str, str]:
    """What a band is: a title, its module, and its line."""
    row = rows.get(band.name)
    if row is not None:
        return f"{row.name}: {row.dtype}{list(row.shape)}", row.path, shorten_source(row.source)
    if band.name:
        return f"{band.name}: written by {band.op}", "", shorten_source(band.source)
    if band.kind == "workspace":
        return f"workspace of {band.op}", "", ""
    return f"kept by stage {band.stage} beside its values", band.op, ""


# -------------------------------------------------------------------------------------- tables


def _values(plan: Plan) -> list[dict[str, Any]]:
    """Rows of the table of values; small ones are one row at the end."""
    rows = merge_rows(plan.values)
    least = SMALL * sum(row.nbytes for row in rows)
    large = [row for row in rows if row.nbytes >= least]
    small = rows[len(large) :]
    cells = [
        {
            "decision": row.example.decision,
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
        blank = dict.fromkeys(("decision", "operator", "shape", "dtype", "path", "source"), "")
        sums = {"count": sum(r.count for r in small), "nbytes": sum(r.nbytes for r in small)}
        cells.append({**blank, **sums, "each": None, "primitive": "smaller values"})
    return cells
