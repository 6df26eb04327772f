"""Loops are planned iteration by iteration, and stay the same loops.

Iterations of one scan get regions drawn at random, each its own, so that the scan is emitted in
runs; bytes are the compiler's.
"""

import dataclasses
import functools as ft
import itertools as it
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coming_rules import either_rules as either_rules
from emission import (
    PRICES,
    analyzed,
    assert_same,
    emitted,
    flat,
    graph_and_stages,
    is_float,
    pulled,
    random_emissions,
    random_regions,
    reference,
    savable,
)
from jax import lax
from programs import LOOPS, NAMED, array
from thinning import thinned

import monet_jax
import planners
from monet_jax._plan import plan_from_json
from monet_jax.analyzer.analyze import NO_PINS, analyze
from monet_jax.bench.models.programs import trace_loss
from monet_jax.candidates.proposals import Proposals
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.buffers.model import predicted_temp_bytes
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir.places import filled
from monet_jax.operators.compression import encoding
from monet_jax.planning.gradient_error import ErrorBound
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.step import step_to_compile
from monet_jax.tracing.passes import loops
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer import scan
from monet_jax.transformer.parts import parts_of
from monet_jax.transformer.transform import transform
from planners.errors import InvalidPlan
from planners.plan import Region
from planners.regions.iterations import neighbours
from planners.regions.simple_plans import saving_all
from planners.regions.solved import SolvedBudgets


@ft.cache
def in_runs(name):
    """A named program's flat form, and a plan of it that differs from iteration to iteration."""
    f = flat(NAMED[name]())
    for seed in range(30):
        rng = random.Random(seed)
        graph, staged = analyzed(f, rng)
        made = emitted(f, graph, staged, random_regions(graph, rng))
        if made.recomputes and _runs_in_parts(made.function, f.leaves):
            return f, made.function
    raise AssertionError("no plan runs a loop in parts")


def _runs_in_parts(function, leaves):
    found = []
    with pytest.MonkeyPatch.context() as patch:
        plain = scan._Runs.differentiable
        patch.setattr(scan._Runs, "differentiable", lambda x: found.append(x) or plain(x))
        jax.make_jaxpr(function)(*leaves)
    return bool(found)


@ft.cache
def expected(name):
    """Value and gradient by plain JAX, and in float64."""
    f, _ = in_runs(name)
    return reference(pulled(f, f.function), f.leaves)


# ------------------------------------------------------------------------------ derivatives


@pytest.mark.parametrize("name", thinned(LOOPS, "loops"))
def test_a_loop_in_runs_keeps_its_value_and_gradient(name):
    f, function = in_runs(name)
    assert_same(pulled(f, function)(*f.leaves), *expected(name))
    assert_same(jax.jit(pulled(f, function))(*f.leaves), *expected(name))


@pytest.mark.parametrize("name", thinned(LOOPS, "layers_under_scan", "loops"))
def test_a_loop_in_runs_may_be_differentiated_by_some_arguments_only(name):
    f, function = in_runs(name)
    for n, place in enumerate(f.places):
        one = dataclasses.replace(f, places=(place,))
        ours = jax.jit(pulled(one, function))(*f.leaves)
        assert_same(ours, *((results, [pulls[n]]) for results, pulls in expected(name)))


@pytest.mark.parametrize(
    "name", thinned(["layers_under_scan", "states_under_scan"], "layers_under_scan")
)
@pytest.mark.parametrize(
    "transformed", thinned(["mapped", "pushed", "forward_over_reverse", "twice"], "mapped", "twice")
)
def test_a_loop_in_runs_may_be_mapped_pushed_forward_and_differentiated_twice(name, transformed):
    f, function = in_runs(name)
    places, leaves = f.places, [f.leaves[n] for n in f.places]

    def loss(function, *chosen):
        return function(*filled(f.leaves, places, chosen))[0]

    def both(transformed):
        return jax.jit(transformed(function)), jax.jit(transformed(f.function))

    def gradient(function):
        return jax.grad(ft.partial(loss, function), range(len(leaves)))

    def mapped(function):
        return lambda *x: jax.vmap(gradient(function))(*(jnp.stack([y, 2 * y]) for y in x))

    def pushed(function):
        return lambda *x: jax.jvp(ft.partial(loss, function), x, x)

    def forward_over_reverse(function):
        return lambda *x: jax.jvp(gradient(function), x, x)[1]

    def twice(function):
        return jax.grad(lambda *x: sum(jnp.vdot(y, y) for y in gradient(function)(*x)))

    ways = {"mapped": mapped, "pushed": pushed, "twice": twice}
    ways["forward_over_reverse"] = forward_over_reverse
    ours, plain = both(ways[transformed])
    for a, b in zip(*map(jax.tree.leaves, (ours(*leaves), plain(*leaves))), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def pushed(f, function):
    """Value and tangents in forward mode of a jitted function, each argument its own tangent."""
    chosen = [f.leaves[n] for n in f.places]

    def of_floats(*chosen):
        return [r for r in function(*filled(f.leaves, f.places, chosen)) if is_float(r)]

    return jax.jvp(jax.jit(of_floats), chosen, chosen)


@pytest.mark.usefixtures("either_rules")
@pytest.mark.parametrize("transform", thinned([jax.jit, lambda f: f, jax.jacfwd], "jit"))
def test_forward_mode_of_a_jitted_loop_in_runs_is_refused_and_says_what_to_do(transform):
    if jax.config.jax_custom_vjp3 and jax.__version_info__ < (0, 12):
        pytest.skip("under its coming rules, JAX 0.11.2 refuses before we can say what to do")
    f, function = in_runs("layers_under_scan")
    jitted = jax.jit(lambda *leaves: function(*leaves)[0])

    def run(*leaves):
        if transform is jax.jacfwd:
            return jax.jacfwd(jitted)(*leaves)
        return transform(lambda x: jax.jvp(jitted, x, x))(leaves)

    with pytest.raises(TypeError, match='operators="none"'):
        run(*f.leaves)
    jax.jacrev(jitted)(*f.leaves)


@pytest.mark.parametrize("name", thinned(LOOPS, "layers_under_scan"))
def test_forward_mode_of_a_jitted_loop_works_where_plans_are_made_for_it(name):
    f, _ = in_runs(name)
    f = dataclasses.replace(f, forward_mode=True)
    recomputing = 0
    for made in random_emissions(f, 0, 3):
        assert all(loop.blocks == 1 for loop in made.staged.loops) and made.staged.loops
        assert_same(jax.jit(pulled(f, made.function))(*f.leaves), *expected(name))
        ours, plain = pushed(f, made.function), pushed(f, f.function)
        jax.tree.map(ft.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), ours, plain)
        recomputing += made.recomputes
    assert recomputing


@pytest.mark.parametrize("fault", ["gradient of one run lost", "wrong place in the stack"])
def test_a_planted_fault_in_a_loop_is_caught(fault, monkeypatch):
    f, function = in_runs("layers_under_scan")
    if fault == "wrong place in the stack":
        monkeypatch.setattr(scan.Shape, "at", lambda self, k: k)
    else:
        update = scan._update
        monkeypatch.setattr(
            scan, "_update", lambda old, new, at: update(old, [x * (at != 0) for x in new], at)
        )
    with pytest.raises(AssertionError):
        assert_same(jax.jit(pulled(f, function))(*f.leaves), *expected("layers_under_scan"))


# ------------------------------------------------------------------------------ bytes

WIDTH, TRIPS = 64, 12


def deep_layer(h, layer):
    """One of them; a product in it is wide."""
    up, down = layer
    return h + jnp.sin(jnp.sin(h @ up)) @ down, None


def deep(layers, x):
    """Layers under a scan."""
    return jnp.mean(lax.scan(deep_layer, x, layers)[0] ** 2)


def deep_args(batch=1024):
    """Shapes for `deep`."""
    shapes = (TRIPS, WIDTH, 8 * WIDTH), (TRIPS, 8 * WIDTH, WIDTH), (batch, WIDTH)
    up, down, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return (up, down), x


def masked(layers, x):
    """As `deep`, with a mask that the body makes, the same for all layers."""

    def layer(h, layer):
        up, down = layer
        rows, columns = jnp.arange(len(h))[:, None], jnp.arange(up.shape[1])
        return h + jnp.where(rows >= columns, jnp.sin(h @ up), 0.0) @ down, None

    return jnp.mean(lax.scan(layer, x, layers)[0] ** 2)


def traced_deep(loss=deep):
    """`deep`, or another loss of what it takes, as it is planned for a CPU."""
    return trace_loss(loss, deep_args(), resolve_target("cpu"))


def graph_of_deep(loss=deep):
    """The graph of the same, and the stages that it is of."""
    traced = traced_deep(loss)
    return graph_and_stages(traced, backend_of("cpu"))


def temp_bytes(saving):
    """Compiled temporaries of `deep` where so many of the last iterations save what they may."""
    (graph, staged), target = graph_of_deep(), resolve_target("cpu")
    (loop,) = graph.loops
    first = loop.stop - saving * loop.length
    regions = tuple(
        Region(s, s, alone=True)
        if not loop.first <= s < loop.stop
        else Region(s, s, tuple(savable(graph, s, s)) if s >= first else ())
        for s in range(len(graph.stages))
    )
    decisions = planners.Plan(regions, 0, 0.0, 0, 0.0, "test")
    step = step_to_compile(traced_deep(), transform(staged, decisions))
    return compile_bytes(*step, target=target).temp_bytes


def test_bytes_lie_between_those_of_the_uniform_plans():
    """For every two iterations that save, as many bytes more: nothing stacked is copied."""
    taken = [temp_bytes(saving) for saving in range(0, TRIPS + 1, 3)]
    line = np.linspace(taken[0], taken[-1], len(taken))
    assert taken[-1] > 4 * taken[0]
    np.testing.assert_allclose(taken, line, atol=0.05 * taken[-1])


def test_what_is_loop_invariant_counts_once():
    """JAX keeps one of it, however many iterations would; it is too large to be hoisted."""

    def joining(half, x):
        def step(h, _):
            return jnp.tanh(h @ jnp.concatenate([half, half], 1)), None

        first = lax.scan(step, x, None, 40)[0]
        return jnp.sum(lax.scan(lambda h, _: (jnp.sin(h), None), first, None, 1000)[0])

    width = 32
    args = array(0, width, width // 2), array(1, 8, width)
    traced = trace_loss(joining, args, resolve_target("cpu"))
    staged = traced.staged()
    graph, inverse = analyze(staged, PRICES, backend_of("cpu"))
    written = {name: staged.writer[i].primitive for name, i in staged.values.items()}
    joined = [v for v in graph.values if written.get(v.name) == "concatenate"]
    carried = [v for v in graph.values if written.get(v.name) == "tanh"]
    assert len(joined) == len(carried) == graph.loops[0].trips
    assert sum(v.waiting_bytes for v in joined) == 4 * width * width
    assert sum(v.waiting_bytes for v in carried) == 40 * 4 * 8 * width
    assert not any(v.savable for v in joined)

    each = tuple(dataclasses.replace(v, kept_as=None) for v in graph.values)
    uncounted = dataclasses.replace(graph, values=each)
    blocks = range(graph.loops[0].first, graph.loops[0].stop)
    for alone in ([], blocks[3:4], blocks[3:9]):  # the second loop is where most is in memory
        regions = [Region(s, s, alone=s in alone) for s in range(len(graph.stages))]
        predicted, before = (
            predicted_temp_bytes(g, regions, inverse.output_bytes) for g in (graph, uncounted)
        )
        assert predicted - before == (4 * width * width if alone else 0)


def left_alone(saving):
    """`masked` where so many of the last iterations are left alone: its step, and its bytes."""
    graph, staged = graph_of_deep(masked)
    (loop,) = graph.loops
    first = loop.stop - saving * loop.length
    regions = [Region(s, s, alone=not loop.first <= s < first) for s in range(len(graph.stages))]
    decisions = planners.Plan(tuple(regions), 0, 0.0, 0, 0.0, "test")
    step = step_to_compile(traced_deep(masked), transform(staged, decisions))
    return step[0], compile_bytes(*step, target=resolve_target("cpu")).temp_bytes


def test_what_is_loop_invariant_is_not_stacked(monkeypatch):
    (_, least), (_, few), (step, many), (plain, most) = map(left_alone, (0, 3, 9, TRIPS))
    assert many - few <= 1.02 * (most - least) / 2
    leaves = [0.1 * array(1, *a.shape) for a in jax.tree.leaves(deep_args())]
    ours, expected = (jax.jit(f)(leaves, [], [jnp.ones(())]) for f in (step, plain))
    jax.tree.map(ft.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), ours, expected)

    monkeypatch.setattr(scan, "without_invariants", lambda step, *_: (step, []))
    monkeypatch.setattr(scan, "joined", lambda _, leaves: leaves)
    (_, few), (_, many) = map(left_alone, (3, 9))
    assert many - few > 1.1 * (most - least) / 2


@pytest.mark.slow
def test_a_budget_between_the_uniform_plans_is_met():
    arguments = deep_args()
    unplanned = monet_jax.compiled_bytes(jax.value_and_grad(deep), *arguments, target="cpu")
    fixed = unplanned.total_bytes - unplanned.temp_bytes
    seconds = []
    for share in (0.45, 0.3, 0.2):
        budget = fixed + int(share * unplanned.temp_bytes)
        plan = monet_jax.plan(deep, *arguments, budget=budget, target="cpu", cache=False)
        assert plan.compiled_bytes <= budget
        seconds.append(plan.decisions.seconds)
        concrete = jax.tree.map(lambda a: 0.1 * array(1, *a.shape), arguments)
        stored = plan_from_json(plan.to_json())
        ours = jax.jit(jax.grad(stored.apply(deep)))(*concrete)
        plain = jax.jit(jax.grad(deep))(*concrete)
        jax.tree.map(ft.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), ours, plain)
    assert seconds == sorted(seconds) and seconds[0] < seconds[-1]


@pytest.mark.slow
@pytest.mark.parametrize("operators", thinned(["none", "exact"], "exact"))
def test_a_plan_can_be_pushed_forward_through_jit(operators):
    """With operators, the budget is met by iterations of which some recompute more."""
    arguments = deep_args()
    unplanned = monet_jax.compiled_bytes(jax.value_and_grad(deep), *arguments, target="cpu")
    budget = unplanned.total_bytes - int(0.7 * unplanned.temp_bytes)
    plan = monet_jax.plan(
        deep, *arguments, budget=budget, target="cpu", operators=operators, cache=False
    )
    assert plan.compiled_bytes <= budget
    assert any(row.decision == "checkpoint" for row in plan.stages)
    assert bool(plan.operators) == (operators == "exact")
    concrete = jax.tree.map(lambda a: 0.1 * array(1, *a.shape), arguments)
    planned = jax.jit(plan_from_json(plan.to_json()).apply(deep))
    ours, plain = (jax.jvp(f, concrete, concrete) for f in (planned, deep))
    np.testing.assert_allclose(ours, plain, rtol=1e-4)


# ------------------------------------------------------------------------------ plans


def test_what_waits_for_a_backward_counts_as_often_as_it_is_stacked():
    """A loop in blocks takes what the same loop takes iteration by iteration."""
    with pytest.MonkeyPatch.context() as patch:
        single, _ = graph_of_deep()
        patch.setattr(loops, "MAX_BLOCKS", 3)
        blocks, _ = graph_of_deep()
    assert (single.loops[0].trips, blocks.loops[0].trips) == (TRIPS, 3)
    carried_bytes = 4 * math.prod(deep_args()[1].shape)
    for some in (planners.save_all, planners.save_nothing):
        a, b = some(single), some(blocks)
        # What the last iteration returns takes no memory, nor a copy; a block counts as one.
        assert (b.seconds, b.flops) == (pytest.approx(a.seconds, rel=0.005), a.flops)
        # Of what is carried into the iterations of one block, one copy is counted.
        assert a.peak_bytes - b.peak_bytes == pytest.approx(0, abs=TRIPS // 3 * carried_bytes)
    assert planners.save_all(blocks).peak_bytes > 4 * planners.save_nothing(blocks).peak_bytes


@pytest.mark.parametrize("trips", [2, 16, 17, 97, 1000])
@pytest.mark.parametrize("stages", [1, 5, 200])
def test_blocks_have_all_iterations(trips, stages):
    blocks = loops.block_lengths(trips, stages)
    assert sum(blocks) == trips and min(blocks) > 0
    assert 2 <= len(blocks) <= max(2, min(16, 128 // stages))
    assert len({*blocks[1:]}) <= 1 and blocks[0] <= blocks[-1]


@pytest.mark.slow
def test_a_long_recurrence_keeps_its_budget():
    def last(weights, x):
        def step(h, row):
            gate = jax.nn.sigmoid(h @ weights[0] + row)
            return gate * h + (1 - gate) * jnp.tanh(h @ weights[1] + row), None

        return jnp.mean(lax.scan(step, x[0], x)[0] ** 2)

    weights, x = (array(0, 32, 32), array(1, 32, 32)), array(2, 300, 64, 32)
    weights = tuple(w / 8 for w in weights)  # larger ones let errors of rounding grow
    unplanned = monet_jax.compiled_bytes(jax.value_and_grad(last), weights, x, target="cpu")
    budget = unplanned.total_bytes - int(0.5 * unplanned.temp_bytes)
    plan = monet_jax.plan(last, weights, x, budget=budget, target="cpu", cache=False)
    assert plan.compiled_bytes <= budget
    assert sum(loops.block_lengths(300, 1)) == 300 and len(plan.stages) < 40
    ours, plain = jax.jit(jax.grad(plan.apply(last)))(weights, x), jax.grad(last)(weights, x)
    jax.tree.map(ft.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), ours, plain)


def test_iterations_are_dealt_out_by_what_they_keep():
    graph, _ = graph_of_deep()
    rng = random.Random(0)
    for _ in range(20):
        regions = random_regions(graph, rng)
        rolled = planners.rolled(graph, regions)
        before, after = planners.replay(graph, regions), planners.replay(graph, rolled)
        assert (after.seconds, after.flops) == pytest.approx((before.seconds, before.flops))
        assert planners.saved_bytes(graph, rolled) == planners.saved_bytes(graph, regions)
        assert len(rolled) == len(regions)
        assert rolled == planners.rolled(graph, rolled)


def lengths(staged, regions):
    """How many trips each run of equal iterations has, as it is emitted."""
    decisions = planners.Plan(tuple(regions), 0, 0.0, 0, 0.0, "test")
    parts = parts_of(staged, decisions.regions)
    (part,) = [x for x in parts if hasattr(x, "loop")]
    pairs = zip(part.blocks, part.loop.trips, strict=True)
    return [sum(n for _, n in some) for _, some in it.groupby(pairs, lambda x: x[0])]


def test_no_iteration_runs_by_itself_where_plans_are_evened():
    graph, staged = graph_of_deep()
    rng, found = random.Random(1), []
    for _ in range(20):
        regions = planners.rolled(graph, random_regions(graph, rng))
        found += lengths(staged, regions)
        for from_last in (False, True):
            with_uniform_blocks = planners.with_uniform_blocks(graph, regions, from_last=from_last)
            planners.replay(graph, with_uniform_blocks)
            assert min(lengths(staged, with_uniform_blocks)) > 1
            if min(lengths(staged, regions)) > 1:
                assert with_uniform_blocks == regions
    assert 1 in found


@pytest.mark.slow
def test_plans_of_uniform_iterations_keep_their_limit(monkeypatch):
    monkeypatch.setattr(encoding, "_LEAST", 2)
    cpu = resolve_target("cpu")
    traced = trace_for(cpu, deep, deep_args(), operators=("int8", "slope8"))
    every_code = dict.fromkeys(traced.staged().writer, 1.0)
    compiled_plans = compiled_plans_of(traced, cpu, NO_PINS, bound=ErrorBound(every_code, 8.0))
    uniform = dataclasses.replace(compiled_plans.graph, uniform_blocks=True)
    proposals = Proposals(compiled_plans, uniform, SolvedBudgets(planners.Stages(), uniform))
    least = compiled_plans.model.modelled(planners.save_nothing(compiled_plans.graph).regions)
    most = compiled_plans.model.modelled(planners.save_all(compiled_plans.graph).regions)
    for limit_bytes in np.linspace(least, most, 16, dtype=int).tolist():
        plan = proposals.within(limit_bytes)
        assert plan is None or proposals.modelled(plan.regions) <= limit_bytes


def test_plans_are_mixed_outside_of_loops():
    graph, staged = graph_of_deep()
    regions = planners.save_nothing(graph).regions, planners.save_all(graph).regions
    crossovers = planners.crossovers(graph, *regions)
    assert crossovers and all(len(lengths(staged, mixed)) == 1 for mixed in crossovers)
    for mixed in crossovers:
        planners.replay(graph, mixed)


def test_a_block_of_iterations_may_run_by_itself():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "MAX_BLOCKS", 3)
        graph, _ = graph_of_deep()
    regions = planners.save_nothing(graph).regions
    first = graph.loops[0].first
    regions = (*regions[:first], Region(first, first, alone=True), *regions[first + 1 :])
    assert planners.with_uniform_blocks(graph, regions) == regions


def test_iterations_that_compute_nothing_are_equal():
    stages = planners.Stage("one", (), ()), planners.Stage("two", (), ())
    graph = planners.Graph((), stages, loops=(planners.Loop(0, 1, 2),), uniform_blocks=True)
    assert neighbours(graph, Region(0, 0)) == [Region(1, 1)]


def test_what_saves_all_by_name_is_not_run_again():
    graph, _ = graph_of_deep()
    plan = planners.save_all(graph)
    regions = plan.regions
    for s in range(len(graph.stages)):
        changed = (*regions[:s], saving_all(graph, regions[s]), *regions[s + 1 :])
        assert not changed[s].alone
        found = planners.replay(graph, changed)
        assert found.flops == plan.flops
        # By name, what JAX saves besides is not stacked.
        by_name = plan.seconds - graph.stages[s].alone_seconds
        assert found.seconds == pytest.approx(by_name)


def test_whole_iterations_save_no_more_than_a_checkpoint_round_the_body():
    """As compiled: it is what people write by hand."""

    def by_hand(layers, x):
        return jnp.mean(lax.scan(jax.checkpoint(deep_layer), x, layers)[0] ** 2)

    (graph, staged), target = graph_of_deep(), resolve_target("cpu")
    decisions = planners.whole_iterations(graph)
    step = step_to_compile(traced_deep(), transform(staged, decisions))
    ours = compile_bytes(*step, target=target)
    baseline = trace_loss(by_hand, deep_args(), target)
    theirs = compile_bytes(*step_to_compile(baseline, baseline.flat), target=target)
    assert ours.temp_bytes <= 1.01 * theirs.temp_bytes


def test_no_region_may_cross_the_end_of_an_iteration():
    graph, _ = graph_of_deep()
    (loop,) = graph.loops
    regions = [Region(s, s, alone=True) for s in range(len(graph.stages))]
    first, last = loop.first + loop.length - 1, loop.first + loop.length
    crossing = [*regions[:first], Region(first, last, alone=True), *regions[last + 1 :]]
    planners.replay(graph, regions)
    with pytest.raises(InvalidPlan, match="crosses the ends of a loop"):
        planners.replay(graph, crossing)
