"""Published planning problems as graphs: files of numbers, one problem each.

Read so far: the runs of Checkmate in the schedule zoo of MONeT (Shah et al., ICLR 2021), whose
files end in `_checkmate_normal.json`. Their seconds are in units of ten microseconds, as in the
published objectives, and a tensor's bytes are whole kibibytes.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .graph import Graph, Op, Stage, Value

KIB, KIB_PER_GIB = 1024, 1024**2


@dataclasses.dataclass(frozen=True)
class Cell:
    """One published result.

    Attributes:
        budget_bytes: for values, what is in memory throughout left out.
        seconds: the published objective, in the graph's unit; None where it was infeasible.
        bound: no schedule takes less, as far as the solver of the publication got; or None.
        solve_seconds: how long it took; or None.
    """

    budget_bytes: int
    seconds: float | None
    bound: float | None
    solve_seconds: float | None


@dataclasses.dataclass(frozen=True)
class Instance:
    """A published problem.

    Attributes:
        name: as published.
        graph: one stage; every op writes one value.
        cells: a result for each published budget.
    """

    name: str
    graph: Graph
    cells: tuple[Cell, ...]


def read_instance(path: Path | str) -> Instance:
    """The instance in a file.

    Raises:
        ValueError: the file holds no problem of a kind that is known here.
    """
    data = json.loads(Path(path).read_text())
    if not str(data.get("name", "")).endswith("_checkmate_normal"):
        raise ValueError(f"{path} is no Checkmate run of MONeT's zoo: {data.get('name')!r}.")
    nodes = data["nodes"]
    fixed_kib = round(nodes[-1]["fixed_bytes"] / KIB)
    cells = (_cell(row, fixed_kib) for row in data["published"])
    return Instance(data["name"], _graph(nodes), tuple(cells))


def _graph(nodes: list[Mapping[str, Any]]) -> Graph:
    values = [
        Value(f"t{node['id']}", KIB * round(node["out_bytes"] / KIB), node["kind"] == "fwd")
        for node in nodes
    ]
    ops = {"fwd": [], "bwd": []}
    for node in nodes:
        seconds = round(100 * node["time_ms"][0])
        ops[node["kind"]].append(Op(node["op"], tuple(node["deps"][0]), (node["id"],), seconds))
    return Graph(tuple(values), (Stage("all", tuple(ops["fwd"]), tuple(ops["bwd"])),))


def _cell(row: Mapping[str, Any], fixed_kib: int) -> Cell:
    return Cell(
        KIB * int(row["budget_GB"] * KIB_PER_GIB - fixed_kib),
        row.get("plan_obj"),
        row.get("gurobi_bound"),
        row.get("recorded_solve_s"),
    )
