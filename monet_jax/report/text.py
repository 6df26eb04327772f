"""The report of a plan as text: its decisions and their costs.

The first line is the verdict. Then come the values by bytes, with equal rows of repeated layers
merged, the totals of each decision, and the stages.
"""

from collections.abc import Sequence

from ..compiler.budget import format_bytes
from ..plans.record import PlanRecord, StageRow
from .figures import format_overhead
from .notes import notes, used_share
from .tables import plain_table, render
from .values import counted, totals, values_table


def report(plan: PlanRecord) -> str:
    """The plan as text: verdict, values by bytes, totals, stages."""
    parts = [verdict(plan), *notes(plan)]
    if plan.values:
        parts += ["", values_table(plan.values, plan.base_seconds), *totals(plan.values)]
    if plan.decisions is not None and plan.stages:
        parts += ["", _stages_table(plan.stages)]
    if plan.compiled:
        parts += ["", _compiled_table(plan)]
    if plan.baselines:
        parts += ["", _baselines_table(plan)]
    return "\n".join(parts)


def verdict(plan: PlanRecord) -> str:
    """The line that says whether the budget is kept, and at what overhead."""
    return " ".join(
        (
            f"{outcome(plan)}: {_compiled(plan)}, {format_bytes(plan.predicted_bytes)} predicted, "
            f"{_or_unknown(plan.unplanned_bytes)} unplanned.",
            _overhead(plan),
            *_error(plan),
            f"{'From the cache; planned' if plan.is_cached else 'Planned'} in "
            f"{plan.planning_seconds:.1f} s, {counted(plan.compilations, 'compilation')}, for "
            f"{_device(plan)} ({plan.compiler}).",
        )
    )


def outcome(plan: PlanRecord) -> str:
    """Whether the budget is kept, in a few words."""
    budget = format_bytes(plan.budget_bytes)
    if plan.reserved_bytes:
        budget += f" (of which {format_bytes(plan.reserved_bytes)} reserved)"
    if plan.decisions is None:
        return f"Fits as it is in {budget}, nothing is recomputed"
    if plan.compiled_bytes is None:
        return f"Planned for {budget}, not verified"
    kept = plan.compiled_bytes + plan.reserved_bytes <= plan.budget_bytes
    return f"{'Keeps' if kept else 'BREAKS'} its budget of {budget}"


def _error(plan: PlanRecord) -> list[str]:
    """The gradient error of lossy codes, where it was measured."""
    if plan.error is None or plan.error_limit is None:
        return []
    return [f"Gradient error {plan.error:.2%} on the sample (limit {plan.error_limit:.2%})."]


def _device(plan: PlanRecord) -> str:
    return plan.target if plan.devices == 1 else f"each of {plan.devices} {plan.target}"


def merge_stages(stages: Sequence[StageRow]) -> list[tuple[str, StageRow, str]]:
    """The stages in order; equal neighbours with equal decisions share a row.

    Returns:
        Which stages they are, the first of them, and " each" where they are several.
    """
    found, start = [], 0
    while start < len(stages):
        end = start + 1
        while end < len(stages) and _are_alike(stages[start], stages[end]):
            end += 1
        several = end > start + 1
        span = f"{start}-{end - 1}" if several else f"{start}"
        found.append((span, stages[start], " each" if several else ""))
        start = end
    return found


def _compiled(plan: PlanRecord) -> str:
    if plan.compiled_bytes is None:
        return "not compiled"
    return f"{format_bytes(plan.compiled_bytes)} compiled ({used_share(plan):.1%} of the budget)"


def _or_unknown(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_bytes(nbytes)


def _overhead(plan: PlanRecord) -> str:
    proven = "proven best"
    if plan.gap >= 5e-5:
        proven = f"proven: no plan of its space saves more than {plan.gap:.2%} of the step"
    return f"Overhead {format_overhead(plan.overhead)} ({proven})."


def _stages_table(stages: Sequence[StageRow]) -> str:
    moves = any(row.host_bytes for row in stages)
    further = ("On the host",) if moves else ()
    columns = ("Saved", *further)
    table = plain_table("Stages", "Decision", *columns, "First module", right=columns)
    for span, row, each in merge_stages(stages):
        sizes = (row.saved_bytes, row.host_bytes) if moves else (row.saved_bytes,)
        cells = (format_bytes(size) + each for size in sizes)
        table.add_row(span, row.decision, *cells, row.title)
    return render(table)


def _compiled_table(plan: PlanRecord) -> str:
    is_timed = any(row.step_seconds is not None for row in plan.compiled)
    numbers = ("Compiled", "Predicted", "Overhead", "Seconds", *["Step"] * is_timed)
    table = plain_table(*numbers, "Program", right=numbers)
    for row in plan.compiled:
        overhead = format_overhead(plan.overhead_of(row.seconds))
        taken = "failed" if row.compiled_bytes is None else format_bytes(row.compiled_bytes)
        seconds = "" if row.compile_seconds is None else f"{row.compile_seconds:.1f}"
        step = "" if row.step_seconds is None else f"{1000 * row.step_seconds:,.1f} ms"
        cells = taken, format_bytes(row.predicted_bytes), overhead, seconds
        table.add_row(*cells, *[step] * is_timed, row.program)
    return render(table)


def baseline_cells(plan: PlanRecord) -> list[tuple[str, str, str, str]]:
    """For each program that the plan was compared with: its name, bytes, FLOPs and seconds.

    FLOPs and seconds are ratios to those of the function as it is.
    """
    own = plan.baselines[0]
    return [
        (row.program, f"failed: {row.error}"[:100], "", "")
        if row.error
        else (
            row.program,
            _or_unknown(row.compiled_bytes),
            _times(row.flops, own.flops),
            _times(row.seconds, own.seconds),
        )
        for row in plan.baselines
    ]


def _times(a: float | None, b: float | None) -> str:
    return f"{a / b:.3f}x" if a is not None and b else ""


def _baselines_table(plan: PlanRecord) -> str:
    numbers = ("Compiled", "FLOPs", "Seconds")
    table = plain_table("Compared with", *numbers, right=numbers)
    for cells in baseline_cells(plan):
        table.add_row(*cells)
    return render(table)


def _are_alike(a: StageRow, b: StageRow) -> bool:
    figures = ((x.key, x.decision, x.saved_bytes, x.host_bytes) for x in (a, b))
    return next(figures) == next(figures)
