"""How long do planning, tracing and compiling take as a GPT-2 gets deeper?

    python docs/measurements/depth.py gpu:h100    # writes depth-h100.json beside this file

Every row is a process of its own. `planning` is without compiling (`verify=False` and a budget of
60 % of the modelled temporaries, imports apart); `plain` and `planned` are tracing, lowering and
compiling the value and gradient, XLA's own rematerialization off.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax

import planners
from monet_jax._compile import compile_bytes
from monet_jax._pins import make_pins
from monet_jax._targets import Target, compiler_version, resolve_target
from monet_jax._transform import transform
from monet_jax._trials import Trials, step_to_compile
from monet_jax.bench._programs import trace_loss
from monet_jax.zoo._problem import make_problem, text
from monet_jax.zoo.gpt2 import GPT2

HERE = Path(__file__).parent
# Layers, and whether they run under one scan.
CASES = (12, False), (48, False), (12, True), (96, True)
BATCH, LENGTH, SHARE = 2, 512, 0.6


def row(depth: int, scanned: bool, target: Target) -> dict[str, Any]:
    """One model, here."""
    model = GPT2(depth=depth, scanned=scanned)
    problem = make_problem("gpt2", model, text(BATCH, LENGTH, model.vocab))
    planner = planners.Stages()
    planner(_toy(), 10)  # imports the solver
    started = time.perf_counter()
    traced = trace_loss(problem.loss, problem.args, target)
    trials = Trials(traced, target, make_pins(None), verify=False)
    graph, origins = trials._analyzed
    ends = [x(graph) for x in (planners.save_nothing, planners.save_all)]
    least, most = (x.peak_bytes for x in ends)
    decisions = planner(graph, int(least + SHARE * (most - least)))
    function = transform(origins, decisions)
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


def _toy() -> planners.Graph:
    """Something to plan, so that what is imported is not counted."""
    op = planners.Op("op", (), (0,), 1.0)
    back = planners.Op("back", (0,), (1,), 1.0)
    values = planners.Value("a", 1, True), planners.Value("b", 1)
    return planners.Graph(values, (planners.Stage("s", (op,), (back,)),))


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
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    context = {
        "command": f"python docs/measurements/depth.py {name}",
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "jax": jax.__version__,
        "compiler": compiler_version(target),
        "tokens": [BATCH, LENGTH],
    }
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    text = f'{{\n  "context": {json.dumps(context)},\n  "rows": [\n{lines}\n  ]\n}}\n'
    (HERE / f"depth-{name.split(':')[-1]}.json").write_text(text)


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
