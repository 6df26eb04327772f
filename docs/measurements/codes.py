"""Does what codes spare arrive in the compiled program, and what would come of it without ties?

    python docs/measurements/codes.py gpu:h100 resnet50    # adds to codes-h100.json

For a model of the zoo at the bench's scale and each operator, the plan that saves every code there
is and small values beside them, and recomputes the rest: temporaries as predicted and as compiled,
over plain's; and as compiled where nothing that a stage hands on waits for the stage's codes. Then
the plan that runs nothing again, and saves what the backward pass reads, in codes where it can:
temporaries, FLOPs and roofline seconds over plain's.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from keeping import keep, kept_rows

from monet_jax import zoo
from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.candidates.compiled_plans import CompiledPlans
from monet_jax.compiler.compile import CompiledBytes, compile_bytes
from monet_jax.compiler.targets import compiler_version, resolve_target
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.step import step_to_compile
from monet_jax.tools.baselines import work_of_step
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer import transform as transform_module
from monet_jax.transformer.transform import transform
from planners.graph import Graph
from planners.plan import Plan
from planners.regions.simple_plans import certified, minimal_region, saving_codes

HERE = Path(__file__).parent
OPERATORS = {"mask": ["mask", "pool"]} | {
    name: ["mask", "pool", name]
    for name in ("bf16", "fp8", "int8", "int4", "int2", "pool2", "pixel2", "pool8+int2", "slope8")
}
OPERATORS |= {
    "softmax": ["mask", "pool", "softmax"],
    "lossy": ["mask", "pool", "softmax", "int8", "slope8"],
}
OPERATORS |= {f"int{n}, slope{n}": ["mask", "pool", f"int{n}", f"slope{n}"] for n in (8, 4, 2)}
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


def running_once(graph: Graph) -> Plan:
    """The plan that saves what backward ops read: codes where there are any."""
    regions = []
    for region in saving_codes(graph):
        stage = graph.stages[region.first]
        written = [i for op in stage.forward for i in op.outputs]
        # What is decoded is computed from small values as well.
        codes = {graph.index[name] for name in region.saved}
        codes.update(i for i in written if graph.values[i].nbytes < SMALL)
        read = {
            i
            for op in stage.backward
            for i in op.in_implementation(op.implementation_by(codes)).inputs
        }
        read.update(graph.index[name] for name in minimal_region(graph, region.first).saved)
        names = (graph.values[i].name for i in written if i in read and graph.values[i].savable)
        saved = tuple(dict.fromkeys(names))
        regions.append(region if region.alone else dataclasses.replace(region, saved=saved))
    return certified(graph, tuple(regions), planner="running once", bound_seconds=0.0)


def compiled_untied(compiled_plans: CompiledPlans, plan: Plan) -> CompiledBytes:
    """A plan as compiled where nothing that a stage hands on waits for the stage's codes."""
    with mock.patch.object(transform_module, "_wait_for_codes", lambda *_: None):
        step = step_to_compile(
            compiled_plans.judge.traced, transform(compiled_plans.judge.staged, plan)
        )
        return compile_bytes(*step, target=compiled_plans.judge.target)


def bytes_in_codes(graph: Graph, plan: Plan) -> int:
    """Bytes of what optional ops write, as far as a plan saves it."""
    saved = {graph.index[name] for region in plan.regions for name in region.saved}
    ops = [op for stage in graph.stages for op in stage.forward if op.optional]
    return sum(graph.values[i].nbytes for op in ops for i in op.outputs if i in saved)


def reading_codes(
    fun: Callable[..., Any], args: tuple, operators: Sequence[str]
) -> tuple[Callable[..., Any], float]:
    """A function whose gradient reads every code, and the share of codes in what is saved."""
    target = resolve_target("cpu")
    traced = trace_for(target, fun, args, operators=operators)
    compiled_plans = compiled_plans_of(traced, target, NO_PINS)
    plan = with_all_codes(compiled_plans.graph)
    planned = transform(compiled_plans.judge.staged, plan)
    saved = {name for region in plan.regions for name in region.saved}
    nbytes = sum(
        compiled_plans.graph.values[compiled_plans.graph.index[name]].nbytes for name in saved
    )

    def function(*args):
        return planned(jax.tree.leaves(args), traced.constants)[0]

    return function, bytes_in_codes(compiled_plans.graph, plan) / nbytes


def row(model: str, name: str, target: Any) -> dict[str, Any]:
    """One operator."""
    problem = zoo.build(model, scale="bench")
    traced = trace_for(target, problem.loss, problem.args, operators=OPERATORS[name])
    compiled_plans = compiled_plans_of(traced, target, NO_PINS)
    plan, plain = with_all_codes(compiled_plans.graph), compiled_plans.unplanned.temp_bytes
    with_barrier = compiled_plans.temp_bytes(compiled_plans.of(plan))
    untied = compiled_untied(compiled_plans, plan).total_bytes - compiled_plans.fixed_bytes
    once = running_once(compiled_plans.graph)
    as_written = work_of_step(traced, traced.flat, target)
    work = work_of_step(traced, transform(compiled_plans.judge.staged, once), target)
    return {
        "model": model,
        "operators": name,
        "in_codes": round(bytes_in_codes(compiled_plans.graph, plan) / plain, 4),
        "predicted": round(compiled_plans.predicted_temp_bytes(plan.regions) / plain, 4),
        "compiled": round(with_barrier / plain, 4),
        "without_ties": round(untied / plain, 4),
        "running_once": round(compiled_plans.temp_bytes(compiled_plans.of(once)) / plain, 4),
        "flops": round(work.flops / as_written.flops, 4),
        "roofline": round(work.seconds / as_written.seconds, 4),
    }


def measure(name: str, models: list[str], chosen: list[str]) -> None:
    """Every operator for some models, kept beside what is known of others."""
    target = resolve_target(name)
    path = HERE / f"codes-{name.split(':')[-1]}.json"
    rows = kept_rows(path)
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
