"""What planning takes: compilations, seconds, and the share of the budget that the plan uses.

    python docs/measurements/planning.py cpu mlp gpt2 resnet50
    python docs/measurements/planning.py gpu:h100 gpt2 --shares 0.6,0.45

Plans are made cold, with an empty cache, for shares of the plain program's temporaries. Seconds are
those of this machine, beside what the plain program takes: traced, lowered and compiled for the
target as `jax.jit` would, code and all. Their ratio, `over_compile`, is what compares. The search
itself stops the compiler once memory is assigned: `over_assignment` is the ratio to what that takes
of the plain program. The rows are kept in `planning-TARGET.json`, beside those of other models.
"""

import functools
import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

import monet_jax
from monet_jax import zoo
from monet_jax.candidates.worth import WORTH
from monet_jax.compiler import worker
from monet_jax.compiler.child import compiled_in_child
from monet_jax.compiler.export import exported_program
from monet_jax.compiler.targets import resolve_target

HERE = Path(__file__).parent
SHARES = "0.8,0.6,0.45,0.35"


def rows_of(model: str, target: str, shares: list[float]) -> list[dict[str, Any]]:
    """A row for each budget of a model."""
    problem = zoo.build(model, scale="bench")
    options = {"target": target, "cache": False}
    plain = monet_jax.plan(problem.loss, *problem.args, budget="1000TiB", **options)
    fixed, temps = plain.fixed_bytes, plain.unplanned_bytes - plain.fixed_bytes
    seconds = compile_seconds(problem, target)
    made = functools.partial(row, problem, model, fixed=fixed, seconds=seconds, options=options)
    return [made(share, temps=int(share * temps)) for share in shares]


def compile_seconds(problem: Any, name: str) -> float:
    """What the plain program takes to be traced, lowered and compiled for a target."""
    target, args = resolve_target(name), problem.args
    has_aux = isinstance(jax.eval_shape(problem.loss, *args), tuple)
    jitted = jax.jit(jax.value_and_grad(problem.loss, has_aux=has_aux))
    started = time.perf_counter()
    traced = jitted.trace(*args)
    if target.attached:
        worker.compiled_figures(traced.lower(), {})
        return time.perf_counter() - started
    program = exported_program(jitted, args, {}, traced, target, None)
    seconds = time.perf_counter() - started
    return seconds + compiled_in_child(target, *program, None, in_full=True)({})["seconds"]


def row(
    problem: Any,
    model: str,
    share: float,
    *,
    fixed: int,
    temps: int,
    seconds: float,
    options: dict[str, Any],
) -> dict[str, Any]:
    """What planning takes for one budget.

    Arguments:
        problem, model: the zoo's.
        share: of the plain program's temporaries.
        fixed: bytes of arguments and results.
        temps: bytes of the budget for temporaries.
        seconds: that the plain program takes to compile.
        options: of the plan.
    """
    same = {"model": model, "share": share}
    try:
        plan = monet_jax.plan(problem.loss, *problem.args, budget=fixed + temps, **options)
    except monet_jax.InfeasibleBudget as error:
        return {**same, "least": round((error.minimum_budget - fixed) / temps * share, 4)}
    return {
        **same,
        "compilations": plan.compilations,
        "seconds": round(plan.planning_seconds, 2),
        "over_compile": round(plan.planning_seconds / seconds, 2),
        "over_assignment": round(plan.planning_seconds / plan.compiled[0].compile_seconds, 2),
        "overhead": round(plan.overhead, 5),
        "used": round((plan.compiled_bytes - fixed) / temps, 4),
        "cut_short": plan.cut_short,
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """The medians that are promised."""
    planned = [row for row in rows if "used" in row]
    counts = [row["compilations"] for row in planned]
    times = sorted(row["over_compile"] for row in planned)
    used = [row["used"] for row in planned if row["overhead"] > WORTH]
    return (
        f"{len(planned)} plans: {statistics.median(counts)} compilations (at most {max(counts)}), "
        f"{statistics.median(times)} times the plain program's compilation (nine of ten "
        f"{times[int(0.9 * len(times))]}), {statistics.median(used or [1.0]):.1%} of budgets used"
    )


def main(
    target: Annotated[str, typer.Argument(help="What to compile for.")],
    models: Annotated[list[str], typer.Argument(help="Models of the zoo.")],
    shares: Annotated[str, typer.Option(help="Of the plain temporaries.")] = SHARES,
) -> None:
    path = HERE / f"planning-{target.split(':')[-1]}.json"
    known = json.loads(path.read_text()) if path.exists() else []
    for model in models:
        found = rows_of(model, target, [float(share) for share in shares.split(",")])
        known = [x for x in known if x["model"] != model] + found
        path.write_text("[\n" + ",\n".join(json.dumps(x) for x in known) + "\n]\n")
        print(*found, sep="\n")
    print(summary(known))


if __name__ == "__main__":
    typer.run(main)
