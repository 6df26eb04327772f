"""The values of a plan: their decisions in words, equal ones merged, and what each costs."""

import collections
import dataclasses
import os
import re
from collections.abc import Iterable, Sequence

from ..compiler.budget import format_bytes
from ..plans.record import ValueRow
from .tables import plain_table, render

#: Values below this share of all values' bytes are summed in one row.
SMALL = 0.001
#: Decisions in words. Values of a stage without a checkpoint are saved with the whole stage.
DECISIONS = {
    "saved": "saved by name",
    "kept": "saved, whole stage",
    "passed": "saved, as an input",
    "host": "on the host",
    "unread": "not needed",
}
#: Names of merged values that are listed; each can be pinned.
_NAMES = 3


@dataclasses.dataclass(frozen=True)
class MergedRow:
    """Values that differ only in where they repeat.

    Attributes:
      count: how many they are.
      nbytes: of all of them together.
      example: one of them.
      names: of all of them, as pins name them.
      path: the module path; a number that differs between them is `*`.
      recompute_seconds: of all of them; None where one has none.
    """

    count: int
    nbytes: int
    example: ValueRow
    names: tuple[str, ...]
    path: str
    recompute_seconds: float | None = None

    @property
    def label(self) -> str:
        """Some of their names."""
        more = " ..." if len(self.names) > _NAMES else ""
        return f"{' '.join(self.names[:_NAMES])}{more}"


def merge_rows(values: Iterable[ValueRow]) -> tuple[MergedRow, ...]:
    """Rows by bytes; rows that differ only in the number of their layer are merged."""
    groups: dict[tuple, list[ValueRow]] = collections.defaultdict(list)
    for row in values:
        layer = re.sub(r"\d+", "*", row.path)
        same = (row.decision, row.operator, row.shape, row.dtype, row.primitive, row.source)
        groups[(*same, layer)].append(row)
    merged = [
        MergedRow(
            len(rows),
            sum(r.nbytes for r in rows),
            rows[0],
            tuple(r.name for r in rows),
            common_path([row.path for row in rows]),
            _sum_or_none([row.recompute_seconds for row in rows]),
        )
        for rows in groups.values()
    ]
    return tuple(sorted(merged, key=lambda row: -row.nbytes))


def _sum_or_none(seconds: Sequence[float | None]) -> float | None:
    known = [x for x in seconds if x is not None]
    return sum(known) if len(known) == len(seconds) else None


def recompute_share(row: MergedRow, base_seconds: float) -> str:
    """What computing values again takes, or would take, as a share of the step; "" if unknown."""
    if row.recompute_seconds is None or not base_seconds:
        return ""
    return f"{max(0.0, row.recompute_seconds) / base_seconds:.2%}"


def reason(row: MergedRow, base_seconds: float) -> str:
    """Why the values have their decision, in words: what they hold, and what they cost."""
    decision, share = row.example.decision, recompute_share(row, base_seconds)
    if decision == "passed":
        return "a later stage needs it as its input"
    if decision == "unread":
        return "the backward pass does not read it"
    if decision == "host":
        return "waits in the host's memory"
    if not share:
        return "has to be computed once" if decision in ("saved", "kept") else ""
    if decision == "recomputed":
        if not float(share[:-1]):
            return "runs again for what follows from it: to store it makes nothing faster"
        return f"to store it takes {format_bytes(row.nbytes)}, and the step {share} less"
    return f"holds {format_bytes(row.nbytes)}; computing it again takes {share} of the step"


def values_table(values: Sequence[ValueRow], base_seconds: float = 0.0) -> str:
    """Values by bytes, equal ones merged.

    Arguments:
        values: of a plan.
        base_seconds: of the step where nothing is recomputed; where it is 0, no column has shares.
    """
    columns = "Decision Operator Count Each Bytes Shape Dtype Primitive Module Source Name".split()
    columns = (*columns[:1], *["Again"] * bool(base_seconds), *columns[1:])
    table = plain_table(*columns, right=("Again", "Count", "Each", "Bytes"))
    rows = merge_rows(values)
    total = sum(row.nbytes for row in rows)
    large = [row for row in rows if row.nbytes >= SMALL * total]
    for row in large:
        decision, *cells = _cells(row)
        again = [recompute_share(row, base_seconds)] * bool(base_seconds)
        table.add_row(decision, *again, *cells)
    small = rows[len(large) :]
    if small:
        count = sum(row.count for row in small)
        empty = [""] * (1 + bool(base_seconds))
        table.add_row("", *empty, f"{count}x", "", _sum_of(small), "smaller values")
    return render(table)


def _cells(row: MergedRow) -> tuple[str, ...]:
    value = row.example
    return (
        DECISIONS.get(value.decision, value.decision),
        value.operator,
        f"{row.count}x" if row.count > 1 else "",
        format_bytes(value.nbytes) if row.count > 1 else "",
        format_bytes(row.nbytes),
        "x".join(map(str, value.shape)) or "scalar",
        value.dtype,
        value.primitive,
        row.path,
        shorten_source(value.source),
        row.label,
    )


def _sum_of(rows: Iterable[MergedRow]) -> str:
    return format_bytes(sum(row.nbytes for row in rows))


def common_path(paths: Iterable[str]) -> str:
    """One path for some that differ in numbers only, with `*` for the numbers that differ."""
    split = [re.split(r"(\d+)", path) for path in paths]
    return "".join(p[0] if len(set(p)) == 1 else "*" for p in zip(*split, strict=True))


def shorten_source(source: str) -> str:
    """`file:line`, relative where the file lies below the current directory or in a package."""
    _, installed, inside = source.rpartition(f"site-packages{os.sep}")
    here = os.getcwd() + os.sep
    return inside if installed else source.removeprefix(here)


def totals(values: Sequence[ValueRow]) -> list[str]:
    """A line for each decision."""
    totals: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for row in values:
        totals[row.decision][0] += 1
        totals[row.decision][1] += row.nbytes
    return [
        f"{DECISIONS.get(decision, decision)}: {format_bytes(nbytes)} in {counted(count, 'value')}"
        for decision, (count, nbytes) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]


def counted(count: int, noun: str) -> str:
    """A number of things in words: "1 plan", "1,200 plans"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
