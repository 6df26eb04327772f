"""What planning takes: compilations, seconds, and the share of the budget that the plan uses.

    python docs/measurements/planning.py cpu mlp gpt2 resnet50
    python docs/measurements/planning.py gpu:h100 gpt2 --shares 0.6,0.45

Plans are made cold, with an empty cache, for shares of the plain program's temporaries. Seconds are
those of this machine, beside what the plain program takes to compile in the same process: their
ratio is what compares. The rows are kept in `planning-TARGET.json`, beside those of other models.
"""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

import monet_jax
from monet_jax import zoo
from monet_jax.candidates.worth import WORTH

HERE = Path(__file__).parent
SHARES = "0.8,0.6,0.45,0.35"


def rows_of(model: str, target: str, shares: list[float]) -> list[dict[str, Any]]:
    """A row for each budget of a model."""
    problem = zoo.build(model, scale="bench")
    options = {"target": target, "cache": False}
    plain = monet_jax.plan(problem.loss, *problem.args, budget="1000TiB", **options)
    fixed, temps = plain.fixed_bytes, plain.unplanned_bytes - plain.fixed_bytes
    return [row(problem, model, share, fixed, int(share * temps), options) for share in shares]


def row(
    problem: Any, model: str, share: float, fixed: int, temps: int, options: dict[str, Any]
) -> dict[str, Any]:
    """What planning takes for one budget."""
    same = {"model": model, "share": share}
    try:
        plan = monet_jax.plan(problem.loss, *problem.args, budget=fixed + temps, **options)
    except monet_jax.InfeasibleBudget as error:
        return {**same, "least": round((error.minimum_budget - fixed) / temps * share, 4)}
    return {
        **same,
        "compilations": plan.compilations,
        "seconds": round(plan.planning_seconds, 2),
        "over_compile": round(plan.planning_seconds / plan.compiled[0].compile_seconds, 2),
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
        f"{statistics.median(times)} times the plain compilation (nine of ten "
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
