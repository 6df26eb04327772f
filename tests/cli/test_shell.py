"""`plan`, `demo` and `bench` work from a shell: exit codes, text and JSON."""

import io
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from paths import ROOT
from rich.console import Console
from thinning import thinned
from typer.testing import CliRunner

import monet_jax
from monet_jax.cli import shell

TRAIN = """
import jax
import jax.numpy as jnp
import optax

optimizer = optax.adam(1e-3)


def loss(weights, x, *, scale=1.0):
    for w in weights:
        x = jnp.tanh(x @ w)
    return scale * jnp.sum(x**2)


def args():
    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6
    return weights, jax.ShapeDtypeStruct((1024, 64), jnp.float32)


def args_and_kwargs():
    return args(), {"scale": 2.0}


def a_list():
    return list(args())


def sized(batch):
    return args()[0], jax.ShapeDtypeStruct((batch, 64), jnp.float32)


def unknown_attribute(weights, x):
    return x.foo  # here


def unknown_key(weights, x):
    return {}["weights"]


def changed(weights, x):
    for w in weights:
        x = jnp.sin(x @ w)
    return jnp.sum(x**2)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in a directory that holds `train_here.py`, with an empty plan cache."""
    (tmp_path / "train_here.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "train_here", raising=False)
    monkeypatch.setenv("MONET_JAX_NO_CACHE", "1")
    return lambda *words: CliRunner().invoke(shell.app, [str(word) for word in words])


PLAN = ("plan", "train_here:loss", "--args", "train_here:args", "--target", "cpu")


def test_plan_prints_the_report_and_saves_the_plan(run, tmp_path):
    result = run(*PLAN, "--budget", "0.8", "--out", tmp_path / "plan.json", "--time")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Keeps its budget of ")
    assert result.stdout.splitlines()[-1].startswith("By the clock on cpu: ")
    assert "train_here.py:" in result.stdout
    plan = monet_jax.load_plan(tmp_path / "plan.json")
    assert plan.compiled_bytes <= plan.budget_bytes


@pytest.mark.parametrize(
    ("reserved", "nbytes"),
    thinned(
        [("1KiB", 1024), ("train_here:optimizer", 2 * 6 * 64 * 64 * 4 + 4)],
        "train_here:optimizer-196612",
    ),
)
def test_plan_as_json(run, reserved, nbytes):
    words = (*PLAN[:3], "train_here:args_and_kwargs", *PLAN[4:])
    result = run(*words, "--budget", "0.9", "--json", "--reserved", reserved)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["compiled_bytes"] + nbytes <= data["budget_bytes"]
    assert data["reserved_bytes"] == nbytes


def test_an_infeasible_budget_exits_with_3_and_names_the_minimum(run):
    result = run(*PLAN, "--budget", "1000")
    assert result.exit_code == 3
    assert run("plan", "train_here:loss").exit_code == 2  # an option is missing
    minimum = int(result.stderr.split("minimum budget: ")[1])
    assert run(*PLAN, "--budget", minimum).exit_code == 0


def test_plans_are_compared_and_checked(run, tmp_path):
    a, b, page = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "plan.html"
    assert run(*PLAN, "--budget", "0.9", "--out", a, "--html", page).exit_code == 0
    assert run(*PLAN, "--budget", "0.95", "--out", b).exit_code == 0
    assert "train_here.py:" in page.read_text()
    plan = monet_jax.load_plan(a)

    assert run("diff", a, a).exit_code == 0
    result = run("diff", a, b, "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["changes"]
    assert run("diff", a, tmp_path / "none.json").exit_code == 2

    given = ("--args", "train_here:args")
    assert run("check", a, "train_here:loss", *given).exit_code == 0
    result = run("check", a, "train_here:loss", *given, "--budget", plan.compiled_bytes - 1)
    assert result.exit_code == 1 and "more than its budget" in result.stdout
    result = run("check", a, "train_here:changed", *given, "--json")
    assert result.exit_code == 1 and "`sin`" in json.loads(result.stdout)["problems"][0]
    assert run("check", page, "train_here:loss", *given).exit_code == 2


@pytest.mark.slow
def test_the_largest_batch_is_found(run, tmp_path):
    out = tmp_path / "plan.json"
    words = ("fit", "train_here:loss", "--args", "train_here:sized", "--step", 64, "--out", out)
    result = run(*words, "--budget", "1MiB", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["planned"]["total_bytes"] <= 1 << 20 < data["planned_next"]["total_bytes"]
    assert data["planned"]["total_bytes"] == monet_jax.load_plan(out).compiled_bytes
    assert result.stderr == ""  # no terminal, no progress
    assert run(*words, "--budget", "1000").exit_code == 3


@pytest.mark.slow
def test_the_largest_batch_on_other_terms(run):
    words = ("fit", "train_here:loss", "--args", "train_here:sized", "--step", 64)
    terms = ("--operators", "none", "--checkpoints", "plan", "--reserved", "train_here:optimizer")
    result = run(*words, "--budget", "1MiB", *terms, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["reserved_bytes"] == 2 * 6 * 64 * 64 * 4 + 4
    assert data["planned"]["total_bytes"] + data["reserved_bytes"] <= 1 << 20
    assert (data["plan"]["operators"], data["plan"]["checkpoints"]) == ([], "plan")


def test_a_sweep_is_kept_as_picture_and_as_json(run, tmp_path):
    words = ("sweep", *PLAN[1:], "--points", 2, "--baseline", "a=b=train_here:changed")
    result = run(*words, "--out", tmp_path / "sweep.json", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data == json.loads((tmp_path / "sweep.json").read_text())
    assert "a=b" in {point["program"] for point in data["points"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sweep", *PLAN[1:], "--out", "sweep.gif"), "must end in one of"),
        (("sweep", *PLAN[1:], "--baseline", "train_here:loss"), "`name=module:function`"),
        (("sweep", *PLAN[1:], "--operators", "mask,magic"), "no operators ['magic']"),
        (("sweep", *PLAN[1:], "--checkpoints", "drop"), "got 'drop'"),
        (("fit", *PLAN[1:], "--budget", "1GiB"), "keyword `batch`"),
        (("fit", *PLAN[1:], "--budget", "0.5"), "keyword `batch`"),
        ((*PLAN[:5], "gpu:toaster", "--budget", "0.5"), "unknown target 'gpu:toaster'"),
        ((*PLAN, "--budget", "many"), "many"),
        ((*PLAN, "--budget", "7.5"), "int(7.5)"),
        ((*PLAN, "--budget", "0.5", "--reserved", "0.5"), "reserved"),
        ((*PLAN, "--budget", "0.5", "--argnums", "first"), "argnums"),
        (("plan", "nowhere:loss", *PLAN[2:], "--budget", "0.5"), "nowhere"),
        ((*PLAN, "--budget", "0.5", "--reserved", "nope"), "`--reserved` must be bytes"),
        ((*PLAN, "--budget", "0.5", "--pin", "attention"), "`--pin` must be `name=save`"),
        ((*PLAN, "--budget", "0.5", "--pin", "attention=keep"), "`--pin` must be `name=save`"),
        ((*PLAN, "--budget", "0.5", "--pin", "nosuch=save"), "nosuch"),
        ((*PLAN, "--budget", "0.5", "--out", "none/p.json"), "there is no directory"),
        ((*PLAN, "--budget", "0.5", "--html", "none/p.html"), "there is no directory"),
        (("sweep", *PLAN[1:], "--out", "none/s.json"), "there is no directory"),
        (("plan", "train_here.loss", *PLAN[2:], "--budget", "0.5"), "module:function"),
        (("plan", "train_here:lost", *PLAN[2:], "--budget", "0.5"), "lost"),
        ((*PLAN[:3], "train_here:a_list", *PLAN[4:], "--budget", "0.5"), "tuple"),
        (("bench", "alexnet"), "unknown models 'alexnet'"),
        (("bench", "mlp", "--scale", "huge"), "unknown scale 'huge'"),
        (("bench", "mlp", "--budgets", "some"), "unknown budgets 'some'"),
        (("bench", "mlp", "--dtype", "float8"), "unknown dtype 'float8'"),
    ],
)
def test_errors_exit_with_1_and_say_what_to_do(run, words, message):
    result = run(*words)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and message in result.stderr


def test_what_can_be_checked_is_checked_before_planning(run, monkeypatch):
    """Nothing is traced, so nothing can have been planned."""
    monkeypatch.setattr(monet_jax, "plan", None)
    monkeypatch.setattr(monet_jax, "sweep", None)
    assert "no directory" in run(*PLAN, "--budget", "0.5", "--out", "none/p.json").stderr
    monkeypatch.setitem(sys.modules, "monet_jax.tools.sweep_plot", None)
    for name in ("matplotlib", "monet_jax.tools.sweep_plot"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run("sweep", *PLAN[1:], "--out", "s.svg")
    assert result.exit_code == 1 and "sweep_plot" in result.stderr


@pytest.mark.parametrize(
    ("name", "line", "error"),
    [
        ("unknown_attribute", "return x.foo  # here", "AttributeError"),
        ("unknown_key", 'return {}["weights"]', "KeyError"),
    ],
)
def test_errors_of_the_users_code_show_their_frames_in_it(run, name, line, error, monkeypatch):
    words = ("plan", f"train_here:{name}", *PLAN[2:], "--budget", "0.5")
    result = run(*words)
    assert result.exit_code == 1
    assert line in result.stderr and "train_here.py" in result.stderr
    assert f"error: {error}: " in result.stderr
    assert "monet_jax/" not in result.stderr and "typer" not in result.stderr
    monkeypatch.setenv("MONET_JAX_TRACEBACK", "1")  # as `--traceback` sets it
    assert "monet_jax/" in run(*words).stderr


def test_an_import_inside_of_the_users_module_is_shown_there(run, tmp_path):
    (tmp_path / "train_wrong.py").write_text("import nosuchpkg  # here\n")
    result = run("plan", "train_wrong:loss", *PLAN[2:], "--budget", "0.5")
    assert "import nosuchpkg  # here" in result.stderr
    assert "error: ModuleNotFoundError: No module named 'nosuchpkg'" in result.stderr


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    code = "print('x' * 100_000)" + "\nprint('x' * 1_000_000)" * 9
    code = "\n".join(f"    {line}" for line in code.splitlines())
    code = f"from monet_jax.cli.errors import exit_codes\nwith exit_codes():\n{code}"
    command = f'"{sys.executable}" -c "$CODE" | head -c 10; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command],
        env=os.environ | {"CODE": code, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "x" * 10)


def test_pins_and_limits_from_a_shell(run):
    first = json.loads(run(*PLAN, "--budget", "0.8", "--json").stdout)
    name = next(row["name"] for row in first["values"] if row["decision"] == "recomputed")
    limits = ("--time-limit", "2", "--max-seconds", "60", "--no-cache")
    result = run(*PLAN, "--budget", "1.0", "--pin", f"{name}=save", *limits, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["values"]
    assert {row["decision"] for row in rows if row["name"] == name} <= {"saved", "kept", "unread"}


def test_a_stored_plan_is_shown_as_it_was_and_as_policies(run, tmp_path):
    path = tmp_path / "plan.json"
    planned = run(*PLAN, "--budget", "0.8", "--out", str(path))
    shown = run("show", str(path), "--html", str(tmp_path / "plan.html"))
    assert shown.exit_code == 0 and shown.stdout == planned.stdout
    assert "<h1" in (tmp_path / "plan.html").read_text()
    policies = run("show", str(path), "--policies").stdout
    assert "jax.checkpoint_policies.save_only_these_names(" in policies
    assert run("show", str(tmp_path / "none.json")).exit_code == 1


def test_env_and_cache_say_what_is_there(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MONET_JAX_NO_CACHE", "0")
    assert run(*PLAN, "--budget", "0.8").exit_code == 0
    facts = json.loads(run("env", "--json").stdout)
    assert f"jax {jax.__version__}" in facts["versions"] and "cpu" in facts["targets"][0]
    assert str(tmp_path / "cache") in facts["cache"] and "1 plan," in facts["cache"]
    assert any(flag.startswith("MONET_JAX_CACHE_DIR=") for flag in facts["flags"])
    assert facts["python"] in run("env").stdout
    assert "removed" in run("cache", "--clear").stdout
    assert run("cache").stdout.startswith("0 plans")
    assert run("--version").stdout.strip() == monet_jax.__version__


def test_help_needs_no_extra():
    code = (
        "import sys; from typer.testing import CliRunner; from monet_jax.cli import shell as cli\n"
        "result = CliRunner().invoke(cli.app, ['--help'])\n"
        "assert result.exit_code == 0 and 'bench' in result.output\n"
        "heavy = {'flax', 'optax', 'sklearn', 'monet_jax.zoo'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def dense(depth, width):
    """A reader of digits that compiles in less time than one of convolutions."""
    from flax import linen as nn

    hidden = [layer for _ in range(4 * depth) for layer in (nn.Dense(width), jnp.sin, jnp.tanh)]
    return nn.Sequential([lambda x: x.reshape(len(x), -1), *hidden, nn.Dense(10)])


@pytest.mark.parametrize(("reader", "batch"), thinned([(dense, 512), (None, 64)], "dense-512"))
def test_demo_keeps_its_budget_and_its_gradients(reader, batch, monkeypatch):
    _demo = pytest.importorskip("monet_jax.cli.demo")
    if reader:
        monkeypatch.setattr(_demo, "DigitReader", reader)
    settings = _demo.Settings(
        budget=0.75, epochs=1, batch=batch, depth=1, width=16, seeds=2, timed_steps=2
    )
    found = _demo.run_demo(settings, Console(file=io.StringIO()))
    assert found.plan.decisions is not None
    assert found.planned_bytes <= found.plan.budget_bytes < found.plain_bytes
    assert found.gradient_difference <= 1e-5
    assert len(found.plain) == 2 and found.deviations is not None
    assert found.planned.losses[0] == pytest.approx(found.plain[0].losses[0], rel=1e-5)
    text = _demo.describe(found)
    assert "Test accuracy" in text and str(found.plan) in text


@pytest.mark.slow
def test_bench_keeps_every_budget(run, tmp_path, monkeypatch):
    cells = pytest.importorskip("monet_jax.bench.models.cells")
    monkeypatch.setattr(cells, "SHARES", (0.6,))
    monkeypatch.setattr(cells, "FREE_STEPS", 1)
    out = tmp_path / "bench.json"
    result = run("bench", "mlp", "--scale", "tiny", "--measure", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(out.read_text())
    assert data == json.loads(result.stdout)
    rows = data["rows"]
    assert not [row for row in rows if row["status"] == "error"]
    ours = [row for row in rows if row["kind"] == "ours" and row["status"] == "ok"]
    assert all(row["total_bytes"] <= row["budget_bytes"] for row in ours)
    assert {"baseline", "temps", "minimum"} <= {row["budget"] for row in ours}
    timed = [row for row in rows if row["status"] == "ok"]
    assert all(row["measured_seconds"] > 0 for row in timed)
    assert all(x["measured_low"] <= x["measured_ratio"] <= x["measured_high"] for x in timed)
    assert {x["measured_ratio"] for x in timed if x["program"] == "plain"} == {1.0}
    holds = {claim["title"]: claim["holds"] for claim in data["claims"]}
    assert holds["2. budgets are kept as compiled"]
    assert holds["2. minimum budgets work, 97 % of them do not"]
    assert_users_get_it(next(row for row in ours if row["budget"] == "temps"))


def assert_users_get_it(row):
    """A bench's plan has the bytes of the function that a user gets for that budget."""
    from monet_jax import zoo
    from monet_jax.compiler import compile, targets

    problem = zoo.build(row["model"], scale="tiny")
    plan = monet_jax.plan(problem.loss, *problem.args, budget=row["budget_bytes"], cache=False)
    step = jax.value_and_grad(plan.apply(problem.loss), has_aux=True)
    target = targets.resolve_target(row["target"])
    figures = compile.compile_bytes(step, problem.args, target=target)
    assert figures.total_bytes == plan.compiled_bytes <= row["budget_bytes"]


def test_a_model_that_fails_is_a_row(run, monkeypatch):
    pytest.importorskip("flax")
    from monet_jax.bench.models import run as run_module

    def fails(*_):
        raise RuntimeError("no such weights")

    monkeypatch.setattr(run_module, "Cell", fails)
    result = run("bench", "mlp", "vit_s16", "--scale", "tiny", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["rows"]
    assert [(row["model"], row["status"]) for row in rows] == [
        ("mlp", "error"),
        ("vit_s16", "error"),
    ]
    assert "no such weights" in rows[0]["message"]
