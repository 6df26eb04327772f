"""Stored plans of steps run what they were made for, and nothing else."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from steps import bytes_of, plain

import monet_jax
from monet_jax.step.step_plan import step_plan_from_json

ROOT = Path(__file__).parents[2]
PATH = f"{ROOT}:{ROOT / 'tests/helpers'}"
SOURCE = """
import sys

for solver in ("cvxpy", "highspy"):
    sys.modules[solver] = None
import jax.numpy as jnp, monet_jax
from steps import plain
case = plain()
step = monet_jax.apply(monet_jax.load_plan(sys.argv[1]), case.make(monet_jax), donate_argnums=0)
print(step.lower(case.state, case.batch).compile().memory_analysis().temp_size_in_bytes)
"""


@pytest.fixture(scope="module")
def made():
    """A step and its plan, read from its JSON text."""
    case = plain()
    plan = monet_jax.plan(case.planned(0.6, max_compilations=2), case.state, case.batch)
    return case, step_plan_from_json(plan.to_json())


def test_a_stored_plan_runs_its_step(made):
    case, plan = made
    step = monet_jax.apply(plan, case.planned(0.3))
    assert sum(bytes_of(step, case.state, case.batch)) == plan.compiled_bytes < plan.unplanned_bytes
    ours, theirs = case.fresh(), case.fresh()
    for _ in range(3):
        ours, value = step(ours, case.batch)
        theirs, expected = case.plain(theirs, case.batch)
    pairs = zip(jax.tree.leaves((ours, value)), jax.tree.leaves((theirs, expected)), strict=True)
    for x, y in pairs:
        most = case.tolerance * np.max(np.abs(y), initial=1e-30)
        np.testing.assert_allclose(x, y, rtol=0, atol=most)


@pytest.mark.slow
def test_it_runs_without_a_solver(made, tmp_path):
    case, plan = made
    plan.save(tmp_path / "step.json")
    command = [sys.executable, "-c", SOURCE, str(tmp_path / "step.json")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PATH}
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == plan.compiled_bytes - case.budget(0.0)


OTHERS = {
    "step": (lambda step: lambda state, batch: step(state, 2 * batch), slice(None), 0),
    "arguments": (lambda step: step, slice(64), 0),
    "donates": (lambda step: step, slice(None), ()),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_step_is_refused(made, what):
    case, plan = made
    change, rows, donated = OTHERS[what]
    step = monet_jax.apply(plan, change(case.make(monet_jax)), donate_argnums=donated)
    with pytest.raises(monet_jax.PlanMismatch, match=f"The plan was made for .*{what}"):
        step.lower(case.state, case.batch[rows])


def test_a_plan_of_another_version_is_compiled_again(made):
    case, plan = made
    plan = dataclasses.replace(plan, jax_version="0.0.1")
    step = case.make(monet_jax)
    monet_jax.apply(plan, step, donate_argnums=0).lower(case.state, case.batch)  # it fits
    outgrown = dataclasses.replace(plan, budget_bytes=plan.compiled_bytes - 1)
    with pytest.warns(UserWarning, match="more than the .* it was made for. Plan again"):
        monet_jax.apply(outgrown, step, donate_argnums=0).lower(case.state, case.batch)


def test_options_are_of_the_kind_of_plan(made):
    case, plan = made
    with pytest.raises(TypeError, match="argnums"):
        monet_jax.apply(plan, case.make(monet_jax), argnums=1)
    with pytest.raises(TypeError, match="donate_argnums"):
        monet_jax.apply(plan, case.planned(0.5), donate_argnums=0)
    function = monet_jax.plan(lambda x: (x**2).sum(), np.ones(4, np.float32), budget="1MiB")
    with pytest.raises(TypeError, match="donate_argnums"):
        monet_jax.apply(function, lambda x: (x**2).sum(), donate_argnums=0)
