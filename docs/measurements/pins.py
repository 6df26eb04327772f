"""Does any single pin make a plan faster at its budget?

    python docs/measurements/pins.py cpu mlp gpt2       # adds to pins.json
    python docs/measurements/pins.py gpu:h100 mlp --shares 0.45

For each budget, a value that is recomputed is pinned to be saved, one that is saved to be
recomputed, one at a time: of equal values of equal stages, the one in the middle. Plans with a pin
are first made by the model alone. One that should be faster by half a percent of the step is then
planned as users' are, each program compiled. Percentages are of the step as it is written.
"""

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from keeping import keep, kept_rows
from recording import compiled_once

import monet_jax
from monet_jax import zoo

HERE = Path(__file__).parent
SHARES = "0.8,0.6,0.45,0.35"
#: The share of the step that a plan must save by the model to be compiled.
WORTH_COMPILING = 0.005

#: A decision -> its opposite.
OPPOSITE = {"recomputed": "save", "saved": "recompute", "kept": "recompute", "passed": "recompute"}


def pins_of(plan: monet_jax.Plan) -> list[dict[str, str]]:
    """A pin for each kind of value that has a decision."""

    def kind(value: Any) -> tuple[Any, ...]:
        return plan.stages[value.stage].key, value.place, value.decision

    decided = [x for x in plan.values if x.decision in OPPOSITE and x.primitive]
    alike = [list(group) for _, group in itertools.groupby(sorted(decided, key=kind), kind)]
    middle = [group[len(group) // 2] for group in alike]
    return [{x.name: OPPOSITE[x.decision]} for x in middle]


def cell(plan: Callable[..., monet_jax.Plan], budget: int) -> dict[str, Any]:
    """The plan of one budget, and the best with a pin."""

    def overhead(**options: Any) -> float:
        try:
            return plan(budget=budget, **options).overhead
        except monet_jax.InfeasibleBudget:
            return math.inf

    try:
        free = plan(budget=budget)
    except monet_jax.InfeasibleBudget:
        return {"overhead": None}
    pins = pins_of(free)
    better = [
        pin for pin in pins if overhead(pins=pin, verify=False) <= free.overhead - WORTH_COMPILING
    ]
    verified = [(overhead(pins=pin), n) for n, pin in enumerate(better)]
    least, n = min(verified, default=(math.inf, -1))
    return {
        "overhead": round(free.overhead, 5),
        "pins": len(pins),
        "compiled": len(better),
        "faster": max(0.0, round(100 * (free.overhead - least), 2)),
        "pin": better[n] if least < free.overhead else {},
    }


def rows_of(model: str, target: str, shares: list[float]) -> list[dict[str, Any]]:
    """A row for each budget of a model."""
    problem = zoo.build(model, scale="bench")
    plan = functools.partial(
        monet_jax.plan, problem.loss, *problem.args, target=target, cache=False
    )
    with compiled_once():
        plain = plan(budget="1000TiB")
        fixed, temps = plain.fixed_bytes, plain.unplanned_bytes - plain.fixed_bytes
        same = {"model": model, "target": target}
        return [
            same | {"share": share} | cell(plan, fixed + int(share * temps)) for share in shares
        ]


def main(
    target: Annotated[str, typer.Argument(help="What to compile for.")],
    models: Annotated[list[str], typer.Argument(help="Models of the zoo.")],
    shares: Annotated[str, typer.Option(help="Of the plain temporaries.")] = SHARES,
) -> None:
    path = HERE / "pins.json"
    rows = kept_rows(path)
    for model in models:
        made = rows_of(model, target, [float(share) for share in shares.split(",")])
        rows = [x for x in rows if (x["model"], x["target"]) != (model, target)] + made
        keep(path, f"pins.py {target} {' '.join(models)}", rows, jax=jax.__version__)
        print(*made, sep="\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
