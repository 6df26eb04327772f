"""Schedules of planners of schedules as regions, or an error that says why not."""

import jax
import jax.numpy as jnp
import pytest
from graphs import blocks, chain

import monet_jax
import planners
from planners.emission import plan_of
from planners.schedules.steps import Execute, certified_steps, steps_of, with_frees

PLANNERS = [planners.SaveAll(), planners.SaveNothing(), planners.Chen(), planners.Chen("sqrt")]


@pytest.mark.parametrize("planner", PLANNERS, ids=repr)
def test_a_schedule_becomes_regions_of_the_same_cost(planner):
    graph = blocks(6)
    schedule = planner(graph, 10**12)
    try:
        plan = plan_of(graph, schedule)
    except planners.NotEmittable:
        assert not isinstance(planner, planners.SaveAll)
        return
    assert plan.seconds == pytest.approx(schedule.seconds)
    assert planners.replay(graph, plan).seconds == pytest.approx(schedule.seconds)


def test_the_steps_of_a_plan_are_that_plan():
    graph = blocks(6)
    for made in (planners.Stages()(graph, 120 << 20), planners.save_nothing(graph)):
        steps = steps_of(graph, made)
        schedule = certified_steps(graph, steps, bound_seconds=made.bound_seconds, planner="steps")
        plan = plan_of(graph, schedule)
        assert plan.seconds == pytest.approx(made.seconds)
        assert plan.peak_bytes <= schedule.peak_bytes


def test_what_no_regions_do_is_an_error_that_names_the_op():
    """An op runs three times: once more in the forward, for nothing."""
    graph = chain()
    first = Execute(graph.op_numbers["forward", 0, 0])
    steps = [x for x in steps_of(graph, planners.save_all(graph)) if isinstance(x, Execute)]
    schedule = certified_steps(
        graph,
        with_frees(graph, [first, first, first, *steps[1:]]),
        bound_seconds=0.0,
        planner="odd",
    )
    with pytest.raises(planners.NotEmittable, match=r"odd.*op `f0`.*planners\.Stages"):
        plan_of(graph, schedule)


def test_a_published_planner_drives_remat():
    def loss(w, x):
        for _ in range(12):
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    w, x = jnp.full((64, 64), 0.1), jnp.ones((2048, 64))
    options = {"budget": 0.9, "planner": planners.Chen("sqrt")}
    found = jax.grad(monet_jax.remat(loss, **options))(w, x)
    assert jnp.allclose(found, jax.grad(loss)(w, x), rtol=1e-5)
    plan = monet_jax.plan(loss, w, x, **options)
    assert plan.decisions.planner.startswith("Chen") and plan.compiled_bytes <= plan.budget_bytes
