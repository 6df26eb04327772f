"""Counts the memory that a step touches for the first time, beside its temporaries, on a CPU.

    python docs/measurements/touched.py mlp:256 transformer:1

For each model of the zoo: the plain program and `jax.checkpoint` of each block. The operating
system counts a page that is touched for the first time as a fault, so other work on the machine
changes nothing. The least of several steps counts: results may lie where earlier ones did.
"""

import argparse
import json
import platform
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from monet_jax.bench.models.cells import Cell
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.step import step_on
from monet_jax.tracing.signature import make_options, take_apart

MIB = 2**20
#: Steps that are run; the first is not counted.
STEPS = 6


def measure(model: str) -> list[dict[str, Any]]:
    """MiB of temporaries, and MiB that a step touches for the first time, of each program."""
    name, _, batch = model.partition(":")
    cell = Cell(name, "bench", resolve_target("cpu"), "float32", int(batch) if batch else None)
    problem = cell.build()
    call = take_apart(make_options(problem.loss, 0, (), ()), problem.make_args(0), {})
    rows = []
    for program in cell.programs(frozenset()):
        if program.traced is None or program.row.program.startswith("loss"):
            continue
        run = step_on(program.traced, program.function, lambda: call.leaves)
        touched = [_touched_bytes(run) for _ in range(STEPS)][1:]
        temps, least = program.row.temp_bytes / MIB, min(touched) / MIB
        row = {"model": model, "program": program.row.program}
        rows.append({**row, "temp_mib": round(temps, 1), "touched_mib": round(least, 1)})
        print(rows[-1], flush=True)
    return rows


def _touched_bytes(run: Callable[[], Any]) -> int:
    """Bytes of the pages that a step touches for the first time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(run())
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return pages * resource.getpagesize()


def main() -> None:
    """Measures the models that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row for model in options.models for row in measure(model)]
    context = {
        "jax": jax.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        "command": f"python docs/measurements/touched.py {' '.join(options.models)}",
    }
    if options.out:
        options.out.write_text(json.dumps({"context": context, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
