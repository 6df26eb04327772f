"""Runs the plans of `device_plans.py` on the device that is attached: bytes, seconds, gradients.

    python docs/measurements/device.py plans --out docs/measurements/device-h100.json

For each model, in a process of its own: the plain program, `jax.checkpoint` round each block, and
our plans. Each is compiled here and run. It keeps the bytes as compiled here, beside those as
compiled ahead of time; the peak that the device's allocator reports; the seconds of all programs in
turns, with the paired ratio to plain's; and how far gradients are from plain's. Neither CVXPY nor
HiGHS is needed. No model begins after `--seconds`.
"""

import argparse
import concurrent.futures
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keeping

from monet_jax import load_plan, zoo
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.step import step_to_compile
from monet_jax.seconds.clock import in_turns, ratio
from monet_jax.tracing.signature import make_options, take_apart
from monet_jax.transformer.apply import as_planned

#: All programs of a model run this often at least and at most, and for about so many seconds.
LEAST_TURNS, MOST_TURNS, TURNS_SECONDS = 8, 40, 15.0
#: Programs of a model that are compiled side by side.
COMPILERS = 8


def problem_of(cell: dict[str, Any], **options: Any) -> Any:
    """The problem of a cell, of the zoo."""
    kind = {name: cell[name] for name in ("scale", "dtype", "batch")}
    return zoo.build(cell["model"], **kind, **options)


def lowered(cell: dict[str, Any], row: dict[str, Any], folder: Path, loss: Any, args: Any) -> Any:
    """A program of a cell, lowered for this device, with a function that runs it once compiled."""
    target = resolve_target(None)
    if row["kind"] == "baseline":
        policy = row["program"].partition(": ")[2]
        loss = problem_of(cell, block_remat=policy).loss
    traced = trace_loss(loss, args, target)
    function = traced.flat
    if row["file"]:
        plan = load_plan(folder / row["file"])
        traced, function = as_planned(traced, plan)
    step, avals = step_to_compile(traced, function)
    leaves = take_apart(make_options(loss, 0, (), ()), args, {}).leaves
    ones = [jnp.ones(x.shape, x.dtype) for x in avals[2]]
    return jax.jit(step).lower(*avals), (list(leaves), list(traced.constants), ones)


def compiled(program: Any) -> tuple[Any, Callable[[], Any], float]:
    """The compiled program, a function that runs it, and the seconds of its compilation."""
    lower, given = program
    began = time.perf_counter()
    made = lower.compile()
    return made, lambda: made(*given), time.perf_counter() - began


def total_bytes(made: Any) -> int:
    """Argument + output + temp - alias."""
    found = made.memory_analysis()
    parts = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
    return sum(parts) - found.alias_size_in_bytes


def peak_bytes() -> int | None:
    """The most bytes that this process has had on the device; None where that is not told."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def measure(file: Path) -> dict[str, Any]:
    """The rows of a cell, as planned elsewhere, with what was measured here."""
    cell = json.loads(file.read_text())
    problem = problem_of(cell)
    args = problem.make_args(0)
    rows = [r for r in cell["programs"] if r["status"] == "ok"]
    rows = [r for r in rows if r["kind"] != "ours" or r["file"]]  # the others run as plain does
    parts = [lowered(cell, row, file.parent, problem.loss, args) for row in rows]
    texts = [program.as_text() for program, _ in parts]
    distinct = dict(zip(texts, parts, strict=True))
    with concurrent.futures.ThreadPoolExecutor(COMPILERS) as pool:
        made_of = dict(zip(distinct, pool.map(compiled, distinct.values()), strict=True))
    programs = [made_of[text] for text in texts]
    before, found = peak_bytes(), []
    for row, (made, _, seconds) in zip(rows, programs, strict=True):
        here = {"total_bytes_here": total_bytes(made), "compile_seconds": round(seconds, 1)}
        known = {name: value for name, value in row.items() if value not in (None, "")}
        found.append(known | here)
    add_peaks(found, [run for _, run, _ in programs], before)
    _add_differences(found, [run for _, run, _ in programs])
    add_seconds(found, [run for _, run, _ in programs])
    here = {"device": jax.devices()[0].device_kind, "jax_here": jax.__version__}
    return cell | here | {"programs": found}


def add_peaks(rows: list[dict[str, Any]], runs: list[Callable[[], Any]], before: Any) -> None:
    """The allocator's peak after each program, the smallest first: the peak never falls."""
    for row, run in sorted(zip(rows, runs, strict=True), key=lambda x: x[0]["total_bytes_here"]):
        jax.block_until_ready(run())
        peak = peak_bytes()
        is_its_own = peak is not None and before is not None and peak > before
        row["peak_bytes"] = peak if is_its_own else None  # else of an earlier program, or compiling
        before = peak


def _add_differences(rows: list[dict[str, Any]], runs: list[Callable[[], Any]]) -> None:
    """The distance of all results from plain's, over the norm of plain's."""
    plain = jax.tree.leaves(runs[0]())
    for row, run in zip(rows, runs, strict=True):
        square = reference = 0.0
        for x, y in zip(jax.tree.leaves(run()), plain, strict=True):
            if jnp.issubdtype(y.dtype, jnp.floating):
                x, y = x.astype(jnp.float32), y.astype(jnp.float32)
                square += float(jnp.sum((x - y) ** 2))
                reference += float(jnp.sum(y**2))
        row["difference"] = math.sqrt(square / reference)


def add_seconds(rows: list[dict[str, Any]], runs: list[Callable[[], Any]]) -> None:
    """Seconds in turns, and the paired ratios to plain's and to the baseline's of equal bytes."""
    began, distinct = time.perf_counter(), list(dict.fromkeys(runs))
    for run in distinct:
        jax.block_until_ready(run())
    once = time.perf_counter() - began
    turns = max(LEAST_TURNS, min(MOST_TURNS, int(TURNS_SECONDS / once)))
    timing_of = dict(zip(distinct, in_turns(distinct, turns), strict=True))
    timings = [timing_of[run] for run in runs]
    by_name = dict(zip((r["program"] for r in rows), timings, strict=True))
    for row, timing in zip(rows, timings, strict=True):
        row["measured_seconds"] = timing.seconds
        for name, base in (("plain", "plain"), ("baseline", row.get("baseline"))):
            if base in by_name:
                found = ratio(timing, by_name[base])
                row[f"over_{name}"] = [round(x, 4) for x in (found.low, found.median, found.high)]


def measured_apart(
    command: Sequence[str], files: Sequence[Path], out: Path, seconds: float
) -> Iterator[dict[str, Any]]:
    """The cells of files, each measured in a process of its own and printed.

    Arguments:
        command: what measures the cell whose file is its next word, into what `--out` names.
        files: of cells, as planned elsewhere.
        out: the file that will hold all of them.
        seconds: after so many, no cell begins.
    """
    began, part = time.perf_counter(), out.with_suffix(".part")
    # A pool that grows, since other processes are on the device before and after.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for file in files:
        if time.perf_counter() - began > seconds:
            print("no time left for", file.name, flush=True)
            continue
        words = [sys.executable, *command, str(file), "--out", str(part)]
        if subprocess.run(words, env=environment).returncode:
            print("failed:", file.name, flush=True)
            continue
        cell = json.loads(part.read_text())
        part.unlink()
        _print(cell, time.perf_counter() - began)
        yield cell


def main() -> None:
    """Runs each cell of a folder in a process of its own, and keeps what it measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", type=Path, help="the folder, or one cell's file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--models", nargs="*", help="in this order; else all")
    given = parser.parse_args()
    if given.plans.is_file():
        given.out.write_text(json.dumps(measure(given.plans)))
        return
    cells = []
    files = sorted(given.plans.glob("*.cell.json"))
    if given.models:
        files = [given.plans / f"{name}.cell.json" for name in given.models]
    if missing := [str(file) for file in files if not file.exists()]:
        parser.error(f"no such cells, which device_plans.py writes: {', '.join(missing)}")
    for cell in measured_apart([__file__], files, given.out, given.seconds):
        cells += [{"dtype": cell["dtype"], "model": cell["model"], **x} for x in cell["programs"]]
        context = {name: cell[name] for name in ("device", "jax_here")}
        keeping.keep(given.out, f"device.py {given.plans.name}", cells, **context)


def _print(cell: dict[str, Any], seconds: float) -> None:
    print(f"{cell['model']} {cell['dtype']} batch {cell['batch']}, after {seconds:.0f} s:")
    for row in cell["programs"]:
        mib = [(row[x] or 0) >> 20 for x in ("total_bytes", "total_bytes_here", "peak_bytes")]
        clock = f"{1000 * row['measured_seconds']:8.2f} ms {row['over_plain'][1]:6.3f}"
        beside = row.get("over_baseline")
        print(f"  {row['program']:28} {mib} {clock} {beside} {row['difference']:.1e}", flush=True)


if __name__ == "__main__":
    main()
