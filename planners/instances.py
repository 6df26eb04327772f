"""Published planning problems as graphs: files of numbers, one problem each.

Read so far, from the schedule zoo of MONeT (Shah et al., ICLR 2021): the runs of Checkmate, whose
names end in `_checkmate_normal`, and MONeT's own, with `_inplace_`. Their seconds are in units of
ten microseconds, as in the published objectives, and a tensor's bytes are whole kibibytes.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .graph import Graph, Op, Stage, Value, Variant

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
    name, nodes = str(data.get("name", "")), data.get("nodes", ())
    if name.endswith("_checkmate_normal"):
        graph, fixed_kib = _checkmate_graph(nodes), round(nodes[-1]["fixed_bytes"] / KIB)
    elif "_inplace_" in name:
        graph, fixed_kib = _monet_graph(nodes), math.ceil(nodes[0]["fixed_bytes"] / KIB)
    else:
        raise ValueError(f"{path} is no problem of MONeT's zoo: {name!r}.")
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
    """MONeT's nodes as ops with variants.

    A convolution's algorithms are variants, as are writing over the input, a batch norm with known
    statistics, and a backward op that reads something else. What packs a mask or the indices of a
    maximum is an optional op. Gradients of parameters, which MONeT adds to what is in memory
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
        first, *others = _ways(node, sum(values[i].nbytes for i in outputs))
        op = Op(
            f"{node['op']} {node['id']}",
            first.inputs,
            tuple(outputs),
            first.seconds,
            workspace_bytes=first.workspace_bytes,
            variants=tuple(others),
            optional=node["kind"] == "int",
        )
        (backward if node["kind"] == "bwd" else forward).append(op)
    backward.append(Op("results", tuple(results), (), 0.0))
    return Graph(tuple(values), (Stage("all", tuple(forward), tuple(backward)),))


def _ways(node: Mapping[str, Any], written: int) -> list[Variant]:
    """The ways to run a node: first those of its first run in a place of its own, fastest first."""
    deps = node["deps"]
    if node["kind"] == "int":  # packed while its parent runs; which way that runs is left open
        ways = [_way(node, "", 0, deps[0], written)]
        slower = _way(node, "ip_", 0, deps[0], written) if "ip_time_ms" in node else None
        if slower is not None:
            return [dataclasses.replace(ways[0], seconds=max(ways[0].seconds, slower.seconds))]
        return ways
    if "conv_idx" in node:  # algorithms
        found = [_way(node, "", n, deps[0], written) for n in range(len(node["time_ms"]))]
        return sorted(filter(None, found), key=lambda way: way.seconds)
    if node["kind"] == "bwd":
        found = [_way(node, "", n, d, written) for n, d in enumerate(deps)]
        return sorted(filter(None, found), key=lambda way: way.seconds)
    ways = [_way(node, "", 0, deps[0], written)]
    if "re_time_ms" in node:
        again = _way(node, "re_", 0, deps[0], written)
        ways += [again and dataclasses.replace(again, only_again=True)]
    if "ip_time_ms" in node:
        over = _way(node, "ip_", 0, deps[0], written)
        ways += [over and dataclasses.replace(over, overwrites=(node["inplace_of"],))]
    return [way for way in ways if way is not None]


def _way(
    node: Mapping[str, Any], kind: str, n: int, deps: list[int], written: int
) -> Variant | None:
    """One column of a node's measurements; None where it failed."""
    milliseconds = node[f"{kind}time_ms"][n]
    if milliseconds is None or milliseconds < 0:
        return None
    workspace = KIB * math.ceil(node[f"{kind}ws_MB"][n] * 1024)
    return Variant(
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
    )
