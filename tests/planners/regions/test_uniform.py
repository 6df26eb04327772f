"""Among plans that are equal by the model, the one is chosen that compiles best."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of
from planners import Region
from planners.regions.simple_plans import certified, minimal_region
from planners.regions.uniform import tidied

LAYOUT = ("NHWC", "HWIO", "NHWC")
SIZES = [(4, 64), (64, 64), (64, 64), (64, 64), (128, 32), (32, 32), (32, 4)]


def convolved(x, kernel, stride=1):
    strides = (stride, stride)
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=LAYOUT)


def normalized(x):
    return jax.nn.relu((x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5))


def skipping(kernels, x):
    """A U-Net of one level: what is sampled up is joined to what was there before."""
    first, down, low, up, joined, after, last = kernels
    skip = normalized(convolved(x, first))
    x = normalized(convolved(normalized(convolved(skip, down, 2)), low))
    x = lax.conv_transpose(x, up, (2, 2), "SAME", dimension_numbers=LAYOUT)
    x = normalized(convolved(jnp.concatenate([skip, x], -1), joined))
    return jnp.sum(convolved(normalized(convolved(x, after)), last) ** 2)


@pytest.fixture(scope="module")
def plans():
    kernels = [jax.ShapeDtypeStruct((3, 3, *size), jnp.float32) for size in SIZES]
    x, target = jax.ShapeDtypeStruct((2, 64, 64, 4), jnp.float32), resolve_target("cpu")
    return compiled_plans_of(trace_loss(skipping, (kernels, x), target), target, Pins())


def together(graph, first, last):
    """A plan that saves nothing, and recomputes some stages together."""
    singles = [minimal_region(graph, s) for s in range(len(graph.stages))]
    regions = (*singles[:first], minimal_region(graph, first, last), *singles[last + 1 :])
    return certified(graph, regions, planner="some", bound_seconds=graph.seconds)


def test_the_backward_of_the_last_of_several_stages_waits_for_what_is_recomputed(plans):
    """The gradient of what is joined is four times its cotangent: it must not come first."""
    given = together(plans.judge.graph, 1, 2)
    found = tidied(plans.judge.graph, given, lambda regions: 0)
    assert found.regions[1].inner == (Region(1, 1, alone=True), Region(2, 2))
    assert found.seconds == pytest.approx(given.seconds)
    assert plans.of(found).figures.temp_bytes < 0.9 * plans.of(given).figures.temp_bytes


def test_what_would_take_more_by_the_model_stays_as_it_is(plans):
    given = together(plans.judge.graph, 1, 2)
    found = tidied(plans.judge.graph, given, lambda regions: sum(len(x.inner) for x in regions))
    assert found.regions == given.regions
