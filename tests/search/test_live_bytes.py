"""What lies in results costs no memory: the planner is told for how much of a step that holds."""

import functools
import itertools as it

import jax
import jax.numpy as jnp
import pytest
from networks import skip_without_compiler

import monet_jax
import planners
from monet_jax import zoo
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.candidates.calibration import Model
from monet_jax.candidates.live_bytes import lending
from monet_jax.candidates.proposals import Proposals
from monet_jax.candidates.small_plans import small_plans
from monet_jax.candidates.spaces import spaces_of
from monet_jax.compiler.buffers.model import bytes_in_results, predicted_temp_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of
from planners.regions.solved import SolvedBudgets
from planners.replay import replay


def plans_of(loss, args):
    target = resolve_target("cpu")
    return compiled_plans_of(trace_loss(loss, args, target), target, Pins(), verify=False)


def perceptron(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@pytest.fixture(scope="module")
def plans():
    spec = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return plans_of(perceptron, ([spec] * 6, spec))


def test_live_bytes_count_where_they_do_not_lie_in_results(plans):
    graph = plans.judge.graph
    regions = planners.save_all(graph).regions
    known = replay(graph, regions)
    peak = known.schedule[known.peak_run].stage
    nbytes = 1 << 40
    for s in range(len(graph.stages)):
        at_one = [nbytes if t == s else 0 for t in range(len(graph.stages))]
        found, more = lending(graph, at_one)
        assert more == nbytes
        exceeds = replay(found, regions).peak_bytes - known.peak_bytes
        assert (exceeds == nbytes) == (s != peak)
    assert lending(graph, [nbytes] * len(graph.stages)) == (graph, nbytes)


def test_less_and_less_lies_in_results_as_they_are_written(plans):
    graph, regions = plans.judge.graph, planners.save_all(plans.judge.graph).regions
    found = bytes_in_results(graph, regions, plans.judge.output_bytes)
    assert found == sorted(found) and found[0] < found[-1]  # the last stage's backward is the first
    assert not any(bytes_in_results(graph, regions, {}))


@pytest.mark.slow
def test_a_planner_that_is_told_so_finds_a_faster_plan():
    problem = zoo.build("unet", scale="tiny")
    plans = plans_of(problem.loss, problem.args)
    graph, limit = plans.model.graph, int(0.7 * plans.unplanned.temp_bytes)

    def proposed(is_told):
        found = Proposals(plans, graph, SolvedBudgets(planners.Stages(), graph))
        if not is_told:
            found._lending = found.solved, 0
        plan = found.within(limit)
        assert found.modelled(plan.regions) <= limit
        return plan.seconds

    assert proposed(True) < proposed(False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A faster plan may exist")
def test_the_least_of_a_network_whose_activations_lie_in_gradients():
    """A VGG-16 takes no more than with a checkpoint round each block."""
    skip_without_compiler("gpu:h100")
    build = functools.partial(zoo.build, "vgg16", scale="bench", dtype="bfloat16")
    problem, by_hand = build(), build(block_remat="nothing").loss
    step = jax.value_and_grad(by_hand, has_aux=True)
    theirs = monet_jax.compiled_bytes(step, *problem.args, target="gpu:h100").total_bytes
    options = {"planner": planners.Stages(time_limit=5.0), "target": "gpu:h100", "cache": False}
    plan = monet_jax.plan(problem.loss, *problem.args, budget=theirs, **options)
    assert plan.compiled_bytes <= theirs


@pytest.mark.parametrize("more, is_charged", [(1 << 12, True), (1 << 20, False)])
def test_an_excess_that_would_lie_in_results_is_of_no_plan(more, is_charged):
    """The unplanned program takes more than modelled; stages left alone cannot be charged so."""
    weights, x = (jax.ShapeDtypeStruct((n, 256), jnp.float32) for n in (256, 16))
    plans = plans_of(perceptron, ([weights] * 6, x))
    judge = plans.judge
    saving = planners.save_all(judge.graph).regions
    saved = predicted_temp_bytes(judge.graph, saving, judge.output_bytes)
    scale = Model(judge, plans.calibration_plan, saved + more, shift=0).scale
    assert scale.compiled == scale.modelled
    assert (scale.compiled[-1] > saved + 0.9 * more) == is_charged


def test_of_small_plans_that_should_fit_the_fastest_comes_first():
    problem = zoo.build("unet", scale="tiny")
    plans = plans_of(problem.loss, problem.args)
    (*_, space) = spaces_of(plans, planners.Stages())

    def first_two(limit):
        calibration, fits, smallest = it.islice(small_plans(space, limit), 3)
        assert calibration is plans.calibration_plan
        return fits, smallest

    none, smallest = first_two(0)
    least = plans.predicted_temp_bytes(smallest.regions)
    assert none is None and least < plans.predicted_temp_bytes(plans.calibration_plan.regions)
    assert first_two(least)[0].seconds <= smallest.seconds
    fits, _ = first_two(int(1.5 * least))
    assert least < plans.predicted_temp_bytes(fits.regions) <= 1.5 * least
    assert fits.seconds < smallest.seconds
