"""What do residual operators bring at the same budget?

    python docs/measurements/operators.py gpu:h100 vgg16 resnet50    # adds to operators-h100.json

For each model of the zoo, at the bench's scale, and each share of plain's temporaries, a plan
without operators, one with exact and one with lossy ones; `--shares` and `--operators` choose.
FLOPs and roofline seconds are those of the planned program, by one counter, over plain's; bytes are
as compiled.
"""

import argparse
import itertools as it
import sys
import time
from pathlib import Path
from typing import Any

import jax
from keeping import keep, kept_rows

import monet_jax
from monet_jax import zoo
from monet_jax.compiler.targets import Target, compiler_version, resolve_target
from monet_jax.tools.baselines import Costs, costs_of, work_of_step
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer.apply import as_planned

HERE = Path(__file__).parent
SHARES = 0.5, 0.35, 0.25


def row(problem: Any, plain: Costs, target: Target, share: float, operators: str) -> dict[str, Any]:
    """One plan."""
    fixed = plain.bytes.total_bytes - plain.bytes.temp_bytes
    found: dict[str, Any] = {"share": share, "operators": operators}
    started = time.perf_counter()
    try:
        plan = monet_jax.plan(
            problem.loss,
            *problem.args,
            budget=int(fixed + share * plain.bytes.temp_bytes),
            target=target.name,
            operators=operators,
            cache=False,
        )
    except monet_jax.InfeasibleBudget as error:
        least = (error.minimum_budget - fixed) / plain.bytes.temp_bytes
        return found | {"infeasible_below": round(least, 4)}
    work = plain.work
    if plan.decisions is not None:
        traced = trace_for(target, problem.loss, problem.args, operators=plan.operators or "none")
        work = work_of_step(*as_planned(traced, plan), target)
    return found | {
        "temps": round(((plan.compiled_bytes or 0) - fixed) / plain.bytes.temp_bytes, 4),
        "predicted": round((plan.predicted_bytes - fixed) / plain.bytes.temp_bytes, 4),
        "flops": round(work.flops / plain.work.flops, 4),
        "roofline": round(work.seconds / plain.work.seconds, 4),
        "codes": sum(value.operator != "exact" for value in plan.values),
        "seconds": round(time.perf_counter() - started, 1),
    }


def measure(name: str, models: list[str], shares: list[float], selections: list[str]) -> None:
    """Plans every cell of some models, and keeps them beside those of others."""
    target = resolve_target(name)
    path = HERE / f"operators-{name.split(':')[-1]}.json"
    rows = kept_rows(path)
    versions = {"jax": jax.__version__, "compiler": compiler_version(target)}
    for model in models:
        problem = zoo.build(model, scale="bench")
        plain = costs_of(trace_for(target, problem.loss, problem.args), target)
        for share, operators in it.product(shares, selections):
            new = {"model": model} | row(problem, plain, target, share, operators)
            print(new, file=sys.stderr, flush=True)
            rows = [x for x in rows if _cell(x) != _cell(new)] + [new]
            command = f"operators.py {name} {' '.join(dict.fromkeys(x['model'] for x in rows))}"
            keep(path, command, rows, **versions)


def _cell(row: dict[str, Any]) -> tuple[str, float, str]:
    return row["model"], row["share"], row["operators"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--operators", nargs="+", default=("none", "exact", "lossy"))
    asked = parser.parse_args()
    measure(asked.target, asked.models, asked.shares, asked.operators)
