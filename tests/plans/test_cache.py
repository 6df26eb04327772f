"""A verified plan is made once, and then taken from the disk or from process 0."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from networks import args, assert_same, net, recomputes, specs
from processes import finished, free_port, in_a_job, start
from thinning import thinned

import monet_jax
from monet_jax import _disk as files_module
from monet_jax import _plan
from monet_jax.planning import pipeline
from monet_jax.plans import cache


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    monkeypatch.delenv(cache.DISABLE, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def made_plans(monkeypatch):
    """The plans made, not found."""
    calls, find_plan = [], pipeline._find_plan

    def counted(*arguments):
        calls.append(find_plan(*arguments))
        return calls[-1]

    monkeypatch.setattr(pipeline, "_find_plan", counted)
    return calls


def planned(budget="1GiB", fun=net, given=None, **options):
    """A plan that takes one compilation."""
    return monet_jax.plan(fun, *(given or specs()), budget=budget, **options)


def files(directory):
    return [p for p in directory.rglob("*") if p.is_file()]


# ------------------------------------------------------------------------------ one process


def test_a_plan_is_made_once(directory, made_plans):
    assert planned(0.6) == planned(0.6)
    assert len(made_plans) == 1
    f = monet_jax.remat(net, budget=0.6)
    assert_same(jax.grad(f)(*args()), jax.grad(net)(*args()))
    assert recomputes(jax.grad(f), *args())
    assert len(made_plans) == 1 and len(files(directory)) == 1


@pytest.mark.parametrize(
    "change",
    thinned(
        [
            {"budget": "2GiB"},
            {"given": specs(batch=512)},
            {"argnums": 1},
            {"reserved": 1},
            {"time_limit": 9.0},
            {"verify": False},
        ],
        "{'argnums': 1}",
        "{'reserved': 1}",
        "{'verify': False}",
    ),
)
def test_a_plan_for_something_else_is_made_again(change, directory, made_plans):
    planned()
    planned(**change)
    assert len(made_plans) == len(files(directory)) == 2


def test_other_compiler_flags_make_another_plan(directory, made_plans, monkeypatch):
    planned()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")  # read by XLA at its start
    planned()
    assert len(made_plans) == 2


def test_pins_count_by_what_they_mean(directory, made_plans):
    def fun(first, second):
        def f(w, x):
            x = checkpoint_name(jnp.sin(x @ w), first)
            return jnp.mean(checkpoint_name(jnp.sin(x @ w), second) ** 2)

        return f

    given = jnp.ones((8, 8)), jnp.ones((64, 8))
    for f in (fun("a", "b"), fun("b", "a"), fun("a", "b")):
        planned(fun=f, given=given, pins={"a": "recompute"}, verify=False)
    assert len(made_plans) == 2


@pytest.mark.parametrize("off", ["argument", "environment", "planner"])
def test_the_cache_can_be_off(off, directory, made_plans, monkeypatch):
    options = {"argument": {"cache": False}, "planner": {"planner": lambda graph, budget: None}}
    if off == "environment":
        monkeypatch.setenv(cache.DISABLE, "1")
    for _ in range(2):
        planned(**options.get(off, {}))
    assert len(made_plans) == 2 and not files(directory)


@pytest.mark.parametrize(
    "content",
    thinned(
        ["", "{", "null", "[" * 100_000, '{"format": 5}', "\x00", "foreign"], "foreign", "{", "null"
    ),
)
def test_damaged_and_foreign_files_are_made_again(content, directory, made_plans):
    first = planned()
    (path,) = files(directory)
    if content == "foreign":
        content = planned(given=specs(batch=512)).to_json()
        made_plans.pop()
    path.write_text(content)
    assert planned().decisions == first.decisions
    assert len(made_plans) == 2
    assert _plan.plan_from_json(path.read_text()).fingerprint == first.fingerprint


def test_a_truncated_file_is_made_again(directory, made_plans):
    planned()
    (path,) = files(directory)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    planned()
    assert len(made_plans) == 2 and len(path.read_bytes()) > len(whole) // 2


def test_a_directory_that_cannot_be_written_costs_one_warning(tmp_path, made_plans, monkeypatch):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "file"))
    f = monet_jax.remat(net, budget=0.6)
    with pytest.warns(UserWarning, match=cache.DIRECTORY) as caught:
        got = [jax.jit(jax.grad(f))(*args()) for _ in range(2)]
    assert len(caught) == 1 and caught[0].filename == __file__
    assert_same(got, [jax.grad(net)(*args())] * 2)
    assert (tmp_path / "file").read_text() == "not a directory"


@pytest.mark.parametrize("step", ["replace", "open"])
def test_a_full_disk_leaves_nothing_half_written(step, directory, monkeypatch):
    planned()
    (path,) = files(directory)
    before = path.read_text()
    path.write_text("damaged")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        files_module.os if step == "replace" else files_module, step, full, raising=False
    )
    with pytest.warns(UserWarning, match="No space left"):
        plan = planned()
    with pytest.raises(OSError, match="No space left"):
        plan.save(directory / "plan.json")
    monkeypatch.undo()
    assert files(directory) == [path] and path.read_text() == "damaged"
    assert _plan.plan_from_json(before).fingerprint == plan.fingerprint


# ------------------------------------------------------------------------------ several processes

PLAN = """
import sys
import monet_jax
from networks import net, specs
{before}
print(monet_jax.plan(net, *specs(), budget=0.6).to_json())
"""


def started(code, directory, *argv):
    """A new process whose plans are cached in a directory, and whose warnings are errors."""
    environment = {cache.DIRECTORY: str(directory)}
    return start(code, *argv, options=("-W", "error::UserWarning:monet_jax"), **environment)


def test_a_new_process_takes_the_plan_without_a_solver(directory):
    plan = planned(0.6)
    without = "\n".join(
        [
            "from monet_jax.planning import pipeline",
            "pipeline._find_plan = None",
            "assert not {'cvxpy', 'highspy'} & set(sys.modules), 'imported for nothing'",
        ]
    )
    (out,) = finished(started(PLAN.format(before=without), directory))
    assert out == plan.to_json().rstrip()


@pytest.mark.slow
def test_two_processes_at_once(directory):
    code = PLAN.format(before="")
    texts = finished(*[started(code, directory) for _ in range(2)])
    plans = list(map(_plan.plan_from_json, texts))
    assert len({p.decisions.regions for p in plans}) == 1
    (path,) = files(directory)
    stored = _plan.plan_from_json(path.read_text())  # under no name: other functions may use it
    assert stored in [dataclasses.replace(p, name="") for p in plans]


JOB = """
import monet_jax
from monet_jax.planning import pipeline
from networks import args, net
if rank == 1:
    pipeline._find_plan = None  # only process 0 plans
f = monet_jax.remat(net, budget=0.6)
jax.jit(jax.grad(f))(*args())
(plan,) = f._source._plans.values()
try:
    jax.grad(monet_jax.remat(net, budget=1000))(*args())
except ValueError as error:
    print("No plan fits" in str(error))
print(plan.to_json())
"""


@pytest.mark.slow
def test_the_processes_of_a_job_take_the_plan_of_the_first(tmp_path, monkeypatch):
    # Each has a disk of its own, and the first has planned before.
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "0"))
    plan = planned(0.6)
    port = free_port()
    code = in_a_job(JOB, 2)
    outputs = finished(*[started(code, tmp_path / str(n), port, n) for n in range(2)])
    # Gloo says there that it is connected.
    assert [out.partition("peer ranks is : 1\n")[2] for out in outputs] == [
        "True\n" + plan.to_json()
    ] * 2
