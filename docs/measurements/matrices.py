"""What does a CPU's clock say of plans whose products are of two matrices, and of plans without?

    python docs/measurements/matrices.py llama:0.5 transformer:0.8    # adds to matrices-cpu.json

A row is a model of the zoo at the bench's scale and the share of its bytes that is the budget. The
plain step, the plan without the operator and the plan with it run in turns on this machine.
"""

import sys
from pathlib import Path
from typing import Any

import jax
from keeping import keep, kept_rows

import monet_jax
from monet_jax import zoo
from monet_jax.operators import selected
from monet_jax.seconds.clock import in_turns, ratio

TURNS = 9


def row(model: str, share: float) -> dict[str, Any]:
    """The bytes and the seconds of both plans of one model."""
    problem = zoo.build(model, scale="bench")
    args = problem.make_args(0)
    names = [x.name for x in selected("exact")]
    selections = [[x for x in names if x != "matrix"], names]
    plans = [
        monet_jax.plan(problem.loss, *problem.args, budget=share, operators=x, cache=False)
        for x in selections
    ]
    losses = [problem.loss, *(plan.apply(problem.loss) for plan in plans)]
    steps = [jax.value_and_grad(loss, has_aux=True) for loss in losses]
    programs = [jax.jit(step).lower(*args).compile() for step in steps]
    runs = [lambda program=program: program(*args) for program in programs]
    plain, without, planned = in_turns(runs, TURNS)
    over = ratio(planned, without)
    return {
        "model": model,
        "share": share,
        "total_bytes": [plan.compiled_bytes for plan in plans],
        "seconds": [round(x.seconds, 3) for x in (plain, without, planned)],
        "ratio": [round(x, 3) for x in (over.median, over.low, over.high)],
    }


def main() -> None:
    """Runs the command line."""
    path = Path(__file__).parent / "matrices-cpu.json"
    rows = kept_rows(path)
    for named in sys.argv[1:]:
        model, _, share = named.partition(":")
        found = row(model, float(share))
        print(found, flush=True)
        rows = [*(x for x in rows if (x["model"], x["share"]) != (model, float(share))), found]
        keep(path, f"matrices.py {' '.join(sys.argv[1:])}", rows, jax=jax.__version__)


if __name__ == "__main__":
    main()
