"""How long do planning, tracing and compiling take as a GPT-2 gets deeper?

    python docs/measurements/depth.py gpu:h100    # writes depth-h100.json beside this file

Every row is a process of its own. `planning` is tracing, analysis, a plan for a budget 60 % of the
way from saving nothing to saving all, and emission, without compiling, imports apart. `plain` and
`planned` are tracing, lowering and compiling the value and gradient, XLA's own rematerialization
off.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
from keeping import keep

import planners
from monet_jax.analyzer.analyze import analyze
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import Target, compiler_version, resolve_target
from monet_jax.planning.step import step_to_compile
from monet_jax.seconds.attained import modelled
from monet_jax.transformer.transform import transform
from monet_jax.zoo.gpt2 import GPT2
from monet_jax.zoo.problem import make_problem, text

HERE = Path(__file__).parent
# Layers, and whether they run under one scan.
CASES = (12, False), (48, False), (12, True), (96, True)
BATCH, LENGTH, SHARE = 2, 512, 0.6


def row(depth: int, scanned: bool, target: Target) -> dict[str, Any]:
    """One model, here."""
    model = GPT2(depth=depth, scanned=scanned)
    problem = make_problem("gpt2", model, text(BATCH, LENGTH, model.vocab))
    planner = planners.Stages()
    importlib.import_module("planners.regions.search.search")  # with CVXPY
    started = time.perf_counter()
    traced = trace_loss(problem.loss, problem.args, target)
    prices, backend = modelled(target), backend_of(target.name)
    graph, _ = analyze(traced.staged(), prices, backend)
    ends = [x(graph) for x in (planners.save_nothing, planners.save_all)]
    least, most = (x.peak_bytes for x in ends)
    decisions = planner(graph, int(least + SHARE * (most - least)))
    function = transform(traced.staged(), decisions)
    planning = time.perf_counter() - started
    seconds = {"plain": [], "planned": []}
    for _ in range(2):  # the first one starts the compiler
        for name, some in (("plain", traced.flat), ("planned", function)):
            started = time.perf_counter()
            step, args = step_to_compile(traced, some)
            compile_bytes(_fresh(step), args, target=target)
            seconds[name].append(round(time.perf_counter() - started, 2))
    return {
        "depth": depth,
        "scanned": scanned,
        "equations": len(traced.program.equations),
        "ops": len(graph.ops),
        "overhead": round(decisions.seconds / graph.seconds - 1, 4),
        "planning": round(planning, 2),
        "plain": seconds["plain"],
        "planned": seconds["planned"],
    }


def _fresh(step: Any) -> Any:
    """The same function with another name, so that no answer is taken from a cache."""
    jax.clear_caches()

    def timed(*args: Any) -> Any:
        return step(*args)

    timed.__name__ = f"timed_{time.perf_counter_ns()}"
    return timed


def measure(name: str) -> None:
    """Runs every row in a process of its own and keeps them."""
    target = resolve_target(name)
    rows = []
    for depth, scanned in CASES:
        command = [sys.executable, __file__, name, "--row", str(depth), str(int(scanned))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], file=sys.stderr, flush=True)
    versions = {"jax": jax.__version__, "compiler": compiler_version(target)}
    path = HERE / f"depth-{name.split(':')[-1]}.json"
    keep(path, f"depth.py {name}", rows, **versions, tokens=[BATCH, LENGTH])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--row", nargs=2, type=int, help="layers, and 1 under a scan")
    args = parser.parse_args()
    if args.row:
        depth, scanned = args.row
        print(json.dumps(row(depth, bool(scanned), resolve_target(args.target))))
    else:
        measure(args.target)


if __name__ == "__main__":
    main()
