"""The differences of two plans: their options, their costs, and the decision on each value.

Plans of steps differ in the figures of the step, and in the plans of its marks, which are matched
by their programs, else by the names of their functions.

The time to plan is not compared. Values are matched by name where both plans are of one program,
cut alike; else by module, primitive, shape and order, as far as these match.
"""

import collections
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .._plan import Plan
from ..compiler.budget import format_bytes
from ..ir.fingerprint import difference, is_same_program
from ..plans.record import PlanRecord, ValueRow
from ..step.step_plan import StepPlan

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
        marks: of two steps, the name of a mark and what differs in its plan.
    """

    changes: tuple[Change, ...]
    values: tuple[ValueChange, ...] = ()
    marks: tuple[tuple[str, "PlanDiff"], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes or self.values or self.marks)

    def to_json(self) -> str:
        """The differences as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def __str__(self) -> str:
        return _described(self)


def diff(a: Plan | StepPlan, b: Plan | StepPlan) -> PlanDiff:
    """What differs between two plans.

    Arguments:
        a, b: plans, of one program or of two; or both of steps.

    Returns:
        The differences, from `a` to `b`; false where there are none.

    Raises:
        TypeError: one is the plan of a step, and the other one is not.
    """
    if isinstance(a, StepPlan) and isinstance(b, StepPlan):
        return _of_steps(a, b)
    if isinstance(a, StepPlan) or isinstance(b, StepPlan):
        raise TypeError(
            "One of the two plans is that of a whole step, the other one that of a function: "
            "compare a step's plan with a step's."
        )
    return _of_functions(a, b, SHOWN)


def _of_functions(a: PlanRecord, b: PlanRecord, compared: Iterable[str]) -> PlanDiff:
    """What differs between two plans of functions, some of their figures compared."""
    changes = _figures(a, b, compared)
    if a.fingerprint != b.fingerprint:
        changes.insert(0, _other_program(a, b))
    return PlanDiff(tuple(changes), tuple(_values(a, b)))


def _of_steps(a: StepPlan, b: StepPlan) -> PlanDiff:
    """What differs between two plans of steps."""
    changes = _figures(a, b, OF_STEPS)
    if a.fingerprint != b.fingerprint:
        changes.insert(0, Change("program", None, "the step, or its arguments"))
    marks = []
    for key, other in _same_marks(a, b):
        name = b.marks[other] if other else a.marks[key]
        old, new = a.plans.get(key), b.plans.get(other)
        if old is not None and new is not None:
            marks.append((name, _of_functions(old, new, OF_MARKS)))
        elif old or new:
            is_planned = ((bool(x) and "planned") or "as it is" for x in (old, new))
            marks.append((name, PlanDiff((Change("decision", *is_planned),))))
    return PlanDiff(tuple(changes), (), tuple((name, x) for name, x in marks if x))


def _same_marks(a: StepPlan, b: StepPlan) -> Iterator[tuple[str, str]]:
    """Marks of two steps that are the same, by their hashes; "" where one has none."""
    left = dict(b.marks)
    pairs = {key: key for key in a.marks if left.pop(key, None) is not None}
    for key, name in a.marks.items():
        if key not in pairs:
            pairs[key] = next((k for k, other in left.items() if other == name), "")
            left.pop(pairs[key], None)
    yield from pairs.items()
    yield from (("", key) for key in left)


def _figures(a: Any, b: Any, compared: Iterable[str]) -> list[Change]:
    """Attributes of two plans that differ."""
    both = ((name, getattr(a, name), getattr(b, name)) for name in compared)
    return [Change(name, old, new) for name, old, new in both if old != new]


def _other_program(a: PlanRecord, b: PlanRecord) -> Change:
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
#: Those of steps, and those of a step's mark: its bytes are those of the step.
OF_STEPS = (
    *("target", "devices", "compiler", "jax_version"),
    *("budget_bytes", "compiled_bytes", "unplanned_bytes", "overhead"),
)
OF_MARKS = ("overhead", "gap", "flops", "seconds", "base_seconds")


def _values(a: PlanRecord, b: PlanRecord) -> Iterable[ValueChange]:
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
    from ..report.values import totals, values_table

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
    for name, own in found.marks:
        parts += ["", f"`{name}` in this step:", _described(own)]
    return "\n".join(parts).strip("\n")


def _shown(what: str, value: Any) -> str:
    """A figure of a plan as people see it."""
    if value is None:
        return "unknown"
    show = SHOWN.get(what) or str
    both = show is format_bytes and value >= 1024  # else two sizes may look the same
    return f"{show(value)} ({value:,} B)" if both else show(value)
