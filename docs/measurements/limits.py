"""Do planners keep their time limits, and does replay accept what they answer?

    python docs/measurements/limits.py DIR    # writes planners-limits.json beside this file

asks every planner about every problem in DIR, at one budget each, with 0.1, 1 and 10 seconds, and
prints a line for each planner. The four parts of DIR are asked about in processes of their own.
"""

import argparse
import itertools as it
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keeping import keep

from planners.registry import PLANNERS

HERE = Path(__file__).parent
LIMITS = (0.1, 1.0, 10.0)
# Files, and the published budget to ask for: GiB, or a share of the peak without recomputation.
BUDGETS = {"mobilenet_*": 7, "resnet50_*": 7, "vgg16_*": 8, "moccasin_*": 0.8}


def asked(pattern: Path, budget: float) -> list[dict[str, Any]]:
    """The answers about some problems, as `monet-jax bench planners` keeps them."""
    limits, planners = ",".join(map(str, LIMITS)), ",".join(PLANNERS)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        options = f"--instances {pattern} --budgets {budget} --planners {planners} --out {out} "
        options += f"--time-limit {LIMITS[0]} --time-limits {limits}"
        main = "from monet_jax.cli.shell import main; main()"
        # It fails where a claim does not hold: others need all budgets, or more than ten seconds.
        subprocess.run([sys.executable, "-c", main, "bench", "planners", *options.split()])
        rows = json.loads(out.read_text())["rows"]
    return [row for row in rows if row["purpose"] == "limits"]


def rows_of(proposals: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each problem and planner: one status, and the seconds, for each limit."""
    for (instance, planner, budget), some in it.groupby(
        proposals, key=lambda x: (x["instance"], x["planner"], x["budget"])
    ):
        some = sorted(some, key=lambda x: x["time_limit"])
        assert [x["time_limit"] for x in some] == list(LIMITS)
        yield {
            "instance": instance,
            "budget": budget,
            "planner": planner,
            "status": [x["status"] for x in some],
            "seconds": [round(x["planning_seconds"], 2) for x in some],
        }


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: each planner, its answers by status, and its largest excess over each limit."""
    proposals = "plans | infeasible | stopped | refused or failed"
    yield f"| planner | {proposals} | seconds over each limit, at most |"
    yield "|---|---|---|---|---|---|"
    for planner in PLANNERS:
        some = [row for row in rows if row["planner"] == planner]
        said = [status for row in some for status in row["status"]]
        good = [said.count(status) for status in ("ok", "infeasible", "stopped")]
        over = [max(row["seconds"][n] for row in some) - limit for n, limit in enumerate(LIMITS)]
        worst = ", ".join(f"{max(x, 0.0):.1f}" for x in over)
        counts = " | ".join(map(str, [*good, len(said) - sum(good)]))
        yield f"| `{planner}` | {counts} | {worst} |"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    proposals = [x for part, budget in BUDGETS.items() for x in asked(folder / part, budget)]
    rows = list(rows_of(proposals))
    context = {"python": platform.python_version(), "time_limits": LIMITS}
    keep(HERE / "planners-limits.json", "limits.py DIR", rows, **context)
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
