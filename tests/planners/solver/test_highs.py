"""Programs are solved in a child process, which ends where HiGHS overruns its limit."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest

from planners import SolverStopped
from planners.solver import child as child_module
from planners.solver import highs
from planners.solver import worker as worker_module

WORKER = str(worker_module.__file__)
# A child in which HiGHS, once it has run to its end, goes on and on instead of returning.
ENDLESS = f"""
import os, pathlib, runpy, time
import highspy

def run(solver, solve=highspy.Highs.run):
    if {{solves}}:
        solve(solver)
    time.sleep(1000)

highspy.Highs.run = run
pathlib.Path({{pid!r}}).write_text(str(os.getpid()))
runpy.run_path({WORKER!r}, run_name="__main__")
"""


def knapsack(**kind: object) -> cp.Problem:
    """A program whose best objective is found only after others; and one column that is free."""
    rng = np.random.default_rng(0)
    worth, weight = rng.integers(1, 100, (2, 40)) / 100
    x, free = cp.Variable(40, **kind), cp.Variable()
    return cp.Problem(
        cp.Minimize(-worth @ x + free),
        [weight @ x <= weight.sum() / 2, x[0] + x[1] == 1, free >= 0.5 * x[2]],
    )


@pytest.fixture
def start_anew(monkeypatch):
    """Has programs solved by a new process, which runs the code that is given."""
    monkeypatch.setattr(child_module, "_children", {})

    def force(worker: Path, code: str):
        worker.write_text(code)
        monkeypatch.setattr(worker_module, "__file__", str(worker))

    yield force
    child_module._end()


def solved(problem: cp.Problem, **how: object) -> tuple[highs.Outcome, list]:
    """What is said of a problem, and what its variables hold."""
    outcome = highs.solve(problem, time_limit=30.0, **({"absolute_gap": 0.0} | how))
    values = [None if x.value is None else x.value.tolist() for x in problem.variables()]
    return outcome, values


def hard() -> tuple[cp.Problem, cp.Variable]:
    x = cp.Variable(200, boolean=True)
    weights = np.random.default_rng(0).integers(1, 10**6, (5, 200))
    target = weights @ (np.arange(200) % 2)
    return cp.Problem(cp.Minimize(cp.sum(x)), [weights @ x == target]), x


def never() -> cp.Problem:
    x = cp.Variable(3, boolean=True)
    return cp.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) >= 4])


def test_highs_at_its_time_limit_has_found_nothing():
    outcome = highs.solve(hard()[0], time_limit=0.01, absolute_gap=0.0)
    assert not outcome.found and not outcome.infeasible


def test_highs_tells_infeasible_from_solved():
    x = cp.Variable(3, boolean=True)
    twice = cp.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) >= 2])
    assert solved(never())[0] == highs.Outcome(infeasible=True, bound=float("inf"))
    assert solved(twice)[0].bound == pytest.approx(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: knapsack(boolean=True),
        lambda: knapsack(integer=True, bounds=[-1, 2]),
        lambda: knapsack(bounds=[0, 1]),
        never,
    ],
    ids=["0-1", "integer", "linear", "infeasible"],
)
def test_what_is_found_is_what_scipy_finds(make):
    problem = make()
    outcome, _ = solved(problem)
    assert problem.value == pytest.approx(make().solve(solver=cp.SCIPY))
    assert outcome.proven or outcome.infeasible


def test_highs_begins_where_it_is_told_to():
    problem, x = hard()
    start = (np.arange(200) % 2).astype(float)
    outcome, values = solved(problem, start={x: start}, enough=100.5)
    assert outcome.found and values == [start.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("solves", [True, False])
def test_a_process_that_minds_no_time_is_ended_and_its_best_point_kept(
    solves, start_anew, tmp_path, monkeypatch
):
    best, values = solved(knapsack(boolean=True))
    child_module._end()
    pid = tmp_path / "pid"
    start_anew(tmp_path / "worker.py", ENDLESS.format(solves=solves, pid=str(pid)))
    problem = knapsack(boolean=True)
    outcome = highs.solve(problem, time_limit=4.0, absolute_gap=0.0)
    with pytest.raises(ProcessLookupError):  # not even one that waits for its parent
        os.kill(int(pid.read_text()), 0)
    if solves:
        assert outcome.found and not outcome.proven and outcome.bound <= best.bound
        assert problem.value == pytest.approx(best.bound)
        assert [x.value.tolist() for x in problem.variables()] == values
    else:
        assert outcome == highs.Outcome()
    monkeypatch.setattr(worker_module, "__file__", WORKER)
    assert solved(knapsack(boolean=True))[0] == best  # by another


def test_one_process_solves_for_all_threads(start_anew):
    del start_anew
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: solved(knapsack(boolean=True)), range(8)))
    assert all(x == found[0] for x in found) and found[0][0].proven
    (child,) = child_module._children.values()
    assert child._process is not None and child._process.is_running


def test_a_process_ends_by_itself_where_its_parent_has_died(tmp_path, monkeypatch):
    child = tmp_path / "child.py"
    child.write_text(ENDLESS.format(solves=False, pid=str(tmp_path / "pid")))
    requests = []
    monkeypatch.setattr(highs, "ask", lambda request, _: requests.append(request))
    assert highs.solve(never(), time_limit=1.0, absolute_gap=0.0) == highs.Outcome()
    done = subprocess.run(
        [sys.executable, child], input=pickle.dumps(requests[0]), capture_output=True, timeout=60
    )
    assert done.returncode == 1 and b"Timeout" in done.stderr


def test_a_process_that_dies_is_no_solution(start_anew, tmp_path):
    start_anew(tmp_path / "worker.py", "import sys; sys.stdin.read(1); sys.exit('no memory')")
    with pytest.raises(SolverStopped, match=r"ended with status 1.*no memory.*large graphs"):
        solved(never())


def test_a_program_too_large_for_the_time_left_is_not_handed_over(monkeypatch):
    problem = knapsack(boolean=True)
    monkeypatch.setattr(highs, "_RATE", 1.0)
    monkeypatch.setattr(problem, "get_problem_data", lambda _: pytest.fail("handed over"))
    assert solved(problem)[0] == highs.Outcome()


def relaxation() -> tuple[cp.Problem, cp.Constraint]:
    """A program without integers, and its constraint that variables are no less than nothing."""
    rng = np.random.default_rng(1)
    worth, weight = rng.integers(1, 100, (2, 12)) / 100
    x = cp.Variable(12)
    unused = x >= 0
    rows = [unused, x <= 1, weight @ x <= weight.sum() / 3, x[0] + x[1] == 1]
    return cp.Problem(cp.Minimize(-worth @ x), rows), unused


def test_multipliers_are_those_that_cvxpy_finds():
    problem, unused = relaxation()
    problem.solve(solver=cp.HIGHS)
    wanted = unused.dual_value
    assert wanted.any()
    problem, unused = relaxation()
    solved(problem)
    np.testing.assert_allclose(unused.dual_value, wanted, atol=1e-9)
