"""The differences of two plans: their options, their costs, and the decision on each value.

The time to plan is not compared. Values are matched by name where both plans are of one program,
cut alike; else by module, primitive, shape and order, as far as these match.
"""

import collections
import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any

from .._plan import Plan
from ..compiler.budget import format_bytes
from ..ir.fingerprint import difference, is_same_program
from ..plans.record import ValueRow

#: What is said of the programs of two plans, rather than of figures.
OTHER = ("program", "cut")
#: What a value that only the other plan has was decided to be.
ABSENT = "absent"


@dataclasses.dataclass(frozen=True)
class Change:
    """A figure or a name that differs.

    Attributes:
        what: the plan's attribute; "program" and "cut" stand for the halves of its fingerprint.
        before, after: in the first and in the second plan.
    """

    what: str
    before: Any
    after: Any


@dataclasses.dataclass(frozen=True)
class ValueChange:
    """A value with another decision.

    Attributes:
        value: its row in the second plan, or in the first one where that alone has it.
        before, after: its decision, or "absent".
    """

    value: ValueRow
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class PlanDiff:
    """What differs between two plans; false where nothing does.

    Attributes:
        changes: figures and names.
        values: values, largest first.
    """

    changes: tuple[Change, ...]
    values: tuple[ValueChange, ...]

    def __bool__(self) -> bool:
        return bool(self.changes or self.values)

    def to_json(self) -> str:
        """The differences as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def __str__(self) -> str:
        return _described(self)


def diff(a: Plan, b: Plan) -> PlanDiff:
    """What differs between two plans.

    Arguments:
        a, b: plans, of one program or of two.

    Returns:
        The differences, from `a` to `b`; false where there are none.
    """
    changes = [
        Change(name, old, new)
        for name in SHOWN
        if (old := getattr(a, name)) != (new := getattr(b, name))
    ]
    if a.fingerprint != b.fingerprint:
        changes.insert(0, _other_program(a, b))
    return PlanDiff(tuple(changes), tuple(_values(a, b)))


def _other_program(a: Plan, b: Plan) -> Change:
    """What sets the second plan's program apart from the first one's."""
    if is_same_program(a.fingerprint, b.fingerprint):
        return Change("cut", None, "the same program has other stages, or other nested scans")
    summaries = (b.inputs, b.equations), (a.inputs, a.equations)
    return Change("program", None, difference(*summaries, "the first plan's"))


#: Attributes that are compared, and how people see them; None leaves them as they are.
SHOWN: dict[str, Callable[[Any], str] | None] = {
    "target": None,
    "devices": None,
    "compiler": None,
    "jax_version": None,
    "budget_bytes": format_bytes,
    "reserved_bytes": format_bytes,
    "compiled_bytes": format_bytes,
    "unplanned_bytes": format_bytes,
    "fixed_bytes": format_bytes,
    "predicted_bytes": format_bytes,
    "overhead": "{:.2%}".format,
    "gap": "{:.2%}".format,
    "flops": "{:,}".format,
    "seconds": "{:.3g} s".format,
    "base_seconds": "{:.3g} s".format,
}


def _values(a: Plan, b: Plan) -> Iterable[ValueChange]:
    same = a.fingerprint == b.fingerprint
    before, after = (_keyed(plan.values, same) for plan in (a, b))
    for key in {**after, **before}:
        old, new = before.get(key), after.get(key)
        was, becomes = (row.decision if row else ABSENT for row in (old, new))
        row = new or old
        if row is not None and was != becomes:
            yield ValueChange(row, was, becomes)


def _keyed(rows: Iterable[ValueRow], by_name: bool) -> dict[Any, ValueRow]:
    """Rows by what they are called in both plans."""
    if by_name:
        return {row.name: row for row in rows}
    seen: collections.Counter[Any] = collections.Counter()
    found = {}
    for row in sorted(rows, key=lambda row: row.stage):
        like = row.path, row.primitive, row.shape, row.dtype
        found[like, seen[like]] = row
        seen[like] += 1
    return found


def _described(found: PlanDiff) -> str:
    """What differs between two plans, as text."""
    # rich is imported only where a text is wanted
    from ..report.tables import plain_table, render
    from ..report.text import totals, values_table

    if not found:
        return "The plans say the same."
    parts = [f"Another {x.what}: {x.after}." for x in found.changes if x.what in OTHER]
    table = plain_table("", "Before", "After", right=("Before", "After"))
    for change in found.changes:
        if change.what not in OTHER:
            shown = (_shown(change.what, x) for x in (change.before, change.after))
            table.add_row(change.what.removesuffix("_bytes").replace("_", " "), *shown)
    if table.row_count:
        parts.append(render(table))
    if found.values:
        moved = [
            dataclasses.replace(x.value, decision=f"{x.before} -> {x.after}") for x in found.values
        ]
        parts += ["", values_table(moved), *totals(moved)]
    return "\n".join(parts).strip("\n")


def _shown(what: str, value: Any) -> str:
    """A figure of a plan as people see it."""
    if value is None:
        return "unknown"
    show = SHOWN[what] or str
    both = show is format_bytes and value >= 1024  # else two sizes may look the same
    return f"{show(value)} ({value:,} B)" if both else show(value)
