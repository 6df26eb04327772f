"""Differences between plans are noticed, and programs that outgrow or leave their plan."""

import collections
import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from networks import net, specs

import monet_jax
from monet_jax import PlanDiff


@pytest.fixture(scope="module")
def tight():
    return monet_jax.plan(net, *specs(), budget=0.6, max_compilations=2)


@pytest.fixture(scope="module")
def roomy():
    return monet_jax.plan(net, *specs(), budget=0.8, max_compilations=2)


# ------------------------------------------------------------------------------------- diff


def test_equal_plans_do_not_differ(tight):
    found = monet_jax.diff(tight, tight)
    assert not found and found == PlanDiff((), ()) and str(found) == "The plans say the same."


def test_how_long_planning_took_is_no_difference(tight):
    slower = dataclasses.replace(tight, planning_seconds=1e3, compilations=99)
    assert not monet_jax.diff(tight, slower)


def test_every_figure_that_differs_is_named(tight, roomy):
    found = monet_jax.diff(tight, roomy)
    changes = {change.what: (change.before, change.after) for change in found.changes}
    assert changes["budget_bytes"] == (tight.budget_bytes, roomy.budget_bytes)
    assert changes["compiled_bytes"] == (tight.compiled_bytes, roomy.compiled_bytes)
    assert changes["overhead"] == (tight.overhead, roomy.overhead)
    assert not {"target", "unplanned_bytes", "program"} & set(changes)
    assert all(getattr(roomy, what) == after for what, (_, after) in changes.items())


def test_every_decision_that_differs_is_named(tight, roomy):
    before = {row.name: row.decision for row in tight.values}
    after = {row.name: row.decision for row in roomy.values}
    expected = {(n, before[n], after[n]) for n in before if before[n] != after[n]}
    found = monet_jax.diff(tight, roomy)
    assert {(x.value.name, x.before, x.after) for x in found.values} == expected != set()
    text = str(found)
    for (was, becomes), count in collections.Counter(x[1:] for x in expected).items():
        assert f"{was} -> {becomes}: " in text and f"in {count} value" in text
    assert f"({tight.budget_bytes:,} B)" in text and "networks.py:" in text
    assert json.loads(found.to_json())["changes"]


def test_plans_of_other_programs_are_compared_by_what_their_values_are(tight):
    smaller = monet_jax.plan(net, *specs(depth=3), budget=0.6, max_compilations=2)
    found = monet_jax.diff(tight, smaller)
    assert found.changes[0].what == "program"
    assert found.changes[0].after == "it takes 4 arrays, the first plan's took 5"
    gone = [x for x in found.values if x.after == "absent"]
    assert len(gone) == len(tight.values) - len(smaller.values) > 0
    assert str(found).startswith("Another program: it takes 4 arrays")


# ------------------------------------------------------------------------------------ check


def test_a_plan_holds_for_what_it_was_made_for(tight):
    found = monet_jax.check(tight, net, *specs())
    assert found.holds and not found.problems and not found.changes
    assert found.compiled_bytes == found.planned_bytes == tight.compiled_bytes
    assert str(found).startswith("The plan holds: ") and json.loads(found.to_json())["holds"]


def test_it_holds_to_the_last_byte_and_no_further(tight):
    taken = tight.compiled_bytes
    assert monet_jax.check(tight, net, *specs(), budget=taken).holds
    found = monet_jax.check(tight, net, *specs(), budget=taken - 1)
    assert not found.holds
    (problem,) = found.problems
    assert f"{taken:,} bytes" in problem and "1 bytes more than its budget" in problem
    assert found.changes == (
        f"the budget is tighter: {tight.budget_bytes:,} bytes then, {taken - 1:,} now",
    )
    reserving = dataclasses.replace(tight, reserved_bytes=2048)
    assert monet_jax.check(reserving, net, *specs(), budget=taken + 2048).holds
    assert not monet_jax.check(reserving, net, *specs(), budget=taken + 2047).holds


def test_a_program_that_outgrows_its_plan_is_noticed(tight):
    """As if a compiler undid it: what is compiled now recomputes nothing."""
    undone = dataclasses.replace(
        tight, decisions=None, jax_version="0.11.1", compiler="XLA:CPU, jaxlib 0.11.1, elsewhere"
    )
    found = monet_jax.check(undone, net, *specs())
    assert not found.holds and found.compiled_bytes == tight.unplanned_bytes
    text = str(found)
    assert f"Changed since: JAX 0.11.1 then, {jax.__version__} now" in text
    assert "jaxlib 0.11.1, elsewhere then" in text
    assert f"{tight.compiled_bytes:,} then, {tight.unplanned_bytes:,} now" in text


def cosine(params, x):
    for w in params:
        x = x + jnp.sin(jnp.cos(x @ w) @ w)
    return jnp.mean(x**2)


def deeper(params, x):
    return net(params, x) + jnp.sum(x)


@pytest.mark.parametrize(
    ("fun", "arguments", "options", "says"),
    [
        (net, specs(batch=512), {}, "it takes `float32[512,32]` where the plan's took"),
        (net, specs(depth=3), {}, "it takes 4 arrays, the plan's took 5"),
        (deeper, specs(), {}, "equations, the plan's had"),
        (cosine, specs(), {}, "`cos` float32[1024, 32] of "),
        (net, specs(), {"argnums": 1}, "argnums"),
    ],
)
def test_a_program_that_has_changed_is_noticed(fun, arguments, options, says, tight):
    found = monet_jax.check(tight, fun, *arguments, **options)
    assert not found.holds and found.compiled_bytes is None
    (problem,) = found.problems
    assert says in problem and problem.endswith("Plan again.")
    assert problem.startswith("the plan was made for another function: ")


def test_the_first_value_that_has_changed_is_named_with_both_lines(tight):
    (problem,) = monet_jax.check(tight, cosine, *specs()).problems
    now, then = (f.__code__.co_firstlineno + n for f, n in ((cosine, 2), (net, 3)))
    assert f"test_check.py:{now} stands where the plan has `sin`" in problem
    assert f"networks.py:{then}" in problem


def test_arguments_on_other_devices_are_noticed(tight):
    (problem,) = monet_jax.check(dataclasses.replace(tight, devices=8), net, *specs()).problems
    assert "over 1 devices, the plan's were over 8" in problem


@pytest.mark.parametrize("budget", ["many", -1, 7.5, True])
def test_budgets_that_are_none_are_refused(budget, tight):
    with pytest.raises((ValueError, TypeError)):
        monet_jax.check(tight, net, *specs(), budget=budget)
