"""The search keeps budgets where the compiler and the model disagree."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import net, specs
from programs import pool
from thinning import thinned

import monet_jax
import planners
from monet_jax import InfeasibleBudget, operators
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.candidates.programs import fastest_within
from monet_jax.compiler import compile
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir.program import Replacement
from monet_jax.planning import judge
from monet_jax.planning import plan_search as plan_search_module
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.plan_search import PlanSearch
from monet_jax.search.search import Found
from monet_jax.tracing.trace import trace_for
from planners.regions.planner import FunctionPlanner

CPU = resolve_target("cpu")


@pytest.fixture
def plan_search(monkeypatch):
    """A function that makes new searches for a compiler that takes more of some programs.

    Temporaries of about every other program are larger by a fifth than on the CPU.
    """

    def compiled(function, avals, *, target, **options):
        figures = compile.compile_bytes(function, avals, target=target, **options)
        factor = 1.2 if zlib.crc32(str(figures.temp_bytes).encode()) % 2 else 1.0
        return dataclasses.replace(figures, temp_bytes=int(factor * figures.temp_bytes))

    monkeypatch.setattr(judge, "compile_bytes", compiled)
    traced = trace_loss(net, specs(), CPU)
    return lambda: PlanSearch(compiled_plans_of(traced, CPU, Pins()), planners.Stages())


@pytest.mark.parametrize(
    "shares",
    thinned(
        [
            pytest.param((0.9, 0.6, 0.4), id="three"),
            pytest.param((0.9, 0.75, 0.6, 0.5, 0.4), id="five"),
        ],
        "three",
    ),
)
def test_plans_are_within_the_budget(plan_search, shares):
    search = plan_search()
    unplanned = search.compiled_plans.unplanned.total_bytes
    found = set()
    for share in shares:
        plan = search.plan(lambda _, share=share: int(share * unplanned))
        assert plan.compiled_bytes <= plan.budget_bytes
        found.add(plan.compiled_bytes)
    assert len(found) > 2


@pytest.mark.slow
def test_the_minimum_of_an_infeasible_budget_is_feasible(plan_search):
    fixed = plan_search().compiled_plans.fixed_bytes
    with pytest.raises(InfeasibleBudget) as caught:
        plan_search().plan(lambda _: fixed + 1000)
    minimum = caught.value.minimum_budget
    for search in (plan_search(), plan_search()):
        assert search.plan(lambda _: minimum).compiled_bytes <= minimum
    with pytest.raises(InfeasibleBudget):
        plan_search().plan(lambda _: int(0.9 * minimum))


@pytest.mark.slow
def test_a_budget_is_used_where_plans_take_less_than_predicted(monkeypatch):
    """Though none is predicted to fit, the plan is not the smallest."""
    compiled = []

    def compiled_to_less(function, avals, *, target, **options):
        figures = compile.compile_bytes(function, avals, target=target, **options)
        compiled.append(figures)  # first the unplanned program and the base, as they are
        factor = 1.0 if len(compiled) < 3 else 0.7
        return dataclasses.replace(figures, temp_bytes=int(factor * figures.temp_bytes))

    monkeypatch.setattr(judge, "compile_bytes", compiled_to_less)
    traced = trace_loss(net, specs(), CPU)

    def planned(budget):
        compiled.clear()
        return PlanSearch(compiled_plans_of(traced, CPU, Pins()), planners.Stages()).plan(
            lambda _: budget
        )

    with pytest.raises(InfeasibleBudget) as caught:
        planned(1)
    least = planned(caught.value.minimum_budget)
    plan = planned(int(1.5 * least.compiled_bytes))
    assert least.compiled_bytes < plan.compiled_bytes <= plan.budget_bytes < plan.predicted_bytes
    assert plan.overhead < 0.8 * least.overhead


def test_the_calibration_plan_leaves_its_last_stage_alone_where_there_are_others():
    """To recompute a stage right before its backward frees nothing."""

    def base(loss, arguments):
        return compiled_plans_of(
            trace_loss(loss, arguments, CPU), CPU, Pins()
        ).calibration_plan.regions

    several, one = base(net, specs()), base(lambda x: jnp.sum(jnp.sin(x)), specs()[1:])
    assert len(several) > 1
    assert [region.alone for region in several] == [False] * (len(several) - 1) + [True]
    assert len(one) == 1 and not one[0].alone


def test_the_calibration_plan_is_predicted_as_it_was_compiled():
    """Whatever the unplanned program takes beyond the model; and it is compiled once."""
    compiled_plans = compiled_plans_of(trace_loss(net, specs(), CPU), CPU, Pins())
    compiled_plans._all_saved_bytes = compiled_plans.unplanned.temp_bytes + 1_000_000
    assert sum(stage.alone_bytes for stage in compiled_plans.graph.stages) > 900_000
    compiled = compiled_plans.temp_bytes(compiled_plans.of(compiled_plans.calibration_plan))
    assert compiled_plans.predicted_temp_bytes(compiled_plans.calibration_plan.regions) == compiled
    assert compiled_plans.cap.compilations == 2  # the unplanned program and, once, this one


def test_what_the_unplanned_program_takes_less_is_of_stages_left_alone():
    def gelus(layers, x):
        for up, down in layers:
            x = x + jax.nn.gelu(x @ up) @ down
        return jnp.sum(x**2)

    up, down, x = (
        jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 128), (128, 32), (512, 32))
    )
    plans = compiled_plans_of(trace_loss(gelus, ([(up, down)] * 4, x), CPU), CPU, Pins())
    graph = plans.judge.graph
    waiting = [stage.alone_bytes for stage in graph.stages]
    modelled = plans.uncalibrated.modelled(planners.save_all(graph).regions, graph)
    assert sum(waiting) > 0
    for less, left in ((0, 1), (sum(waiting) // 2, 0.5), (2 * sum(waiting), 0)):
        model = dataclasses.replace(plans.uncalibrated, all_saved_bytes=modelled - less)
        found = [stage.alone_bytes for stage in model.graph.stages]
        assert found == pytest.approx([left * nbytes for nbytes in waiting], abs=1)


@pytest.fixture
def wasteful(monkeypatch):
    """The name of an operator by which each product runs twice and keeps one result more.

    It adds constants to a program, which other traces of a function do not have.
    """
    nothing = jnp.zeros(4)

    def twice(eqn, context):
        if eqn.primitive.name != "dot_general":
            return None

        def product(x, y):
            first, again = (eqn.primitive.bind(a, y, **eqn.params) for a in (x, jnp.sin(x)))
            return first + jnp.minimum(jnp.abs(again), 0) * jnp.cos(again) + nothing[0]

        return Replacement(jax.make_jaxpr(product)(*(v.aval for v in eqn.invars)), True)

    known = dict(operators.registry._REGISTRY)
    monkeypatch.setattr(operators.registry, "_REGISTRY", known)
    return operators.register(operators.Operator("twice", operators.Kind.REORDERED, twice)).name


@pytest.mark.slow
def test_where_operators_only_cost_time_the_plan_is_one_without(wasteful, monkeypatch, tmp_path):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    args = [jnp.linspace(-0.1, 0.1, x.size).reshape(x.shape) for x in jax.tree.leaves(specs())]
    args = jax.tree.unflatten(jax.tree.structure(specs()), args)
    same = {"budget": 0.75, "time_limit": 60.0}  # no plan may depend on the machine's load
    options = {**same, "operators": [wasteful]}
    plan = monet_jax.plan(net, *args, **options)
    plain = monet_jax.plan(net, *args, **same, operators="none")
    assert (plan.operators, plan.seconds) == ((), plain.seconds)
    planned = monet_jax.remat(net, **options)  # by the plan that is on disk now
    for found in (planned, plan.apply(net)):
        value, gradient = jax.value_and_grad(found)(*args)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9),
            (value, gradient),
            jax.value_and_grad(net)(*args),
        )

    monkeypatch.setattr(plan_search_module, "_without_operators", lambda plans: None)
    worse = monet_jax.plan(net, *args, **options, cache=False)
    assert worse.operators == (wasteful,) and worse.seconds > plan.seconds


def pooled(kernel, x):
    return jnp.mean(jax.nn.relu(pool(x @ kernel)) ** 2)


def test_where_pooling_is_replaced_no_plan_has_jax_s_gradient_of_it(monkeypatch):
    """What XLA keeps for that gradient is in nothing that calibrates the model."""
    args = (
        jax.ShapeDtypeStruct((8, 8), jnp.float32),
        jax.ShapeDtypeStruct((2, 8, 8, 8), jnp.float32),
    )
    plans = compiled_plans_of(trace_loss(pooled, args, CPU), CPU, Pins())
    assert plans.judge.plain is not plans.judge
    assert PlanSearch(plans).programs.without_operators is None
    monkeypatch.setattr(plan_search_module, "pools_otherwise", lambda judge: False)
    assert PlanSearch(plans).programs.without_operators is not None


@pytest.mark.slow
def test_plans_with_lossy_codes_are_no_slower_than_those_with_exact_ones():
    """Also where the planner finds next to nothing among so many."""

    def masked(params, x):
        for w in params:
            x = x + jax.nn.relu(jax.nn.relu(x @ w) @ w)
        return jnp.mean(x**2)

    def search(operators):
        compiled_plans = compiled_plans_of(
            trace_for(CPU, masked, specs(), operators=operators), CPU, Pins()
        )
        lossy = compiled_plans.judge.lossy_codes

        def planner(graph, budget):
            ops = [op for stage in graph.stages for op in stage.backward]
            is_poor = any(
                op.codes(implementation) & lossy for op in ops for implementation in op.alternatives
            )
            return planners.save_nothing(graph) if is_poor else stages(graph, budget)

        return PlanSearch(compiled_plans, FunctionPlanner(planner)), lossy

    stages = planners.Stages()
    (plain, _), (exact, none), (every, lossy) = map(search, ("none", "exact", "lossy"))
    assert lossy and not none
    budget = int(0.7 * exact.compiled_plans.unplanned.total_bytes)
    slow, fast, found = (x.plan(lambda _: budget).overhead for x in (plain, exact, every))
    assert found == pytest.approx(fast, abs=1e-4) and 0 < fast < 0.2 * slow


# ------------------------------------------------------------------------------ caps


@pytest.fixture
def compilations(monkeypatch):
    """What is compiled, as a list of temporaries; an exception put first is raised instead."""
    done: list = []

    def compiled(function, avals, *, target, **options):
        figures = compile.compile_bytes(function, avals, target=target, **options)
        done.append(figures.temp_bytes)
        return figures

    monkeypatch.setattr(judge, "compile_bytes", compiled)
    return done


@pytest.mark.parametrize("most", thinned([2, 3, 6], "3"))
def test_a_call_compiles_no_more_than_its_cap(compilations, most):
    plan = monet_jax.plan(net, *specs(), budget=0.55, max_compilations=most, cache=False)
    assert len(compilations) == plan.compilations == len(plan.compiled) <= min(2 * most, 6)
    assert plan.compiled_bytes <= plan.budget_bytes
    assert bool(plan.cut_short) == ("cut short" in str(plan))


def test_a_cap_that_allows_no_plan_is_an_error_that_says_so(compilations):
    with pytest.raises(InfeasibleBudget, match=r"cut short.*`max_seconds`") as caught:
        monet_jax.plan(net, *specs(), budget=0.55, max_seconds=1e-9, cache=False)
    assert not compilations
    unplanned = monet_jax.compiled_bytes(jax.value_and_grad(net), *specs()).total_bytes
    assert caught.value.minimum_budget == pytest.approx(unplanned, rel=0.05)


def test_a_plan_that_was_cut_short_is_made_again_under_a_larger_cap(
    compilations, tmp_path, monkeypatch
):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))

    def planned(most):
        compilations.clear()
        return monet_jax.plan(net, *specs(), budget=0.55, max_compilations=most), len(compilations)

    (short, _), (again, none), (longer, some) = planned(2), planned(2), planned(6)
    assert short.cut_short and again.is_cached and again.cut_short and not none
    assert not longer.is_cached and some > 2 and longer.overhead <= short.overhead
    assert planned(7)[0].is_cached == (not longer.cut_short)


@pytest.mark.slow
def test_the_best_plan_of_an_interrupted_search_is_where_the_next_one_begins(
    compilations, tmp_path, monkeypatch
):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    whole = judge.compile_bytes

    def interrupted(*args, **options):
        if len(compilations) == 3:
            raise KeyboardInterrupt
        return whole(*args, **options)

    monkeypatch.setattr(judge, "compile_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        monet_jax.plan(net, *specs(), budget=0.55)
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    best = monet_jax.load_plan(path)
    assert "interrupted" in best.cut_short and best.compiled_bytes <= best.budget_bytes
    monkeypatch.setattr(judge, "compile_bytes", whole)
    plan = monet_jax.plan(net, *specs(), budget=0.55)
    assert not plan.is_cached and plan.overhead <= best.overhead


@pytest.mark.slow
def test_the_smallest_plan_is_where_a_search_with_its_bytes_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    with pytest.raises(monet_jax.InfeasibleBudget) as error:
        monet_jax.plan(net, *specs(), budget=0.05)
    least = error.value.minimum_budget
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert monet_jax.load_plan(path).compiled_bytes == least
    monkeypatch.setattr(plan_search_module, "find", no_search)
    assert monet_jax.plan(net, *specs(), budget=least).compiled_bytes <= least
    with pytest.raises(LookupError):
        monet_jax.plan(net, *specs(), budget=least + 1)


def no_search(programs, limit):
    """What a search would find that compiles nothing beside what it is given."""
    best = fastest_within(programs, limit)
    if best is None:
        raise LookupError("no plan")
    return Found(*best, True, "")
