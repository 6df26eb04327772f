"""Published problems are read as their publication counts them."""

import json

import pytest
from instances import instance_node

import planners
from planners.published.instances import read_instance
from planners.schedules.gap import Gap


@pytest.fixture
def published(tmp_path):
    """A chain of three ops and its backward, in the form of the schedule zoo."""
    nodes = [
        instance_node(0, "fwd", 400, [], 0.5),
        instance_node(1, "fwd", 300, [0], 1.004),
        instance_node(2, "fwd", 10, [1], 0.25),
        instance_node(3, "bwd", 300, [1, 2], 1.0),
        instance_node(4, "bwd", 0, [0, 3], 1.0),
    ]
    rows = [
        {"budget_GB": 0.002, "plan_obj": 375, "gurobi_bound": 375.0, "recorded_solve_s": 1.5},
        {"budget_GB": 0.001, "gurobi_status": "Model is infeasible"},
    ]
    path = tmp_path / "chain.json"
    data = {"name": "chain_checkmate_normal", "nodes": nodes, "published": rows}
    path.write_text(json.dumps(data))
    return path


def test_units_are_those_of_the_publication(published):
    instance = read_instance(published)
    assert instance.graph.seconds == 375  # of ten microseconds
    assert [value.nbytes for value in instance.graph.values[:3]] == [409600, 307200, 10240]
    first, second = instance.cells
    assert first.budget_bytes == 1073 * 1024  # 0.002 GiB less the 1024 KiB that never leave
    assert (first.seconds, first.bound, first.solve_seconds) == (375, 375.0, 1.5)
    assert (second.budget_bytes, second.seconds) == (24 * 1024, None)


def test_published_cells_are_found_again(published):
    instance = read_instance(published)
    for cell in instance.cells:
        if cell.seconds is None:
            with pytest.raises(planners.InfeasibleBudget):
                Gap()(instance.graph, cell.budget_bytes)
            continue
        assert Gap()(instance.graph, cell.budget_bytes).seconds == cell.seconds


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"name": "other"}))
    with pytest.raises(ValueError, match="no problem of"):
        read_instance(path)


@pytest.mark.parametrize(
    ("row", "doubts"),
    [
        ({"plan_obj": 375, "obj_reproduced": True, "plan_peak_GB": 0.002}, 0),
        ({"plan_obj": 375, "obj_reproduced": False}, 1),
        ({"plan_obj": 375, "plan_peak_GB": 0.0021}, 1),
        ({"plan_obj": 375, "max_U_plus_fixed_GB": 0.0021, "obj_reproduced": False}, 2),
        ({"plan_obj": 375, "gurobi_status": "?"}, 1),
        ({"gurobi_status": None}, 1),
        ({"gurobi_status": "Model is infeasible"}, 0),
    ],
)
def test_what_speaks_against_a_published_row_is_kept(published, row, doubts):
    data = json.loads(published.read_text())
    published.write_text(json.dumps(data | {"published": [{"budget_GB": 0.002, **row}]}))
    (cell,) = read_instance(published).cells
    assert len(cell.doubts) == doubts
    assert cell.is_infeasible == (row.get("gurobi_status") == "Model is infeasible")


SIZES_AND_COSTS = ((90, 5), (40, 9), (33, 2), (7, 1), (50, 3))
MOCCASIN = {
    "name": "moccasin_small",
    "order": [0, 2, 1, 4, 3],
    "nodes": [{"id": n, "bytes": b, "cost": c} for n, (b, c) in enumerate(SIZES_AND_COSTS)],
    "edges": [[0, 2], [0, 1], [2, 1], [2, 3], [1, 4], [4, 3]],
    "published_pct_peakfrac_seconds": [
        {
            "budget_frac": 0.9,
            "checkmate_milp": None,
            "moccasin": [2.5, 0.9, 10.0],
            "fastsa": [0.0, 0.8, 3.0],
        },
        {"budget_frac": 0.7, "fastsa": [7.4, 0.69, 36.5]},
    ],
}


def moccasin(tmp_path, **change):
    path = tmp_path / "moccasin.json"
    path.write_text(json.dumps(MOCCASIN | change))
    return read_instance(path)


def test_moccasins_budgets_and_costs_follow_from_the_file(tmp_path):
    order, nodes = MOCCASIN["order"], MOCCASIN["nodes"]
    when = {n: t for t, n in enumerate(order)}
    last = {n: max([when[b] for a, b in MOCCASIN["edges"] if a == n] + [when[n]]) for n in order}
    peak = max(
        sum(x["bytes"] for x in nodes if when[x["id"]] <= t <= last[x["id"]]) for t in range(5)
    )
    cost = sum(x["cost"] for x in nodes)
    cells = moccasin(tmp_path).cells
    assert [(c.budget, c.baseline, c.solve_seconds) for c in cells] == [
        (0.9, "moccasin", 10.0),
        (0.9, "fastsa", 3.0),
        (0.7, "fastsa", 36.5),
    ]
    for c in cells:  # the least whole number of bytes that is not below the share
        assert 10 * (c.budget_bytes - 1) < round(10 * c.budget) * peak <= 10 * c.budget_bytes
    assert [c.seconds for c in cells] == pytest.approx([1.025 * cost, cost, 1.074 * cost])


def test_moccasins_ops_keep_their_order_and_may_all_run_again(tmp_path):
    graph = moccasin(tmp_path).graph
    assert [op.name for op in graph.ops] == ["op0", "op2", "op1", "op4", "op3"]
    reads = [{graph.ops[i].name for i in op.inputs} for op in graph.ops]
    assert reads == [set(), {"op0"}, {"op0", "op2"}, {"op1"}, {"op2", "op4"}]
    assert all(map(graph.may_rerun, range(5)))
    nodes = [node | {"bwd": node["id"] > 2} for node in MOCCASIN["nodes"]]
    assert moccasin(tmp_path, nodes=nodes).graph == graph


def test_without_an_order_moccasins_ids_are_one(tmp_path):
    with pytest.raises(ValueError, match="`op1` reads value 2"):
        moccasin(tmp_path, order=None)
    edges = [[a, b] for a, b in MOCCASIN["edges"] if a < b]
    graph = moccasin(tmp_path, order=None, edges=edges).graph
    assert [op.name for op in graph.ops] == [f"op{n}" for n in range(5)]
