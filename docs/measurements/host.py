"""What plans gain where activations may wait in the host's memory.

    python docs/measurements/host.py gpu:h100 wide_mlp gpt2 vit_s16             # host-h100.json

Plans each model with and without the host, for shares of its unplanned temporaries, in bfloat16.
Rows have compiled bytes, modelled seconds over the plain step's, and those in which the device
waits for copies. A TPU's link and host memory have no figures of their own, so they are given:

    python docs/measurements/host.py tpu:v5e wide_mlp --batch 16384 --link 15e9 --host-budget 64GiB

`--plans DIR` keeps the plans as JSON, so that they can be run where a card is
attached, in turns with the plain program:

    python docs/measurements/host.py run wide_mlp --plans DIR                   # host-run-h100.json
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from keeping import keep, kept_rows

import monet_jax
from monet_jax import zoo
from monet_jax.seconds.clock import in_turns, ratio
from monet_jax.seconds.running import made_up

HERE = Path(__file__).parent
SHARES = (0.8, 0.6, 0.45, 0.3, 0.2)
ROWS = 65536
TURNS = 12


def wide_mlp(params: Any, x: jax.Array) -> jax.Array:
    """Residual layers whose hidden values are four times as wide as their inputs."""
    for w, v in params:
        x = x + jnp.tanh(x @ w) @ v
    return jnp.sum(x.astype(jnp.float32) ** 2)


def wide_mlp_args(rows: int, width: int = 2048, layers: int = 12) -> tuple[Any, Any]:
    """Its arguments: of 65,536 rows, inputs of layers have 256 MiB, hidden values 1 GiB."""
    weights = [(width, 4 * width), (4 * width, width)]
    pair = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in weights)
    return [pair] * layers, jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)


def wide_mlp_scan(params: Any, x: jax.Array) -> jax.Array:
    """The same layers under a scan."""
    x, _ = jax.lax.scan(lambda x, p: (x + jnp.tanh(x @ p[0]) @ p[1], None), x, params)
    return jnp.sum(x.astype(jnp.float32) ** 2)


def wide_mlp_scan_args(rows: int) -> tuple[Any, Any]:
    """Its arguments: the weights stacked."""
    layers, x = wide_mlp_args(rows)
    shapes = [(len(layers), *leaf.shape) for leaf in layers[0]]
    return tuple(jax.ShapeDtypeStruct(shape, x.dtype) for shape in shapes), x


def problem_of(model: str, scale: Any, batch: int | None) -> tuple[Callable[..., Any], Any]:
    """A loss and its arguments."""
    if model == "wide_mlp":
        return wide_mlp, wide_mlp_args(batch or ROWS)
    if model == "wide_mlp_scan":
        return wide_mlp_scan, wide_mlp_scan_args(batch or ROWS)
    problem = zoo.build(model, scale=scale, batch=batch, dtype="bfloat16")
    return lambda *args: problem.loss(*args)[0], problem.args


def rows_of(
    model: str, fun: Callable[..., Any], args: Any, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Rows of one model: for each share of its temporaries, without and with the host."""
    target, plans = given.target, given.plans
    link = {"host_budget": given.host_budget, "host_bandwidth": given.link}
    plain = monet_jax.compiled_bytes(jax.value_and_grad(fun), *args, target=target)
    fixed = plain.total_bytes - plain.temp_bytes
    for share in SHARES:
        budget = fixed + int(share * plain.temp_bytes)
        for host in ("never", "activations"):
            started = time.perf_counter()
            row: dict[str, Any] = {"model": model, "share": share, "host": host}
            row |= {"budget_bytes": budget, "plain_bytes": plain.total_bytes}
            try:
                more = {} if host == "never" else {"host": host, **link}
                made = monet_jax.plan(fun, *args, budget=budget, target=target, cache=False, **more)
            except monet_jax.InfeasibleBudget as error:
                yield {**row, "minimum_budget": error.minimum_budget}
                continue
            if plans is not None:
                made.save(plans / f"{model}-{share}-{host}.json")
            decisions = made.decisions
            yield {
                **row,
                "compiled_bytes": made.compiled_bytes,
                "predicted_bytes": made.predicted_bytes,
                "plain_seconds": made.base_seconds,
                "overhead": round(made.overhead, 5),
                "host_bytes": decisions.host_bytes if decisions else 0,
                "waiting_seconds": decisions.waiting_seconds if decisions else 0.0,
                "compilations": made.compilations,
                "seconds": round(time.perf_counter() - started, 1),
                "jax": jax.__version__,
                "compiler": made.compiler,
            }


def measured(model: str, scale: Any, batch: int | None, plans: Path) -> list[dict[str, Any]]:
    """Rows of the plain program and of each stored plan: bytes as compiled here, and seconds."""
    fun, args = problem_of(model, scale, batch)
    arrays = [made_up(x) for x in jax.tree.leaves(args)]
    given = jax.tree.unflatten(jax.tree.structure(args), arrays)
    files = [None, *sorted(plans.glob(f"{model}-*.json"))]
    rows, runs = [], []
    for file in files:
        run = fun if file is None else monet_jax.load_plan(file).apply(fun)
        compiled = jax.jit(jax.value_and_grad(run)).lower(*given).compile()
        found = compiled.memory_analysis()
        total = found.argument_size_in_bytes + found.output_size_in_bytes
        total += found.temp_size_in_bytes - found.alias_size_in_bytes
        name = "plain" if file is None else file.stem
        rows.append({"model": model, "plan": name, "total_bytes": total})
        rows[-1] |= {"host_bytes": found.host_temp_size_in_bytes}
        runs.append(lambda compiled=compiled: compiled(*given))
    timings = in_turns(runs, TURNS)
    for row, timing in zip(rows, timings, strict=True):
        found = ratio(timing, timings[0])
        row |= {"step_seconds": timing.seconds, "over_plain": [found.low, found.median, found.high]}
        print(row, flush=True)
    return rows


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="a target; or run")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--scale", default="bench")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--link", type=float, help="bytes a second, each way")
    parser.add_argument("--host-budget", help="of the host's memory, as in 64GiB")
    parser.add_argument("--plans", type=Path, help="keep the plans in this directory")
    arguments = parser.parse_args()
    if arguments.target == "run":
        given = arguments.scale, arguments.batch, arguments.plans
        rows = [row for model in arguments.models for row in measured(model, *given)]
        versions = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
        keep(HERE / "host-run-h100.json", f"host.py {' '.join(sys.argv[1:])}", rows, **versions)
        return
    path = HERE / f"host-{arguments.target.rpartition(':')[2]}.json"
    rows = kept_rows(path)
    for model in arguments.models:
        rows = [x for x in rows if x["model"] != model]
        fun, args = problem_of(model, arguments.scale, arguments.batch)
        for row in rows_of(model, fun, args, arguments):
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
            keep(path, f"host.py {' '.join(sys.argv[1:])}", rows)


if __name__ == "__main__":
    main()
