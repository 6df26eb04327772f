"""A planner's answer, checked by replay."""

import dataclasses
import time
from collections.abc import Callable

from planners import Graph, InfeasibleBudget, InvalidPlan, Schedule, SolverStopped, cost_of
from planners.published.instances import Cell

from .rows import Row

Planner = Callable[[Graph, int], Schedule]

#: Objective, peak and bound of a schedule may differ by this share from what replay finds.
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Answer:
    """A planner's answer; the fields are named as in `Row`."""

    status: str
    planning_seconds: float
    message: str = ""
    objective: float | None = None
    peak_bytes: int | None = None
    bound: float | None = None
    gap: float | None = None


def ask(planner: Planner, graph: Graph, budget_bytes: int) -> Answer:
    """The planner's answer; an error of any kind is an answer, too."""
    started = time.perf_counter()
    try:
        schedule = planner(graph, budget_bytes)
    except Exception as error:  # one budget that fails must not end the comparison
        seconds = time.perf_counter() - started
        return Answer(_status_of(error), seconds, f"{type(error).__name__}: {error}")
    return _checked(graph, budget_bytes, schedule, time.perf_counter() - started)


def _status_of(error: Exception) -> str:
    kinds = {InfeasibleBudget: "infeasible", SolverStopped: "stopped", InvalidPlan: "refused"}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), "error")


def _checked(graph: Graph, budget_bytes: int, schedule: Schedule, seconds: float) -> Answer:
    """The answer with figures by replay: those of the schedule are not trusted."""
    try:
        cost = cost_of(graph, schedule.steps)
    except InvalidPlan as error:
        return Answer("refused", seconds, f"InvalidPlan: {error}")
    bound = schedule.bound_seconds
    gap = (cost.seconds - bound) / cost.seconds if cost.seconds else 0.0
    found = Answer("ok", seconds, "", cost.seconds, cost.peak_bytes, bound, gap)
    if cost.peak_bytes > budget_bytes:
        over = f"its peak is {cost.peak_bytes:,} bytes, over the budget of {budget_bytes:,}"
        return dataclasses.replace(found, status="refused", message=over)
    if abs(schedule.seconds - cost.seconds) > ROUNDING * cost.seconds:
        other = f"it takes {cost.seconds:,g}, not {schedule.seconds:,g} as it says"
        return dataclasses.replace(found, status="refused", message=other)
    if gap < -ROUNDING:
        less = f"it takes {cost.seconds:,g}, less than its own bound of {bound:,g}"
        return dataclasses.replace(found, status="refused", message=less)
    return found


def row_of(answer: Answer, budget_bytes: int, cell: Cell | None = None, /, **more: object) -> Row:
    """The row of an answer; `more` are the fields that neither it nor the cell knows."""
    published = {} if cell is None else _published(answer, cell)
    used = None if answer.peak_bytes is None else answer.peak_bytes / max(budget_bytes, 1)
    fields = {**dataclasses.asdict(answer), **published, **more}
    return Row(budget_bytes=budget_bytes, used=used, **fields)  # pyright: ignore[reportArgumentType]


def _published(answer: Answer, cell: Cell) -> dict[str, object]:
    otherwise = "infeasible" if cell.is_infeasible else "unknown"
    ratio = None
    if answer.status == "ok" and answer.objective is not None and cell.seconds:
        ratio = answer.objective / cell.seconds
    return {
        "budget": cell.budget,
        "baseline": cell.baseline,
        "published": otherwise if cell.seconds is None else "solved",
        "published_objective": cell.seconds,
        "published_bound": cell.bound,
        "published_root": cell.root_bound,
        "published_seconds": cell.solve_seconds,
        "doubts": cell.doubts,
        "ratio": ratio,
    }
