"""A plan is refused by another program and by another cut of its own, with what differs."""

import contextlib
import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import args, assert_same, net, specs

import monet_jax
from monet_jax import PlanMismatch
from monet_jax.planning import pipeline
from monet_jax.plans import cache
from monet_jax.tracing.passes import partition

SHAPES = [((32, n), (n, 32)) for n in (32, 40, 64, 48, 24)]
UNEVEN_SPECS = (
    [[jax.ShapeDtypeStruct(s, jnp.float32) for s in pair] for pair in SHAPES],
    jax.ShapeDtypeStruct((1024, 32), jnp.float32),
)
#: Two constants, each with a value under which `uneven` has as many stages, cut at other places.
FEW_LARGE, FEW_PROMINENT = {"MIN_SHARE": 0.15}, {"LARGE_PROMINENCE": 1.5}


def uneven(params, x):
    """The loss of a residual network whose layers are of different widths."""
    for w, v in params:
        x = x + jnp.sin(jnp.sin(x @ w) @ v)
    return jnp.mean(x**2)


def uneven_args():
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) / 8, s.dtype), UNEVEN_SPECS)


@contextlib.contextmanager
def cut_by(constants):
    """With other constants of the partition."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(partition, name, value)
        yield


def planned(constants, **options):
    with cut_by(constants):
        return monet_jax.plan(uneven, *UNEVEN_SPECS, budget=0.6, **options)


@ft.cache
def of_two_cuts():
    """Plans of the same program that differ in its cut."""
    return planned(FEW_LARGE, cache=False), planned(FEW_PROMINENT, cache=False)


def halves(plan):
    return plan.fingerprint.split("/")


def test_a_plan_of_another_cut_with_as_many_stages_is_refused():
    plan, other = of_two_cuts()
    assert plan.decisions is not None and len(plan.stages) == len(other.stages)
    assert halves(plan)[0] == halves(other)[0] and halves(plan)[1] != halves(other)[1]
    given, expected = uneven_args(), jax.grad(uneven)(*uneven_args())
    with cut_by(FEW_LARGE):
        assert_same(jax.grad(plan.apply(uneven))(*given), expected)
    applied, count = plan.apply(uneven), len(plan.stages)
    with cut_by(FEW_PROMINENT):
        with pytest.raises(PlanMismatch, match="the same program, cut into other stages") as error:
            jax.grad(applied)(*given)
        assert f"({count} here, {count} then)" in str(error.value)
        assert "another version of monet_jax" in str(error.value)
        assert str(error.value).endswith("is not in stage 0 any more. Plan again.")
        found = monet_jax.check(plan, uneven, *UNEVEN_SPECS)
        assert not found.holds and "cut into other stages" in found.problems[0]
        assert_same(jax.grad(other.apply(uneven))(*given), expected)


@pytest.mark.slow
def test_a_cached_plan_of_another_cut_is_made_again_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    first = planned(FEW_LARGE)
    assert planned(FEW_LARGE).is_cached
    second = planned(FEW_PROMINENT)
    assert not second.is_cached and halves(first)[1] != halves(second)[1]
    # As if it were found under the other's key.
    monkeypatch.setattr(pipeline, "_key", lambda *parts: "one")
    planned(FEW_LARGE)
    assert not planned(FEW_PROMINENT).is_cached
    assert planned(FEW_PROMINENT).is_cached


def test_differences_of_two_cuts_are_no_differences_of_programs():
    (change, *_) = monet_jax.diff(*of_two_cuts()).changes
    assert change.what == "cut"
    assert str(monet_jax.diff(*of_two_cuts())).startswith(
        "Another cut: the same program has other stages"
    )


def cosine(params, x):
    """As `net`, with one other function."""
    for w in params:
        x = x + jnp.sin(jnp.cos(x @ w) @ w)
    return jnp.mean(x**2)


def swapped(params, x):
    """As `net`, with its parameters in another order."""
    return net(params[::-1], x)


@pytest.mark.parametrize(
    ("other", "says"),
    [(cosine, "`cos` float32\\[1024, 32\\].* stands where the plan has `sin`"), (swapped, "order")],
)
def test_a_plan_of_another_program_with_the_same_shapes_is_refused(other, says):
    plan = monet_jax.plan(net, *specs(), budget=0.6)
    with pytest.raises(PlanMismatch, match=f"made for another function: .*{says}"):
        jax.grad(plan.apply(other))(*args())
