"""Do the options that save time change what a program takes?

    python docs/measurements/options.py gpu:h100 gpt2 llama resnet50 vit_s16    # options-h100.json

Compiles the value and gradient of the zoo's models, unplanned, as planning does and by XLA's
defaults, XLA's own rematerialization off in both. `bfloat16` is what is computed in; parameters and
losses are float32.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
from keeping import keep, kept_rows

from monet_jax import zoo
from monet_jax.compiler.compile import CompiledBytes, compile_bytes
from monet_jax.compiler.options import Options
from monet_jax.compiler.targets import Target, resolve_target

HERE = Path(__file__).parent
DTYPES = ("float32", "bfloat16")


def by_defaults(target: Target) -> Options:
    """Options without those that save time."""
    options = Options(target)
    options.failure = "not tried"
    return options


def row(model: str, dtype: str, scale: Any, batch: int | None, target: Target) -> dict[str, Any]:
    """One model in one dtype."""
    problem = zoo.build(model, scale=scale, batch=batch, dtype=dtype)
    step = jax.value_and_grad(problem.loss, has_aux=True)

    def taken(options: Options) -> tuple[CompiledBytes, float]:
        started = time.perf_counter()
        figures = compile_bytes(step, problem.args, target=target, options=options)
        return figures, time.perf_counter() - started

    (quick, quick_seconds), (default, seconds) = taken(Options(target)), taken(by_defaults(target))
    return {
        "model": model,
        "dtype": dtype,
        "scale": scale,
        "batch": batch,
        "total_bytes": quick.total_bytes,
        "temp_bytes": quick.temp_bytes,
        "default_total_bytes": default.total_bytes,
        "default_temp_bytes": default.temp_bytes,
        "off": round(quick.total_bytes / default.total_bytes - 1, 5),
        "temp_off": round(quick.temp_bytes / default.temp_bytes - 1, 5),
        "seconds": round(quick_seconds, 1),
        "default_seconds": round(seconds, 1),
        "jax": jax.__version__,
        "compiler": quick.compiler,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--scale", default="bench")
    parser.add_argument("--batch", type=int)
    args = parser.parse_args()
    target = resolve_target(args.target)
    path = HERE / f"options-{args.target.split(':')[-1]}.json"
    rows = kept_rows(path)
    for model in args.models:
        rows = [x for x in rows if x["model"] != model]
        for dtype in DTYPES:
            rows.append(row(model, dtype, args.scale, args.batch, target))
            print(rows[-1], file=sys.stderr, flush=True)
            keep(path, f"options.py {' '.join(sys.argv[1:])}", rows)


if __name__ == "__main__":
    main()
