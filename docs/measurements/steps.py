"""Do whole steps keep their budgets, and how far off is the model of their bytes?

    python docs/measurements/steps.py cpu mlp:512 gpt2:32   # models of the zoo: batch; minutes
    python docs/measurements/steps.py gpu:h100 --random     # random plans of an MLP; minutes

Each step is a loss of the zoo, tiny, with AdamW and a donated state. Budgets leave 80 to 35 % of
the plain step's temporaries. It prints the share of the temporaries' limit that is used, the
modelled overhead, and the errors of the predicted temporaries, calibration left out. With
`--random` it prints the errors for random plans of an MLP: as in the program of a value and
gradient, and with what the analyzer is told of a step's results.
"""

import argparse
import dataclasses
import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from device_steps import ADAMW, step_of

import monet_jax
from monet_jax.candidates.compiled_plans import CompiledPlans
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.options import PlanOptions
from monet_jax.step.planning import record_step, tracer_for
from monet_jax.step.share import StepSearch
from monet_jax.zoo.build import build
from planners.regions.simple_plans import certified, left_alone, minimal_region

SHARES = 0.8, 0.6, 0.45, 0.35
WIDTH, BATCH, DEPTH, PLANS = 512, 512, 6, 4


def measure(name: str, batch: int, target: str) -> list[float]:
    """Print a line for each budget of a model; the errors of all predictions."""
    problem = build(name, scale="tiny", batch=batch)
    params, statistics_, *others = problem.args
    arguments = (params, jax.eval_shape(ADAMW.init, params), statistics_), *others
    step, errors = functools.partial(step_of, problem.loss), []
    plain = jax.jit(functools.partial(step, jax), donate_argnums=0)
    found = monet_jax.compiled_bytes(plain, *arguments, target=target)
    fixed = found.total_bytes - found.temp_bytes
    for share in SHARES:
        limit = int(share * found.temp_bytes)
        options = {"budget": fixed + limit, "target": target, "cache": False}
        planned = monet_jax.jit(functools.partial(step, monet_jax), donate_argnums=0, **options)
        try:
            plan = monet_jax.plan(planned, *arguments)
        except monet_jax.InfeasibleBudget as error:
            least = (error.minimum_budget - fixed) / found.temp_bytes
            print(f"{name} {share:.0%}: infeasible, from {least:.1%} on", flush=True)
            continue
        (own,) = plan.plans.values()
        rows = [row for row in own.compiled[2:] if row.compiled_bytes is not None]
        off = [(r.predicted_bytes - fixed) / ((r.compiled_bytes or 0) - fixed) - 1 for r in rows]
        used = ((plan.compiled_bytes or 0) - fixed) / limit
        text = f"used {used:.1%}, overhead {own.overhead:.1%}, {plan.compilations} compilations"
        print(f"{name} {share:.0%}: {text}, off by {_percents(off)}", flush=True)
        errors += map(abs, off)
    return errors


def random_plans(target: str, donated: bool) -> None:
    """Print how far predictions of random plans of an MLP are off."""

    def loss(params, x):
        for w in params:
            x = x + jnp.sin(jnp.sin(x @ w) @ w)
        return jnp.mean(x**2)

    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * DEPTH
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    step = functools.partial(step_of, lambda p, _, x: (loss(p, x), ()), monet_jax)
    options = {"donate_argnums": 0} if donated else {}
    jitted = monet_jax.jit(step, budget="auto", target=target, **options)
    call = jitted.call_for(((params, jax.eval_shape(ADAMW.init, params), ()), x), {})
    plan_options = PlanOptions(target=target)
    device = resolve_target(target)
    recorded = record_step(call, tracer_for(call, plan_options, device))
    (mark,) = recorded.marks.found
    for results in (None, recorded.result_bytes):
        search = StepSearch(call, recorded.marks, results, plan_options, device)
        plans = CompiledPlans(search.judge(mark, {}))
        off = [plans.predicted_temp_bytes(x.regions) / _taken(plans, x) - 1 for x in _some(plans)]
        what = "gradients as results" if results is None else "the step's results"
        print(f"{'donated' if donated else 'kept'}, {what}: off by {_percents(off)}", flush=True)


def _some(plans: Any) -> list[Any]:
    """Random plans: each stage saves some values, or nothing, or is left alone."""
    rng, graph, found = np.random.default_rng(0), plans.graph, []
    for _ in range(PLANS):
        regions = []
        for s in range(len(graph.stages)):
            region, kind = minimal_region(graph, s), rng.integers(3)
            names = [v.name for v in graph.kept(s, s) if v.savable and rng.random() < 0.5]
            if kind == 0 and graph.stages[s].may_be_alone:
                region = left_alone(graph, region)
            elif kind == 1:
                saved = tuple(dict.fromkeys((*region.saved, *names)))
                region = dataclasses.replace(region, saved=saved)
            regions.append(region)
        regions = tuple(regions)
        found.append(certified(graph, regions, planner="random", bound_seconds=graph.seconds))
    return found


def _taken(plans: Any, plan: Any) -> int:
    return plans.judge.planned_bytes(plan).total_bytes - plans.fixed_bytes


def _percents(shares: list[float]) -> str:
    return " ".join(f"{share:+.0%}" for share in shares) or "nothing"


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--random", action="store_true")
    given = parser.parse_args()
    errors: list[float] = []
    for model in given.models:
        name, _, batch = model.partition(":")
        errors += measure(name, int(batch), given.target)
    if errors:
        print(f"median error {statistics.median(errors):.1%} of {len(errors)} predictions")
    for donated in (True, False) if given.random else ():
        random_plans(given.target, donated)


if __name__ == "__main__":
    main()
