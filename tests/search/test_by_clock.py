"""The clock decides between the compiled plans that keep a budget, and the plain program."""

import types

import jax
import jax.numpy as jnp
import pytest
from graphs import random_graph
from synthetic_judge import FIXED_BYTES, Enumeration, SyntheticJudge, exact, plans_of, random_limit

import monet_jax
from monet_jax.candidates.cap import Cap
from monet_jax.candidates.compiled_plans import CompiledPlans
from monet_jax.planning.options import PlanOptions
from monet_jax.plans.record import record_from_json
from monet_jax.report.text import report
from monet_jax.search.by_clock import TURNS, find_by_clock
from monet_jax.search.search import Programs, find
from monet_jax.seconds import clock

GRAPHS = [
    graph for seed in range(30) if len(plans_of(graph := random_graph(seed, n_stages=4))) > 30
]


class TimedJudge(SyntheticJudge):
    """Runs programs on a clock of its own, by which `taken` says how long each takes."""

    def __init__(self, graph, taken, now):
        super().__init__(graph, exact)
        self.taken, self.now, self.runs = taken, now, {}

    def runnable(self, decisions):
        def run():
            self.runs[decisions] = self.runs.get(decisions, 0) + 1
            self.now[0] += self.taken(decisions)

        return run


@pytest.fixture
def now(monkeypatch):
    """The time of a clock that moves only where a program runs."""
    time = [0.0]
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(perf_counter=lambda: time[0]))
    return time


def programs_of(judge):
    plans = CompiledPlans(judge, Cap(6))
    return Programs(plans, None, lambda: None, Enumeration(), least_gain=None)


def growing(judge):
    """Smaller programs are faster, and the plain program is the slowest."""
    return lambda plan: 1.0 + (judge.bytes_of(plan.regions) if plan else 1e9)


def shrinking(judge):
    """Smaller programs are slower."""
    return lambda plan: 1e9 - (judge.bytes_of(plan.regions) if plan else 0)


def best_plain(judge):
    """The plain program is the fastest."""
    return lambda plan: 2.0 if plan else 1.0


@pytest.mark.parametrize("seconds", [growing, shrinking, best_plain])
def test_the_fastest_by_the_clock_is_taken_whatever_the_model_says(now, seconds):
    chosen = 0
    for seed, graph in enumerate(GRAPHS):
        taken = seconds(SyntheticJudge(graph, exact))
        judge, limit = TimedJudge(graph, taken, now), FIXED_BYTES + random_limit(graph, seed)
        programs = programs_of(judge)
        found = find_by_clock(programs, limit)
        if not found.fits:
            assert not judge.runs
            continue
        totals = {x: FIXED_BYTES + judge.bytes_of(x.regions) for x in judge.runs if x}
        assert set(judge.runs.values()) == {TURNS} and all(x <= limit for x in totals.values())
        plain = FIXED_BYTES + judge.unplanned_bytes().temp_bytes
        assert (None in judge.runs) == (plain <= limit)
        assert found.plan is None or found.plan.decisions in judge.runs
        decisions = found.plan and found.plan.decisions
        assert taken(decisions) == min(map(taken, judge.runs))
        assert min(found.step_seconds.values()) == pytest.approx(taken(decisions))
        modelled = find(programs_of(SyntheticJudge(graph, exact)), limit).plan
        chosen += (modelled and modelled.decisions) != decisions
    assert chosen > 3 or seconds is shrinking


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(jnp.sin(x @ w))
    return jnp.mean(x**2)


ARGS = [jnp.eye(64) for _ in range(4)], jnp.ones((512, 64))


@pytest.mark.slow
def test_a_plan_says_what_the_clock_said():
    made = monet_jax.plan(loss, *ARGS, budget=0.8, verify="time", cache=False)
    timed = [row for row in made.compiled if row.step_seconds is not None]
    assert made.compiled_bytes <= made.budget_bytes and timed
    assert made.compiled[0].step_seconds is None  # the plain program does not fit
    assert f"Chosen by the clock on this device, of {len(timed)} program" in report(made)
    assert record_from_json(made.to_json()).compiled == made.compiled
    plain = monet_jax.plan(loss, *ARGS, budget="1GiB", verify="time", cache=False)
    assert plain.compiled[0].step_seconds > 0 and len(plain.compiled) > 1


@pytest.mark.slow
def test_planning_by_the_clock_while_tracing_gives_the_gradient():
    planned = monet_jax.remat(loss, budget=0.8, verify="time", cache=False)
    found = jax.jit(jax.grad(planned))(*ARGS)
    for a, b in zip(found, jax.grad(loss)(*ARGS), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-7)


def test_the_clock_is_part_of_what_a_kept_plan_depends_on():
    by_clock, by_bytes = (PlanOptions(verify=x) for x in ("time", True))
    traced = by_bytes.traced(loss, ARGS)
    assert by_clock.kept_by(traced) != by_bytes.kept_by(traced)


def test_what_cannot_be_timed_is_refused():
    with pytest.raises(ValueError, match=r"gpu:h100 is not attached: need this process's own"):
        monet_jax.plan(loss, *ARGS, budget=0.8, verify="time", target="gpu:h100")
    with pytest.raises(ValueError, match="must be True, False or \"time\"; got 'clock'"):
        monet_jax.remat(loss, budget=0.8, verify="clock")
    with pytest.raises(ValueError, match="for a step, whose plans are verified by bytes alone"):
        monet_jax.jit(loss, budget=0.8, verify="time")
