"""What other budgets buy: the plans that were compiled on the way, and what the model said of them.

Across are bytes, upwards modelled time beyond recomputing nothing. A compiled plan is a fact; the
same plan as it was predicted is drawn apart.
"""

import dataclasses
import math

from ..compiler.budget import format_bytes
from ..plans.record import PlanRecord
from .charts import byte_ticks
from .figures import format_overhead

#: Steps between overheads on the axis.
_ROUND = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclasses.dataclass(frozen=True)
class Point:
    """A program in the picture.

    Attributes:
        kind: "plain", "compiled" (a plan), "chosen", or "modelled" (as a plan was predicted).
        across, up: its place, as shares.
        label: what it is, with its figures.
    """

    kind: str
    across: float
    up: float
    label: str


@dataclasses.dataclass(frozen=True)
class Trade:
    """The picture.

    Attributes:
        points: in order of bytes.
        ticks: places across, each with its label.
        overheads: heights, each with its label.
        budget: the budget's place across; None where it is outside.
        sentence: what the next larger budget buys.
    """

    points: tuple[Point, ...]
    ticks: tuple[tuple[float, str], ...]
    overheads: tuple[tuple[float, str], ...]
    budget: float | None
    sentence: str


def trade_of(plan: PlanRecord) -> Trade | None:
    """The picture of a plan; None where nothing but the plan was compiled."""
    rows = [row for row in plan.compiled if row.compiled_bytes]
    if len(rows) < 2 or not plan.base_seconds:
        return None
    sizes = [x for row in rows for x in (row.compiled_bytes or 0, row.predicted_bytes)]
    low, high = 0.94 * min(sizes), 1.03 * max(sizes)
    overheads = [plan.overhead_of(row.seconds) for row in rows]
    bottom, top = 1.15 * min(*overheads, 0.0), 1.15 * max(*overheads, 0.01)

    def height(overhead: float) -> float:
        return (overhead - bottom) / (top - bottom)

    def point(kind: str, nbytes: int, overhead: float, what: str) -> Point:
        label = f"{what}: {format_bytes(nbytes)}, overhead {format_overhead(overhead)}"
        return Point(kind, (nbytes - low) / (high - low), height(overhead), label)

    points = []
    for n, (row, overhead) in enumerate(zip(rows, overheads, strict=True)):
        taken = row.compiled_bytes or 0
        kind = "plain" if n == 0 else "chosen" if taken == plan.compiled_bytes else "compiled"
        points.append(point(kind, taken, overhead, f"{row.program}, as compiled"))
        if n:
            what = f"{row.program}, as modelled"
            points.append(point("modelled", row.predicted_bytes, overhead, what))
    limit = plan.budget_bytes - plan.reserved_bytes
    return Trade(
        tuple(sorted(points, key=lambda p: p.across)),
        tuple(((x - low) / (high - low), text) for x, text in byte_ticks(low, high)),
        tuple((height(share), f"{share:.1%}") for share in _steps(bottom, top)),
        (limit - low) / (high - low) if low <= limit <= high else None,
        _sentence(plan),
    )


def _steps(bottom: float, top: float) -> list[float]:
    """Round overheads from a bottom to a top: three to six of them."""
    step = next((x for x in _ROUND if top - bottom < 6 * x), 1.0)
    return [n * step for n in range(math.ceil(bottom / step), int(top / step) + 1)]


def _sentence(plan: PlanRecord) -> str:
    """The cheapest plan above the budget that is faster, in words."""
    larger = [
        row
        for row in plan.compiled
        if row.compiled_bytes
        and row.compiled_bytes > plan.budget_bytes - plan.reserved_bytes
        and row.seconds < plan.seconds
    ]
    if not larger:
        return "No plan above the budget was compiled that is faster."
    row = min(larger, key=lambda row: row.compiled_bytes or 0)
    overhead = format_overhead(plan.overhead_of(row.seconds))
    return (
        f"With {format_bytes((row.compiled_bytes or 0) + plan.reserved_bytes)}, {row.program} has "
        f"an overhead of {overhead} in the place of {format_overhead(plan.overhead)}."
    )
