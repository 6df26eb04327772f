"""The user's own `jax.checkpoint` regions are kept as written, or planned through."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from networks import checkpoint_regions, recomputes
from programs import array
from thinning import thinned

import monet_jax

DEPTH, WIDTH, ROWS = 6, 32, 512


def layer(x, w):
    """One whose input and middle are wide."""
    wide = checkpoint_name(jnp.sin(x @ w[0]), "wide")
    return x + jnp.sin(wide) @ w[1]


def loss(weights, x, wrap=lambda f: f):
    """Layers one after the other, in two halves."""

    def half(x, some):
        return ft.reduce(layer, some, x)

    for some in (weights[: DEPTH // 2], weights[DEPTH // 2 :]):
        x = wrap(half)(x, some)
    return jnp.mean(x**2)


def coarse(weights, x):
    """The same, each half a region that is run again at once."""
    return loss(weights, x, jax.checkpoint)


def named(weights, x):
    """The same under a policy of names."""
    policy = jax.checkpoint_policies.save_only_these_names("wide")
    return loss(weights, x, ft.partial(jax.checkpoint, policy=policy))


def scanned(weights, x):
    """The same under a scan, each half an iteration and a region."""
    halves = weights[: DEPTH // 2], weights[DEPTH // 2 :]
    stacked = jax.tree.map(lambda *w: jnp.stack(w), *halves)
    step = jax.checkpoint(lambda x, some: (ft.reduce(layer, some, x), None))
    return jnp.mean(jax.lax.scan(step, x, stacked)[0] ** 2)


def arguments():
    """For all of them."""
    weights = [(array(n, WIDTH, 8 * WIDTH), array(n, 8 * WIDTH, WIDTH)) for n in range(DEPTH)]
    return [jax.tree.map(lambda w: 0.3 * w, some) for some in weights], array(9, ROWS, WIDTH)


def unplanned(function):
    """Bytes that it takes as written."""
    step = jax.value_and_grad(function)
    return monet_jax.compiled_bytes(step, *arguments(), target="cpu")


def planned(function, budget, checkpoints):
    """Its plan for a CPU."""
    return monet_jax.plan(
        function,
        *arguments(),
        budget=budget,
        target="cpu",
        checkpoints=checkpoints,
        max_compilations=4,
        cache=False,
    )


def assert_same_gradient(function, plan):
    ours = jax.jit(jax.value_and_grad(plan.apply(function)))(*arguments())
    plain = jax.jit(jax.value_and_grad(loss))(*arguments())
    jax.tree.map(ft.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), ours, plain)


def regions(function, plan):
    """How many regions are run again in the traced gradient."""
    step = jax.value_and_grad(plan.apply(function))
    return checkpoint_regions(jax.make_jaxpr(step)(*arguments()))


@pytest.mark.parametrize("function", thinned([coarse, scanned], "coarse"))
def test_a_budget_that_a_coarse_region_breaks_is_met_by_planning_through_it(function):
    with pytest.raises(monet_jax.InfeasibleBudget) as caught:
        planned(function, unplanned(function).total_bytes // 8, "keep")
    least = caught.value.minimum_budget
    fixed = unplanned(function).total_bytes - unplanned(function).temp_bytes
    budget = fixed + int(0.8 * (least - fixed))
    with pytest.raises(monet_jax.InfeasibleBudget):
        planned(function, budget, "keep")
    plan = planned(function, budget, "plan")
    assert plan.compiled_bytes <= budget
    assert_same_gradient(function, plan)


@pytest.mark.parametrize("function", thinned([coarse, named, scanned], "coarse"))
def test_what_has_room_is_not_run_again_where_it_is_planned_through(function):
    """The function fits as it is, but recomputes what there is room for."""
    budget = 2 * unplanned(loss).total_bytes
    kept, through = (planned(function, budget, checkpoints) for checkpoints in ("keep", "plan"))
    assert kept.decisions is None and regions(function, kept) > 0
    assert through.decisions is not None
    # In a loop, what is fast to compute is not stacked.
    assert regions(function, through) == 0 or function is scanned
    assert through.overhead <= 0 and through.flops < kept.flops
    for plan in (kept, through):
        assert plan.compiled_bytes <= budget
        assert_same_gradient(function, plan)


@pytest.mark.slow
def test_a_stored_plan_knows_what_it_was_planned_through(tmp_path):
    plan = planned(coarse, unplanned(coarse).total_bytes, "plan")
    plan.save(tmp_path / "plan.json")
    stored = monet_jax.load_plan(tmp_path / "plan.json")
    assert stored.checkpoints == "plan"
    assert_same_gradient(coarse, stored)
    with pytest.raises(monet_jax.PlanMismatch):
        jax.grad(stored.apply(loss))(*arguments())


def test_a_decorated_function_plans_through_its_checkpoints():
    budget = 2 * unplanned(loss).total_bytes
    ours, kept = (
        monet_jax.remat(coarse, budget=budget, target="cpu", checkpoints=c, cache=False)
        for c in ("plan", "keep")
    )
    assert not recomputes(jax.grad(ours), *arguments())
    assert recomputes(jax.grad(kept), *arguments())


def test_a_function_without_checkpoints_is_planned_as_ever():
    budget = unplanned(loss).total_bytes
    kept, through = (planned(loss, budget, checkpoints) for checkpoints in ("keep", "plan"))
    assert kept.decisions is through.decisions is None
    assert kept.fingerprint == through.fingerprint


@pytest.mark.parametrize("depth", thinned([4, DEPTH]))
def test_a_sweep_plans_through_checkpoints_as_well(depth):
    weights, x = arguments()
    options = {"target": "cpu", "points": 2}
    kept, through = (
        monet_jax.sweep(coarse, weights[:depth], x, checkpoints=c, **options)
        for c in ("keep", "plan")
    )
    least = [found.of_kind("planned")[-1].total_bytes for found in (kept, through)]
    assert least[1] < 0.9 * least[0]


def test_another_word_is_refused():
    with pytest.raises(ValueError, match=r"checkpoints.*keep.*plan.*'drop'"):
        monet_jax.remat(loss, budget=0.5, checkpoints="drop")
