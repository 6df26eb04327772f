"""Do plans keep the error that is asked for, on data that they were not made from?

    python docs/measurements/errors.py    # adds to errors.json; the extra `flax`; minutes

For each model of the zoo, small, a plan is made from two samples: a batch with initial parameters,
and one with those after 100 steps of Adam on others. Bytes are scarce: the budget is little more
than the smallest that a plan without lossy codes keeps. The gradient is then compared with the
exact one on batches and keys of their own, at initialization and after 100 steps with the plan: the
95th percentile of the relative error. Beside it stand the plans of that budget without lossy codes,
and without a limit: whether an error buys time, and the limit is of consequence. With `--least` the
budget is little more than the smallest that a plan with codes within the limit keeps.
"""

import argparse
import collections
import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from keeping import keep, kept_rows

import monet_jax
import planners
from monet_jax import zoo
from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.compiler.targets import resolve_target
from monet_jax.operators import representation_name, selected
from monet_jax.planning.error_limit import AIM, ErrorLimit, plan_within
from monet_jax.planning.gradient_error import GRADED, ErrorBound, Errors
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.plan_search import PlanSearch
from monet_jax.tracing.trace import trace_for

HERE = Path(__file__).parent
#: Examples of a batch, so many that values are worth encoding.
BATCH, BATCHES = (
    16,
    {"mlp": 512, "gpt2": 64, "gpt2_scan": 64, "llama": 64, "lstm": 256, "transformer": 64},
)
DRAWS, STEPS = 20, 100
#: The budget, over the smallest that plans without lossy codes keep.
ROOM = 1.1
#: Or over the smallest that plans with them keep.
ROOM_OF_LEAST = 1.02
#: Of the solver, in seconds.
TIME_LIMIT = 30.0
LOSSY = {x.name for x in selected(GRADED) if x.kind.is_lossy}


class Measured:
    """A model of the zoo, small, and what its codes do to its gradient."""

    def __init__(self, model: str, batch: int):
        self.problem = zoo.build(model, scale="tiny", batch=batch)
        self.args, target = self.problem.make_args(0), resolve_target("cpu")
        later = trained(self.problem, self.problem.loss, *self.args[:2])
        samples = self.args, (*later, *self.problem.make_args(STEPS + 1)[2:])
        self._samples = tuple(tuple(jax.tree.leaves(x)) for x in samples)
        traced = trace_for(target, self.problem.loss, self.problem.args, operators=GRADED)
        self._traced, self._target = traced, target
        self._judge = compiled_plans_of(traced, target, NO_PINS).judge
        self._errors = Errors(traced, self._samples, self._judge.graph)
        self._errors.of_codes = functools.cache(self._errors.of_codes)

    def limit(self, error: float) -> ErrorLimit:
        """The limit as `monet_jax.plan` has it."""
        return ErrorLimit(error, self._samples)

    def plan(self, budget: int, error: float) -> monet_jax.Plan:
        """The plan as `monet_jax.plan` makes it for that budget and error."""
        find_plan = functools.partial(self._within, budget)
        return plan_within(self.limit(error), self._errors, find_plan)

    def bounded(self, budget: int, most: float) -> tuple[float, float] | None:
        """Overhead and error of the plan where errors add up to that at most, if there is one."""
        try:
            plan = self._within(budget, self._bound(most))
        except monet_jax.InfeasibleBudget:
            return None
        error = self._errors.of_plan(plan.decisions.regions) if plan.decisions else 0.0
        return plan.overhead, error

    def least(self, most: float) -> int:
        """The smallest budget that is kept where errors add up to that at most."""
        try:
            self._within(1, self._bound(most))
        except monet_jax.InfeasibleBudget as refused:
            return refused.minimum_budget
        raise AssertionError("a plan of one byte")

    def saved(self, plan: monet_jax.Plan) -> collections.Counter[str]:
        """Operator -> how many arrays a plan saves by it, while it runs regions again, too."""
        staged = self._judge.staged
        regions = (x for r in plan.decisions.regions for x in r.walk()) if plan.decisions else ()
        numbers = {staged.values[name] for region in regions for name in region.saved}
        return collections.Counter(representation_name(staged.writer[i], i) for i in numbers)

    def _bound(self, most: float) -> ErrorBound:
        return ErrorBound(self._errors.of_codes(), most)

    def _within(self, budget: int, bound: ErrorBound) -> monet_jax.Plan:
        plans = compiled_plans_of(self._traced, self._target, NO_PINS, bound=bound)
        plan_search = PlanSearch(plans, planners.Stages(time_limit=TIME_LIMIT))
        return plan_search.plan(lambda _: budget)


def errors(problem: zoo.Problem, fun: Any, params: Any, state: Any) -> list[float]:
    """The relative error of the gradient by `fun`, on batches of their own."""

    @jax.jit
    def compared(params, state, batch, key):
        found, exact = (
            jax.grad(f, has_aux=True)(params, state, batch, key)[0] for f in (fun, problem.loss)
        )
        wrong = optax.global_norm(jax.tree.map(jnp.subtract, found, exact))
        return wrong / optax.global_norm(exact)

    batches = (problem.make_args(1000 + n)[2:] for n in range(DRAWS))
    return [float(compared(params, state, *x)) for x in batches]


def trained(problem: zoo.Problem, fun: Any, params: Any, state: Any) -> tuple[Any, Any]:
    """Parameters and state after the steps."""
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(params, state, moments, batch, key):
        grads, state = jax.grad(fun, has_aux=True)(params, state, batch, key)
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), state, moments

    moments = optimizer.init(params)
    for n in range(STEPS):
        batch, key = problem.make_args(1 + n)[2:]
        params, state, moments = step(params, state, moments, batch, key)
    return params, state


def rows(model: str, batch: int, limits: list[float], least: bool) -> Iterator[dict[str, Any]]:
    """One model."""
    made = Measured(model, batch)
    for limit in limits:
        most = (AIM * made.limit(limit).measured) ** 2 if least else 0.0
        budget = int((ROOM_OF_LEAST if least else ROOM) * made.least(most))
        plan = made.plan(budget, limit)
        saved = made.saved(plan)
        yield {
            "model": model,
            "batch": batch,
            "asked": limit,
            "least": least,
            "budget": budget,
            "overhead": round(plan.overhead, 4),
            **{name: round(x, 4) for name, x in kept(made, plan).items()},
            "without_codes": _rounded(made.bounded(budget, 0.0)),
            "unlimited": _rounded(made.bounded(budget, math.inf)),
            "codes": {name: saved[name] for name in sorted(LOSSY & saved.keys())},
        }


def kept(made: Measured, plan: monet_jax.Plan) -> dict[str, float]:
    """The error of a plan as measured on samples, and on data of its own."""
    problem, args = made.problem, made.args
    fun = plan.apply(problem.loss)
    at_first = errors(problem, fun, *args[:2])
    later = errors(problem, fun, *trained(problem, fun, *args[:2]))
    return {
        "measured": plan.error or 0.0,
        "at_first": float(np.percentile(at_first, 95)),
        "after_steps": float(np.percentile(later, 95)),
    }


def _rounded(found: tuple[float, float] | None) -> dict[str, float] | None:
    names = "overhead", "measured"
    return found and {name: round(x, 4) for name, x in zip(names, found, strict=True)}


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    batch = row.get("batch", BATCHES.get(row["model"], BATCH))
    return row["model"], batch, row["asked"], row.get("least", False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(zoo.MODELS))
    parser.add_argument("--batch", type=int, help="examples of a batch")
    parser.add_argument("--least", action="store_true", help="with the smallest budget there is")
    parser.add_argument("--errors", nargs="+", type=float, default=[0.05])
    asked = parser.parse_args()
    path = HERE / "errors.json"
    every = kept_rows(path)
    for model in asked.models:
        batch = asked.batch or BATCHES.get(model, BATCH)
        for new in rows(model, batch, asked.errors, asked.least):
            print(new, file=sys.stderr, flush=True)
            every = [x for x in every if _cell(x) != _cell(new)] + [new]
            keep(path, "errors.py", every, jax=jax.__version__, device="cpu")
