"""A plan is data: made without memory, stored as text, applied only where it fits."""

import dataclasses
import functools as ft
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax.ad_checkpoint import checkpoint_name
from networks import WIDTH, args, assert_same, net, recomputes, specs
from processes import run_python
from thinning import thinned

import monet_jax
from monet_jax import Plan, PlanMismatch, PlanningWarning
from monet_jax.plans.record import FORMAT


@ft.cache
def made(budget=0.6) -> Plan:
    """A plan of the network."""
    return monet_jax.plan(net, *specs(), budget=budget)


# ------------------------------------------------------------------------------ what it is


def test_making_a_plan_allocates_and_runs_nothing():
    seen = []

    def fun(params, x):
        seen.append(x)
        return net(params, x)

    before = len(jax.live_arrays())
    plan = monet_jax.plan(fun, *specs(batch=1 << 26), budget=0.8, cache=False)
    assert len(jax.live_arrays()) <= before
    assert seen and all(isinstance(x, jax.core.Tracer) for x in seen)
    assert plan.decisions is not None
    assert plan.unplanned_bytes > 100 << 30 and plan.compiled_bytes <= plan.budget_bytes


def test_arrays_and_their_shapes_give_the_same_plan():
    assert monet_jax.plan(net, *args(), budget=0.6) == made()  # from the cache, by an equal key


def test_keyword_arguments():
    params, x = specs()
    plan = monet_jax.plan(net, params, kwargs={"x": x}, budget="1GiB")
    assert plan.inputs == made().inputs and plan.unplanned_bytes == made().unplanned_bytes


def test_attributes_agree_with_each_other():
    plan = made()
    assert plan.compiled_bytes <= plan.budget_bytes == int(0.6 * plan.unplanned_bytes)
    assert plan.seconds == pytest.approx(plan.base_seconds * (1 + plan.overhead))
    assert plan.bound_seconds <= plan.seconds and 0 <= plan.gap < 1
    assert plan.bound_seconds == pytest.approx(plan.seconds * (1 - plan.gap))
    assert plan.flops > plan.base_flops > 0
    assert plan.planning_seconds > 0 and plan.compilations >= 1
    assert plan.target == "cpu" and plan.jax_version == jax.__version__
    assert {row.decision for row in plan.values} <= {
        "saved",
        "recomputed",
        "kept",
        "passed",
        "unread",
    }
    assert {row.decision for row in plan.stages} <= {"alone", "checkpoint", "nested"}
    assert {row.stage for row in plan.values} <= set(range(len(plan.stages)))


def test_report_names_values_with_sizes_and_lines():
    text = str(made())
    line = net.__code__.co_firstlineno + 3
    assert f"networks.py:{line}" in text and "Keeps its budget" in text.splitlines()[0]
    assert f"1024x{WIDTH}" in text and "recomputed" in text


def test_a_function_that_fits_is_left_as_it_is():
    plan = monet_jax.plan(net, *specs(), budget="1GiB")
    assert plan.decisions is None and plan.overhead == plan.gap == 0
    assert plan.compiled_bytes == plan.unplanned_bytes
    applied = plan.apply(net)
    assert_same(jax.grad(applied)(*args()), jax.grad(net)(*args()))
    assert not recomputes(jax.grad(applied), *args())


# ------------------------------------------------------------------------------ as a file


def test_applies_and_round_trips(tmp_path):
    made().save(tmp_path / "plan.json")
    loaded = monet_jax.load_plan(tmp_path / "plan.json")
    assert loaded == made()
    applied = loaded.apply(net)
    assert recomputes(jax.grad(applied), *args())
    step = jax.value_and_grad(applied)
    assert monet_jax.compiled_bytes(step, *args()).total_bytes <= made().budget_bytes
    assert_same(jax.jit(step)(*args()), jax.value_and_grad(net)(*args()))


def test_applying_needs_no_solver(tmp_path):
    made().save(tmp_path / "plan.json")
    code = f"""
import sys
for name in ("cvxpy", "highspy", "scipy.optimize"):
    sys.modules[name] = None
import jax, monet_jax, numpy as np
from networks import args, net
applied = monet_jax.load_plan({str(tmp_path / "plan.json")!r}).apply(net)
got, expected = jax.grad(applied)(*args()), jax.grad(net)(*args())
np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
print("applied")
"""
    assert run_python(code).strip() == "applied"


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path):
    for write, path in ((made().save, "p.json"), (made().to_html, "p.html")):
        with pytest.raises(FileNotFoundError) as caught:
            write(tmp_path / "nowhere" / path)
        assert caught.value.filename == str(tmp_path / "nowhere" / path)


def _damage(change):
    data = json.loads(made().to_json())
    change(data)
    return json.dumps(data)


DAMAGED = {
    "empty": lambda: "",
    "truncated": lambda: made().to_json()[:-20],
    "an older format": lambda: _damage(lambda d: d.update(format=FORMAT - 1)),
    "a later format": lambda: _damage(lambda d: d.update(format=FORMAT + 1)),
    "no plan": lambda: "[1, 2]",
    "missing field": lambda: _damage(lambda d: d.pop("target")),
    "unknown field": lambda: _damage(lambda d: d.update(extra=1)),
    "wrong type": lambda: _damage(lambda d: d.update(budget_bytes="many")),
    "not finite": lambda: _damage(lambda d: d.update(base_seconds=float("nan"))),
    "wrong row": lambda: _damage(lambda d: d["values"].append({"name": "v1"})),
    "wrong element": lambda: _damage(lambda d: d["values"][0].update(shape=["a"])),
    "wrong decision": lambda: _damage(lambda d: d["decisions"].update(regions=[{"first": 0}])),
    "wrong timeline": lambda: _damage(lambda d: d["after"]["bands"].append(["saved", "v1"])),
    "half a timeline": lambda: _damage(lambda d: d["before"].pop("samples")),
    "missing stage": lambda: _damage(lambda d: d["decisions"]["regions"].pop()),
    "unknown value": lambda: _damage(lambda d: d["decisions"]["regions"][0].update(saved=["v999"])),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files_are_refused(kind, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(DAMAGED[kind]())
    what_to_do = ".*make the plan again" if kind.endswith("format") else ""
    with pytest.raises(ValueError, match=rf"plan\.json.*does not hold a stored plan{what_to_do}"):
        monet_jax.load_plan(path)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="stored plan"):
        monet_jax.load_plan(tmp_path / "plan.json")
    with pytest.raises(FileNotFoundError):
        monet_jax.load_plan(tmp_path / "none.json")


# ------------------------------------------------------------------------------ where it fits


def deeper(params, x):
    return net(params, x) + jnp.sum(x)


@pytest.mark.parametrize(
    ("fun", "arguments", "options", "says"),
    [
        (net, args(batch=512), {}, r"float32\[512,32\].*float32\[1024,32\]"),
        (net, (args()[0][:2], args()[1]), {}, "takes 3 arrays, the plan's took 5"),
        (deeper, args(), {}, "equations, the plan's had"),
        (net, args(), {"argnums": 1}, "argnums"),
    ],
)
def test_a_plan_for_another_function_says_what_differs(fun, arguments, options, says):
    applied = made().apply(fun, **options)
    with pytest.raises(PlanMismatch, match=says):
        jax.grad(applied)(*arguments)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body,
        lambda body: lambda c, x: (jnp.sin(body(c, x)[0]), None),
    ],
)
def test_the_body_of_a_loop_is_a_part_of_the_function(change):
    def looped(body):
        return lambda w: jnp.sum(jax.lax.scan(body, w, jnp.zeros(3))[0])

    def body(c, x):
        return jnp.cos(c) + x, None

    plan = monet_jax.plan(looped(body), jnp.ones(4), budget="1GiB")
    applied = plan.apply(looped(change(body)))
    if change(body) is body:
        jax.grad(applied)(jnp.ones(4))
    else:
        with pytest.raises(PlanMismatch):
            jax.grad(applied)(jnp.ones(4))


def test_fingerprint_does_not_depend_on_the_version_of_jax(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.99.0")
    plan = monet_jax.plan(net, *specs(), budget=0.6)
    assert plan.fingerprint == made().fingerprint and plan.jax_version == "0.99.0"


def test_a_plan_of_another_version_is_verified_again():
    older = dataclasses.replace(made(), jax_version="0.0.1")
    assert_same(jax.grad(older.apply(net))(*args()), jax.grad(net)(*args()))
    tight = dataclasses.replace(older, budget_bytes=older.compiled_bytes // 2)
    applied = tight.apply(net)
    with pytest.warns(PlanningWarning, match=r"JAX 0\.0\.1.*more than.*Plan again") as caught:
        got = [jax.grad(applied)(*args()) for _ in range(2)]
    assert len(caught) == 1
    assert_same(got, [jax.grad(net)(*args())] * 2)


# ------------------------------------------------------------------------------ pins


class Block(linen.Module):
    """Makes one value of a width that nothing else has."""

    @linen.compact
    def __call__(self, x):
        return linen.Dense(48, use_bias=False, name="narrow")(jnp.sin(x))


class Tower(linen.Module):
    """Two blocks, whose values carry the names of their modules."""

    @linen.compact
    def __call__(self, x):
        for n in range(2):
            x = x + jnp.sin(Block(name=f"block{n}")(x)) @ jnp.ones((48, 40))
        return jnp.mean(x**2)


def tower(params, x):
    return Tower().apply(params, x)


def named(params, x):
    """Two values of the user's own names, one of which could be ours."""
    for w, name in zip(params, ["mine", "monet_jax:v3"], strict=True):
        x = x + jnp.sin(checkpoint_name(jnp.tanh(x @ w), name)) @ w.T
    return jnp.mean(x**2)


NAMED_SPECS = (
    [jax.ShapeDtypeStruct((40, 48), jnp.float32)] * 2,
    jax.ShapeDtypeStruct((512, 40), jnp.float32),
)


@ft.cache
def tower_specs():
    x = jax.ShapeDtypeStruct((512, 40), jnp.float32)
    return jax.eval_shape(lambda: Tower().init(jax.random.key(0), jnp.ones((1, 40)))), x


def pinned(fun, given, pins):
    return monet_jax.plan(fun, *given, budget="1GiB", pins=pins, verify=False, cache=False)


def decisions(plan, primitive, path=""):
    """What becomes of the values of one primitive, in order of the program."""
    rows = [r for r in plan.values if r.primitive == primitive and path in r.path]
    return [row.decision for row in sorted(rows, key=lambda row: row.stage)]


def test_pins_by_the_users_names():
    saved = pinned(named, NAMED_SPECS, {"mine": "save"})
    dropped = pinned(named, NAMED_SPECS, {"mine": "recompute"})
    both = pinned(named, NAMED_SPECS, {"mine": "recompute", "monet_jax:v3": "save"})
    assert decisions(saved, "tanh")[0] in ("saved", "kept")
    assert not decisions(dropped, "tanh")  # both are computed inside what reads them
    assert decisions(both, "tanh")[0] in ("saved", "kept")
    assert len(decisions(both, "tanh")) == len(decisions(saved, "tanh")) == 1


def test_pins_by_module_path():
    path = "Tower/block1/narrow"
    dropped = pinned(tower, tower_specs(), {path: "recompute"})
    assert decisions(dropped, "dot_general", path) == ["recomputed"]
    starred = pinned(tower, tower_specs(), {"*/narrow": "recompute"})
    assert decisions(starred, "dot_general", "narrow") == ["recomputed"] * 2
    saved = pinned(tower, tower_specs(), {"Tower/block0": "save"})
    assert set(decisions(saved, "dot_general", "block0")) <= {"saved", "kept"}


def test_pins_by_module_path_hold_wherever_the_function_is_traced():
    dropped = monet_jax.remat(
        tower, budget="1GiB", pins={"Tower/block1": "recompute"}, verify=False, cache=False
    )
    params = jax.tree.map(lambda s: jnp.full(s.shape, 0.1), tower_specs()[0])
    x = jnp.ones((512, 40))
    expected = jax.grad(tower)(params, x)
    assert_same(jax.grad(dropped)(params, x), expected)
    with jax.named_scope("outer"):
        assert_same(jax.jit(jax.grad(dropped))(params, x), expected)
        assert recomputes(jax.grad(dropped), params, x)


def test_pins_by_the_name_in_the_report():
    plan = pinned(named, NAMED_SPECS, {"mine": "save"})
    for row in [r for r in plan.values if r.primitive == "tanh"]:
        again = pinned(named, NAMED_SPECS, {row.name: "recompute"})
        assert row.name not in [r.name for r in again.values]  # what reads it computes it


def gated(params, x):
    """Operators rewrite its first part, so that later values have other places than without."""
    for w in params:
        x = x + (jax.nn.softmax(x @ w) * jnp.sin(x @ w)) @ w.T
    return jnp.mean(x**2)


@pytest.mark.parametrize(
    ("operators", "every"), thinned([("none", 1), ("exact", 1), ("exact", 3)], "exact-3")
)
def test_a_name_in_a_report_is_one_value_whatever_operators_change(operators, every):
    """A plan with operators may be one of the function without them."""
    plan = monet_jax.plan(
        gated, *NAMED_SPECS, budget="1GiB", operators=operators, verify=False, cache=False
    )
    rows = [row for row in plan.values if row.primitive in ("dot_general", "sin")]
    assert len(rows) >= 6
    for row in rows[::every]:
        again = pinned(gated, NAMED_SPECS, {row.name: "recompute"})
        same = [x for x in again.values if x.name == row.name]
        assert [(x.primitive, x.source, x.nbytes) for x in same] in (
            [],
            [(row.primitive, row.source, row.nbytes)],
        )
        assert [x.decision for x in same] in ([], ["recomputed"], ["unread"])


def test_names_like_ours_do_no_harm():
    params = [jnp.full((40, 48), 0.1 * n) for n in (1, 2)]
    given = params, jnp.linspace(-1, 1, 512 * 40).reshape(512, 40)
    f = monet_jax.remat(named, budget=0.8, verify=False)
    assert_same(jax.jit(jax.grad(f))(*given), jax.grad(named)(*given))
    assert recomputes(jax.grad(f), *given)
    outside = jax.checkpoint(
        f, policy=jax.checkpoint_policies.save_only_these_names("monet_jax:v3", "mine")
    )
    assert_same(jax.jit(jax.grad(outside))(*given), jax.grad(named)(*given))


def test_pins_that_name_nothing():
    with pytest.raises(ValueError, match="'nowhere'"):
        monet_jax.plan(net, *specs(), budget=0.6, pins={"nowhere": "save"})
    f = monet_jax.remat(net, budget=0.6, pins={"nowhere": "save"})
    with pytest.raises(ValueError, match="'nowhere'"):
        jax.grad(f)(*args())


def test_pins_apply_with_a_stored_plan():
    plan = pinned(named, NAMED_SPECS, {"mine": "recompute"})
    given = jax.tree.map(lambda s: jnp.asarray(np.full(s.shape, 0.1), s.dtype), NAMED_SPECS)
    assert_same(jax.grad(plan.apply(named))(*given), jax.grad(named)(*given))


# ---------------------------------------------------------------------------------- its seconds


def test_a_step_is_timed_as_it_is_and_as_planned():
    found = made().step_seconds(net, *args(), turns=3)
    assert len(found.plain.runs) == len(found.planned.runs) == 2
    assert min(*found.plain.runs, *found.planned.runs) > 0
    assert found.ratio.low <= found.ratio.median <= found.ratio.high
    assert "medians of 2 turns" in str(found)
    assert len(made().step_seconds(net, *specs(), turns=2).plain.runs) == 1  # made-up arrays


def test_a_step_is_timed_only_with_what_it_was_planned_for():
    with pytest.raises(ValueError, match="`turns` must be 2 or more"):
        made().step_seconds(net, *args(), turns=1)
    with pytest.raises(PlanMismatch):
        made().step_seconds(lambda *x: 2 * net(*x), *args())
