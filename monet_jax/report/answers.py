"""How do the answers of `diff`, `fit` and `sweep` read as text?"""

import dataclasses
from typing import Any

from .._budget import format_bytes
from .._diff import SHOWN, PlanDiff
from .._fit import Fit, FitSize
from .._sweep import Sweep
from .text import plain_table, render, totals, values_table


def describe_diff(found: PlanDiff) -> str:
    """What differs between two plans, as text."""
    if not found:
        return "The plans say the same."
    parts = [f"Another program: {x.after}." for x in found.changes if x.what == "program"]
    table = plain_table("", "Before", "After", right=("Before", "After"))
    for change in found.changes:
        if change.what != "program":
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


def describe_fit(found: Fit) -> str:
    """The largest sizes that fit a budget, as text."""
    budget = format_bytes(found.budget_bytes)
    if found.reserved_bytes:
        budget += f" (of which {format_bytes(found.reserved_bytes)} reserved)"
    plain = found.plain.size if found.plain else 0
    times = f", {found.size / plain:.1f}x as many" if plain else ""
    head = (
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
    return "\n".join([head, "", render(table), *limit])


def _size_and_bytes(size: FitSize | None, otherwise: str) -> tuple[str, str]:
    return (str(size.size), format_bytes(size.total_bytes)) if size else (otherwise, "")


def describe_sweep(found: Sweep) -> str:
    """The programs of a sweep as a table."""
    columns = ("Program", "Budget", "Compiled", "Temps", "FLOPs", "Roofline")
    title = f"On {found.target} ({found.compiler})"
    table = plain_table(*columns, right=columns[1:], title=title)
    plain = next(iter(found.of_kind("plain")), None)
    for p in found.points:
        budget = "" if p.budget_bytes is None else format_bytes(p.budget_bytes)
        if p.error or plain is None:
            table.add_row(p.program, budget, f"failed: {p.error}"[:100])
            continue
        sizes = (format_bytes(x or 0) for x in (p.total_bytes, p.temp_bytes))
        ratios = (_ratio(p.flops, plain.flops), _ratio(p.seconds, plain.seconds))
        table.add_row(p.program, budget, *sizes, *ratios)
    return render(table)


def _ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.3f}x" if a is not None and b else ""


def _shown(what: str, value: Any) -> str:
    """A figure of a plan as people see it."""
    if value is None:
        return "unknown"
    show = SHOWN[what] or str
    both = show is format_bytes and value >= 1024  # else two sizes may look the same
    return f"{show(value)} ({value:,} B)" if both else show(value)
