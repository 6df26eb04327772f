"""What an op's price should be where its runs differ: their median, or a roofline.

    python docs/measurements/scattered.py vit_s16 llama --beside 2 --out scattered-cpu.json

Every op of the plain step and of one that saves nothing is timed, as a planner does, alone on this
device, then while other processes come and go. The reference is the smaller of two medians that
were taken alone. Of each rule, the error of an op's seconds: weighted by its share of the step, and
the mean over all ops; a common factor is left out, since plans are compared by ratios.
"""

import argparse
import itertools as it
import json
import multiprocessing
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from monet_jax.analyzer.step_costs import step_costs
from monet_jax.bench.models.cells import Cell
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.step import step_to_compile
from monet_jax.seconds import measured
from monet_jax.seconds.clock import MOST_SPREAD, Timing
from monet_jax.seconds.measured import Measured
from monet_jax.seconds.running import can_run, part_of, runnable

CPU = resolve_target("cpu")
RULES: Mapping[str, Callable[[Timing, float], float]] = {
    "roofline where scattered": lambda t, roofline: t.seconds if is_calm(t) else roofline,
    "median": lambda t, roofline: t.seconds,
    "lower quartile": lambda t, roofline: float(np.quantile(t.runs, 0.25)),
    "least": lambda t, roofline: min(t.runs),
}


class Listing(Measured):
    """The roofline of this device, which remembers the ops that it is asked for."""

    def __init__(self) -> None:
        super().__init__(CPU, lambda text: None)
        self.groups: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    def of(self, group):
        """The price of an op."""
        self.groups[group.text] = group
        self.counts[group.text] = self.counts.get(group.text, 0) + 1
        return measured.Price(self.seconds_of(group), measured.ROOFLINE)

    def seconds_of(self, group: Any) -> float:
        """Its seconds by the roofline."""
        return self.roofline.seconds(group.work, group.moved_bytes)


def is_calm(timing: Timing) -> bool:
    """Whether the runs of an op agree."""
    return timing.spread <= MOST_SPREAD


def model_rows(name: str, beside: int) -> dict[str, Any]:
    """The errors of all rules for a model's ops."""
    cell = Cell(name, "bench", CPU, "float32", None)
    prices = Listing()
    for program in it.chain([cell.plain()], cell.baselines()):
        if program.row.program in ("plain", "blocks: nothing") and program.traced is not None:
            step_costs(
                *step_to_compile(program.traced, program.function), prices, backend_of("cpu")
            )
    ops = []
    for text, group in prices.groups.items():
        if can_run(group):
            modelled = prices.seconds_of(group)
            part, parts = part_of(group, 0.2 / max(0.2, modelled))
            ops.append((runnable(part), prices.counts[text] * parts, modelled / parts))
    runs, weights, rooflines = zip(*ops, strict=True)
    alone = [_timings(runs) for _ in range(2)]
    reference = [min(a.seconds, b.seconds) for a, b in zip(*alone, strict=True)]
    with _others(beside):
        loaded = [_timings(runs) for _ in range(2)]
    rows = []
    for place, timings in [*(("alone", t) for t in alone), *(("beside", t) for t in loaded)]:
        errors = {
            rule: _errors([*map(price, timings, rooflines)], reference, weights)
            for rule, price in RULES.items()
        }
        scattered = sum(not is_calm(t) for t in timings)
        rows.append({"place": place, "scattered": scattered, "errors": errors})
    return {"model": name, "ops": len(ops), "rows": rows}


def _timings(runs: Any) -> list[Timing]:
    found = []
    for run in runs:
        jax.block_until_ready(run())
        found.append(measured.timed_again(run))
    return found


def _errors(found: list[float], reference: list[float], weights: Any) -> dict[str, float]:
    """The mean error of a step's seconds, op by op, and of an op."""
    shares = np.array(reference) * weights
    shares /= shares.sum()
    ratios = np.array(found) / reference
    by_share = ratios / (ratios @ shares)
    return {
        "of_the_step": float(np.abs(by_share - 1) @ shares),
        "of_an_op": float(np.abs(ratios / statistics.median(ratios) - 1).mean()),
    }


class _others:
    """Processes that compute for half a second, and rest for as long, in the mean."""

    def __init__(self, count: int):
        context = multiprocessing.get_context("spawn")
        self._all = [context.Process(target=_busy, args=(n,), daemon=True) for n in range(count)]

    def __enter__(self) -> None:
        for process in self._all:
            process.start()
        time.sleep(5)

    def __exit__(self, *error: object) -> None:
        for process in self._all:
            process.kill()


def _busy(seed: int) -> None:
    draws = random.Random(seed)
    square = np.ones((64, 64))
    while True:
        end = time.perf_counter() + draws.expovariate(2)
        while time.perf_counter() < end:
            np.multiply(square, square)
        time.sleep(draws.expovariate(2))


def main() -> None:
    """Times, compares and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--beside", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    models = [model_rows(name, given.beside) for name in given.models]
    for model in models:
        print(model["model"], model["ops"], "ops")
        for row in model["rows"]:
            print(" ", row["place"], row["scattered"], "scattered")
            for rule, error in row["errors"].items():
                print(f"    {rule:26}", *(f"{k} {v:.3f}" for k, v in error.items()))
    if given.out:
        context = {"machine": platform.platform(), "jax": jax.__version__, "beside": given.beside}
        given.out.write_text(json.dumps({"context": context, "models": models}, indent=1) + "\n")


if __name__ == "__main__":
    main()
