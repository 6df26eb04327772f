"""Whole training steps with AdamW: planned ahead of time, and run on the device that is attached.

    python docs/measurements/device_steps.py plan gpt2 llama:16:bench --out steps   # writes plans
    python docs/measurements/device_steps.py run steps --out docs/measurements/steps-h100.json

A step computes in bfloat16, has float32 masters and donates its state. A model may have a batch and
a scale behind colons. For each: the plain step, `jax.checkpoint` round each block under two
policies, and ours at the bytes of these and at shares of plain's temporaries. Plan with the version
of JAX that the device has. Running needs neither CVXPY nor HiGHS; it adds bytes as compiled there,
the allocator's peak, seconds in turns with the paired ratios, and how far the parameters after a
step are from plain's.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import device
import jax
import keeping
import optax

import monet_jax
from monet_jax import zoo

ADAMW = optax.adamw(1e-4)
POLICIES = "nothing", "dots"
DTYPE = "bfloat16"


def step_of(loss: Any, api: Any, state: Any, *others: Any) -> Any:
    """`(state, *others) -> (state, loss)`; the state is parameters, AdamW's, and statistics."""
    params, inner, statistics = state
    gradient_of = api.value_and_grad(lambda p: loss(p, statistics, *others), has_aux=True)
    (value, statistics), gradient = gradient_of(params)
    updates, inner = ADAMW.update(gradient, inner, params)
    return (optax.apply_updates(params, updates), inner, statistics), value


def problem_of(cell: dict[str, Any], policy: str | None = None) -> Any:
    """The problem of a cell, of the zoo."""
    kind = {name: cell[name] for name in ("scale", "batch")}
    return zoo.build(cell["model"], dtype=DTYPE, block_remat=policy, **kind)


def by_hand(cell: dict[str, Any], policy: str | None) -> Any:
    """The step as JAX has it, with `jax.checkpoint` round each block or without."""
    step = functools.partial(step_of, problem_of(cell, policy).loss, jax)
    return jax.jit(step, donate_argnums=0)


def planned_rows(cell: dict[str, Any], target: str, shares: list[float], folder: Path) -> Iterator:
    """Rows of the plain step, the baselines, and ours; plans are kept in the folder."""
    problem = problem_of(cell)
    params, statistics, *others = problem.args
    args = (params, jax.eval_shape(ADAMW.init, params), statistics), *others
    found = {
        policy: monet_jax.compiled_bytes(by_hand(cell, policy), *args, target=target)
        for policy in (None, *POLICIES)
    }
    plain = found[None]
    fixed = plain.total_bytes - plain.temp_bytes
    yield {"program": "plain", "kind": "plain", "total_bytes": plain.total_bytes, "fixed": fixed}
    budgets = {}
    for policy in POLICIES:
        name, nbytes = f"blocks: {policy}", found[policy].total_bytes
        yield {"program": name, "kind": "baseline", "policy": policy, "total_bytes": nbytes}
        budgets[f"ours @ {name}"] = name, nbytes
    for share in shares:
        budgets[f"ours @ {share:.0%}"] = None, fixed + int(share * plain.temp_bytes)
    step = functools.partial(step_of, problem.loss, monet_jax)
    for number, (name, (baseline, nbytes)) in enumerate(budgets.items()):
        row = {"program": name, "kind": "ours", "baseline": baseline, "budget_bytes": nbytes}
        options = {"budget": nbytes, "target": target, "cache": False}
        try:
            plan = monet_jax.plan(monet_jax.jit(step, donate_argnums=0, **options), *args)
        except monet_jax.InfeasibleBudget as error:
            yield row | {"minimum_budget": error.minimum_budget}
            continue
        file = f"{cell['model']}-{number}.json"
        plan.save(folder / file)
        yield row | {"file": file} | figures_of(plan, fixed)


def figures_of(plan: Any, fixed: int) -> dict[str, Any]:
    """What a plan says of itself, and how far its predictions of temporaries were off."""
    judged = [x for own in plan.plans.values() for x in own.compiled[2:] if x.compiled_bytes]
    off = [(x.predicted_bytes - fixed) / (x.compiled_bytes - fixed) - 1 for x in judged]
    return {
        "total_bytes": plan.compiled_bytes,
        "overhead": round(plan.overhead, 4),
        "compilations": plan.compilations,
        "planning_seconds": round(plan.planning_seconds, 1),
        "ordered": plan.layout.is_ordered,
        "off": [round(x, 4) for x in off],
    }


def plan_cells(given: argparse.Namespace) -> None:
    """Plan the models that are named; a model's file is written as soon as all is planned."""
    given.out.mkdir(parents=True, exist_ok=True)
    for named in given.what:
        model, batch, scale = (*named.split(":"), "", "")[:3]
        cell = {"model": model, "scale": scale or "full", "batch": int(batch) if batch else None}
        rows, began = [], time.perf_counter()
        for row in planned_rows(cell, given.target, given.shares, given.out):
            rows.append(row)
            print(f"{time.perf_counter() - began:.0f} s", model, row, flush=True)
        known = {"dtype": DTYPE, "jax": jax.__version__, "target": given.target}
        text = json.dumps(cell | known | {"programs": rows}, indent=1)
        (given.out / f"{model}.cell.json").write_text(text)


def lowered(cell: dict[str, Any], row: dict[str, Any], folder: Path, args: Any) -> Any:
    """A row's step, lowered for this device."""
    if row["kind"] != "ours":
        return by_hand(cell, row.get("policy")).lower(*args)
    step = functools.partial(step_of, problem_of(cell).loss, monet_jax)
    plan = monet_jax.load_plan(folder / row["file"])
    return monet_jax.apply(plan, step, donate_argnums=0).lower(*args)


class Running:
    """Steps of one model that run in turns on one state, which each takes from the one before."""

    def __init__(self, state: Any, others: Any):
        self._first, self._others = jax.device_get(state), others
        self.state = state

    def step(self, made: Any) -> Callable[[], Any]:
        """A function that runs a compiled step, and returns its loss."""

        def run() -> Any:
            self.state, value = made(self.state, *self._others)
            return jax.block_until_ready((self.state, value))[1]

        return run

    def begin_again(self) -> None:
        """Put the first state back."""
        self.state = None
        self.state = jax.device_put(self._first)

    def moved_by(self, run: Callable[[], Any]) -> list[Any]:
        """How the parameters move in a first step."""
        self.begin_again()
        run()
        after = jax.device_get(self.state)[0]
        pairs = zip(jax.tree.leaves(after), jax.tree.leaves(self._first[0]), strict=True)
        return [(x - y).ravel() for x, y in pairs]


def measure(file: Path) -> dict[str, Any]:
    """The rows of a cell, as planned elsewhere, with what was measured here."""
    cell = json.loads(file.read_text())
    rows = [row for row in cell["programs"] if row["kind"] != "ours" or "file" in row]
    params, statistics, *others = problem_of(cell).make_args(0)
    state = params, jax.jit(ADAMW.init)(params), statistics
    steps = [lowered(cell, row, file.parent, (state, *others)) for row in rows]
    with concurrent.futures.ThreadPoolExecutor(device.COMPILERS) as pool:
        made = list(pool.map(lambda x: x.compile(), steps))
    running, before = Running(state, others), device.peak_bytes()
    del state, params
    runs = [running.step(x) for x in made]
    for row, x in zip(rows, made, strict=True):
        row["total_bytes_here"] = device.total_bytes(x)
    device.add_peaks(rows, runs, before)
    plain = running.moved_by(runs[0])
    norm = math.sqrt(sum(float(x @ x) for x in plain))
    for row, run in zip(rows, runs, strict=True):
        apart = [x - y for x, y in zip(running.moved_by(run), plain, strict=True)]
        row["difference"] = math.sqrt(sum(float(x @ x) for x in apart)) / norm
    device.add_seconds(rows, runs)
    here = {"device": jax.devices()[0].device_kind, "jax_here": jax.__version__}
    return cell | here | {"programs": rows}


def run_cells(given: argparse.Namespace) -> None:
    """Runs each cell of a folder in a process of its own, and keeps what it measured."""
    (folder,) = map(Path, given.what)
    if folder.is_file():
        given.out.write_text(json.dumps(measure(folder)))
        return
    names = given.models or sorted(x.name.split(".")[0] for x in folder.glob("*.cell.json"))
    files, cells = [folder / f"{name}.cell.json" for name in names], []
    for cell in device.measured_apart([__file__, "run"], files, given.out, given.seconds):
        known = {x: cell[x] for x in ("model", "scale", "batch", "jax")}
        cells += [{**known, **row} for row in cell["programs"]]
        context = {x: cell[x] for x in ("device", "jax_here")}
        keeping.keep(given.out, f"device_steps.py run {folder.name}", cells, **context)


def main() -> None:
    """Plan steps, or run them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("does", choices=("plan", "run"))
    parser.add_argument("what", nargs="+", help="models, or the folder of their plans")
    parser.add_argument("--target", default="gpu:h100")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.45])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0, help="no model is run after them")
    parser.add_argument("--models", nargs="*", help="to run, in this order; else all")
    given = parser.parse_args()
    (plan_cells if given.does == "plan" else run_cells)(given)


if __name__ == "__main__":
    main()
