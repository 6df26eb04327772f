"""What the order of updates and states on the host save of a whole step, and what they cost.

    python docs/measurements/states.py plan     # ahead of time: plans, writes states-h100.json
    python docs/measurements/states.py run      # on a GPU: adds bytes and seconds of each row

The step is eight layers `x + tanh(x @ w1) @ w2` of width 1024 and 4096, each recomputed in the
backward, with AdamW: 256 MiB of parameters, 512 MiB of its state. Each row is a process, since the
peak of a device is that of its process. "by hand" is the recipe of JAX's documentation: the whole
state is copied to the device, updated and copied back. Running plans needs no planner.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from keeping import keep

import monet_jax
from monet_jax.step.updates.emission import with_layout
from monet_jax.step.updates.layout import UpdateLayout, layout_from_json
from monet_jax.step.updates.placement import placed_specs

FILE = Path(__file__).parent / "states-h100.json"
WIDTH, INNER, LAYERS = 1024, 4096, 8
RATE, FIRST, SECOND, DECAY = 1e-3, 0.9, 0.999, 1e-4
#: The first is kept by the order of updates alone, the last one by loops over rows.
BUDGETS = ("900MiB", "700MiB", "500MiB", "400MiB", "370MiB")
WARM, STEPS, TURNS = 3, 5, 5


def layer(x: jax.Array, weights: Any) -> jax.Array:
    """A layer."""
    return x + jnp.tanh(x @ weights[0]) @ weights[1]


def step(state: Any, x: jax.Array) -> Any:
    """A training step."""

    def loss(params: Any) -> jax.Array:
        y = x
        for weights in params:
            y = jax.checkpoint(layer)(*jax.lax.optimization_barrier((y, weights)))
        return jnp.mean(y**2)

    value, gradient = jax.value_and_grad(loss)(state[0])
    return adamw(state, gradient), value


def adamw(state: Any, gradient: Any) -> Any:
    """The state after an update by AdamW, which needs no other package."""
    params, (means, squares, count) = state
    count = count + 1
    means = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, means, gradient)
    squares = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, squares, gradient)

    def updated(w: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        scaled = m / (1 - FIRST**count) / (jnp.sqrt(v / (1 - SECOND**count)) + 1e-8)
        return w - RATE * (scaled + DECAY * w)

    return jax.tree.map(updated, params, means, squares), (means, squares, count)


def arguments(batch: int) -> Any:
    """The state and the batch, as shapes."""
    first, second = (
        jax.ShapeDtypeStruct(shape, "float32") for shape in ((WIDTH, INNER), (INNER, WIDTH))
    )
    params, count = [(first, second)] * LAYERS, jax.ShapeDtypeStruct((), "float32")
    return (params, (params, params, count)), jax.ShapeDtypeStruct((batch, WIDTH), "float32")


def by_hand(leaves: UpdateLayout) -> Any:
    """The step as JAX's documentation would have it, with the same leaves on the host."""
    places = {leaf.argument for leaf in leaves.on_host}

    def moved(state: Any, space: Any) -> Any:
        flat, structure = jax.tree.flatten(state)
        flat = [jax.device_put(x, space) if n in places else x for n, x in enumerate(flat)]
        return jax.tree.unflatten(structure, flat)

    def run(state: Any, x: jax.Array) -> Any:
        after, value = step(moved(state, jax.memory.Space.Device), x)
        return moved(after, jax.memory.Space.Host), value

    return run


def run_of(row: dict[str, Any]) -> tuple[Any, UpdateLayout]:
    """The step of a row, jitted, and where its state lives."""
    layout = layout_from_json(row["layout"])
    if row["name"] == "by hand":
        return jax.jit(by_hand(layout), donate_argnums=0), layout
    if not layout.changes_the_step:
        return jax.jit(step, donate_argnums=0), layout
    run = lambda *args: with_layout(step, args, {}, layout)  # noqa: E731
    return jax.jit(run, donate_argnums=0), layout


def bytes_of(row: dict[str, Any], target: str) -> dict[str, Any]:
    """The bytes of a row's step, by a compiler."""
    run, layout = run_of(row)
    args, _ = placed_specs((arguments(row["batch"]), {}), layout)
    found = monet_jax.compiled_bytes(run, *args, target=target)
    return {"total_bytes": found.total_bytes, "temp_bytes": found.temp_bytes}


def planned_rows(target: str, batch: int) -> list[dict[str, Any]]:
    """Rows for each budget, and two baselines."""
    state, x = arguments(batch)
    layouts = {"as it is": UpdateLayout()}
    for budget in BUDGETS:
        planned = monet_jax.jit(
            step, budget=budget, host="states", target=target, donate_argnums=0, cache=False
        )
        plan = monet_jax.plan(planned, state, x)
        print(f"{plan!r}", flush=True)
        layouts[budget] = plan.layout
    layouts["by hand"] = UpdateLayout(True, layouts[BUDGETS[-1]].on_host)
    rows = [
        {"name": name, "batch": batch, "layout": dataclasses.asdict(layout)}
        for name, layout in layouts.items()
    ]
    return [{**row, target: bytes_of(row, target)} for row in rows]


def measured(row: dict[str, Any]) -> dict[str, Any]:
    """Bytes and seconds of a row's step on this process's device."""
    run, layout = run_of(row)
    specs, _ = placed_specs((arguments(row["batch"]), {}), layout)
    (params, inner), x = specs
    rng = np.random.default_rng(0)

    def drawn(spec: Any) -> jax.Array:
        values = 0.02 * rng.standard_normal(spec.shape, np.float32)
        return jax.device_put(values, spec.sharding)

    def zeros(spec: Any) -> jax.Array:  # never on the device where they live on the host
        return jax.device_put(np.zeros(spec.shape, spec.dtype), spec.sharding)

    state, x = (jax.tree.map(drawn, params), jax.tree.map(zeros, inner)), drawn(x)
    compiled = run.lower(state, x).compile()
    stats = compiled.memory_analysis()
    for _ in range(WARM):
        state, value = compiled(state, x)
    seconds = []
    for _ in range(TURNS):
        jax.block_until_ready(state)
        started = time.perf_counter()
        for _ in range(STEPS):
            state, value = compiled(state, x)
        jax.block_until_ready((state, value))
        seconds.append((time.perf_counter() - started) / STEPS)
    memory = jax.devices()[0].memory_stats() or {}
    total = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "total_bytes": total - stats.alias_size_in_bytes,
        "temp_bytes": stats.temp_size_in_bytes,
        "host_bytes": stats.host_argument_size_in_bytes,
        "peak_bytes_in_use": memory.get("peak_bytes_in_use"),
        "step_seconds": statistics.median(seconds),
        "loss": float(value),
    }


def main() -> None:
    """Plan, run all rows, or one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("plan", "run", "row"))
    parser.add_argument("--name")
    parser.add_argument("--target", default="gpu:h100")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    if given.what == "plan":
        command = f"states.py plan --target {given.target} --batch {given.batch}"
        keep(given.file, command, planned_rows(given.target, given.batch), jax=jax.__version__)
        return
    stored = json.loads(given.file.read_text())
    if given.what == "row":
        (row,) = (row for row in stored["rows"] if row["name"] == given.name)
        print(json.dumps(measured(row)))
        return
    for row in stored["rows"]:
        command = [sys.executable, __file__, "row", "--name", row["name"], "--file", given.file]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            row["measured"] = json.loads(done.stdout.splitlines()[-1])
        print(row["name"], row.get("measured") or done.stderr[-2000:], flush=True)
    lines = ",\n".join(f"    {json.dumps(row)}" for row in stored["rows"])
    context = json.dumps(stored["context"])
    given.file.write_text(f'{{\n  "context": {context},\n  "rows": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
