"""What is in memory during a step, by the planner's model: nothing is planned, compiled or run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import planners

from .analyzer.pins import Pins
from .compiler.budget import format_bytes
from .compiler.targets import resolve_target
from .planning.judge import TracedJudge
from .planning.mistakes import least_bytes, refuse
from .planning.options import PlanOptions
from .plans.record import StageRow, ValueRow
from .plans.tables import stage_rows, value_rows
from .plans.timeline import timeline_of
from .report.charts import TITLES
from .report.peak import kinds_at_peak, modules_at_peak
from .report.tables import plain_table, render
from .report.values import values_table
from .step.questions import refuse_step
from .tracing.marked import name_of


@dataclasses.dataclass(frozen=True)
class _Tables:
    """The tables of a function that is not planned."""

    values: tuple[ValueRow, ...]
    stages: tuple[StageRow, ...]


def explain(
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> None:
    """Print what a function's value and gradient keep in memory, value by value, without planning.

    It is the first table of a report, for the function as it is: a trace and some seconds. Figures
    are those of the planner's model; `compiled_bytes` has the compiler's.

        monet_jax.debug.explain(loss, params, batch)

    Arguments:
        fun: the function, as for `plan`; of a step, the loss in it.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
        kwargs, target, argnums, static_argnums, static_argnames: as in `plan`.

    Raises:
        TypeError, ValueError: the function has no gradient, or an argument is not what it must be.
    """
    refuse_step(fun, "explain")
    options = PlanOptions(
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators="none",
    )
    traced = options.traced(fun, args, kwargs)
    refuse(traced, name_of(fun))
    judge = TracedJudge(traced, resolve_target(target), Pins())
    print(_described(name_of(fun), judge, least_bytes(traced)))


def _described(name: str, judge: TracedJudge, fixed_bytes: int) -> str:
    graph = judge.graph
    tables = _Tables(value_rows(judge.staged, graph, None), stage_rows(graph, None))
    timeline = timeline_of(graph, lambda value: "", planners.save_all(graph).regions)
    if timeline is None:
        return f"`{name}` runs no op: its value and gradient take {format_bytes(fixed_bytes)}."
    modules = modules_at_peak(tables, timeline)
    kinds = kinds_at_peak(modules)
    table = plain_table("Module", *(TITLES[kind].capitalize() for kind in kinds), "Sum")
    for row in modules:
        sizes = (format_bytes(row.by_kind[k]) if k in row.by_kind else "" for k in kinds)
        table.add_row(row.module, *sizes, format_bytes(row.nbytes))
    peak = format_bytes(int(timeline.live_bytes.max()))
    return "\n".join(
        (
            f"`{name}` as it is, on {judge.target.name}, by the model: {peak} at the peak, beside "
            f"{format_bytes(fixed_bytes)} of arguments and results.",
            "",
            render(table),
            "",
            values_table(tables.values, graph.seconds),
        )
    )
