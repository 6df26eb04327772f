"""Models whose plain step exceeds the card are planned for it, and the plan keeps its budget."""

import jax.numpy as jnp
import pytest
from compilers import foreign_target

import monet_jax
from monet_jax.compiler.targets import resolve_target, usable_bytes

zoo = pytest.importorskip("monet_jax.zoo")


@pytest.mark.slow
@pytest.mark.parametrize("model", [x for x in zoo.FRONTIER if x != "diffusion_unet"])
@pytest.mark.parametrize("target", [foreign_target("gpu:h100")])
def test_a_plan_at_the_frontier_keeps_its_budget(model, target):
    """Minutes for each; for the diffusion model no plan was found at this share."""
    problem = zoo.build(model, scale="frontier", dtype=jnp.bfloat16)
    options = {"target": target, "cache": False}
    plain = monet_jax.plan(problem.loss, *problem.args, budget="1000TiB", **options)
    assert plain.unplanned_bytes > usable_bytes(resolve_target(target))  # JAX's pool on the card
    budget = plain.fixed_bytes + int(0.6 * (plain.unplanned_bytes - plain.fixed_bytes))
    plan = monet_jax.plan(problem.loss, *problem.args, budget=budget, max_compilations=4, **options)
    assert plan.compiled_bytes <= budget and plan.decisions is not None
