"""The error of lossy codes in a gradient is the measured one, and within its limit."""

import dataclasses
import math
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from programs import array

import monet_jax
import planners
from monet_jax._plan import plan_from_json
from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.candidates.proposals import Proposals
from monet_jax.compiler.targets import resolve_target
from monet_jax.operators.compression import encoding
from monet_jax.planning.error_limit import ErrorLimit, plan_within
from monet_jax.planning.gradient_error import ErrorBound, Errors, with_errors
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.tracing.trace import trace_for
from planners.regions.simple_plans import saving_codes
from planners.regions.solved import SolvedBudgets

LAYERS = [(array(i, 32, 32), 1 + array(9 + i, 32)) for i in range(4)]
BATCH = array(20, 256, 32)
SHAPE = jax.ShapeDtypeStruct(BATCH.shape, BATCH.dtype)
CPU = resolve_target("cpu")


def loss(layers, x, key):
    """Layers that differ in how much their errors matter; the key only draws noise."""
    del key
    for n, (w, scale) in enumerate(layers):
        y = x @ w
        y = (y - y.mean(0)) * jax.lax.rsqrt(jnp.var(y, 0) + 1e-3) * scale
        x = x + jax.nn.relu(y) / (1 + 3 * n)
    return jnp.mean(x**2)


def looped(layers, x, key):
    """The same as a loop over stacked layers."""
    del key

    def layer(x, weights):
        w, scale = weights
        y = x @ w
        y = (y - y.mean(0)) * jax.lax.rsqrt(jnp.var(y, 0) + 1e-3) * scale
        return x + jax.nn.relu(y) / 2, None

    x, _ = jax.lax.scan(layer, x, jax.tree.map(lambda *some: jnp.stack(some), *layers))
    return jnp.mean(x**2)


ARGS = (LAYERS, BATCH, jax.random.key(0))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small values may be kept as codes."""
    monkeypatch.setattr(encoding, "_LEAST", 1024)


def measured(function, operators, samples=(ARGS,)):
    """The errors of a function's codes, and what measures them."""
    traced = trace_for(CPU, function, ARGS, operators=operators)
    compiled_plans = compiled_plans_of(traced, CPU, NO_PINS)
    errors = Errors(traced, [jax.tree.leaves(x) for x in samples], compiled_plans.judge.graph)
    return errors, errors.of_codes()


def draws(plan, function, count=24):
    """The relative error of a planned gradient, for several keys."""
    gradient = jax.jit(jax.grad(plan.apply(function)))
    exact, _ = ravel_pytree(jax.grad(function)(*ARGS))
    found = []
    for key in jax.random.split(jax.random.key(7), count):
        ours, _ = ravel_pytree(gradient(LAYERS, BATCH, key))
        found.append(float(jnp.linalg.norm(ours - exact) / jnp.linalg.norm(exact)))
    return np.array(found)


def planned(function, error, **more):
    """A plan for two thirds of the temporaries, by which nothing exact is fast enough."""
    base = monet_jax.plan(function, *ARGS, budget=1.0, cache=False)
    budget = int(base.fixed_bytes + 0.62 * (base.unplanned_bytes - base.fixed_bytes))
    return monet_jax.plan(
        function, *ARGS, budget=budget, operators="lossy", error=error, cache=False, **more
    )


@pytest.mark.parametrize(
    ("function", "limit"),
    [
        pytest.param(looped, 0.05, marks=pytest.mark.slow),
        *(pytest.param(f, x, marks=pytest.mark.slow) for f in (loss, looped) for x in (0.01, 0.2)),
    ],
)
def test_the_error_is_what_was_measured_and_within_the_limit(function, limit):
    plan = planned(function, limit)
    assert 0 < plan.error <= plan.error_limit == limit
    assert math.sqrt(np.square(draws(plan, function)).mean()) < 1.1 * limit
    assert plan.compiled_bytes <= plan.budget_bytes
    assert f"Gradient error {plan.error:.2%}" in str(plan)
    assert plan_from_json(plan.to_json()) == plan


@pytest.mark.slow
def test_more_is_made_of_a_higher_limit():
    low, high = (planned(looped, limit) for limit in (0.01, 0.2))
    assert high.error > low.error_limit  # what it does with it, the lower limit forbids
    assert high.seconds < low.seconds


@pytest.mark.slow
def test_errors_of_codes_add_up():
    errors, of_codes = measured(loss, ["mask", "int8", "int4"])
    for codec in {code.codec for code in errors.codes}:
        chosen = [code for code in errors.codes if code.codec == codec]
        together = np.mean([errors.of(chosen) for _ in range(4)])
        assert sum(of_codes[code.number] for code in chosen) == pytest.approx(together, rel=0.5)


@pytest.mark.slow
def test_the_error_is_that_on_the_worst_of_some_samples():
    # Where one example is a thousand times as large as others, these are encoded in its steps.
    samples = [ARGS, (LAYERS, BATCH.at[0].mul(1000.0), ARGS[2])]
    found = [measured(loss, ["mask", "int8"], x) for x in (samples[:1], samples[1:], samples)]
    plans = [errors.of_plan(saving_codes(errors.graph)) for errors, _ in found]
    assert plans[2] == pytest.approx(max(plans[:2]), rel=0.3)
    assert plans[1] > 2 * plans[0]
    codes = [sum(of_codes.values()) for _, of_codes in found]
    assert codes[2] > 2 * codes[0]


@pytest.mark.slow
def test_iterations_do_not_follow_others_to_more_error_than_there_may_be():
    traced = trace_for(CPU, looped, ARGS, operators=["mask", "int8", "int4"])
    compiled_plans = compiled_plans_of(traced, CPU, NO_PINS)
    of_codes, errors = dict.fromkeys(compiled_plans.judge.staged.writer, 1.0), []
    for most in (6.0, 9.0):
        bounded = compiled_plans_of(traced, CPU, NO_PINS, bound=ErrorBound(of_codes, most))
        solved = SolvedBudgets(planners.Stages(), bounded.model.graph)
        proposals = Proposals(bounded, bounded.model.graph, solved)
        all_bytes = proposals.modelled(planners.save_all(bounded.graph).regions)
        regions = proposals.within(int(0.4 * all_bytes)).regions
        errors.append(planners.error_of(bounded.graph, regions))
    assert errors[0] <= 6.0 < errors[1] <= 9.0


@dataclasses.dataclass(frozen=True)
class FoundPlan:
    """As much of a plan as is looked at."""

    bound: ErrorBound
    decisions: Any
    overhead: float
    error: float | None = None
    error_limit: float | None = None


WITHOUT_CODES = 0.5
FASTER, SLOWER, SLOWEST, FAST = (0.4, 0.3, 0.2), (0.1, 0.2, 0.3), (0.6,), (0.004,)


@pytest.mark.parametrize(
    ("measured", "bounds", "error", "taken", "overheads"),
    [
        ([0.03], [0.6], 0.03, 1.0, FASTER),
        ([0.045, 0.03], [0.6, 0.6 * 0.03 / 0.045], 0.03, 1.0, SLOWER),
        ([0.045, 0.045, 0.045], [0.6, 0.6 * 2 / 3, 0.6 * 4 / 9], 0.0, 1.0, SLOWER),
        ([0.01, 0.03], [0.6, 1.8], 0.03, 1.0, FASTER),  # together they do less than one by one
        ([0.01, 0.03], [0.6, 1.8], 0.01, 1.0, SLOWER),  # the second search found less
        ([0.01, 0.045], [0.6, 1.8], 0.01, 1.0, FASTER),
        ([0.0, 0.03], [0.6, 0.7], 0.03, 0.5, FASTER),  # the first code is just too much
        ([0.01, 0.01], [0.6, 0.7], 0.01, 0.5, FASTER),  # nothing more is gained by codes
        ([0.03], [0.6], 0.0, 1.0, SLOWEST),  # codes cost time
        ([0.01], [0.6], 0.01, 1.0, FAST),  # next to nothing is left to gain
    ],
)
def test_a_plan_is_made_anew_until_its_error_is_what_it_may_be(
    measured, bounds, error, taken, overheads
):
    errors, bounds_tried, found = mock.create_autospec(Errors, instance=True), [], iter(measured)
    errors.of_codes.return_value = {}
    errors.modelled.side_effect = lambda _, bound: taken * bound.most
    errors.of_plan.side_effect = lambda regions: next(found)

    def find_plan(bound):
        bounds_tried.append(math.sqrt(bound.most) / 0.05)
        overhead = overheads[len(bounds_tried) - 1] if bound.most else WITHOUT_CODES
        return FoundPlan(bound, mock.Mock(regions=()), overhead)

    made = plan_within(ErrorLimit(0.05, ()), errors, find_plan)
    assert bounds_tried == pytest.approx(bounds + ([] if overheads is FAST else [0.0]))
    assert made.error == error and made.error_limit == 0.05


@pytest.mark.parametrize("measured", [[0.03], [0.01], [0.045, 0.03]])
def test_a_plan_is_not_lost_where_others_do_not_fit(measured):
    """A budget that only some codes keep: neither more exact plans do, nor what else is tried."""
    errors, found = mock.create_autospec(Errors, instance=True), iter(measured)
    errors.of_codes.return_value = {}
    errors.modelled.return_value = 0.0
    errors.of_plan.side_effect = lambda regions: next(found)
    fits = [FoundPlan(None, mock.Mock(regions=()), 0.2)] * len(measured)
    find_plan = mock.Mock(side_effect=[*fits, *map(refused, (9, 8))])
    made = plan_within(ErrorLimit(0.05, ()), errors, find_plan)
    assert made.error == measured[-1]


def test_where_no_plan_is_right_enough_the_least_minimum_is_told():
    errors = mock.create_autospec(Errors, instance=True)
    errors.modelled.return_value, errors.of_plan.return_value = 0.0, 1.0
    wrong = FoundPlan(None, mock.Mock(regions=()), 0.2)
    find_plan = mock.Mock(side_effect=[wrong, *map(refused, (8, 9))])
    with pytest.raises(monet_jax.InfeasibleBudget) as told:
        plan_within(ErrorLimit(0.05, ()), errors, find_plan)
    assert told.value.minimum_budget == 8


def refused(minimum_budget):
    return monet_jax.InfeasibleBudget("", minimum_budget)


@pytest.mark.parametrize(("samples", "measured"), [(1, 0.035), (2, 0.04)])
def test_several_samples_leave_less_to_what_other_data_may_bring(samples, measured):
    assert ErrorLimit(0.05, ((),) * samples).measured == pytest.approx(measured)


@pytest.mark.slow
def test_where_nothing_may_be_wrong_nothing_lossy_is_read(monkeypatch):
    monkeypatch.setattr(Errors, "of_plan", lambda *_: 1.0)  # whatever is planned is too wrong
    plan = planned(loss, 0.01)
    assert plan.error == 0.0
    saved = {row.operator for row in plan.values if row.decision == "saved"}
    assert saved <= {"exact", "mask"}


@pytest.mark.slow
def test_a_graph_has_the_errors_of_its_codes():
    errors, of_codes = measured(loss, ["mask", "int8"])
    graph = with_errors(errors.graph, errors.staged, ErrorBound(of_codes, 1e-6))
    found = [op.error for stage in graph.stages for op in stage.forward if op.error]
    assert sorted(found) == sorted(of_codes.values()) and found
    assert graph.most_error == 1e-6


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (dict(error=2.0), "between 0 and 1"),
        (dict(error=0.01, operators="exact"), "lossy"),
        (dict(error=0.01, sample=(LAYERS, BATCH[:5], ARGS[2])), "shapes"),
        (dict(error=0.01, sample=[ARGS, (LAYERS, BATCH[:5], ARGS[2])]), "shapes"),
        (
            dict(
                error=0.01, sample=(LAYERS, jax.ShapeDtypeStruct(BATCH.shape, "float32"), ARGS[2])
            ),
            "arrays",
        ),
    ],
)
def test_a_limit_that_means_nothing_is_refused(more, says):
    with pytest.raises(ValueError, match=says):
        monet_jax.plan(loss, *ARGS, budget=0.6, **{"operators": "lossy"} | more)
