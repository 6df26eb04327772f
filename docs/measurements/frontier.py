"""Plans of models whose plain step exceeds the card, at shares of plain's temporaries.

    python docs/measurements/frontier.py gpu:h100 llama --shares 0.6,0.4

Nothing is allocated: models are abstract, and compiled ahead of time. Models compute in bfloat16,
parameters are float32. The rows are kept in `frontier-TARGET.json`, beside those of other models.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from keeping import keep

import monet_jax
from monet_jax import zoo

HERE = Path(__file__).parent


def rows_of(model: str, target: str, shares: list[float], cap: int) -> list[dict[str, Any]]:
    """A row for each budget of a model."""
    problem = zoo.build(model, scale="frontier", dtype="bfloat16")
    started = time.perf_counter()
    options = {"target": target, "cache": False}
    plain = monet_jax.plan(problem.loss, *problem.args, budget="1000TiB", **options)
    minutes = (time.perf_counter() - started) / 60
    fixed, temps = plain.fixed_bytes, plain.unplanned_bytes - plain.fixed_bytes
    same = {
        "model": model,
        "plain_bytes": plain.unplanned_bytes,
        "fixed_bytes": fixed,
        "plain_minutes": round(minutes, 2),
        "jax": jax.__version__,
    }
    rows = []
    for share in shares:
        started = time.perf_counter()
        budget = fixed + int(share * temps)
        row = {**same, "share": share, "budget_bytes": budget}
        try:
            plan = monet_jax.plan(
                problem.loss, *problem.args, budget=budget, max_compilations=cap, **options
            )
        except monet_jax.InfeasibleBudget as error:
            rows.append({**row, "least_bytes": error.minimum_budget})
        else:
            rows.append(
                {
                    **row,
                    "compiled_bytes": plan.compiled_bytes,
                    "predicted_bytes": plan.predicted_bytes,
                    "overhead": round(plan.overhead, 4),
                    "compilations": plan.compilations,
                    "cut_short": plan.cut_short,
                }
            )
        rows[-1]["minutes"] = round((time.perf_counter() - started) / 60, 2)
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main(
    target: Annotated[str, typer.Argument(help="What to compile for.")],
    models: Annotated[list[str], typer.Argument(help="Of `zoo.FRONTIER`.")],
    shares: Annotated[str, typer.Option(help="Of the plain temporaries.")] = "0.6",
    cap: Annotated[int, typer.Option(help="Compilations for a plan.")] = 6,
) -> None:
    path = HERE / f"frontier-{target.split(':')[-1]}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for model in models:
        rows = [row for row in rows if row["model"] != model]
        rows += rows_of(model, target, [float(share) for share in shares.split(",")], cap)
        keep(path, f"frontier.py {target} MODEL...", rows)


if __name__ == "__main__":
    typer.run(main)
