"""How few bytes does a step take at the FLOPs that it has anyway, with residual operators?

    python docs/measurements/free.py gpu:h100 resnet50 vgg16    # adds to free-h100.json

For each model of the zoo, and for plans without operators, with exact and with lossy ones whose
error is limited: plans that have no more FLOPs than the step as written, found by bisection over
what the model predicts, then, a little below the least of them, over what is compiled; and of them
the one that has the fewest temporaries as compiled. Plans are made for the fewest FLOPs, not the
least time: where memory traffic bounds a network, that is something else. All figures are over
plain's, FLOPs and roofline seconds by one counter. With `--batch`, models are small, and have so
many examples. What codes do is measured on one batch, on the machine at hand.
"""

import argparse
import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import jax
from keeping import keep, kept_rows

import monet_jax
import planners
from monet_jax import zoo
from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.analyzer.step_costs import StepCosts
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import Target, compiler_version, resolve_target
from monet_jax.planning.error_limit import AIM, ErrorLimit
from monet_jax.planning.gradient_error import GRADED, ErrorBound, Errors
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.plan_search import PlanSearch
from monet_jax.planning.step import step_to_compile
from monet_jax.tools.baselines import Costs, costs_of, work_of_step
from monet_jax.tracing.trace import trace_for
from monet_jax.tracing.traced import Traced
from monet_jax.transformer.apply import as_planned

HERE = Path(__file__).parent
#: FLOPs over plain's that count as no more, and the share of temporaries to which one bisects.
SAME, FINE = 1.001, 0.01
#: What a plan counts a product's FLOPs for, over everything else that takes time.
DEAR = 1000
#: Of the solver, in seconds; most programs take less.
TIME_LIMIT = 60.0
#: Of the least that was found by what is predicted, down to which one looks by what is compiled.
BELOW = 0.9


class Free:
    """The search of one model with one selection of operators."""

    def __init__(self, traced: Traced, target: Target, plain: Costs, bound: ErrorBound | None):
        self.traced, self.target, self.plain, self.bound = traced, target, plain, bound

    def smallest(self) -> tuple[float, monet_jax.Plan, StepCosts]:
        """Temporaries as compiled, the plan that takes so few, and what it computes."""
        predicted = self._bisected(0.0, 1.0, verify=False)
        assert predicted, "no plan has the FLOPs of the step as written"
        least = min(temps for temps, _, _ in predicted)
        compiled = self._bisected(BELOW * least, least, verify=True)
        return min(predicted + compiled, key=lambda x: x[0])

    def _bisected(
        self, lower: float, upper: float, verify: bool
    ) -> list[tuple[float, monet_jax.Plan, StepCosts]]:
        """Ever smaller plans of no more FLOPs: temporaries as compiled, plan and work."""
        compiled_plans = compiled_plans_of(
            self.traced, _of_dear_flops(self.target), NO_PINS, verify=verify, bound=self.bound
        )
        plan_search = PlanSearch(compiled_plans, planners.Stages(time_limit=TIME_LIMIT))
        found = []
        while upper - lower > FINE:
            share = (lower + upper) / 2
            plan = self._within(plan_search, share)
            work = None if plan is None else self._work(plan)
            if plan is None or work is None or work.flops > SAME * self.plain.work.flops:
                lower = share
            else:
                upper = share
                found.append((self._temps(plan, compiled_plans.fixed_bytes), plan, work))
        return found

    def _temps(self, plan: monet_jax.Plan, fixed_bytes: int) -> float:
        step = step_to_compile(*as_planned(self.traced, plan))
        figures = compile_bytes(*step, target=self.target)
        return (figures.total_bytes - fixed_bytes) / self.plain.bytes.temp_bytes

    def _within(self, plan_search: PlanSearch, share: float) -> monet_jax.Plan | None:
        budget = int(plan_search.compiled_plans.fixed_bytes + share * self.plain.bytes.temp_bytes)
        try:
            return plan_search.plan(lambda _: budget)
        except monet_jax.InfeasibleBudget:
            return None

    def _work(self, plan: monet_jax.Plan) -> StepCosts:
        if plan.decisions is None:
            return self.plain.work
        return work_of_step(*as_planned(self.traced, plan), self.target)


def _of_dear_flops(target: Target) -> Target:
    """A target on which a plan takes as long as its products, and those of equal FLOPs differ."""
    return dataclasses.replace(
        target,
        flops_per_second=DEAR * target.flops_per_second,
        bandwidth_bytes_per_second=DEAR * target.bandwidth_bytes_per_second,
    )


def row(problem: Any, target: Target, operators: str, error: float) -> dict[str, Any]:
    """One selection."""
    chosen = GRADED if operators == "lossy" else operators
    traced = trace_for(target, problem.loss, problem.args, operators=chosen)
    plain = costs_of(traced, target)
    errors, bound = None, None
    if operators == "lossy":
        limit = ErrorLimit(error, (tuple(jax.tree.leaves(problem.make_args(0))),))
        errors = Errors(
            traced, limit.samples, compiled_plans_of(traced, target, NO_PINS).judge.graph
        )
        bound = ErrorBound(errors.of_codes(), (AIM * limit.measured) ** 2)
    free = Free(traced, target, plain, bound)
    temps, plan, work = free.smallest()
    assert plan.decisions is not None
    found = {
        "operators": operators,
        "temps": round(temps, 4),
        "flops": round(work.flops / plain.work.flops, 4),
        "roofline": round(work.seconds / plain.work.seconds, 4),
    }
    if errors is not None:
        found |= {"asked": error, "measured": round(errors.of_plan(plan.decisions.regions), 4)}
    return found


def measure(name: str, models: list[str], selections: list[str], error: float, batch: int) -> None:
    """Every selection for some models, kept beside what is known of others."""
    target = resolve_target(name)
    path = HERE / f"free-{name.split(':')[-1]}.json"
    rows = kept_rows(path)
    versions = {"jax": jax.__version__, "compiler": compiler_version(target)}
    size = {"scale": "tiny", "batch": batch} if batch else {"scale": "bench"}
    for model in models:
        problem = functools.partial(zoo.build, model)(**size)
        for operators in selections:
            new = {"model": model} | size | row(problem, target, operators, error)
            print(new, file=sys.stderr, flush=True)
            rows = [x for x in rows if _cell(x) != _cell(new)] + [new]
            keep(path, f"free.py {name} {model}", rows, **versions)


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["scale"], row.get("batch"), row["operators"], row.get("asked")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--operators", nargs="+", default=("none", "exact", "lossy"))
    parser.add_argument("--error", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=0)
    asked = parser.parse_args()
    measure(asked.target, asked.models, asked.operators, asked.error, asked.batch)
