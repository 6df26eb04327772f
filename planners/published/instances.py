"""Published planning problems as graphs: files of numbers, one problem each.

Read so far, from the schedule zoo of MONeT (Shah et al., ICLR 2021): the runs of Checkmate, whose
names end in `_checkmate_normal`, and MONeT's own, with `_inplace_`. Their seconds are in units of
ten microseconds, as in the published objectives, and a tensor's bytes are whole kibibytes.

Also the graphs of Moccasin (Bartan et al., ICML 2023), random ones and Checkmate's, whose names
begin with `moccasin_`, in units of their own.
"""

import collections
import dataclasses
import fractions
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..graph import Graph, Implementation, Op, Stage, Value
from ..schedules.steps import cost_of, with_frees

KIB, KIB_PER_GIB = 1024, 1024**2


@dataclasses.dataclass(frozen=True)
class Cell:
    """One published result.

    Attributes:
        budget_bytes: for values, what is in memory throughout left out.
        seconds: the published objective, in the graph's unit; None where it was infeasible.
        bound: no schedule takes less, as far as the solver of the publication got; or None.
        solve_seconds: how long it took; or None.
        budget: as published: GiB in all, or a share of the peak without recomputation.
        root_bound: the relaxation at the root of the publication's search; or None.
        baseline: whose result it is: "Gurobi" for the publication's own program.
        doubts: why it is not to be relied upon; empty for a clean result. Without `seconds` and
            with doubts, nothing is known.
    """

    budget_bytes: int
    seconds: float | None
    bound: float | None
    solve_seconds: float | None
    budget: float | None = None
    root_bound: float | None = None
    baseline: str = "Gurobi"
    doubts: tuple[str, ...] = ()

    @property
    def is_infeasible(self) -> bool:
        """Whether the publication says that no schedule fits."""
        return self.seconds is None and not self.doubts


@dataclasses.dataclass(frozen=True)
class Instance:
    """A published problem.

    Attributes:
        name: as published.
        graph: one stage; every op writes one value.
        cells: a result for each published budget and baseline.
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
    if str(data.get("name", "")).startswith("moccasin_"):
        return _read_moccasin(data)
    name, nodes = str(data.get("name", "")), data.get("nodes", ())
    if name.endswith("_checkmate_normal"):
        graph, fixed_kib = _checkmate_graph(nodes), round(nodes[-1]["fixed_bytes"] / KIB)
    elif "_inplace_" in name:
        graph, fixed_kib = _monet_graph(nodes), math.ceil(nodes[0]["fixed_bytes"] / KIB)
    else:
        raise ValueError(f"{path} is no problem of MONeT's zoo or Moccasin's: {name!r}.")
    return Instance(name, graph, tuple(_cell(row, fixed_kib) for row in data["published"]))


def _checkmate_graph(nodes: list[Mapping[str, Any]]) -> Graph:
    values = [
        Value(f"t{node['id']}", KIB * round(node["out_bytes"] / KIB), node["kind"] == "fwd")
        for node in nodes
    ]
    ops = {"fwd": [], "bwd": []}
    for node in nodes:
        seconds = round(100 * node["time_ms"][0])
        ops[node["kind"]].append(Op(node["op"], tuple(node["deps"][0]), (node["id"],), seconds))
    return Graph(tuple(values), (Stage("all", tuple(ops["fwd"]), tuple(ops["bwd"])),))


def _monet_graph(nodes: list[Mapping[str, Any]]) -> Graph:
    """MONeT's nodes as ops with several implementations.

    A convolution's algorithms are implementations, as are writing over the input, a batch norm with
    known statistics, and a backward op that reads something else. What packs a mask or the indices
    of a maximum is an optional op. Gradients of parameters, which MONeT adds to what is in memory
    throughout, are values that a last op reads.
    """
    values = [Value(f"t{n['id']}", _kib(n["out_bytes"]), n["kind"] != "bwd") for n in nodes]
    forward, backward, results = [], [], []
    fixed = math.ceil(nodes[0]["fixed_bytes"] / KIB)
    for node in nodes:
        outputs = [node["id"]]
        grown = math.ceil(node["fixed_bytes"] / KIB) - fixed
        if grown > 0:
            fixed += grown
            results.append(len(values))
            outputs.append(len(values))
            values.append(Value(f"gradients{node['id']}", KIB * grown))
        first, *others = _implementations(node, sum(values[i].nbytes for i in outputs))
        op = Op(
            f"{node['op']} {node['id']}",
            first.inputs,
            tuple(outputs),
            first.seconds,
            workspace_bytes=first.workspace_bytes,
            alternatives=tuple(others),
            optional=node["kind"] == "int",
        )
        (backward if node["kind"] == "bwd" else forward).append(op)
    backward.append(Op("results", tuple(results), (), 0.0))
    return Graph(tuple(values), (Stage("all", tuple(forward), tuple(backward)),))


def _implementations(node: Mapping[str, Any], written: int) -> list[Implementation]:
    """Implementations of a node: first its first run into memory of its own, fastest first."""
    deps = node["deps"]
    if "conv_idx" in node:  # algorithms
        found = [
            _implementation(node, "", n, deps[0], written) for n in range(len(node["time_ms"]))
        ]
        return sorted(filter(None, found), key=_seconds)
    if node["kind"] == "bwd":
        found = [_implementation(node, "", n, read, written) for n, read in enumerate(deps)]
        return sorted(filter(None, found), key=_seconds)
    first = _implementation(node, "", 0, deps[0], written)
    again = _implementation(node, "re_", 0, deps[0], written)
    over = _implementation(node, "ip_", 0, deps[0], written)
    if node["kind"] == "int":
        # Packed while the op runs that it packs for, whatever its implementation.
        return [max(filter(None, (first, over)), key=_seconds)]
    implementations = (
        first,
        again and dataclasses.replace(again, only_again=True),
        over and dataclasses.replace(over, overwrites=(node["inplace_of"],)),
    )
    return [implementation for implementation in implementations if implementation is not None]


def _seconds(implementation: Implementation) -> float:
    return implementation.seconds


def _implementation(
    node: Mapping[str, Any], kind: str, n: int, deps: list[int], written: int
) -> Implementation | None:
    """One column of a node's measurements; None where it failed or there is none."""
    milliseconds = node.get(f"{kind}time_ms", [None])[n]
    if milliseconds is None or milliseconds < 0:
        return None
    workspace = KIB * math.ceil(node[f"{kind}ws_MB"][n] * 1024)
    return Implementation(
        tuple(deps), math.ceil(100 * milliseconds), workspace_bytes=max(workspace, -written)
    )


def _kib(nbytes: int) -> int:
    return KIB * math.ceil(nbytes / KIB)


def _cell(row: Mapping[str, Any], fixed_kib: int) -> Cell:
    return Cell(
        KIB * int(row["budget_GB"] * KIB_PER_GIB - fixed_kib),
        row.get("plan_obj") or row.get("gurobi_obj"),
        row.get("gurobi_bound"),
        row.get("recorded_solve_s") or row.get("gurobi_wall_s"),
        budget=row["budget_GB"],
        root_bound=row.get("root_lp"),
        doubts=_doubts(row),
    )


def _doubts(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What speaks against a row of the schedule zoo."""
    peak = row.get("plan_peak_GB", row.get("max_U_plus_fixed_GB"))
    found = {
        "its log disagrees with its stored plan": row.get("obj_reproduced") is False,
        "its stored plan is over the budget": peak is not None and peak > row["budget_GB"],
        "its log breaks off": row.get("gurobi_status", "") in (None, "?"),
    }
    return tuple(doubt for doubt, holds in found.items() if holds)


def _read_moccasin(data: Mapping[str, Any]) -> Instance:
    """A graph of Moccasin: each op writes one value and may run again, also late in the step.

    All ops are forward ops of one stage, in the given order (by ids where none is given), though
    the files of Checkmate's graphs mark some as backward. The publications let every op run again,
    whichever pass it is of, and `Graph.may_rerun` allows that to forward ops alone. So a planner
    over sequences of ops, and `Checkmate`, plan in the published space. A planner that only
    recomputes before backward ops, as `Gap` does, has nothing to decide here: it plans where the
    order itself fits, and calls every smaller budget infeasible.

    A value that nothing reads leaves memory once its op has run. Moccasin's files do not say
    whether it does, or stays to the end. It cannot matter for them: each has one such value, every
    other op runs for it, and so it is written last in any order.

    Published costs are percentages with one decimal, so `Cell.seconds` are known to 0.05 % of the
    graph's. `checkmate_milp` and `moccasin` keep the given order; `fastsa` chooses its own. A
    baseline that found nothing has no cell.
    """
    nodes = {node["id"]: node for node in data["nodes"]}
    order = data["order"] or sorted(nodes)
    place = {node: n for n, node in enumerate(order)}
    reads: dict[int, list[int]] = collections.defaultdict(list)
    for source, reader in data["edges"]:
        reads[reader].append(place[source])
    values = tuple(Value(f"t{node}", nodes[node]["bytes"], savable=True) for node in order)
    ops = tuple(
        Op(f"op{node}", tuple(sorted(reads[node])), (n,), nodes[node]["cost"])
        for n, node in enumerate(order)
    )
    graph = Graph(values, (Stage("all", ops, ()),))
    peak = cost_of(graph, with_frees(graph, range(len(ops)))).peak_bytes
    rows = data["published_pct_peakfrac_seconds"]
    cells = (cell for row in rows for cell in _moccasin_cells(row, graph, peak))
    return Instance(data["name"], graph, tuple(cells))


def _moccasin_cells(row: Mapping[str, Any], graph: Graph, peak: int) -> Iterator[Cell]:
    share = row["budget_frac"]
    budget_bytes = math.ceil(fractions.Fraction(str(share)) * peak)
    for baseline, result in row.items():
        if baseline == "budget_frac" or result is None:
            continue
        percent, _, solve_seconds = result
        seconds = graph.seconds * (1 + percent / 100)
        yield Cell(budget_bytes, seconds, None, solve_seconds, budget=share, baseline=baseline)
