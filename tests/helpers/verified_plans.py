"""A plan that the compiler has verified, and the graph that it was made for."""

import functools as ft

from networks import net, specs

import planners
from monet_jax import Plan
from monet_jax.analyzer.pins import make_pins
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.plan_search import PlanSearch
from monet_jax.tracing.trace import trace_for


@ft.cache
def plan_and_graph() -> tuple[Plan, planners.Graph]:
    """A plan of the network that recomputes something, and the graph that it was made for."""
    target = resolve_target("cpu")
    compiled_plans = compiled_plans_of(trace_for(target, net, specs()), target, make_pins(None))
    found = PlanSearch(compiled_plans, planners.Stages()).plan(
        lambda unplanned: int(0.6 * unplanned())
    )
    plan = Plan.of(found)
    assert plan.decisions is not None and plan.flops > plan.base_flops
    return plan, compiled_plans.graph
