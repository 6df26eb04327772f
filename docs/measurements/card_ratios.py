"""How far modelled ratios to the plain program are from a card's clock.

    python docs/measurements/card_ratios.py

The programs are the `jax.checkpoint` baselines of `device-h100.json`, by the roofline of the
finished program. Nothing is compiled, and no card is needed.
"""

import json
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from monet_jax import zoo
from monet_jax.analyzer.step_costs import program_costs
from monet_jax.bench.models.programs import baselines
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.seconds.attained import modelled

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


def seconds_of(loss: Callable[..., Any], args: Sequence[Any]) -> tuple[float, bool]:
    """The roofline's seconds of a loss's value and gradient, and whether there is a loop in it."""
    has_aux = isinstance(jax.eval_shape(loss, *args), tuple)
    jaxpr = jax.jit(jax.value_and_grad(loss, has_aux=has_aux)).trace(*args).jaxpr
    costs = program_costs(jaxpr, modelled(H100), backend_of(H100.name))
    return costs.seconds, " scan[" in str(jaxpr)


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
