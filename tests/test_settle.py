"""Does the search keep budgets where trials are compiled in part, and that is off?"""

import dataclasses

import jax.numpy as jnp
import pytest
from networks import net, specs

import planners
from monet_jax import InfeasibleBudget, _compile, _trials
from monet_jax._pins import Pins
from monet_jax._settle import Settling
from monet_jax._targets import resolve_target
from monet_jax._trials import Trials
from monet_jax.bench._programs import trace_loss

TPU = resolve_target("tpu:v5e")


@pytest.fixture
def settling(monkeypatch):
    """A function that makes new searches for a TPU whose full compilations take more.

    They are compiled for the CPU; in full, temporaries are larger: by a thousandth where they are
    about as small as any before, and by a fifth elsewhere.
    """
    seen = []

    def compiled(function, avals, *, target, fast=True, **options):
        figures = _compile.compile_bytes(
            function, avals, target=resolve_target("cpu"), fast=fast, **options
        )
        seen.append(figures.temp_bytes)
        if fast:
            return figures
        factor = 1.2 if figures.temp_bytes > 1.1 * min(seen) else 1.001
        return dataclasses.replace(figures, temp_bytes=int(factor * figures.temp_bytes))

    monkeypatch.setattr(_trials, "compile_bytes", compiled)
    traced = trace_loss(net, specs(), TPU)
    return lambda: Settling(Trials(traced, TPU, Pins()), planners.Stages())


def test_plans_are_within_the_budget_in_full(settling):
    search = settling()
    unplanned = search.trials.unplanned.total_bytes
    found = set()
    for share in (0.9, 0.75, 0.6, 0.5, 0.4):
        plan = search.plan(lambda _, share=share: int(share * unplanned))
        assert plan.compiled_bytes <= plan.budget_bytes
        found.add(plan.compiled_bytes)
    assert len(found) > 2


def test_the_minimum_of_an_infeasible_budget_is_feasible(settling):
    fixed = settling().trials.fixed_bytes
    with pytest.raises(InfeasibleBudget) as caught:
        settling().plan(lambda _: fixed + 1000)
    minimum = caught.value.minimum_budget
    for search in (settling(), settling()):
        assert search.plan(lambda _: minimum).compiled_bytes <= minimum
    with pytest.raises(InfeasibleBudget):
        settling().plan(lambda _: int(0.9 * minimum))


def test_the_base_leaves_its_last_stage_alone_where_there_are_others():
    """To recompute a stage right before its backward spares nothing."""
    cpu = resolve_target("cpu")

    def base(loss, arguments):
        return Trials(trace_loss(loss, arguments, cpu), cpu, Pins()).base.regions

    several, one = base(net, specs()), base(lambda x: jnp.sum(jnp.sin(x)), specs()[1:])
    assert len(several) > 1
    assert [region.alone for region in several] == [False] * (len(several) - 1) + [True]
    assert len(one) == 1 and not one[0].alone


def test_the_base_is_predicted_as_it_was_compiled():
    """Whatever the unplanned program takes beyond the model."""
    cpu = resolve_target("cpu")
    trials = Trials(trace_loss(net, specs(), cpu), cpu, Pins())
    trials._all_saved_bytes = trials.unplanned.temp_bytes + 1_000_000
    assert sum(stage.alone_bytes for stage in trials.graph.stages) > 900_000
    compiled = trials.temp_bytes(trials.of(trials.base))
    assert trials.predicted_temp_bytes(trials.base.regions) == compiled
