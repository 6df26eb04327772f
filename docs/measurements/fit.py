"""How large a batch fits a number of bytes, planned and as written?

    python docs/measurements/fit.py gpu:h100 resnet50 gpt2 --step 8    # adds to fit-h100.json

The models are the zoo's, as published: GPT-2 small on 1024 tokens, ResNet-50 on 224 x 224 pixels
(`--scale bench` and `tiny` are smaller). That is dozens of compilations a model. What
`monet_jax.fit` answers is compiled once more: the planned step with the size that it names, the
step as written with the size that it says fits, and with the next one.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
from keeping import keep, kept_rows

import monet_jax
from monet_jax import zoo

HERE = Path(__file__).parent


def row(model: str, target: str, scale: Any, budget: str, step: int) -> dict[str, Any]:
    """The largest batches of one model."""
    loss = zoo.build(model, scale=scale).loss

    def make_args(batch: int) -> tuple[Any, ...]:
        return zoo.build(model, scale=scale, batch=batch).args

    def taken(fun: Any, batch: int) -> int:
        gradient = jax.value_and_grad(fun, has_aux=True)
        return monet_jax.compiled_bytes(gradient, *make_args(batch), target=target).total_bytes

    started = time.perf_counter()
    found = monet_jax.fit(loss, make_args, budget=budget, target=target, step=step)
    seconds = time.perf_counter() - started
    assert found.planned_next and found.plain and found.plain_next  # no limit was reached
    assert isinstance(found.plan, monet_jax.Plan)  # of a function
    again = {
        "planned": taken(found.plan.apply(loss), found.planned.size),
        "plain": taken(loss, found.plain.size),
        "plain_next": taken(loss, found.plain_next.size),
    }
    assert max(again["planned"], again["plain"]) <= found.budget_bytes < again["plain_next"]
    assert found.planned_next.total_bytes > found.budget_bytes
    names = ("planned", "planned_next", "plain", "plain_next")
    sizes = {name: vars(getattr(found, name)) for name in names}
    return {
        "model": model,
        "scale": scale,
        "budget_bytes": found.budget_bytes,
        **sizes,
        "compiled_again": again,
        "overhead": round(found.plan.overhead, 4),
        "flops": round(found.plan.flops / found.plan.base_flops, 4),
        "seconds": round(seconds),
        "jax": jax.__version__,
        "compiler": found.plan.compiler,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--budget", default="24GiB")
    parser.add_argument("--step", type=int, default=1, help="batches are multiples of it")
    args = parser.parse_args()
    path = HERE / f"fit-{args.target.split(':')[-1]}.json"
    rows = kept_rows(path)
    for model in args.models:
        found = row(model, args.target, args.scale, args.budget, args.step)
        print(found, file=sys.stderr, flush=True)
        rows = [*(x for x in rows if x["model"] != model), found]
        keep(path, f"fit.py {' '.join(sys.argv[1:])}", rows)


if __name__ == "__main__":
    main()
