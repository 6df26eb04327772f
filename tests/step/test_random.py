"""Steps of random losses are those of JAX, whatever their plans recompute.

The losses are the random programs of `programs`. Plans are drawn at random, without a compiler;
some are searched for and compiled.
"""

import collections
import functools
import random

import jax
import optax
import pytest
from emission import assert_same, planted, random_regions, reference
from programs import STEPS, Recipe
from steps import bytes_of
from thinning import thinned

import monet_jax
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.options import PlanOptions
from monet_jax.planning.step import PlannedProgram
from monet_jax.step.call import StepCall
from monet_jax.step.compiler import Candidate
from monet_jax.step.context import Applying
from monet_jax.step.planning import record_step, search_of, tracer_for
from planners.plan import Plan
from planners.replay import replay

#: Each with an `eps` that does not blow gradients up that are nothing but rounding.
OPTIMIZERS = {
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=1e-2)),
    "rmsprop": optax.rmsprop(1e-2, eps=1e-2, momentum=0.9),
}
OPTIONS, TARGET = PlanOptions(), resolve_target("cpu")


def step_of(recipe, optimizer, api, state, index, key):
    """A step whose loss is a random program."""
    params, inner = state

    def loss(floats):
        value, *others = recipe._run(floats, index, key)
        return value, others

    (value, others), gradient = api.value_and_grad(loss, has_aux=True)(params)
    updates, inner = optimizer.update(gradient, inner, params)
    return (optax.apply_updates(params, updates), inner), value, others


def drawn(rng: random.Random) -> tuple:
    """A random step, by its `api`, and its arguments."""

    def small():
        return rng.randrange(6)

    steps = tuple((rng.choice([*STEPS]), small(), small()) for _ in range(rng.randint(3, 12)))
    recipe = Recipe(steps, tuple(small() for _ in range(rng.randrange(3))), True)
    optimizer = OPTIMIZERS[rng.choice([*OPTIMIZERS])]
    params, *others = recipe.case().args
    step = functools.partial(step_of, recipe, optimizer)
    return step, ((params, optimizer.init(params)), *others)


def by_chance(rng: random.Random, step, arguments) -> tuple:
    """The step with a random plan of its mark, and whether this recomputes."""
    call = StepCall(functools.partial(step, monet_jax), {"donate_argnums": 0}, arguments, {})
    recorded = record_step(call, tracer_for(call, OPTIONS, TARGET))
    ((mark, traced),) = recorded.marks.found.items()
    graph = search_of(recorded, OPTIONS, TARGET).judge(mark, {}).graph
    plan = Plan(random_regions(graph, rng), 0, 0.0, 0, 0.0, "random")
    candidate = Candidate(PlannedProgram(plan, None), traced.terms, "cpu")
    forward = [(r.stage, r.op) for r in replay(graph, plan).schedule if r.phase == "forward"]
    trace = Applying(recorded.marks.tracer, {mark: candidate}, (mark,))
    return call.jitted(trace), len({*forward}) < len(forward)


def searched(step, arguments) -> tuple:
    """The step as it is planned for few bytes, and whether they are fewer than without a plan."""
    plain = sum(bytes_of(jax.jit(functools.partial(step, jax), donate_argnums=0), *arguments))
    made = functools.partial(monet_jax.jit, functools.partial(step, monet_jax), donate_argnums=0)
    options = {"cache": False, "max_compilations": 4}
    budget = int(0.85 * plain)
    try:
        monet_jax.plan(made(budget=budget, **options), *arguments)
    except monet_jax.InfeasibleBudget as error:
        budget = error.minimum_budget
    jitted = made(budget=budget, **options)
    assert sum(bytes_of(jitted, *arguments)) <= budget
    return jitted, budget < plain


def expect_same(jitted, step, arguments) -> None:
    """The step as planned is that of JAX, as far as a float64 run says that it can be.

    Compiled as a whole, casts to narrow floats are dropped and sums are ordered anew: a plan that
    keeps them apart may round as the ops do one by one.
    """
    leaves, tree = jax.tree.flatten(arguments)

    def run(*leaves):
        return step(jax, *jax.tree.unflatten(tree, leaves))

    compiled, exact = reference(run, leaves)
    ours = jitted(*jax.tree.unflatten(tree, [x.copy() for x in leaves]))
    try:
        assert_same(ours, compiled, exact)
    except AssertionError:
        with jax.disable_jit():
            assert_same(ours, run(*leaves), exact, factor=16)


def check(rng: random.Random, count: int, verified: int) -> None:
    """Checks random steps, some of them with plans that are searched for."""
    counted = collections.Counter()
    for n in range(count):
        step, arguments = drawn(rng)
        is_searched = n < verified
        jitted, plans = (
            searched(step, arguments) if is_searched else by_chance(rng, step, arguments)
        )
        counted[is_searched, plans] += 1
        expect_same(jitted, step, arguments)
    assert counted[False, True] >= 0.7 * (count - verified), counted  # else it shows nothing


@pytest.mark.parametrize(("count", "verified"), thinned([(2, 0), (3, 1)], "2-0"))
def test_some_random_steps_are_those_of_jax(count, verified):
    check(random.Random("some"), count, verified)


@pytest.mark.slow
def test_another_step_is_noticed():
    rng = random.Random("planted")
    step, arguments = drawn(rng)
    with planted("tanh", jax.numpy.sin):
        jitted, _ = by_chance(rng, step, arguments)
        jitted.lower(*arguments)  # traced while the fault is there
        with pytest.raises(AssertionError):
            expect_same(jitted, step, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_steps_are_those_of_jax(part):
    """Each part draws its own steps, so that parts may run side by side."""
    check(random.Random(part), 50, 3)
