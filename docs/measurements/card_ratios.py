"""How far modelled ratios to the plain program are from a card's clock.

    python docs/measurements/card_ratios.py

The programs are the `jax.checkpoint` baselines of `device-h100.json`, by the roofline of the
finished program. Nothing is compiled, and no card is needed.
"""

import json
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from monet_jax import zoo
from monet_jax.bench.models.programs import baselines, trace_loss
from monet_jax.compiler.targets import resolve_target
from monet_jax.tools.baselines import work_of_step

CLOCKED = Path(__file__).parent / "device-h100.json"
H100 = resolve_target("gpu:h100")


def clocked() -> dict[tuple[str, str], dict[str, float]]:
    """Model and dtype -> program -> seconds by the card's clock; plain and the baselines."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in json.loads(CLOCKED.read_text())["rows"]:
        if row["kind"] in ("plain", "baseline") and row.get("measured_seconds"):
            programs = found.setdefault((row["model"], row["dtype"]), {})
            programs[row["program"]] = row["measured_seconds"]
    return found


def seconds_of(loss: Callable[..., Any], args: tuple[Any, ...]) -> tuple[float, bool]:
    """The roofline's seconds of a loss's value and gradient, and whether there is a loop in it."""
    traced = trace_loss(loss, args, H100)
    has_loop = any(e.primitive == "scan" for e in traced.program.equations)
    return work_of_step(traced, traced.flat, H100).seconds, has_loop


def errors_of(model: str, dtype: str, seconds: Mapping[str, float]) -> Iterator[tuple[float, bool]]:
    """The relative error of each baseline's ratio to plain, and whether the model has a loop."""

    def build(**options: Any) -> zoo.Problem:
        return zoo.build(model, scale="full", dtype=dtype, **options)

    plain = build()
    base, has_loop = seconds_of(plain.loss, plain.args)
    for name, make in baselines(build):
        if name in seconds:
            ratio = seconds_of(make(), plain.args)[0] / base
            clock = seconds[name] / seconds["plain"]
            print(f"{model:12} {name:22} modelled {ratio:.3f}, clock {clock:.3f}", flush=True)
            yield abs(ratio / clock - 1), has_loop


def main() -> None:
    """Prints each ratio, and the median error with loops and without."""
    warnings.simplefilter("ignore")
    every = [x for key, seconds in clocked().items() for x in errors_of(*key, seconds)]
    for text, kind in (("with loops", True), ("without", False)):
        some = [error for error, has_loop in every if has_loop is kind]
        print(f"{text}: {statistics.median(some):.1%} off in the median of {len(some)}")


if __name__ == "__main__":
    main()
