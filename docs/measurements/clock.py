"""Compares what seconds models give programs with what a clock gives them, on this device.

    python docs/measurements/clock.py mlp:256 gpt2 --turns 9 --out docs/measurements/clock-cpu.json

A model may have a number of examples behind a colon, in place of the scale's. For each model of the
zoo: the plain program, every `jax.checkpoint` baseline, plans at the bytes of these, and at shares
of plain's temporaries run in turns in one process. Of the pairs of programs whose seconds differ
beyond their paired interval, it counts those that a model of seconds orders otherwise; and it gives
the median error of the modelled ratio to plain, and how plans compare with their baselines. The
models: `old` (products at 2 % of the peak, traffic added; the roofline until version 0.1),
`roofline`, and `measured` (the clock, op by op); the last two also with `first touch`: what the
pages of the compiled temporaries take.
"""

import argparse
import itertools as it
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import jax

from monet_jax.analyzer.step_costs import step_costs
from monet_jax.bench.models.cells import Cell
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir.costs import Work
from monet_jax.planning.step import step_on, step_to_compile
from monet_jax.seconds.attained import modelled, roofline_of
from monet_jax.seconds.clock import Timing, in_turns, ratio
from monet_jax.seconds.group import Group
from monet_jax.seconds.measured import Measured
from monet_jax.seconds.prices import ROOFLINE, Price, Prices
from monet_jax.tracing.signature import make_options, take_apart
from monet_jax.zoo.problem import Problem

CPU = resolve_target("cpu")
#: Of a byte that is touched for the first time, on two idle cores of an AMD EPYC.
TOUCH_SECONDS = 0.7 / 2**30


class Old(Prices):
    """The roofline as it was: products at 2 % of the peak of a nominal CPU."""

    def __init__(self):
        self.roofline = roofline_of(CPU)

    def of(self, group: Group) -> Price:
        """The price of an op."""
        return Price(self.of_work(group.work, group.moved_bytes), ROOFLINE)

    def of_work(self, work: Work, moved_bytes: int) -> float:
        """Seconds of arithmetic and of traffic, one after the other."""
        return work.flops / (0.02 * 4e11) + work.instructions / 4e11 + moved_bytes / 4e10


def measure(model: str, scale: str, turns: int, shares: list[float]) -> dict[str, Any]:
    """The programs of a model, with their modelled and measured seconds."""
    name, _, batch = model.partition(":")
    cell = Cell(name, scale, CPU, "float32", int(batch) if batch else None)
    programs = [p for p in (cell.plain(), *cell.baselines()) if p.traced is not None]
    beside = [(p.row.program, p.row.total_bytes) for p in programs]
    budgets = {f"ours @ {name}": (name, nbytes) for name, nbytes in beside}
    budgets |= {f"ours @ {share:.0%}": (None, cell.share_bytes(share)) for share in shares}
    for name, (baseline, nbytes) in budgets.items():
        made = cell.plan("baseline" if baseline else "temps", name, nbytes, baseline)
        programs += [made] * (made.traced is not None)
        print(f"    {name}: {made.row.status}", flush=True)
    first: dict[Any, Any] = {}
    for made in programs:
        first.setdefault(made.key, made)
    distinct = list(first.values())
    began = time.perf_counter()
    rows, remarks, touch = [], [], dict[str, float]()
    for program in distinct:  # each has its own time for measuring; what is measured is shared
        measured = Measured(CPU, lambda text: None)
        models = {"old": Old(), "roofline": modelled(CPU), "measured": measured}
        touch = {"roofline": TOUCH_SECONDS, "measured": measured.touch_seconds_per_byte}
        rows.append(_row(program, models, touch))
        remarks.append(measured.finish())
    spent = time.perf_counter() - began
    timings = _timings(cell.build(), distinct, turns)
    for row, timing in zip(rows, timings, strict=True):
        found = ratio(timing, timings[0])
        row["clock"] = {"seconds": timing.seconds, "ratio": [found.low, found.median, found.high]}
    return {
        "model": model,
        "pricing_seconds": round(spent, 1),
        "remark": " ".join(filter(None, remarks)),
        "programs": rows,
        "beside": _beside(programs, dict(zip((p.key for p in distinct), timings, strict=True))),
        "touch_seconds_per_gib": {name: 2**30 * x for name, x in touch.items()},
        "orders": {name: _orders(rows, timings, name) for name in rows[0]["seconds"]},
    }


def _beside(programs: list[Any], timing_of: dict[Any, Timing]) -> list[dict[str, Any]]:
    """The ratio of each plan to the baseline of its bytes; none where both are one program."""
    found, keys = [], {p.row.program: p.key for p in programs}
    for p in programs:
        if p.row.baseline and p.key != keys[p.row.baseline]:
            over = ratio(timing_of[p.key], timing_of[keys[p.row.baseline]])
            ratios = [round(x, 4) for x in (over.low, over.median, over.high)]
            found.append({"program": p.row.program, "overhead": p.row.overhead, "ratio": ratios})
    return found


def _row(program: Any, models: dict[str, Prices], touch: dict[str, float]) -> dict[str, Any]:
    step = step_to_compile(program.traced, program.function)
    backend = backend_of("cpu")
    seconds = {name: step_costs(*step, x, backend).seconds for name, x in models.items()}
    row = {"program": program.row.program, "temp_bytes": program.row.temp_bytes}
    for name, rate in touch.items():
        seconds[f"{name}, first touch"] = seconds[name] + rate * row["temp_bytes"]
    return {**row, "seconds": seconds}


def _timings(problem: Problem, programs: list[Any], turns: int) -> list[Timing]:
    args = problem.make_args(0)
    leaves = take_apart(make_options(problem.loss, 0, (), ()), args, {}).leaves
    return in_turns([step_on(p.traced, p.function, lambda: leaves) for p in programs], turns)


def _orders(rows: list[dict[str, Any]], timings: list[Timing], model: str) -> dict[str, Any]:
    """How many pairs that the clock tells apart a model orders otherwise."""
    told, wrong = 0, 0
    for (a, x), (b, y) in it.combinations(zip(rows, timings, strict=True), 2):
        found = ratio(x, y)
        if found.is_slower or found.is_faster:
            told += 1
            wrong += (a["seconds"][model] > b["seconds"][model]) != found.is_slower
    plain = rows[0]
    errors = [
        abs(r["seconds"][model] / plain["seconds"][model] / r["clock"]["ratio"][1] - 1)
        for r in rows[1:]
    ]
    return {"pairs": told, "otherwise": wrong, "ratio_error": statistics.median(errors)}


def main() -> None:
    """Measures the models that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--scale", default="bench")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.6, 0.45])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.turns < 7:
        parser.error("need 7 turns or more: of fewer than six that count, no interval holds 95 %")
    found = []
    for model in options.models:
        found.append(measure(model, options.scale, options.turns, options.shares))
        print(json.dumps(found[-1]["orders"]), model, found[-1]["pricing_seconds"], flush=True)
        for row in found[-1]["programs"]:
            print(f"  {row['program']:24}", row["clock"], row["seconds"], flush=True)
        for row in found[-1]["beside"]:
            print(f"  {row['program']:32}", row["ratio"], flush=True)
        context = {
            "jax": jax.__version__,
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPUs",
            "command": f"python docs/measurements/clock.py {' '.join(options.models)}"
            f" --turns {options.turns} --shares {' '.join(map(str, options.shares))}",
        }
        if options.out:
            options.out.write_text(json.dumps({"context": context, "models": found}, indent=1))


if __name__ == "__main__":
    main()
