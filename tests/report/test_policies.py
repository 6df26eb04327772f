"""A plan as `jax.checkpoint` policies: plain JAX under them saves what the plan keeps."""

import collections
import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.ad_checkpoint import saved_residuals
from jax.ad_checkpoint import checkpoint_name
from thinning import thinned

import monet_jax
from monet_jax.report.as_policies import READ_BY_THEIR_DERIVATIVE

LAYERS, ROWS, WIDTH, HIDDEN = 8, 128, 32, 128


def layer(x, weights):
    up, down, mix = weights
    hidden = checkpoint_name(x @ up, "up")
    wide = checkpoint_name(jax.nn.gelu(hidden), "act")
    narrow = checkpoint_name(wide @ down, "down")
    return x + jnp.sin(checkpoint_name(narrow @ mix, "mix"))


def scanned(weights, x, wrap=lambda body: body):
    x, _ = jax.lax.scan(wrap(lambda x, w: (layer(x, w), None)), x, weights)
    return jnp.mean(x**2)


def unrolled(weights, x, wrap=lambda layer: layer):
    for w in weights[:4]:
        x = wrap(layer)(x, w)
    return jnp.mean(x**2)


def arguments():
    rng = np.random.default_rng(0)
    shapes = (WIDTH, HIDDEN), (HIDDEN, WIDTH), (WIDTH, WIDTH)
    weights = [jnp.array(0.1 * rng.normal(size=(LAYERS, *s)), jnp.float32) for s in shapes]
    return weights, jnp.array(rng.normal(size=(ROWS, WIDTH)), jnp.float32)


def arguments_of(fun):
    weights, x = arguments()
    return (list(zip(*weights, strict=True)) if fun is unrolled else weights), x


@ft.cache
def planned(fun, budget, operators="none"):
    args = arguments_of(fun)
    # What is planned depends on no clock.
    return monet_jax.plan(fun, *args, budget=budget, operators=operators, time_limit=60)


def residuals(fun):
    """Shapes of what JAX saves, and how many of each, arguments left out."""
    saved = saved_residuals(fun, *arguments())
    own = [aval.shape for aval, where in saved if "argument" not in where]
    return collections.Counter(shape for shape in own if np.prod(shape) > 1)


def under(policy, fun):
    wrap = ft.partial(jax.checkpoint, policy=policy, prevent_cse=fun is unrolled)
    return ft.partial(fun, wrap=wrap)


@pytest.mark.parametrize("budget", thinned([0.75, 0.5, 0.4], "0.5"))
def test_a_scan_under_the_policy_saves_what_the_plan_keeps(budget):
    plan = planned(scanned, budget)
    (policy,) = [x for x in plan.policies().policies if x.is_of_scan]
    assert all(x.is_given for x in policy.saved)
    by_hand = under(policy.policy, scanned)
    assert residuals(by_hand) == residuals(plan.apply(scanned))
    pairs = zip(jax.grad(by_hand)(*arguments()), jax.grad(scanned)(*arguments()), strict=True)
    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


def test_another_policy_saves_something_else():
    plan = planned(scanned, 0.5)
    nothing = jax.checkpoint_policies.save_only_these_names("up")
    assert residuals(under(nothing, scanned)) != residuals(plan.apply(scanned))


def test_the_code_runs_as_it_is_pasted():
    (policy,) = [x for x in planned(scanned, 0.5).policies().policies if x.is_of_scan]
    line = next(x for x in policy.code.splitlines() if x.startswith("policy = "))
    scope = {"jax": jax}
    exec(line, scope)
    assert residuals(under(scope["policy"], scanned)) == residuals(under(policy.policy, scanned))
    assert f"test_policies.py:{scanned.__code__.co_firstlineno + 1}" in policy.code


def test_a_name_that_the_model_lacks_is_made_up_with_its_line():
    def body(x, w):
        return x + jnp.sin(jnp.sin(x @ w) @ w), None

    def loss(w, x):
        return jnp.sum(jax.lax.scan(body, x, w)[0])

    w, x = jnp.ones((6, 256, 256)), jnp.ones((256, 256))
    plan = monet_jax.plan(loss, w, x, budget=0.9, operators="none")
    (policy,) = [p for p in plan.policies().policies if p.is_of_scan]
    line = body.__code__.co_firstlineno + 1
    assert policy.saved and not any(saved.is_given for saved in policy.saved)
    for name, saved in zip(policy.names, policy.saved, strict=True):
        assert name.startswith(f"{saved.value.primitive}_{line}")
    assert len(set(policy.names)) == len(policy.names)
    for saved in policy.saved:
        assert f"test_policies.py:{line}: name the result of `" in saved.to_write
        assert saved.to_write in policy.code


@pytest.mark.slow
def test_equal_layers_outside_of_scans_share_a_policy():
    plan = planned(unrolled, 0.65)
    policies = plan.policies().policies
    assert policies and not any(policy.is_of_scan for policy in policies)
    names = {name for policy in policies for name in policy.names}
    saved = {row.checkpoint_name for row in plan.values if row.decision == "saved"}
    assert names - {""} == saved - {""}
    assert len(policies) < sum(not r.alone for r in plan.decisions.regions)


@pytest.mark.slow
def test_iterations_that_differ_are_said_and_have_no_policy():
    plan = planned(scanned, 0.4, "exact")
    assert len(plan.loops[0].trips) == LAYERS
    decisions = collections.defaultdict(set)
    for row in plan.values:
        decisions[row.checkpoint_name].add(row.decision)
    assert any(len(decisions[name]) > 1 for name in ("up", "act", "mix"))  # else it shows nothing
    found = plan.policies()
    assert not any(policy.is_of_scan for policy in found.policies)
    (said,) = [x for x in found.not_expressed if "differ" in x]
    counts = [int(part.split()[0]) for part in said.partition("(")[2].split(", then ")]
    assert sum(counts) == LAYERS and 'operators="none"' in said


def test_the_policies_of_a_step_are_those_of_its_marked_parts():
    @monet_jax.jit(budget="70%", operators="none", max_compilations=2)
    def step(weights, x):
        value, gradient = monet_jax.value_and_grad(scanned)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

    found = monet_jax.plan(step, *arguments()).policies()
    (policy,) = [x for x in found.policies if x.is_of_scan]
    assert policy.names and residuals(under(policy.policy, scanned)) != residuals(scanned)


def test_a_function_that_runs_as_it_is_needs_no_policy():
    found = planned(unrolled, "1GiB").policies()
    assert found.policies == () and "Nothing is recomputed" in str(found)


@pytest.mark.parametrize("name", sorted(READ_BY_THEIR_DERIVATIVE))
def test_derivatives_that_read_results_are_those_of_jax(name):
    fun = {"logistic": jax.nn.sigmoid, "reduce_max": jnp.max, "reduce_min": jnp.min}.get(name)
    fun = fun or getattr(jax.lax, name)
    x = jnp.linspace(0.1, 0.4, 4)
    program = jax.make_jaxpr(lambda x, t: jax.jvp(fun, (x,), (t,)))(x, x).jaxpr
    flat = list(_equations(program))
    (place,) = [n for n, e in enumerate(flat) if e.primitive.name == name]
    result = flat[place].outvars[0]
    assert any(result in e.invars for e in flat[place + 1 :])


def _equations(program):
    for equation in program.eqns:
        inner = equation.params.get("jaxpr")
        yield from _equations(inner.jaxpr) if inner is not None else [equation]
