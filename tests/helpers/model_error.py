"""By how much the model of compiled bytes misses a program's plans."""

import planners
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of


def off(loss, args, name, whole=True):
    """By how much the model misses the compiled temporaries of saving all, or nothing."""
    target = resolve_target(name)
    plans = compiled_plans_of(trace_loss(loss, args, target), target, Pins())
    nothing = plans.calibration_plan
    decisions = planners.save_all(plans.judge.graph) if whole else nothing
    figures = plans.unplanned if whole else plans.of(nothing).figures
    assert figures is not None
    return plans.model.modelled(decisions.regions, plans.judge.graph) / figures.temp_bytes - 1
