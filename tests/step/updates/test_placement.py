"""A state is placed where its plan has it, and refused elsewhere."""

import dataclasses
import functools

import jax
import pytest
from hosted import HOST, kinds, layout_of, small_counts
from steps import assert_close, plain

import monet_jax
from monet_jax.step import jit as step_jit
from monet_jax.step.updates.layout import UpdateLayout
from monet_jax.step.updates.link import CopySeconds


@pytest.fixture(scope="module")
def planned_once():
    case = plain()
    return monet_jax.plan(case.planned(1.0), case.state, case.batch)


@pytest.fixture
def hosted(monkeypatch, planned_once):
    """A step whose plan has four leaves of its state on the host."""
    small_counts(monkeypatch)
    case = plain()
    copies = CopySeconds(1e-3, 1e-4, 1e-2)
    plan = dataclasses.replace(planned_once, layout=layout_of(case, 4), copies=copies)
    monkeypatch.setattr(step_jit, "plan_step", lambda call, options: plan)
    return case, case.planned(1.0), plan


def test_a_placed_state_stays_placed_and_is_donated(hosted):
    case, step, _ = hosted
    given = step.place(case.fresh(), case.batch)
    state, value = step(given, case.batch)
    assert kinds(given) == kinds(state) and kinds(state).count(HOST) == 4
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert_close((state, value), case.plain(case.fresh(), case.batch), 1e-5)
    assert step.place(state, case.batch)[1][0].mu[0] is state[1][0].mu[0]


def test_a_state_elsewhere_is_refused_with_the_call_that_places_it(hosted, monkeypatch):
    case, step, plan = hosted
    with pytest.raises(
        monet_jax.PlanMismatch, match=r"args\[0\]\[1\].*lies on the device"
    ) as found:
        step(case.state, case.batch)
    assert ".step.place(state, batch)`" in str(found.value)
    placed = step.place(case.fresh(), case.batch)
    back = dataclasses.replace(plan, layout=UpdateLayout(), copies=None)
    monkeypatch.setattr(step_jit, "plan_step", lambda call, options: back)
    other = case.planned(1.0)
    with pytest.raises(monet_jax.PlanMismatch, match="4 of its arrays lie on the host"):
        other(placed, case.batch)
    assert HOST not in kinds(other.place(placed, case.batch))


def test_shapes_are_placed_for_a_checkpoint_to_be_restored_into(hosted):
    case, step, _ = hosted
    shapes = jax.eval_shape(functools.partial(jax.tree.map, lambda x: x), case.state)
    target = step.place(shapes, case.batch)
    found = [leaf.sharding and leaf.sharding.memory_kind for leaf in jax.tree.leaves(target)]
    assert found.count(HOST) == 4
    restored = jax.device_put(
        case.state, jax.tree.map(lambda x, y: y.sharding or x.sharding, case.state, target)
    )
    state, _ = step(restored, case.batch)
    assert kinds(state).count(HOST) == 4


def test_nothing_is_placed_where_nothing_is_donated(hosted):
    case, _, _ = hosted
    step = case.planned(1.0, donate_argnums=())
    with pytest.raises(ValueError, match="donates no positional argument"):
        step.place(case.state, case.batch)


def test_the_plan_says_what_lives_on_the_host(hosted, tmp_path):
    *_, plan = hosted
    assert "4 leaves of the state (16.0 KiB) live on the host" in str(plan)
    plan.save(tmp_path / "step.json")
    assert monet_jax.load_plan(tmp_path / "step.json") == plan
