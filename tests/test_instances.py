"""Are published problems read as their publication counts them?"""

import json

import pytest

import planners
from planners.gap import Gap
from planners.instances import read_instance


def node(n, kind, kib, deps, milliseconds):
    return {
        "id": n,
        "kind": kind,
        "op": f"op{n}",
        "out_bytes": kib * 1024 + 100,
        "fixed_bytes": 2**20,
        "deps": [deps],
        "time_ms": [milliseconds],
    }


@pytest.fixture
def published(tmp_path):
    """A chain of three ops and its backward, in the form of the schedule zoo."""
    nodes = [
        node(0, "fwd", 400, [], 0.5),
        node(1, "fwd", 300, [0], 1.004),
        node(2, "fwd", 10, [1], 0.25),
        node(3, "bwd", 300, [1, 2], 1.0),
        node(4, "bwd", 0, [0, 3], 1.0),
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
    with pytest.raises(ValueError, match="no Checkmate run"):
        read_instance(path)
