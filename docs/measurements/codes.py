"""Does what codes spare arrive in the compiled program, and what would come of it without ties?

    python docs/measurements/codes.py gpu:h100 resnet50    # adds to codes-h100.json

For a model of the zoo at the bench's scale and each operator, the plan that saves every code there
is and small values beside them, and recomputes the rest: temporaries as predicted and as compiled,
over plain's; and as compiled where nothing that a stage hands on waits for the stage's codes.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from keeping import keep

from monet_jax import _transform, zoo
from monet_jax._analyze import NO_PINS
from monet_jax._compile import compile_bytes
from monet_jax._targets import compiler_version, resolve_target
from monet_jax._trace import trace_for
from monet_jax._transform import transform
from monet_jax._trials import Trials, step_to_compile
from planners.graph import Graph
from planners.plan import Plan
from planners.stages import certified, saving_codes

HERE = Path(__file__).parent
OPERATORS = {"mask": ["mask", "pool"]} | {
    name: ["mask", "pool", name] for name in ("bf16", "fp8", "int8", "int4", "int2")
}
#: Values of fewer bytes are saved in any case.
SMALL = 100_000


def with_all_codes(graph: Graph) -> Plan:
    """The plan that saves every code."""
    regions = []
    for region in saving_codes(graph):
        ops = [op for op in graph.stages[region.first].forward if not op.optional]
        values = [graph.values[i] for op in ops for i in op.outputs]
        small = (x.name for x in values if x.savable and x.nbytes < SMALL)
        names = tuple(dict.fromkeys((*region.saved, *small)))
        regions.append(region if region.alone else dataclasses.replace(region, saved=names))
    return certified(graph, tuple(regions), planner="all codes", bound_seconds=0.0)


def bytes_in_codes(graph: Graph, plan: Plan) -> int:
    """Bytes of what optional ops write, as far as a plan saves it."""
    saved = {graph.index[name] for region in plan.regions for name in region.saved}
    ops = [op for stage in graph.stages for op in stage.forward if op.optional]
    return sum(graph.values[i].nbytes for op in ops for i in op.outputs if i in saved)


def row(model: str, name: str, target: Any) -> dict[str, Any]:
    """One operator."""
    problem = zoo.build(model, scale="bench")
    traced = trace_for(target, problem.loss, problem.args, operators=OPERATORS[name])
    trials = Trials(traced, target, NO_PINS)
    plan, plain = with_all_codes(trials.graph), trials.unplanned.temp_bytes
    tied = trials.temp_bytes(trials.of(plan))
    with mock.patch.object(_transform, "_wait_for_codes", lambda *_: None):
        step = step_to_compile(traced, transform(trials.origins, plan))
        untied = compile_bytes(*step, target=target).total_bytes - trials.fixed_bytes
    return {
        "model": model,
        "operators": name,
        "in_codes": round(bytes_in_codes(trials.graph, plan) / plain, 4),
        "predicted": round(trials.predicted_temp_bytes(plan.regions) / plain, 4),
        "compiled": round(tied / plain, 4),
        "without_ties": round(untied / plain, 4),
    }


def measure(name: str, models: list[str], chosen: list[str]) -> None:
    """Every operator for some models, kept beside what is known of others."""
    target = resolve_target(name)
    path = HERE / f"codes-{name.split(':')[-1]}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    versions = {"jax": jax.__version__, "compiler": compiler_version(target)}
    for model in models:
        for operators in chosen:
            new = row(model, operators, target)
            print(new, file=sys.stderr, flush=True)
            same = (new["model"], new["operators"])
            rows = [x for x in rows if (x["model"], x["operators"]) != same] + [new]
            known = " ".join(dict.fromkeys(x["model"] for x in rows))
            keep(path, f"codes.py {name} {known}", rows, **versions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--operators", nargs="+", default=list(OPERATORS))
    asked = parser.parse_args()
    measure(asked.target, asked.models, asked.operators)
