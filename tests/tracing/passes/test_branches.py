"""Branches are planned one by one, and the choice between them stays the same.

Branches get regions drawn at random, each its own; bytes are the compiler's.
"""

import dataclasses
import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emission import (
    assert_same,
    emitted,
    flat,
    graph_and_stages,
    is_float,
    pulled,
    random_emissions,
    reference,
    savable,
)
from jax import lax
from programs import NAMED, Case, array
from thinning import thinned

import monet_jax
import planners
from monet_jax._plan import plan_from_json
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir.places import filled
from monet_jax.planning.step import step_to_compile
from monet_jax.tracing.passes import branches
from monet_jax.transformer import transform as transform_module
from monet_jax.transformer.transform import transform
from planners.plan import Region

NAMES = ["cond_and_switch", "branches_of_layers", "branches_under_scan", "loops_in_branches"]


@ft.cache
def expected(name):
    """A named program's flat form; its value and gradient by plain JAX, and in float64."""
    f = flat(NAMED[name]())
    return f, *reference(pulled(f, f.function), f.leaves)


def regions_in_branches(made):
    """How many regions of a plan recompute something in a branch."""
    inside = {s for choice in made.graph.choices for a, b in choice.branches for s in range(a, b)}
    return sum(not region.alone and region.first in inside for region in made.regions)


@pytest.mark.parametrize("name", thinned(NAMES, "cond_and_switch"))
def test_planned_branches_keep_value_and_gradient(name):
    f, plain, exact = expected(name)
    recomputing = 0
    for made in random_emissions(f, 7, 4):
        assert made.graph.choices
        recomputing += regions_in_branches(made)
        assert_same(jax.jit(pulled(f, made.function))(*f.leaves), plain, exact)
    assert recomputing > 4


def branch_runs(which):
    """`branches_of_layers`, with another first branch."""
    case = NAMED["branches_of_layers"]()
    args = (*case.args[:3], jnp.int32(which), *case.args[4:])
    return dataclasses.replace(case, args=args)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, -1, 1, 5])
def test_whichever_branch_runs(which):
    f = flat(branch_runs(which))
    known = reference(pulled(f, f.function), f.leaves)
    for made in random_emissions(f, which, 2):
        assert_same(jax.jit(pulled(f, made.function))(*f.leaves), *known)


@pytest.mark.parametrize("name", thinned(NAMES, "cond_and_switch"))
def test_planned_branches_may_be_differentiated_by_some_arguments_only(name):
    f, *all_results = expected(name)
    for n, place in enumerate(f.places):
        one = dataclasses.replace(f, places=(place,))
        for made in random_emissions(one, n, 1):
            ours = jax.jit(pulled(one, made.function))(*f.leaves)
            assert_same(ours, *((results, [pulls[n]]) for results, pulls in all_results))


@pytest.mark.parametrize("name", thinned(NAMES, "cond_and_switch", "loops_in_branches"))
def test_planned_branches_can_be_pushed_forward_under_jit(name):
    f, _, _ = expected(name)
    f = dataclasses.replace(f, forward_mode=True)
    chosen = [f.leaves[n] for n in f.places]

    def pushed(function):
        def of_floats(*chosen):
            return [r for r in function(*filled(f.leaves, f.places, chosen)) if is_float(r)]

        return jax.jvp(jax.jit(of_floats), chosen, chosen)

    (made,) = random_emissions(f, 3, 1)
    ours, plain = pushed(made.function), pushed(f.function)
    jax.tree.map(ft.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), ours, plain)


def mapped_predicate(w, x):
    """A branch for each row of `x`: under `vmap` all run, and one is selected."""

    def choose(row):
        return lax.cond(
            row.sum() > 0, lambda row: jnp.sin(jnp.tanh(row @ w) @ w), lambda row: row @ w, row
        )

    return jnp.mean(jax.vmap(choose)(jnp.cos(x @ w)) ** 2)


def test_a_mapped_predicate_leaves_no_choice():
    f = flat(Case(mapped_predicate, (array(0, 4, 4), array(1, 3, 4))))
    known = reference(pulled(f, f.function), f.leaves)
    (made,) = random_emissions(f, 0, 1)
    assert not made.graph.choices
    assert_same(jax.jit(pulled(f, made.function))(*f.leaves), *known)


@pytest.mark.parametrize("ordered", thinned([False, True], "True"))
def test_a_choice_with_effects_is_opaque_and_runs_once(ordered):
    calls = []

    def loud(x, w):
        jax.debug.callback(lambda v: calls.append("loud"), x.sum(), ordered=ordered)
        return jnp.sin(jnp.tanh(x @ w) @ w)

    def function(w, x, which):
        x = lax.cond(which > 0, loud, lambda x, w: x @ w, jnp.tanh(x @ w), w)
        jax.debug.callback(lambda v: calls.append("behind"), x.sum(), ordered=ordered)
        return jnp.mean(x**2)

    f = flat(Case(function, (array(0, 4, 4), array(1, 3, 4), jnp.int32(1))))
    plain = jax.jit(pulled(f, f.function))(*f.leaves)
    for made in random_emissions(f, 0, 3):
        jax.effects_barrier()
        calls.clear()
        assert not made.graph.choices
        assert_same(jax.jit(pulled(f, made.function))(*f.leaves), plain, plain)
        jax.effects_barrier()
        assert sorted(calls) == ["behind", "loud"] and (not ordered or calls[0] == "loud")


def test_what_depends_on_the_platform_or_has_no_product_is_opaque():
    def function(w, x, which):
        x = lax.platform_dependent(x, cpu=lambda x: jnp.sin(x @ w) @ w, default=lambda x: x @ w)
        return jnp.mean(lax.cond(which > 0, jnp.sin, jnp.cos, x))

    f = flat(Case(function, (array(0, 4, 4), array(1, 3, 4), jnp.int32(1))))
    known = reference(pulled(f, f.function), f.leaves)
    (made,) = random_emissions(f, 0, 1)
    assert not made.graph.choices
    assert_same(jax.jit(pulled(f, made.function))(*f.leaves), *known)


@pytest.mark.parametrize(
    "fault", thinned(["branches change places", "an operand is lost"], "an operand is lost")
)
def test_a_planted_fault_in_a_choice_is_caught(fault, monkeypatch):
    f, plain, exact = expected("branches_of_layers")
    if fault == "branches change places":
        switch = lax.switch
        monkeypatch.setattr(lax, "switch", lambda n, some, *x: switch(n, some[::-1], *x))
    else:
        run = transform_module._run_parts

        def losing(staged, parts, env, wanted, outer):
            floats = [i for i, x in env.items() if outer == {} and is_float(x)]
            env.update((i, lax.stop_gradient(env[i])) for i in floats[-1:])
            run(staged, parts, env, wanted, outer)

        monkeypatch.setattr(transform_module, "_run_parts", losing)
    (made,) = random_emissions(f, 7, 1)
    with pytest.raises(AssertionError):
        assert_same(jax.jit(pulled(f, made.function))(*f.leaves), plain, exact)


# ------------------------------------------------------------------------------ bytes

WIDTH, DEPTH, ROWS = 64, 3, 1024


def layers(weights, x, between):
    """Wide layers one after the other."""
    for up, down in weights:
        x = between(x + jnp.sin(jnp.sin(x @ up) @ down))
    return x


def chosen(weights, x, which):
    """One of two stacks of layers, or nothing."""
    implementations = [
        ft.partial(layers, between=jnp.sin),
        ft.partial(layers, between=jnp.tanh),
        lambda weights, x: x,
    ]
    x = lax.switch(which, implementations, weights, x)
    return jnp.mean((jnp.sin(x @ weights[0][0]) @ weights[0][1]) ** 2)


def shapes():
    """Arguments of `chosen`."""
    shapes = (WIDTH, 8 * WIDTH), (8 * WIDTH, WIDTH), (ROWS, WIDTH)
    up, down, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return [(up, down)] * DEPTH, x, jax.ShapeDtypeStruct((), jnp.int32)


def unplanned():
    """What `chosen` takes as it is."""
    return monet_jax.compiled_bytes(jax.value_and_grad(chosen), *shapes(), target="cpu")


def planned(share):
    """A plan for a share of the temporaries of `chosen`."""
    taken = unplanned()
    budget = taken.total_bytes - int((1 - share) * taken.temp_bytes)
    return monet_jax.plan(chosen, *shapes(), budget=budget, target="cpu", cache=False)


def concrete():
    """Small numbers of the same shapes."""
    return jax.tree.map(lambda a: 0.2 * array(1, *a.shape, dtype=a.dtype), shapes()[:2])


@pytest.mark.parametrize(
    "shares",
    thinned([pytest.param((0.5,), id="one"), pytest.param((0.75, 0.5), id="several")]),
)
def test_budgets_that_an_opaque_choice_breaks_are_met(shares, monkeypatch):
    seconds = []
    for share in shares:
        plan = planned(share)
        assert plan.compiled_bytes <= plan.budget_bytes
        seconds.append(plan.seconds)
        stored = plan_from_json(plan.to_json())
        for which in range(3):
            ours = jax.jit(jax.grad(stored.apply(chosen)))(*concrete(), jnp.int32(which))
            plain = jax.jit(jax.grad(chosen))(*concrete(), jnp.int32(which))
            jax.tree.map(ft.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), ours, plain)
    assert seconds == sorted(set(seconds))
    monkeypatch.setattr(branches, "may_be_planned", lambda *_: False)
    with pytest.raises(monet_jax.InfeasibleBudget):
        planned(0.75)


def temp_bytes(saving):
    """Compiled and modelled temporaries where these branches save what they may."""
    target = resolve_target("cpu")
    traced = trace_loss(chosen, shapes(), target)
    graph, staged = graph_and_stages(traced, backend_of("cpu"))
    (choice,) = graph.choices
    regions = [Region(s, s, alone=True) for s in range(len(graph.stages))]
    for b, (first, stop) in enumerate(choice.branches):
        for s in range(first, stop):
            regions[s] = Region(s, s, tuple(savable(graph, s, s)) if b in saving else ())
    decisions = planners.Plan(tuple(regions), 0, 0.0, 0, 0.0, "test")
    step = step_to_compile(traced, transform(staged, decisions))
    modelled = planners.replay(graph, regions).peak_bytes
    return compile_bytes(*step, target=target).temp_bytes, modelled


def test_what_waits_is_what_the_largest_branch_keeps():
    (none, no_model), (one, model), (both, both_model) = map(temp_bytes, ((), (0,), (0, 1)))
    assert one > 1.5 * none
    assert both == pytest.approx(one, rel=0.05)
    assert both_model == pytest.approx(model, rel=0.05)
    assert model - no_model == pytest.approx(one - none, rel=0.25)


def test_branches_in_branches_and_in_iterations_are_found():
    graph = analyze_named("branches_under_scan")
    (loop,) = graph.loops
    assert len(graph.choices) == 2 * loop.trips
    for k in range(loop.trips):
        first = loop.first + k * loop.length
        own = [x for x in graph.choices if first <= x.first and x.stop <= first + loop.length]
        outer, inner = sorted(own, key=lambda x: x.first - x.stop)
        start, stop = outer.branches[2]
        assert start <= inner.first and inner.stop <= stop
        for s in range(start, stop):
            assert graph.branch_of[s] == (outer, 2)
            assert s < inner.first or s >= inner.stop or graph.units[s] >= inner.first


def analyze_named(name):
    """The graph of a named program, cut where few bytes are live."""
    f = flat(NAMED[name]())
    return graph_and_stages(f, backend_of("cpu"))[0]


def test_no_plan_can_be_emitted_across_a_branch():
    f, _, _ = expected("cond_and_switch")
    (made,) = random_emissions(f, 0, 1)
    (first, stop), *_ = made.graph.choices[0].branches
    regions = [Region(s, s, alone=True) for s in range(len(made.graph.stages))]
    crossing = [*regions[:first], Region(first, stop, alone=True), *regions[stop + 1 :]]
    with pytest.raises(planners.InvalidPlan, match="crosses the ends of"):
        emitted(f, made.graph, made.staged, crossing)
