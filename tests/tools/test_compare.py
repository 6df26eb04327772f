"""A comparison states what the compiler says of plain JAX under each policy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from networks import by_hand, compiled, net, specs
from thinning import thinned

import monet_jax
from monet_jax import PlanMismatch

OPTIONS = {"budget": 0.6, "max_compilations": 2}
DOTS = jax.checkpoint_policies.dots_saveable


def body(x, w):
    return x + jnp.sin(jnp.sin(x @ w) @ w), None


def scanned(w, x, body=body):
    return jnp.mean(jax.lax.scan(body, x, w, reverse=True)[0] ** 2)


def shapes():
    return jax.ShapeDtypeStruct((6, 64, 64), "float32"), jax.ShapeDtypeStruct((512, 64), "float32")


def fails(w, x):
    raise RuntimeError("no such weights")


@pytest.fixture(scope="module")
def compared():
    plan = monet_jax.plan(scanned, *shapes(), **OPTIONS)
    baselines = {"broken": fails, "plain": scanned}
    return monet_jax.compare(plan, scanned, *shapes(), baselines=baselines)


def rows(plan):
    return {row.program.partition(",")[0]: row for row in plan.baselines}


@pytest.mark.parametrize(
    ("name", "policy"),
    thinned(
        [("dots", "dots_saveable"), ("nothing", "nothing_saveable")],
        "dots-dots_saveable",
    ),
)
def test_a_policy_is_put_round_the_bodies_of_scans(compared, name, policy):
    policy = getattr(jax.checkpoint_policies, policy)
    checkpointed = jax.checkpoint(body, policy=policy, prevent_cse=False)
    by_hand = functools.partial(scanned, body=checkpointed)
    assert rows(compared)[name].compiled_bytes == compiled(by_hand, *shapes())
    assert rows(compared)[name].compiled_bytes < compiled(scanned, *shapes())
    assert "around the body of each scan" in str(compared)


def test_the_plan_and_the_function_as_it_is_stand_beside(compared):
    found = rows(compared)
    own, planned = found["the function as it is"], found["the plan"]
    assert [own, planned] == list(compared.baselines[:2])
    assert own.compiled_bytes == compared.unplanned_bytes == found["plain"].compiled_bytes
    assert planned.compiled_bytes == compared.compiled_bytes
    assert own.flops == found["plain"].flops <= planned.flops <= found["nothing"].flops
    assert 0 < planned.seconds < found["nothing"].seconds


def test_a_program_that_fails_is_a_row_and_all_is_stored(compared, tmp_path):
    assert "no such weights" in rows(compared)["broken"].error
    compared.save(tmp_path / "plan.json")
    loaded = monet_jax.load_plan(tmp_path / "plan.json")
    assert loaded == compared and loaded.baselines == compared.baselines
    compared.to_html(tmp_path / "plan.html")
    for text in (str(loaded), (tmp_path / "plan.html").read_text()):
        assert "dots_no_batch, around the body" in text and "failed: RuntimeError" in text
    assert dataclasses.replace(compared, baselines=()) == monet_jax.plan(
        scanned, *shapes(), **OPTIONS
    )


def test_a_policy_is_put_round_a_function_without_scans():
    plan = monet_jax.plan(net, *specs(), budget=0.6)
    baselines = {"layers": by_hand}
    found = monet_jax.compare(plan, net, *specs(), policies={"dots": DOTS}, baselines=baselines)
    assert [row.program for row in found.baselines[2:]] == [
        "dots, around the whole function",
        "layers",
    ]
    whole = jax.checkpoint(net, policy=DOTS)
    assert rows(found)["dots"].compiled_bytes == compiled(whole, *specs())
    assert rows(found)["layers"].compiled_bytes == compiled(by_hand, *specs())


def test_other_functions_and_steps_are_refused():
    plan = monet_jax.plan(net, *specs(), budget=0.6)
    for wrong in (["dots"], {"dots": "dots_saveable"}):
        with pytest.raises(TypeError, match="`policies` must map names to functions"):
            monet_jax.compare(plan, net, *specs(), policies=wrong)
    with pytest.raises(PlanMismatch):
        monet_jax.compare(plan, scanned, *shapes())
    step = monet_jax.jit(lambda p, x: monet_jax.value_and_grad(net)(p, x), budget="1GiB")
    with pytest.raises(TypeError, match="loss"):
        monet_jax.compare(plan, step, *specs())
    with pytest.raises(TypeError, match="sweep"):
        monet_jax.compare(monet_jax.plan(step, *specs()), step, *specs())
