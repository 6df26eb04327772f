"""Updates are found by dataflow, whatever the optimizer is, in the order of their gradients."""

import jax
import jax.numpy as jnp
import pytest
from hosted import small_counts
from jax.sharding import AbstractMesh, AxisType
from mapped import AXIS, DEPTH, LOSSES, arguments, step_of
from steps import STEPS, WIDTH, layers, loss, normal

from monet_jax.ir.program import flatten
from monet_jax.step.updates.groups import updates_of


def found(step, *arguments):
    return updates_of(flatten(jax.jit(step).trace(*arguments).jaxpr))


def paths(step, *arguments) -> list[list[str]]:
    """For each update, where its results stand."""
    results, _ = jax.tree.flatten_with_path(jax.eval_shape(step, *arguments))
    names = [jax.tree_util.keystr(path) for path, _ in results]
    return [[names[n] for n in update.results] for update in found(step, *arguments)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    small_counts(monkeypatch)


@pytest.mark.parametrize("name", ["plain", "clipped", "averaged"])
def test_each_parameter_is_updated_with_its_state_the_last_layer_first(name):
    case = STEPS[name]()
    updates = paths(case.make(jax), case.state, case.batch)
    assert [len(update) for update in updates] == [3 + (name != "plain")] * 3
    for layer, update in zip((2, 1, 0), updates, strict=True):
        assert all(path.endswith(f"[{layer}]") for path in update)


def test_two_optimizers_have_their_own_updates():
    case = STEPS["adversarial"]()
    assert len(found(case.make(jax), case.state, case.batch)) == 4


def test_casts_at_the_end_of_a_backward_hide_no_order():
    """The gradients in half precision are cast together; the order is theirs."""

    def step(params, x):
        def half(params):
            low = [w.astype(jnp.bfloat16) for w in params]  # the first layer's cast comes first
            return loss(low, x.astype(jnp.bfloat16)).astype(jnp.float32)

        return [w - g for w, g in zip(params, jax.grad(half)(params), strict=True)]

    assert [update.results for update in found(step, layers(), normal(9, 64, WIDTH))] == [
        (2,),
        (1,),
        (0,),
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_that_a_shard_map_returns_are_in_the_order_in_which_it_makes_them(name):
    mesh = AbstractMesh((8,), (AXIS,), axis_types=(AxisType.Auto,))

    def step(params, x):
        _, gradient = step_of(name, jax, mesh)(params, x)
        return jax.tree.map(lambda w, g: w - g, params, gradient)

    positions = [update.results[0] // 2 for update in found(step, *arguments(name, mesh))]
    in_a_loop = name == "scanned"  # which makes all of them at once
    assert in_a_loop or positions == sorted(positions, reverse=True)
    assert sorted(positions) == sorted([*range(DEPTH)] * 2)


def test_what_is_updated_in_one_branch_or_has_effects_is_not_taken_apart():
    case = STEPS["every_second"]()
    (whole,) = found(case.make(jax), case.state, case.batch)
    assert len(whole.gradients) == 3

    def telling(params, x):
        gradient = jax.grad(loss)(params, x)
        jax.debug.print("{}", x[0, 0])
        return jax.tree.map(jnp.subtract, params, gradient)

    assert found(telling, layers(), normal(9, 64, WIDTH)) == ()
