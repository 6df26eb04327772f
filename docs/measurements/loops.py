"""Between the two uniform plans of a scan, where do the bytes and the FLOPs of others lie?

    python docs/measurements/loops.py measure    # writes loops.json beside this file
    python docs/measurements/loops.py plot       # draws loops.svg from it; needs matplotlib

The model is the zoo's Llama, twelve layers under one scan. Of its layers, the last ones save all
that they may and the others nothing; everything outside the loop is left as it is.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from keeping import keep

import planners
from monet_jax import zoo
from monet_jax.analyzer.analyze import analyze
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.step import step_to_compile
from monet_jax.seconds.attained import modelled
from monet_jax.tools.baselines import work_of_step
from monet_jax.transformer.transform import transform
from planners.plan import Region

HERE = Path(__file__).parent
MODEL, TARGETS = "llama", ("cpu", "gpu:h100")


def plans(graph: planners.Graph) -> Iterator[tuple[int, tuple[Region, ...]]]:
    """How many of the last layers save what they may, and the regions."""
    (loop,) = graph.loops
    for saving in range(loop.trips + 1):
        if 1 in (saving, loop.trips - saving):
            continue  # no plan lets an iteration run by itself
        first = loop.stop - saving * loop.length
        inside = range(loop.first, first, loop.length)
        minimal_region = [Region(s, s + loop.length - 1) for s in inside]
        alone = [Region(s, s, alone=True) for s in range(len(graph.stages))]
        yield saving, (*alone[: loop.first], *minimal_region, *alone[first:])


def rows(target_name: str) -> Iterator[dict[str, Any]]:
    """Every plan as compiled for a target, with its FLOPs."""
    target, problem = resolve_target(target_name), zoo.build(MODEL, scale="bench")
    traced = trace_loss(problem.loss, problem.args, target)
    prices, backend = modelled(target), backend_of(target.name)
    graph, _ = analyze(traced.staged(), prices, backend)
    for saving, regions in plans(graph):
        decisions = planners.Plan(regions, 0, 0.0, 0, 0.0, "half and half")
        function = transform(traced.staged(), decisions)
        figures = compile_bytes(*step_to_compile(traced, function), target=target)
        yield {
            "target": target_name,
            "compiler": figures.compiler,
            "saving": saving,
            "temp_bytes": figures.temp_bytes,
            "flops": work_of_step(traced, function, target).flops,
        }


def measure() -> None:
    """Runs every plan and keeps the rows."""
    found = []
    for target in TARGETS:
        for row in rows(target):
            print(row, file=sys.stderr, flush=True)
            found.append(row)
    keep(HERE / "loops.json", "loops.py measure", found, jax=jax.__version__, model=MODEL)


def farthest(some: list[dict[str, Any]]) -> float:
    """How far bytes are above the line between those of the first and the last, at most."""
    first, last = some[0], some[-1]
    found = []
    for row in some:
        share = (row["flops"] - first["flops"]) / (last["flops"] - first["flops"])
        line = first["temp_bytes"] + share * (last["temp_bytes"] - first["temp_bytes"])
        found.append(row["temp_bytes"] / line - 1)
    return max(found)


def plot() -> None:
    """Draws bytes over FLOPs."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "loops"  # the same file from the same rows
    found = json.loads((HERE / "loops.json").read_text())["rows"]
    figure, axes = plt.subplots(1, len(TARGETS), figsize=(8, 3), layout="constrained")
    for axis, target in zip(axes, TARGETS, strict=True):
        some = [row for row in found if row["target"] == target]
        flops = [row["flops"] / some[-1]["flops"] for row in some]
        sizes = [row["temp_bytes"] / 2**20 for row in some]
        axis.plot([flops[0], flops[-1]], [sizes[0], sizes[-1]], color="0.7")
        axis.plot(flops, sizes, "o", markersize=4)
        axis.set(title=f"{target}: at most {farthest(some):.1%} above the line", ylim=(0, None))
        axis.set(xlabel="FLOPs, of those where all layers save", ylabel="temporaries, MiB")
        print(f"{target}: at most {farthest(some):.2%} above the line")
    figure.savefig(HERE / "loops.svg", metadata={"Date": None})


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "plot"))
    {"measure": measure, "plot": plot}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
