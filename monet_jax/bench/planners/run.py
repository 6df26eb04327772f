"""Runs a benchmark of planners; rows are stored after each answer, so none is ever lost."""

import dataclasses
import datetime
import functools as ft
import importlib.metadata
import itertools as it
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from planners import Graph, cost_of, registry
from planners.published.instances import Cell, Instance, read_instance
from planners.schedules.steps import with_frees

from ... import __version__
from ..._disk import write_whole
from .answers import Answer, ask, row_of
from .claims import to_json
from .rows import Results, Row
from .text import one_line, to_markdown

#: The smallest feasible budget is found to within this share of the peak without recomputation.
FLOOR_STEP = 0.005
#: Where nothing was published, time limits are tried at this share of that peak.
UNPUBLISHED_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Request:
    """What to compare.

    Attributes:
      paths: files of instances.
      planners: by name.
      time_limit: in seconds, for each answer.
      budgets: only these published ones; None means all.
      sweep: plan at so many budgets from the smallest feasible one up; 0 for none.
      time_limits: also ask under each of these, in seconds.
    """

    paths: tuple[Path, ...]
    planners: tuple[str, ...]
    time_limit: float
    budgets: frozenset[float] | None
    sweep: int
    time_limits: tuple[float, ...]


def make_request(
    instances: Path,
    planners: str = "gap",
    time_limit: float = 60.0,
    budgets: str = "all",
    sweep: int = 0,
    time_limits: str = "",
) -> Request:
    """A checked request.

    Args:
      instances: a directory of JSON files, a file, or a pattern such as `DIR/vgg16_*.json`.
      planners: names with commas between them.
      time_limit: in seconds.
      budgets: some of the published ones, as in "8,10" (GiB) or "0.9" (a share), or "all".
      sweep: how many budgets to sweep over, at least 2; 0 for no sweep.
      time_limits: in seconds, with commas between them; "" for none.

    Raises:
      ValueError: a name is unknown, a number cannot be read, or there is no instance.
    """
    names = tuple(planners.split(","))
    for name in names:
        registry.planner(name, time_limit=time_limit)  # it must exist before hours are spent
    if sweep and sweep < 2:
        raise ValueError(f"`--sweep` needs 2 budgets or more; got {sweep}")
    chosen = None if budgets == "all" else frozenset(_numbers("--budgets", budgets))
    limits = _numbers("--time-limits", time_limits) if time_limits else ()
    return Request(_files(instances), names, time_limit, chosen, sweep, limits)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f'`{option}` must be numbers, as in "1,10"; got {text!r}') from None


def _files(instances: Path) -> tuple[Path, ...]:
    if instances.is_file():
        return (instances,)
    is_folder = instances.is_dir()
    found = instances.glob("*.json") if is_folder else instances.parent.glob(instances.name)
    files = tuple(sorted(path for path in found if path.is_file()))
    if not files:
        raise ValueError(
            f"no instances in {str(instances)!r}: need a directory of JSON files, a file or a "
            "pattern"
        )
    return files


def run_bench(request: Request, out: Path | None, console: Console) -> Results:
    """Asks every planner about every instance.

    Args:
      request: what to compare.
      out: a `.json` or `.md` file where the rows are kept, after every answer; None keeps them
        nowhere.
      console: gets a line for every answer.
    """
    if out is not None and out.suffix not in (".json", ".md"):
        raise ValueError(f"`--out` must end in .json or .md; got {str(out)!r}")
    rows: list[Row] = []
    context = _context(request)
    for row in it.chain.from_iterable(_file_rows(path, request) for path in request.paths):
        rows.append(row)
        console.print(one_line(row), markup=False, highlight=False, soft_wrap=True)
        if out is not None:
            results = Results(tuple(rows), context)
            write_whole(out, to_markdown(results) if out.suffix == ".md" else to_json(results))
    return Results(tuple(rows), context)


def _file_rows(path: Path, request: Request) -> Iterator[Row]:
    try:
        instance = read_instance(path)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        message = f"{type(error).__name__}: {error}"
        yield Row(instance=str(path), planner="", purpose="read", status="error", message=message)
        return
    for name in request.planners:
        yield from _published_rows(instance, name, request)
        for limit in request.time_limits:
            yield from _limit_rows(instance, name, limit, request)
        if request.sweep:
            yield from _sweep_rows(instance, name, request)


def _cells(instance: Instance, request: Request) -> dict[int, list[Cell]]:
    """The chosen published results by their bytes: baselines are compared at the same budget."""
    found: dict[int, list[Cell]] = {}
    for cell in instance.cells:
        if request.budgets is None or cell.budget in request.budgets:
            found.setdefault(cell.budget_bytes, []).append(cell)
    return found


def _labels(instance: Instance, name: str, purpose: str, limit: float) -> dict[str, Any]:
    return {"instance": instance.name, "planner": name, "purpose": purpose, "time_limit": limit}


def _published_rows(instance: Instance, name: str, request: Request) -> Iterator[Row]:
    """An answer at each published budget, in one row for each baseline."""
    planner = registry.planner(name, time_limit=request.time_limit)
    same = _labels(instance, name, "published", request.time_limit)
    for budget_bytes, cells in _cells(instance, request).items():
        answer = ask(planner, instance.graph, budget_bytes)
        for cell in cells:
            yield row_of(answer, budget_bytes, cell, **same)


def _limit_rows(instance: Instance, name: str, limit: float, request: Request) -> Iterator[Row]:
    """An answer at each published budget under another time limit."""
    planner = registry.planner(name, time_limit=limit)
    same = _labels(instance, name, "limits", limit)
    budgets = {b: cells[0].budget for b, cells in _cells(instance, request).items()}
    if not instance.cells:
        budgets = {int(UNPUBLISHED_SHARE * _most_bytes(instance.graph)): UNPUBLISHED_SHARE}
    for budget_bytes, budget in budgets.items():
        answer = ask(planner, instance.graph, budget_bytes)
        yield row_of(answer, budget_bytes, None, budget=budget, **same)


def _sweep_rows(instance: Instance, name: str, request: Request) -> Iterator[Row]:
    """Answers at budgets in even steps, from the smallest that the planner can do with."""
    from planners.schedules.frontier import Frontier  # CVXPY takes seconds

    planner = registry.planner(name, time_limit=request.time_limit)
    same = _labels(instance, name, "sweep", request.time_limit)
    graph, known = instance.graph, Frontier(planner)
    most = _most_bytes(graph)
    least = _least_bytes(graph, ft.partial(ask, known, graph), most)
    for n in range(request.sweep):
        budget_bytes = least + (most - least) * n // (request.sweep - 1)
        yield row_of(ask(known, graph, budget_bytes), budget_bytes, None, **same)


def _most_bytes(graph: Graph) -> int:
    """The peak where nothing is recomputed: more never helps."""
    return cost_of(graph, with_frees(graph, range(len(graph.ops)))).peak_bytes


def _least_bytes(graph: Graph, answer_at: Callable[[int], Answer], most: int) -> int:
    """The smallest budget with an answer, by bisection from the largest value's bytes."""
    none, least = max(value.nbytes for value in graph.values) - 1, most
    while least - none > FLOOR_STEP * most:
        middle = (none + least) // 2
        if answer_at(middle).status == "ok":
            least = middle
        else:
            none = middle
    return least


def _context(request: Request) -> dict[str, Any]:
    """The versions, machine and command of the rows."""
    return {
        "monet_jax": __version__,
        "cvxpy": importlib.metadata.version("cvxpy"),
        "highspy": importlib.metadata.version("highspy"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "planners": list(request.planners),
        "time_limit": request.time_limit,
    }
