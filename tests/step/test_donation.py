"""Donations that come to nothing, and those that are missing, are named."""

import jax
import jax.numpy as jnp
import pytest
from steps import WIDTH, loss, normal, plain

import monet_jax

TAKEN = "each result of its shape has another type, or lies in another argument already"


def step(state, cache, x):
    """Returns a smaller `cache`, a wider `half`, and nothing for `spare`."""
    new = jax.tree.map(lambda w: 0.9 * w + state["spare"], state["params"])
    return {"params": new, "half": state["half"].astype(jnp.float32)}, cache[1:], loss(new, x)


def arguments():
    params = [normal(0, WIDTH, WIDTH)]
    half = jnp.ones((WIDTH, 3), jnp.bfloat16)
    spare = normal(3, WIDTH, WIDTH)
    return (
        {"params": params, "half": half, "spare": spare},
        normal(1, 5, WIDTH),
        normal(2, 64, WIDTH),
    )


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    "jit", [jax.jit, lambda f, **options: monet_jax.jit(f, budget=1.0, **options)]
)
def test_three_donations_for_nothing_are_named_with_the_reason(jit):
    report = monet_jax.donation_report(jit(step, donate_argnums=(0, 1)), *arguments())
    found = {row.path: (row.nbytes, row.why) for row in report.wasted}
    assert found == {
        "args[0]['half']": (WIDTH * 3 * 2, TAKEN),
        "args[1]": (5 * WIDTH * 4, "no result has its shape"),
        "args[0]['spare']": (WIDTH * WIDTH * 4, TAKEN),
    }
    assert report.donated_bytes - report.aliased_bytes == sum(row.nbytes for row in report.wasted)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments()).compile()
    assert report.aliased_bytes == compiled.memory_analysis().alias_size_in_bytes
    assert "args[1]` float32[5, 32] (640 B) is donated: no result has its shape" in str(report)


@pytest.mark.parametrize(
    "change", [jnp.transpose, jnp.ravel, lambda w: w.astype(jnp.int32), lambda w: w[:2]]
)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_results_of_other_shapes_lie_where_xla_puts_them(change):
    jitted = jax.jit(lambda w: change(0.9 * w), donate_argnums=0)
    report = monet_jax.donation_report(jitted, normal(0, 4, 8))
    compiled = jitted.lower(normal(0, 4, 8)).compile().memory_analysis()
    assert report.aliased_bytes == compiled.alias_size_in_bytes


def test_donations_that_are_missing_are_named():
    report = monet_jax.donation_report(jax.jit(step), *arguments())
    assert [row.path for row in report.missing] == ["args[0]['params'][0]"]
    assert not report.wasted


def test_nothing_is_named_where_all_is_aliased():
    case = plain()
    report = monet_jax.donation_report(case.plain, case.state, case.batch)
    assert not report.rows
    compiled = case.plain.lower(case.state, case.batch).compile().memory_analysis()
    assert report.aliased_bytes == compiled.alias_size_in_bytes
    assert sum(report.result_bytes) == 4  # the loss
    without = monet_jax.donation_report(jax.jit(case.make(jax)), case.state, case.batch)
    assert sum(row.nbytes for row in without.missing) <= report.aliased_bytes


def test_a_function_that_is_not_jitted_donates_nothing():
    with pytest.raises(TypeError, match="jitted"):
        monet_jax.donation_report(step, *arguments())
