"""How far predicted temporaries are from compiled ones, at shares of plain's temporaries.

    python docs/measurements/predictions.py gpu:h100 bfloat16 mlp gpt2

The rows are kept in `predictions-TARGET.json`, beside those of other models.

For each share the planner proposes a plan that is predicted to take it, by the model as two
programs calibrate it, and the plan is compiled. Nothing that was compiled corrects a later
prediction. Where that makes fewer than ten plans, shares between are tried as well. A model may
have a batch, as in `vit_s16:64`: a TPU keeps up to 128 MiB of a program on the chip, which counts
for much in small ones.
"""

import itertools as it
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import outside
import typer
from keeping import keep, kept_rows

import planners
from monet_jax import zoo
from monet_jax.analyzer.pins import make_pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.candidates.proposals import Proposals
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of
from planners.regions.solved import SolvedBudgets

HERE = Path(__file__).parent
SHARES = "0.95,0.9,0.85,0.8,0.75,0.7,0.65,0.6,0.55,0.5,0.45,0.4,0.35,0.3,0.25,0.1"
#: Plans of a model, at least: if shares have fewer, others are tried between them, up to so many.
PLANS, MORE = 10, 30
#: Seconds of the solver for one plan.
SOLVER_SECONDS = 5.0


def rows_of(model: str, name: str, dtype: str, shares: list[float]) -> list[dict[str, Any]]:
    """A row for each plan of a model."""
    started, target = time.perf_counter(), resolve_target(name)
    traced = trace_loss(*problem_of(model, dtype), target)
    plans = compiled_plans_of(traced, target, make_pins(None))
    solved = SolvedBudgets(planners.Stages(time_limit=SOLVER_SECONDS), plans.model.graph)
    proposals, rows = Proposals(plans, plans.model.graph, solved), []
    proposed: dict[float, Any] = {}
    for share in it.chain(shares, shares_between(proposed)):
        if len(rows) >= PLANS and share not in shares:
            break
        solved.restart(3 * SOLVER_SECONDS)
        limit = plans.model.scale.modelled_for(int(share * plans.unplanned.temp_bytes))
        decisions = proposals.within(limit)
        proposed[share] = decisions and decisions.regions
        if decisions is None or decisions in plans:
            continue
        made = plans.of(decisions)
        if made.figures is None:
            continue
        compiled = made.figures.temp_bytes
        rows.append(
            {
                "model": model,
                "dtype": dtype,
                "share": round(share, 4),
                "predicted": made.predicted_temp_bytes,
                "compiled": compiled,
                "off": round(made.predicted_temp_bytes / compiled - 1, 4),
                "jax": jax.__version__,
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    print(f"{model}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return rows


def shares_between(regions: Mapping[float, Any]) -> Iterator[float]:
    """Further shares: in the middle of the widest gap between two whose regions differ."""
    for _ in range(MORE):
        pairs = it.pairwise(sorted(regions))
        gaps = [(b - a, a) for a, b in pairs if regions[a] != regions[b]]
        if not gaps:
            return
        width, share = max(gaps)
        yield share + width / 2


def problem_of(model: str, dtype: str) -> tuple[Any, tuple[Any, ...]]:
    """The loss and the arguments of a model, as the command names it."""
    if model in outside.names():
        return outside.build(model, dtype)
    name, _, batch = model.partition(":")
    size = int(batch) if batch else None
    problem = zoo.build(name, scale="bench", dtype=dtype, batch=size)
    return problem.loss, problem.args


def main(
    target: Annotated[str, typer.Argument(help="What to compile for.")],
    dtype: Annotated[str, typer.Argument(help="What models compute in.")],
    models: Annotated[list[str], typer.Argument(help="NAME[:BATCH] of the zoo, or `outside.py`.")],
    shares: Annotated[str, typer.Option(help="Of the plain temporaries.")] = SHARES,
) -> None:
    path = HERE / f"predictions-{target.split(':')[-1]}.json"
    rows = kept_rows(path)
    for model in models:
        rows = [row for row in rows if (row["model"], row["dtype"]) != (model, dtype)]
        rows += rows_of(model, target, dtype, [float(share) for share in shares.split(",")])
        keep(path, f"predictions.py {target} DTYPE MODEL...", rows)
        found = [abs(row["off"]) for row in rows if (row["model"], row["dtype"]) == (model, dtype)]
        if found:
            print(f"{model} {dtype}: {statistics.median(found):.1%} of {len(found)} plans")


if __name__ == "__main__":
    typer.run(main)
