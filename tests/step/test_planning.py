"""Plans of steps: of several marks, from the disk, as JSON and text, and what may be asked."""

import jax
import pytest
from steps import BATCH, STEPS, WIDTH, Step, bytes_of, layers, loss, normal, plain
from thinning import thinned
from typer.testing import CliRunner

import monet_jax
from monet_jax.cli import shell
from monet_jax.step.step_plan import step_plan_from_json

#: Plans of the cache, found by few compilations.
STORED = {"cache": True, "max_compilations": 2}


@pytest.fixture(scope="module")
def made():
    """A step and its plan."""
    case = plain()
    step = case.planned(0.6, **STORED)
    return case, step, monet_jax.plan(step, case.state, case.batch)


def test_the_plan_is_that_of_the_step(made):
    case, step, plan = made
    assert plan.compiled_bytes == sum(bytes_of(step, case.state, case.batch)) <= plan.budget_bytes
    assert plan.unplanned_bytes == sum(bytes_of(case.plain, case.state, case.batch))
    assert 0 < plan.overhead < 0.5
    assert "keeps its budget" in str(plan) and "`loss` in this step" in str(plan)


def test_a_plan_is_found_on_the_disk_by_what_it_depends_on(made):
    case, _, plan = made
    again = monet_jax.plan(case.planned(0.6, **STORED), case.state, case.batch)
    assert again.is_cached and again == plan
    others = [
        (case.planned(0.7, **STORED), case.batch),
        (case.planned(0.6, **STORED, donate_argnums=()), case.batch),
        (case.planned(1.0, **STORED), case.batch[:64]),
    ]
    assert not any(monet_jax.plan(step, case.state, x).is_cached for step, x in others)


def test_seconds_of_another_source_need_another_plan(made):
    """Both steps fit as they are, so that nothing is timed."""
    case, *_ = made
    steps = [case.planned(1.0, **STORED, costs=costs) for costs in ("model", "measured")]
    plans = [monet_jax.plan(step, case.state, case.batch) for step in (*steps, *steps)]
    assert [plan.is_cached for plan in plans] == [False, False, True, True]


def test_a_plan_is_the_same_as_json(made, tmp_path):
    *_, plan = made
    assert step_plan_from_json(plan.to_json()) == plan
    plan.save(tmp_path / "step.json")
    assert monet_jax.load_plan(tmp_path / "step.json") == plan
    for damaged in ("{}", '{"step_format": 1}', plan.to_json()[:-9]):
        with pytest.raises(ValueError):
            step_plan_from_json(damaged)


def test_a_plan_is_checked_against_the_step(made):
    case, step, plan = made
    check = monet_jax.check(plan, step, case.state, case.batch)
    assert check.holds and check.compiled_bytes == plan.compiled_bytes
    tight = monet_jax.check(plan, step, case.state, case.batch, budget=plan.compiled_bytes - 1)
    assert not tight.holds and "1 bytes more" in tight.problems[0]
    other = monet_jax.check(plan, step, case.state, case.batch[:64])
    assert not other.holds and "another" in other.problems[0]
    with pytest.raises(ValueError, match="argnums"):
        monet_jax.check(plan, step, case.state, case.batch, argnums=1)


def test_bytes_are_those_of_the_step(made):
    case, step, plan = made
    assert monet_jax.compiled_bytes(step, case.state, case.batch).total_bytes == plan.compiled_bytes


@pytest.mark.parametrize("wrong", [{"argnums": 1}, {"reserved": 10}, {"operators": "none"}])
def test_what_is_planned_is_said_in_the_step(made, wrong):
    case, step, _ = made
    with pytest.raises(ValueError, match=next(iter(wrong))):
        monet_jax.plan(step, case.state, case.batch, **wrong)


def test_what_takes_a_function_takes_no_step(made):
    _, step, _ = made
    with pytest.raises(TypeError, match="not a step"):
        monet_jax.remat(step, budget=0.5)


def test_a_step_is_planned_and_checked_from_a_shell(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(
        "from steps import plain\ncase = plain()\nstep = case.planned(0.6, max_compilations=2)\n"
        "def make_args():\n    return case.state, case.batch\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given, stored = ["train:step", "--args", "train:make_args"], str(tmp_path / "step.json")
    more = ["--budget", "0.7", "--out", stored, "--html", str(tmp_path / "step.html")]
    planned = CliRunner().invoke(shell.app, ["plan", *given, *more])
    assert planned.exit_code == 0 and "The step keeps its budget" in planned.output
    assert "<html" in (tmp_path / "step.html").read_text()
    checked = CliRunner().invoke(shell.app, ["check", stored, *given])
    assert checked.exit_code == 0 and "The plan holds" in checked.output


def test_a_function_needs_a_budget():
    with pytest.raises(TypeError, match="needs a budget"):
        monet_jax.plan(jax.numpy.sum, 1.0)


def unequal() -> Step:
    """Two gradients, of which the first takes more bytes."""

    def make(api):
        def step(state, x):
            value, first = api.value_and_grad(loss)(state[0], x)
            other, second = api.value_and_grad(loss)(state[1], x[: 3 * len(x) // 4])
            return jax.tree.map(lambda w, g: w - 0.01 * g, state, (first, second)), value + other

        return step

    return Step(make, (layers(2), layers(2, seed=1)), normal(9, BATCH, WIDTH))


@pytest.mark.parametrize("make", thinned([unequal, STEPS["adversarial"]], "unequal"))
def test_where_one_mark_is_not_enough_others_are_planned(make):
    case = make()
    loose, tight = (
        monet_jax.plan(case.planned(share, max_compilations=2), case.state, case.batch)
        for share in (0.9, 0.5)
    )
    assert len(loose.plans) == 1 and len(tight.plans) == len(tight.marks) == 2
    assert tight.compiled_bytes <= tight.budget_bytes


@pytest.mark.slow
def test_the_minimum_is_never_more_than_the_step_as_it_is():
    case = plain()

    def step(state, x):  # XLA computes both at once, but keeps planned ones apart
        return monet_jax.grad(loss)(state[0], x), monet_jax.grad(loss, (0, 1))(state[0], x)

    plain_bytes = sum(bytes_of(jax.jit(step), case.state, case.batch))
    planned = monet_jax.jit(step, budget=0.5, max_compilations=2, cache=False)
    with pytest.raises(monet_jax.InfeasibleBudget, match="No plan takes less") as caught:
        monet_jax.plan(planned, case.state, case.batch)
    assert caught.value.minimum_budget == plain_bytes
