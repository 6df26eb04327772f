"""Plans of models whose plain step exceeds the card, at shares of plain's temporaries.

    python docs/measurements/frontier.py gpu:h100 llama --budgets 0.6,0.4
    python docs/measurements/frontier.py gpu:h100 llama --budgets 60GiB,40GiB,18GiB --devices 8
    python docs/measurements/frontier.py tpu:v5e llama --budgets 0.6,14GiB --devices 16 --batch 16

Nothing is allocated: models are abstract, and compiled ahead of time. Models compute in bfloat16,
parameters are float32. On several devices a model is fully sharded, bytes are those of one device,
and the bytes of `jax.checkpoint` round each layer are stated beside. The rows are kept in
`frontier-TARGET.json`, beside those of other models and numbers of devices.
"""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from fsdp import mesh_of, sharded
from keeping import keep, kept_rows

import monet_jax
from monet_jax import zoo

HERE = Path(__file__).parent


def laid_out(
    model: str, devices: int, batch: int | None, block_remat: Any = None
) -> tuple[Any, tuple[Any, ...]]:
    """A model's loss and arguments, on one device or several."""
    problem = zoo.build(
        model, scale="frontier", batch=batch, dtype="bfloat16", block_remat=block_remat
    )
    if devices == 1:
        return problem.loss, problem.args
    params, state, data, key = problem.args
    loss, params, data = sharded(problem.loss, params, data, mesh_of(devices))
    return loss, (params, state, data, key)


def checkpointed_bytes(model: str, target: str, devices: int, batch: int | None) -> dict[str, int]:
    """What each policy of `jax.checkpoint` round the layers saves -> bytes of the gradient."""
    found = {}
    for policy in ("nothing", "dots"):
        loss, args = laid_out(model, devices, batch, policy)
        gradient = jax.value_and_grad(loss, has_aux=True)
        found[policy] = monet_jax.compiled_bytes(gradient, *args, target=target).total_bytes
    return found


def rows_of(
    model: str, target: str, budgets: list[str], cap: int, devices: int, batch: int | None
) -> list[dict[str, Any]]:
    """A row for each budget of a model."""
    loss, args = laid_out(model, devices, batch)
    started = time.perf_counter()
    options = {"target": target, "cache": False}
    plain = monet_jax.plan(loss, *args, budget="1000TiB", **options)
    minutes = (time.perf_counter() - started) / 60
    fixed, temps = plain.fixed_bytes, plain.unplanned_bytes - plain.fixed_bytes
    same = {
        "model": model,
        "devices": devices,
        **({"batch": batch} if batch else {}),
        "plain_bytes": plain.unplanned_bytes,
        "fixed_bytes": fixed,
        "plain_minutes": round(minutes, 2),
        "jax": jax.__version__,
    }
    if devices > 1:
        same["checkpointed_bytes"] = checkpointed_bytes(model, target, devices, batch)
    rows = []
    for text in budgets:
        started = time.perf_counter()
        is_size = not text[-1].isdigit()
        budget = text if is_size else fixed + int(float(text) * temps)
        row = {**same, **({"budget": text} if is_size else {"share": float(text)})}
        try:
            plan = monet_jax.plan(loss, *args, budget=budget, max_compilations=cap, **options)
        except monet_jax.InfeasibleBudget as error:
            rows.append({**row, "least_bytes": error.minimum_budget})
        else:
            rows.append(
                {
                    **row,
                    "budget_bytes": plan.budget_bytes,
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
    budgets: Annotated[str, typer.Option(help="Shares of plain's temporaries, or sizes.")] = "0.6",
    cap: Annotated[int, typer.Option(help="Compilations for a plan.")] = 6,
    devices: Annotated[int, typer.Option(help="Over which models are fully sharded.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Examples; None for the scale's.")] = None,
) -> None:
    path = HERE / f"frontier-{target.split(':')[-1]}.json"
    rows = kept_rows(path)
    for model in models:
        rows = [x for x in rows if (x["model"], x.get("devices", 1)) != (model, devices)]
        rows += rows_of(model, target, budgets.split(","), cap, devices, batch)
        keep(path, f"frontier.py {target} MODEL...", rows)


if __name__ == "__main__":
    typer.run(main)
