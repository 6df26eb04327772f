"""The largest size that fits a budget, as data, as JSON and as a table."""

import dataclasses
import json
from typing import Any

from .._plan import Plan
from ..compiler.budget import format_bytes
from ..step.step_plan import StepPlan


@dataclasses.dataclass(frozen=True)
class FitSize:
    """A size of the arguments, and the bytes of the step with it.

    Attributes:
        size: of the axis.
        total_bytes: as compiled; for a planned step that does not fit, the least that was found.
    """

    size: int
    total_bytes: int


@dataclasses.dataclass(frozen=True)
class Fit:
    """The largest size that fits a budget.

    Attributes:
        axis: what was varied.
        planned: the largest size with which the planned step fits.
        planned_next: the next size, with which no plan was found that fits; None where the limit
            fits.
        plain: the largest size with which the step fits as it is written; None where not even the
            smallest does.
        plain_next: the next size, with which it does not; None where the limit fits.
        plan: for `planned`.
        budget_bytes: the budget, `reserved_bytes` included.
        reserved_bytes: the part of it for other things.
        target: what was compiled for.
        limit: sizes up to this one were considered.
    """

    axis: str
    planned: FitSize
    planned_next: FitSize | None
    plain: FitSize | None
    plain_next: FitSize | None
    plan: Plan | StepPlan
    budget_bytes: int
    reserved_bytes: int
    target: str
    limit: int

    @property
    def size(self) -> int:
        """The largest size with which the planned step fits."""
        return self.planned.size

    def to_json(self) -> str:
        """The answer as JSON text, with its plan."""
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data = {
            name: dataclasses.asdict(value) if isinstance(value, FitSize) else value
            for name, value in fields.items()
        }
        return json.dumps({**data, "plan": json.loads(self.plan.to_json())}, indent=1)

    def __str__(self) -> str:
        return _described(self)


def _described(found: Fit) -> str:
    """The largest sizes that fit a budget, as text."""
    from ..report.tables import plain_table, render  # rich is imported only where a text is wanted

    budget = format_bytes(found.budget_bytes)
    if found.reserved_bytes:
        budget += f" (of which {format_bytes(found.reserved_bytes)} reserved)"
    plain = found.plain.size if found.plain else 0
    times = f", {found.size / plain:.1f}x as many" if plain else ""
    verdict = (
        f"In {budget} on {found.target}: {found.axis} {found.size} planned{times} as written "
        f"({plain or 'none fits'}). Overhead {found.plan.overhead:.2%}."
    )
    columns = ("Step", found.axis, "Compiled", "Next", "Takes")
    table = plain_table(*columns, right=columns[1:])
    for title, fits, above in (
        ("as written", found.plain, found.plain_next),
        ("planned", found.planned, found.planned_next),
    ):
        table.add_row(title, *_size_and_bytes(fits, "none"), *_size_and_bytes(above, "not tried"))
    limit = [] if found.planned_next else [f"Sizes above {found.limit} were not tried."]
    return "\n".join([verdict, "", render(table), *limit])


def _size_and_bytes(size: FitSize | None, otherwise: str) -> tuple[str, str]:
    return (str(size.size), format_bytes(size.total_bytes)) if size else (otherwise, "")
