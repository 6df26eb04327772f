"""`fit`, `sweep` and `diff` of whole steps say what JAX's own compilation of the steps says."""

import functools
import json

import jax
import jax.numpy as jnp
import pytest
from steps import (
    ADAMW,
    WIDTH,
    accumulating,
    assert_close,
    bytes_of,
    loss,
    normal,
    plain,
    updated,
)
from thinning import thinned
from typer.testing import CliRunner

import monet_jax
from monet_jax.cli import shell
from monet_jax.step.step_plan import step_plan_from_json

BUDGET, TOTAL = 3 << 18, 1024
CASE = plain()


def make_args(batch: int):
    return CASE.state, jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32)


def taken(jitted, *arguments) -> int:
    return sum(bytes_of(jitted, *arguments))


# ----------------------------------------------------------------------------------------- fit


@pytest.fixture(scope="module")
def found():
    return monet_jax.fit(CASE.planned(1.0), make_args, budget=BUDGET, step=32)


@pytest.mark.slow
def test_the_size_that_fits_is_the_largest(found):
    step = CASE.planned(budget=BUDGET)
    assert taken(step, *make_args(found.size)) == found.planned.total_bytes <= BUDGET
    assert found.plan.compiled_bytes == found.planned.total_bytes
    above = make_args(found.size + 32)
    with pytest.raises(monet_jax.InfeasibleBudget) as error:
        monet_jax.plan(step, *above)
    assert error.value.minimum_budget == found.planned_next.total_bytes > BUDGET
    assert taken(CASE.plain, *make_args(found.plain.size)) == found.plain.total_bytes <= BUDGET
    assert taken(CASE.plain, *make_args(found.plain.size + 32)) > BUDGET
    assert found.plain.size < found.size


def test_the_budget_is_the_step_s_own_where_none_is_given():
    step = CASE.planned(budget=BUDGET)
    assert monet_jax.fit(step, make_args, limit=8).budget_bytes == BUDGET
    with pytest.raises(ValueError, match="is a share of what the step takes"):
        monet_jax.fit(CASE.planned(budget=0.5), make_args)
    with pytest.raises(TypeError, match="needs a budget"):
        monet_jax.fit(loss, make_args)


@pytest.mark.parametrize(
    "wrong",
    thinned(
        [{"argnums": 1}, {"reserved": 10}, {"operators": "none"}],
        "{'argnums': 1}",
        "{'reserved': 10}",
    ),
)
def test_options_of_functions_are_refused(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=name):
        monet_jax.fit(CASE.planned(1.0), make_args, budget=BUDGET, **wrong)
    if name != "reserved":
        with pytest.raises(ValueError, match=name):
            monet_jax.sweep(CASE.planned(1.0), CASE.state, CASE.batch, **wrong)


# ---------------------------------------------------------------------------------- accumulation


def make_parts(batch: int, accumulation_steps: int):
    return CASE.state, jax.ShapeDtypeStruct((accumulation_steps, batch, WIDTH), jnp.float32)


ACCUMULATING = monet_jax.jit(accumulating(monet_jax), budget=1.0, donate_argnums=0, cache=False)


@functools.cache
def fitted(budget: int) -> monet_jax.AccumulatedFit:
    return monet_jax.fit(ACCUMULATING, make_parts, budget=budget, accumulate=TOTAL, step=64)


@pytest.mark.slow
def test_micro_batches_have_the_least_seconds_of_all_that_fit():
    found = fitted(1 << 20)
    assert found.size * found.steps == TOTAL
    by_size = {pair.size: pair for pair in found.pairs}
    assert sorted(by_size) == [64, 128, 256, 512, 1024]
    for size, pair in by_size.items():  # each pair, planned by itself
        arguments = make_parts(size, TOTAL // size)
        assert pair.plain_bytes in (
            None,
            taken(jax.jit(accumulating(jax), donate_argnums=0), *arguments),
        )
        try:
            plan = monet_jax.plan(ACCUMULATING, *arguments, budget=1 << 20)
        except monet_jax.InfeasibleBudget:
            assert not pair.fits
            continue
        assert pair.fits
        assert (pair.seconds or pair.plain_seconds) >= (found.best.seconds or 0)
        if size == found.size:
            assert plan.compiled_bytes == found.best.total_bytes == found.plan.compiled_bytes


@pytest.mark.slow
def test_a_tighter_budget_takes_more_steps_and_is_told():
    wide, tight = fitted(4 << 20), fitted(300 << 10)
    assert (wide.size, wide.steps) == (TOTAL, 1)
    assert tight.size < TOTAL and not tight.pairs[0].fits
    assert f"as {tight.steps} x {tight.size}" in str(tight) and "does not fit" in str(tight)
    data = json.loads(tight.to_json())
    assert data["best"]["size"] == tight.size
    assert step_plan_from_json(json.dumps(data["plan"])) == tight.plan


@pytest.mark.slow
def test_a_step_with_the_micro_batches_that_were_found_is_that_of_the_whole_batch():
    found, x = fitted(1 << 20), normal(9, TOTAL, WIDTH)
    step = monet_jax.jit(accumulating(monet_jax), budget=1 << 20, cache=False)
    got = step(CASE.state, x.reshape(found.steps, found.size, WIDTH))
    assert_close(got, jax.jit(accumulating(jax))(CASE.state, x[None]), 1e-4)


@pytest.mark.slow
def test_the_least_budget_of_micro_batches_is_said_and_enough():
    with pytest.raises(monet_jax.InfeasibleBudget, match="micro-batches of 64") as error:
        fitted(100 << 10)
    assert fitted(error.value.minimum_budget).size == 64


def test_micro_batches_that_cannot_be_are_refused():
    with pytest.raises(TypeError, match="is about a step"):
        monet_jax.fit(loss, make_parts, budget=1 << 20, accumulate=TOTAL)
    with pytest.raises(TypeError, match="`accumulation_steps`"):
        monet_jax.fit(ACCUMULATING, make_args, budget=1 << 20, accumulate=TOTAL)
    with pytest.raises(ValueError, match="divides"):
        monet_jax.fit(ACCUMULATING, make_parts, budget=1 << 20, accumulate=7, step=2)
    with pytest.raises(ValueError, match="whole batch"):
        monet_jax.fit(ACCUMULATING, make_parts, budget=1 << 20, accumulate=0)


# --------------------------------------------------------------------------------- sweep, diff


@pytest.mark.slow
def test_a_sweep_is_of_the_whole_step():
    x = CASE.batch

    def by_hand(state, x):
        def checkpointed(params, x):
            for w in params:
                x = jax.checkpoint(lambda w, x: x + jnp.sin(jnp.sin(x @ w) @ w))(w, x)
            return jnp.mean(x**2)

        value, gradient = jax.value_and_grad(checkpointed)(state[0], x)
        return updated(ADAMW, state, gradient), value

    baselines = {"layers": by_hand, "broken": lambda state, x: state + 1}
    found = monet_jax.sweep(CASE.planned(0.6), CASE.state, x, points=2, baselines=baselines)
    by_name = {point.program: point for point in found.points}
    assert by_name["plain"].total_bytes == taken(CASE.plain, CASE.state, x)
    assert by_name["layers"].total_bytes == taken(jax.jit(by_hand, donate_argnums=0), CASE.state, x)
    assert "TypeError" in by_name["broken"].error
    assert by_name["jax.checkpoint: nothing"].flops > by_name["plain"].flops
    planned = found.of_kind("planned")
    for point in planned:
        step = CASE.planned(budget=point.budget_bytes)
        assert taken(step, CASE.state, x) == point.total_bytes <= point.budget_bytes
    assert planned[0].total_bytes == by_name["plain"].total_bytes
    assert planned[0].flops == by_name["plain"].flops < planned[-1].flops
    with pytest.raises(monet_jax.InfeasibleBudget):
        monet_jax.plan(CASE.planned(budget=int(0.97 * planned[-1].budget_bytes)), CASE.state, x)


@pytest.mark.slow
def test_plans_of_steps_are_compared():
    plans = [
        monet_jax.plan(CASE.planned(share), CASE.state, CASE.batch) for share in (1.0, 0.6, 0.5)
    ]
    assert not monet_jax.diff(plans[1], plans[1])
    plain_to_planned, tighter = monet_jax.diff(*plans[:2]), monet_jax.diff(*plans[1:])
    ((name, change),) = plain_to_planned.marks
    assert name == "loss" and change.changes[0].after == "planned"
    ((_, change),) = tighter.marks
    assert change.values and "budget_bytes" in {x.what for x in tighter.changes}
    assert "`loss` in this step:" in str(tighter)
    other = monet_jax.plan(CASE.planned(0.6), CASE.state, CASE.batch[:256], budget=0.9)
    assert monet_jax.diff(plans[1], other).changes[0].what == "program"
    function = monet_jax.plan(loss, CASE.state[0], CASE.batch, budget=0.6)
    with pytest.raises(TypeError, match="whole step"):
        monet_jax.diff(plans[1], function)


def test_the_commands_take_steps(tmp_path, monkeypatch):
    (tmp_path / "training.py").write_text(
        "import monet_jax\n"
        "from steps import accumulating, plain\n"
        "step = monet_jax.jit(accumulating(monet_jax), budget=1.0, donate_argnums=0)\n"
        "state, x = plain().state, plain().batch[None]\n"
        "def make_args():\n    return state, x\n"
        "def make_parts(batch, accumulation_steps):\n"
        "    return state, x[:, :batch].repeat(accumulation_steps, 0)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    stored = [str(tmp_path / f"{n}.json") for n in range(2)]
    given = ["fit", "training:step", "--args", "training:make_parts", "--budget", "1MiB"]
    more = ["--accumulate", "128", "--step", "128", "--out", stored[0]]
    fitted = CliRunner().invoke(shell.app, [*given, *more])
    assert fitted.exit_code == 0 and "takes least seconds" in fitted.output
    given = ["sweep", "training:step", "--args", "training:make_args", "--points", "2"]
    swept = CliRunner().invoke(shell.app, given)
    assert swept.exit_code == 0 and "planned" in swept.output
    plan = monet_jax.load_plan(stored[0])
    monet_jax.plan(ACCUMULATING, CASE.state, CASE.batch[None]).save(stored[1])
    compared = CliRunner().invoke(shell.app, ["diff", *stored])
    assert isinstance(plan, monet_jax.StepPlan)
    assert compared.exit_code == 1 and "Another program" in compared.output
