"""How do the seconds and the memory of `planners.Stages` grow with the ops of a step?

    python docs/measurements/scale.py measure    # writes scale.json beside this file
    python docs/measurements/scale.py plot       # draws scale.svg from it; needs matplotlib

Every plan is made in a process of its own, so that its peak memory is its own as well. Budgets lie
between the plan that saves nothing, which is near the smallest, and the one that saves everything.
"""

import argparse
import importlib
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from keeping import keep

import planners
from planners.published import synthetic

HERE = Path(__file__).parent
# Thousands of ops of the graphs that are planned, and time limits in seconds.
SIZES = {"transformer": (1, 2, 5, 10, 20, 50), "irregular": (1, 2, 5)}
LIMITS = {"transformer": 18.0, "irregular": 55.0}
# Budgets: shares of the way from saving nothing to saving everything.
SHARES = (0.0, 0.3, 0.7)


def made(kind: str, n_ops: int) -> planners.Graph:
    """The graph of so many ops; a block of the transformer has 500."""
    if kind == "transformer":
        return synthetic.transformer(n_ops // 500)
    return synthetic.irregular(n_ops)


def cell(kind: str, n_ops: int, share: float) -> dict[str, Any]:
    """One plan, made here."""
    graph = made(kind, n_ops)
    least, most = (x(graph).peak_bytes for x in (planners.save_nothing, planners.save_all))
    budget = int(least + share * (most - least))
    start = time.perf_counter()
    importlib.import_module("planners.regions.search.search")  # with CVXPY

    imported = time.perf_counter()
    planner, cpu = planners.Stages(time_limit=LIMITS[kind]), time.process_time()
    plan = planner(graph, budget)
    seconds, cpu = time.perf_counter() - imported, time.process_time() - cpu
    peak = planners.replay(graph, plan).peak_bytes
    assert peak <= budget
    return {
        "kind": kind,
        "n_ops": len(graph.ops),
        "stages": len(graph.stages),
        "share": share,
        "budget_bytes": budget,
        "peak_bytes": peak,
        "save_all_bytes": most,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "import_seconds": round(imported - start, 2),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "overhead": round(plan.seconds / graph.seconds - 1, 5),
        "gap": round(float(plan.gap), 5),
    }


def measure() -> None:
    """Runs every cell and keeps the rows."""
    rows = []
    for kind, sizes in SIZES.items():
        for size in sizes:
            for share in SHARES:
                rows.append(_apart(kind, 1000 * size, share))
                print(rows[-1], file=sys.stderr, flush=True)
            _keep(rows)


def _apart(kind: str, n_ops: int, share: float) -> dict[str, Any]:
    """The cell, in a fresh process."""
    command = [sys.executable, __file__, "cell", kind, str(n_ops), str(share)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _keep(rows: list[dict[str, Any]]) -> None:
    versions = {"python": platform.python_version(), "time_limits": LIMITS}
    keep(HERE / "scale.json", "scale.py measure", rows, **versions)


def plot() -> None:
    """Draws CPU seconds and peak memory over ops."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "scale"  # the same file from the same rows
    rows = json.loads((HERE / "scale.json").read_text())["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for kind, marker in (("transformer", "o"), ("irregular", "s")):
        for share, alpha in zip(SHARES, (1.0, 0.6, 0.3), strict=True):
            some = [x for x in rows if x["kind"] == kind and x["share"] == share]
            style = {"marker": marker, "alpha": alpha, "color": f"C{marker == 's':d}"}
            ops = [x["n_ops"] for x in some]
            left.loglog(ops, [x["cpu_seconds"] for x in some], **style, label=f"{kind}, {share:g}")
            right.semilogx(ops, [x["peak_rss_mib"] for x in some], **style)
    left.set(xlabel="ops", ylabel="CPU seconds", ylim=(1, 100))
    right.set(xlabel="ops", ylabel="peak memory of the process, MiB", ylim=(0, 1024))
    left.legend(fontsize="x-small", title="graph, budget", title_fontsize="x-small", ncols=2)
    figure.savefig(HERE / "scale.svg", metadata={"Date": None})


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "plot", "cell"))
    parser.add_argument("of", nargs="*", help="for `cell`: kind, ops, share")
    args = parser.parse_args()
    if args.what == "cell":
        kind, n_ops, share = args.of
        print(json.dumps(cell(kind, int(n_ops), float(share))))
    else:
        {"measure": measure, "plot": plot}[args.what]()


if __name__ == "__main__":
    main()
