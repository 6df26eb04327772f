"""The figures of a page: the key figures on top, the bars, and the peaks of the charts."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..compiler.budget import format_bytes
from ..plans.record import PlanRecord
from ..plans.timeline import Timeline
from .charts import FIXED, LAYERS

#: A budget above so many times all else would leave a chart empty; then it is not drawn.
FAR_ABOVE = 1.6
#: Thousands of floating-point operations, and what they are called.
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def format_flops(flops: float) -> str:
    """FLOPs for people: "1.2 GFLOP"."""
    unit = 0
    while flops >= 999.95 and unit < len(_FLOPS) - 1:
        flops, unit = flops / 1000, unit + 1
    return f"{flops:.1f} {_FLOPS[unit]}" if unit else f"{flops:,.0f} FLOP"


def format_seconds(seconds: float) -> str:
    """Seconds for people: "1.2 ms"."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    unit, name = next((x for x in units if seconds >= x[0]), units[-1])
    return f"{seconds / unit:,.2f} {name}"


def format_overhead(share: float) -> str:
    """Seconds beyond those of the step as it is, for people: "1.20%"; negative if it is faster."""
    return f"{round(share, 4) + 0.0:.2%}"


def figures(plan: PlanRecord) -> Iterator[tuple[str, str, str]]:
    """The key figures: a name, the number, and a number to compare it with."""
    taken = plan.compiled_bytes
    yield (
        "compiled",
        "not compiled" if taken is None else format_bytes(taken),
        f"of a budget of {format_bytes(plan.budget_bytes)}",
    )
    if plan.unplanned_bytes:
        saved = 1 - (plan.predicted_bytes if taken is None else taken) / plan.unplanned_bytes
        yield "reduced by", f"{saved:.1%}", f"of {format_bytes(plan.unplanned_bytes)} as written"
    proven = (
        f"at most {plan.gap:.2%} of the step above the best" if plan.gap >= 5e-5 else "the best"
    )
    yield "overhead", format_overhead(plan.overhead), f"proven: {proven}"
    if plan.error is not None and plan.error_limit is not None:
        yield "gradient error", f"{plan.error:.2%}", f"of at most {plan.error_limit:.2%}"
    compilations = f"{plan.compilations} plan{'' if plan.compilations == 1 else 's'} compiled"
    compilations += ", from the cache" if plan.is_cached else ""
    yield "planned in", f"{plan.planning_seconds:.1f} s", compilations


@dataclasses.dataclass(frozen=True)
class Bar:
    """The compiled bytes of a program, and its work.

    Attributes:
        title: which program.
        nbytes, temp_bytes: all of it, and without arguments and results; None where not known.
        fixed, rest: shares of the widest bar that arguments and results take, and all else.
        flops, seconds: of a step.
        ratio: of its seconds to those of the step as written.
    """

    title: str
    nbytes: int | None
    temp_bytes: int | None
    fixed: float
    rest: float
    flops: int
    seconds: float
    ratio: str


def bars(plan: PlanRecord) -> dict[str, Any]:
    """Compiled bytes as written and as planned, and the budget as a share of the widest bar."""
    rows = [("as written", plan.unplanned_bytes, plan.base_flops, plan.base_seconds)]
    if plan.decisions:
        rows.append(("as planned", plan.compiled_bytes, plan.flops, plan.seconds))
    limit = plan.budget_bytes - plan.reserved_bytes
    widest = max((nbytes for _, nbytes, *_ in rows if nbytes), default=1)
    near = limit <= FAR_ABOVE * widest
    widest = max(widest, limit) if near else widest
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
            f"{seconds / plan.base_seconds:.3f}x" if plan.base_seconds else "",
        )
        for title, nbytes, flops, seconds in rows
    ]
    return {"rows": made, "budget": limit / widest if near else None, "limit": limit}


def peaks(plan: PlanRecord) -> list[tuple[str, int | None, int | None]]:
    """Bytes in memory at the peak of each timeline: kind, bytes before, bytes after."""
    fixed = fixed_bytes(plan)

    def at_peak(timeline: Timeline | None, kind: str) -> int | None:
        if timeline is None:
            return None
        return fixed if kind == FIXED else int(timeline.bytes_of(kind)[timeline.peak])

    rows = [(kind, at_peak(plan.before, kind), at_peak(plan.after, kind)) for kind in LAYERS]
    return [row for row in rows if row[1] or row[2]]


def fixed_bytes(plan: PlanRecord) -> int:
    """Bytes of arguments and results under a timeline; 0 where values are on several devices."""
    return (plan.fixed_bytes or 0) if plan.devices == 1 else 0
