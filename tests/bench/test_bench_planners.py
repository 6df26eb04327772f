"""`bench planners` states each planner's answers and failures, and checks its claims."""

import dataclasses
import json
import subprocess
import sys

import graphs
import pytest
from instances import instance_node
from typer.testing import CliRunner

import planners
from monet_jax.bench.planners import Row, check_claims
from monet_jax.bench.planners.answers import ask
from monet_jax.cli import shell
from planners import Execute, registry
from planners.schedules.gap import Gap

KIB = 1024


def chain(name, rows):
    """A chain of three ops and its backward; keeping everything takes 1010 KiB at the peak."""
    nodes = [
        instance_node(0, "fwd", 400, [], 0.5),
        instance_node(1, "fwd", 300, [0], 1.0),
        instance_node(2, "fwd", 10, [1], 0.25),
        instance_node(3, "bwd", 300, [1, 2], 1.0),
        instance_node(4, "bwd", 0, [0, 3], 1.0),
    ]
    return {"name": name, "nodes": nodes, "published": rows}


def published(kib, objective, **more):
    """A published row whose budget leaves `kib` to values."""
    row = {"budget_GB": (kib + 1024) / 1024**2, "gurobi_status": "Optimal solution found"}
    solved = {"plan_obj": objective, "gurobi_bound": objective, "recorded_solve_s": 1.5}
    return row | (solved if objective else {"gurobi_status": "Model is infeasible"}) | more


# Before the last op, the first one runs again for the 400 KiB that do not fit beside 610.
ROWS = (
    published(1100, 375, root_lp=375.0),
    published(900, 425, root_lp=400.5),
    published(600, None),
    published(1200, 300, obj_reproduced=False),
)


@pytest.fixture
def folder(tmp_path):
    """A directory with the instance."""
    path = tmp_path / "instances"
    path.mkdir()
    (path / "a.json").write_text(json.dumps(chain("vgg16_1_checkmate_normal", list(ROWS))))
    return path


def run(*words):
    return CliRunner().invoke(shell.app, ["bench", "planners", *map(str, words)])


def rows_of(*words):
    result = run("--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["rows"]


def claim(found, start):
    (one,) = [c for c in found if c.title.startswith(start)]
    return one


# ----------------------------------------------------------------------------------- the command


def test_it_compares_with_what_was_published(folder, tmp_path):
    out = tmp_path / "rows.json"
    result = run("--instances", folder, "--planners", "gap,checkmate", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data == json.loads(out.read_text())
    assert {"cvxpy", "highspy", "python", "machine", "date", "command"} <= set(data["context"])
    assert len(data["rows"]) == 2 * len(ROWS)
    for row in data["rows"]:
        kib = row["budget_bytes"] / KIB
        if kib < 700:
            assert (row["status"], row["published"]) == ("infeasible", "infeasible")
            continue
        assert row["objective"] == row["bound"] == (375 if kib > 1010 else 425)
        assert row["ratio"] == row["objective"] / row["published_objective"]
        assert row["used"] == row["peak_bytes"] / row["budget_bytes"] <= 1
        assert row["planning_seconds"] > 0
    verdicts = {c["title"]: c["holds"] for c in data["claims"]}
    assert all(holds for title, holds in verdicts.items() if title[0] in "n25")
    assert all(holds is None for title, holds in verdicts.items() if title[0] in "378")


def test_rows_that_are_not_clean_are_marked_and_not_counted(folder):
    result = run("--instances", folder)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if "not clean:" in line]
    assert "its log disagrees with its stored plan" in line and "1.2500" in line
    assert "2 of 2 clean cells, worst ratio 1.0000; 1 not clean, left out" in result.stdout
    assert "not measured" in result.stdout and "does not hold" not in result.stdout


def test_markdown(folder, tmp_path):
    out = tmp_path / "rows.md"
    assert run("--instances", folder / "a.json", "--out", out).exit_code == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "### vgg16_1_checkmate_normal at the published budgets"
    (header,) = [line for line in lines if line.startswith("| Budget |")]
    tables = [line for line in lines if line.startswith("| 0.00")]
    assert len(tables) == len(ROWS)
    assert {line.count("|") for line in tables} == {header.count("|")}
    assert any(line.endswith("| agrees |") for line in tables)
    assert any("2. Checkmate: at most the published" in x and "| holds |" in x for x in lines)


def test_budgets_and_patterns_choose(folder):
    budget = ROWS[1]["budget_GB"]
    rows = rows_of("--instances", folder / "*.json", "--budgets", f"{budget},7")
    assert [row["budget"] for row in rows] == [budget]


def test_what_cannot_be_read_is_a_row(folder):
    (folder / "b.json").write_text(json.dumps({"name": "other"}))
    *rows, last = rows_of("--instances", folder)
    assert len(rows) == len(ROWS)
    assert (last["status"], last["purpose"]) == ("error", "read")
    assert last["instance"].endswith("b.json") and "'other'" in last["message"]


@pytest.mark.slow
def test_time_limits_and_a_sweep(folder):
    words = ("--sweep", 5, "--time-limits", "0.5,5")
    result = run("--instances", folder, "--json", *words)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    limits = [row for row in data["rows"] if row["purpose"] == "limits"]
    assert [row["time_limit"] for row in limits] == [0.5] * len(ROWS) + [5.0] * len(ROWS)
    sweep = [row for row in data["rows"] if row["purpose"] == "sweep"]
    assert len(sweep) == 5 and sweep[-1]["budget_bytes"] == 1010 * KIB
    # The last op needs 400 + 300 KiB, whatever is recomputed.
    assert 700 <= sweep[0]["budget_bytes"] / KIB <= 700 * 1.01
    assert [row["objective"] for row in sweep] == [425] * 4 + [375]
    verdicts = [c["holds"] for c in data["claims"] if c["title"].startswith(("7", "8. replay"))]
    assert verdicts == [True, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("planners",), "need `bench planners --instances DIR`"),
        (("planners", "mlp", "--instances", "HERE"), "with no model beside"),
        (("planners", "--instances", "HERE", "--scale", "bench"), "`--scale` belongs to"),
        (("planners", "--instances", "HERE", "--measure"), "`--measure` belongs to"),
        (("mlp", "--sweep", "3"), "`--sweep` belongs to `bench planners`"),
        (("mlp", "--time-limit", "60"), "`--time-limit` belongs to"),
        (("planners", "--instances", "HERE/nowhere"), "no instances in"),
        (("planners", "--instances", "HERE", "--planners", "gup"), "unknown planner 'gup'"),
        (("planners", "--instances", "HERE", "--budgets", "least"), "`--budgets`"),
        (("planners", "--instances", "HERE", "--time-limits", "1;2"), "`--time-limits`"),
        (("planners", "--instances", "HERE", "--sweep", "1"), "needs 2 budgets"),
        (("planners", "--instances", "HERE", "--out", "rows.csv"), "must end in .json or .md"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, words, message):
    words = [word.replace("HERE", str(folder)) for word in words]
    result = CliRunner().invoke(shell.app, ["bench", *words])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and message in result.stderr


def test_planners_are_benched_without_extras():
    code = (
        "import sys; sys.modules['flax'] = None\n"
        "import monet_jax.bench.planners, planners.registry\n"
        "assert 'cvxpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------------ the answers


def raising(error):
    def planner(graph, budget_bytes):
        raise error

    return planner


def answering(**change):
    """A planner of a correct schedule with some fields changed."""

    def planner(graph, budget_bytes):
        return dataclasses.replace(Gap()(graph, 10**9), **change)

    return planner


@pytest.mark.parametrize(
    ("planner", "status", "message"),
    [
        (answering(), "ok", ""),
        (raising(planners.InfeasibleBudget("no", minimum_bytes=9)), "infeasible", "no"),
        (raising(planners.SolverStopped("slow")), "stopped", "slow"),
        (raising(planners.InvalidPlan("bad")), "refused", "bad"),
        (raising(ZeroDivisionError("oh")), "error", "ZeroDivisionError: oh"),
        (answering(steps=(Execute(0),)), "refused", "runs 0 times"),
        (answering(seconds=1.0), "refused", "not 1 as it says"),
        (answering(bound_seconds=1e3), "refused", "less than its own bound"),
    ],
)
def test_every_answer_has_a_status(planner, status, message):
    found = ask(planner, graphs.chain(), 10**9)
    assert found.status == status and message in found.message
    assert found.planning_seconds >= 0


def test_a_schedule_over_the_budget_is_refused():
    graph = graphs.chain()
    peak = answering()(graph, 0).peak_bytes
    assert ask(answering(), graph, peak).status == "ok"
    found = ask(answering(), graph, peak - 1)
    assert found.status == "refused" and "over the budget" in found.message


def test_a_failure_does_not_end_the_others(folder, monkeypatch):
    proposals = iter([raising(RuntimeError("lost")), Gap(), Gap(), Gap()])

    def planner(graph, nbytes):
        return next(proposals)(graph, nbytes)

    monkeypatch.setattr(registry, "planner", lambda name, time_limit: planner)
    rows = rows_of("--instances", folder)
    assert [row["status"] for row in rows] == ["error", "ok", "infeasible", "ok"]


@pytest.mark.parametrize("name", registry.PLANNERS)
def test_every_registered_planner_plans(name):
    graph = graphs.chain()
    found = ask(registry.planner(name, time_limit=60.0), graph, 10**9)
    assert found.status == "ok" and found.objective is not None
    assert (found.objective > graph.seconds) == (name in ("chen_sqrt", "save_nothing"))


# ------------------------------------------------------------------------------------- the claims


def cell(**change):
    fields = {
        "instance": "a_checkmate_normal",
        "planner": "gap",
        "purpose": "published",
        "budget": 8.0,
        "budget_bytes": 100,
        "objective": 50.0,
        "peak_bytes": 90,
        "bound": 49.5,
        "gap": 0.01,
        "planning_seconds": 5.0,
        "published": "solved",
        "published_objective": 50.0,
        "published_root": 48.0,
        "ratio": 1.0,
    }
    return Row(**fields | change)


NONE = {"objective": None, "bound": None, "gap": None, "ratio": None}
INFEASIBLE = {"published": "infeasible", "published_objective": None, "published_root": None}


@pytest.mark.parametrize(
    ("title", "good", "bad"),
    [
        ("no answer failed", {"status": "stopped"}, {"status": "refused"}),
        ("2. Checkmate: at most the pub", {"ratio": 0.99}, {"ratio": 1.011}),
        ("2. Checkmate: at most the pub", {"ratio": 1.009}, {"status": "stopped", **NONE}),
        ("2. Checkmate: at most 60 s", {"planning_seconds": 60.0}, {"planning_seconds": 60.1}),
        ("2. Checkmate: 10 s", {"planning_seconds": 15.0}, {"planning_seconds": 15.1}),
        ("2. Checkmate: published inf", {"status": "infeasible", **NONE, **INFEASIBLE}, INFEASIBLE),
        ("5. bounds", {"bound": 48.0}, {"bound": 47.9}),
        ("5. bounds", {"published_root": None}, {"status": "infeasible", **NONE}),
        ("5. the median", {"gap": 0.02}, {"gap": 0.021}),
        ("5. the median", {"gap": 0.02}, {"status": "stopped", **NONE}),
    ],
)
def test_a_claim_holds_up_to_its_limit_and_no_further(title, good, bad):
    others = [cell(instance="b_checkmate_normal")]

    def holds(*rows):
        return claim(check_claims([*others, *rows]), title).holds

    assert holds(cell(**good)) is True
    assert holds(cell(**bad)) is False
    if title[0] != "n":  # failures count wherever they are
        assert holds(cell(**bad, doubts=("its log breaks off",))) is not False
        assert holds(cell(**{**bad, "planner": "baseline"})) is not False


def test_only_monets_infeasible_cells_may_be_refuted():
    """Its memory counts more than replay's; Checkmate's is the same."""
    plan, stopped = cell(**INFEASIBLE), cell(**INFEASIBLE, **NONE, status="stopped")
    monets = [dataclasses.replace(row, instance="a_inplace_normal") for row in (plan, stopped)]
    title = "3. MONeT: published inf"
    found = claim(check_claims(monets[:1]), title)
    assert found.holds and found.figure.endswith("1 of them refuted by plans that replay accepts")
    assert claim(check_claims(monets), title).holds is False
    assert claim(check_claims([plan]), "2. Checkmate: published inf").holds is False


def test_bounds_of_a_space_that_a_plan_refutes_are_not_compared():
    refuting = cell(instance="a_inplace_normal", published_bound=50.1)
    loose = cell(instance="a_inplace_normal", budget=9.0, bound=47.0)
    title = "5. bounds"
    assert claim(check_claims([cell(), loose]), title).holds is False
    found = claim(check_claims([cell(), loose, refuting]), title)
    assert found.holds and found.figure.startswith("1 of 1 clean cells")
    assert "of another space by a plan of ours: a_inplace_normal" in found.figure


def test_without_a_row_nothing_is_claimed():
    assert {c.holds for c in check_claims([])} == {None}


def test_one_cell_of_checkmate_may_be_worse_and_no_more():
    rows = [cell(ratio=1.005), *(cell(budget=float(n)) for n in range(9))]
    title = "2. Checkmate: at most the pub"
    found = claim(check_claims(rows), title)
    assert found.holds and found.figure == "9 of 10 clean cells, worst ratio 1.0050"
    assert claim(check_claims([*rows, cell(budget=7.5, ratio=1.005)]), title).holds is False


def test_a_tenth_of_monets_cells_may_be_worse():
    rows = [cell(instance="a_inplace_normal", budget=float(n)) for n in range(18)]
    worse = [cell(instance="b_inplace_normal", budget=float(n), ratio=1.005) for n in range(3)]
    title = "3. MONeT: at most the pub"
    assert claim(check_claims([*rows, *worse[:2]]), title).holds is True
    assert claim(check_claims([*rows, *worse]), title).holds is False
    assert (
        claim(check_claims([*rows, cell(instance="a_inplace_", ratio=1.006)]), title).holds is False
    )


def sweep(*objectives):
    rows = [
        cell(purpose="sweep", budget=None, budget_bytes=n, objective=x)
        for n, x in enumerate(objectives)
    ]
    return claim(check_claims(rows), "7.")


def test_seconds_that_rise_with_the_budget_are_seen():
    assert sweep(70.0, 60.0, 60.0, 50.0).holds is True
    assert sweep(70.0, 60.0, 60.1, 50.0).holds is False
    assert sweep(70.0, None, 60.0).holds is False
    found = sweep(70.0, 60.0, 65.0, 62.0)  # against the best so far, not the one before
    assert found.figure == "2 of 4 budgets of 1 instances" and len(found.against) == 2


def test_late_answers_and_refused_plans_under_a_limit_are_seen():
    def under(**change):
        row = cell(**{"purpose": "limits", "time_limit": 1.0, "planning_seconds": 2.0, **change})
        return [c.holds for c in check_claims([row]) if c.title.startswith("8.")]

    assert under() == [True, True]
    assert under(status="stopped", **NONE) == [None, True]  # no plan to accept
    assert under(status="error", **NONE) == [False, True]
    assert under(planning_seconds=2.1) == [True, False]
    assert under(status="refused") == [False, True]
    assert under(purpose="published") == [None, None]


@pytest.mark.parametrize(
    ("planner", "baseline", "title"),
    [
        ("sequence", "moccasin", "4. Moccasin, in the given order: at most the pub"),
        ("sequence_reordered", "fastsa", "4. FastSA, with reordering: at most the pub"),
    ],
)
def test_local_search_is_held_to_the_rival_that_reorders_as_much(planner, baseline, title):
    like = {"instance": "moccasin_random_layered_n1000_w", "planner": planner, "baseline": baseline}
    rows = [cell(**like, ratio=0.99), cell(**like, ratio=1.0)]
    assert claim(check_claims(rows), title).holds is True
    assert claim(check_claims([*rows, cell(**like, ratio=1.001)]), title).holds is False
    others = {"baseline": "fastsa" if baseline == "moccasin" else "moccasin"}, {"planner": "gap"}
    for other in others:  # they count elsewhere, or nowhere
        assert claim(check_claims([*rows, cell(**like | other, ratio=1.1)]), title).holds is True
