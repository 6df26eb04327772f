"""Does what codes spare arrive in the compiled program, and what would come of it without ties?

    python docs/measurements/codes.py gpu:h100 resnet50    # adds to codes-h100.json

For a model of the zoo at the bench's scale and each operator, the plan that saves every code there
is and small values beside them, and recomputes the rest: temporaries as predicted and as compiled,
over plain's; and as compiled where nothing that a stage hands on waits for the stage's codes.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from keeping import keep

import planners
from monet_jax import _transform, zoo
from monet_jax._analyze import NO_PINS
from monet_jax._compile import compile_bytes
from monet_jax._targets import compiler_version, resolve_target
from monet_jax._trace import trace_for
from monet_jax._transform import transform
from monet_jax._trials import Trials, step_to_compile
from planners.graph import Graph
from planners.plan import Plan
from planners.stages import bare, certified

HERE = Path(__file__).parent
OPERATORS = {"mask": ["mask", "pool"]} | {
    name: ["mask", "pool", name] for name in ("bf16", "fp8", "int8", "int4", "int2")
}
#: Values of fewer bytes are saved in any case.
SMALL = 100_000


def with_all_codes(graph: Graph) -> Plan:
    """The plan that saves every code."""
    regions = []
    for s, stage in enumerate(graph.stages):
        values = [
            graph.values[i]
            for op in stage.forward
            for i in op.outputs
            if graph.values[i].savable and (op.optional or graph.values[i].nbytes < SMALL)
        ]
        region = bare(graph, s)
        names = dict.fromkeys((*region.saved, *(value.name for value in values)))
        regions.append(region if region.alone else planners.Region(s, s, tuple(names)))
    return certified(graph, tuple(regions), planner="all codes", bound_seconds=0.0)


def row(model: str, name: str, target: Any) -> dict[str, Any]:
    """One operator."""
    problem = zoo.build(model, scale="bench")
    traced = trace_for(target, problem.loss, problem.args, operators=OPERATORS[name])
    trials = Trials(traced, target, NO_PINS)
    plan, plain = with_all_codes(trials.graph), trials.unplanned.temp_bytes
    optional = {
        trials.graph.values[i].name
        for stage in trials.graph.stages
        for op in stage.forward
        if op.optional
        for i in op.outputs
    }
    saved = {name for region in plan.regions for name in region.saved} & optional
    in_codes = sum(trials.graph.values[trials.graph.index[name]].nbytes for name in saved)
    tied = trials.temp_bytes(trials.of(plan))
    with mock.patch.object(_transform, "_wait_for_codes", lambda *_: None):
        step = step_to_compile(traced, transform(trials.origins, plan))
        untied = compile_bytes(*step, target=target).total_bytes - trials.fixed_bytes
    return {
        "model": model,
        "operators": name,
        "in_codes": round(in_codes / plain, 4),
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
