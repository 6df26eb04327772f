"""Plans models of the zoo for a device that is not here, into files that `device.py` runs there.

    python docs/measurements/device_plans.py gpt2 vit_s16:32 --target gpu:h100 --out plans

A model may have a batch behind a colon. For each: the plain program, `jax.checkpoint` round each
block under three policies, and our plans at the bytes of these and at shares of plain's
temporaries. Run it with the version of JAX that the device has: a plan is for one trace.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from monet_jax import Plan
from monet_jax.bench.models.cells import Cell, Program
from monet_jax.compiler.targets import compiler_version, resolve_target


def programs_of(cell: Cell, shares: list[float]) -> Iterator[Program]:
    """Plain, the baselines, ours at their bytes, and ours at shares of plain's temporaries."""
    yield cell.plain()
    baselines = list(cell.baselines(["blocks"]))
    yield from baselines
    for row in (x.row for x in baselines if x.row.status == "ok"):
        yield cell.plan("baseline", f"ours @ {row.program}", row.total_bytes, row.program)
    for share in shares:
        yield cell.plan("temps", f"ours @ {share:.0%}", cell.share_bytes(share))


def main() -> None:
    """Plans the models that are named; a model's programs are kept as soon as all are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--target", default="gpu:h100")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.45])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    target = resolve_target(given.target)
    for named in given.models:
        model, _, batch = named.partition(":")
        size = int(batch) if batch else None
        began = time.perf_counter()
        cell, rows = Cell(model, given.scale, target, given.dtype, size), []
        stem = f"{model}-{given.dtype}"
        for number, made in enumerate(programs_of(cell, given.shares)):
            row = dataclasses.asdict(made.row) | {"file": None}
            if made.plan is not None and made.plan.decisions is not None:
                row["file"] = f"{stem}-{number}.json"
                Plan.of(made.plan).save(given.out / row["file"])
            rows.append(row)
            print(row["program"], row["status"], row["total_bytes"], row["overhead"], flush=True)
        known = {"model": model, "scale": given.scale, "batch": size, "dtype": given.dtype}
        versions = {"jax": jax.__version__, "compiler": compiler_version(target)}
        minutes = {"minutes": round((time.perf_counter() - began) / 60, 1)}
        text = json.dumps(known | versions | minutes | {"programs": rows}, indent=1)
        (given.out / f"{stem}.cell.json").write_text(text)


if __name__ == "__main__":
    main()
