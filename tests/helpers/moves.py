"""Plans that move values to the host's memory, made by hand and emitted without a search."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import planners
from monet_jax.compiler.host import HostMemory
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import TracedPlans, compiled_plans_of
from monet_jax.planning.options import PlanOptions
from monet_jax.transformer import transform

HOST = HostMemory(("activations",), 2**40, 55e9, 55e9)
MIB = 2**20
#: Beyond the window, which the measurements in FACTS of such plans allow.
ALLOWANCE = 0.06


def plans_for(fun, args, target) -> TracedPlans:
    """The plans of a function that may move values."""
    traced = PlanOptions(target=target).traced(fun, args)
    return compiled_plans_of(traced, resolve_target(target), PlanOptions().pinned, host=HOST)


def random_regions(graph, rng, ahead=None):
    """Regions of one stage each that save, move and recompute what comes."""
    regions = []
    for region in planners.save_nothing(graph).regions:
        s = region.first
        own = [i for op in graph.stages[s].forward for i in op.outputs if graph.values[i].savable]
        may = [i for i, value in enumerate(graph.values) if value.reader == s]
        moved = [i for i in may if rng.random() < 0.6]
        saved = [i for i in own if i not in moved and rng.random() < 0.3]
        changed = dataclasses.replace(
            region,
            saved=tuple(graph.values[i].name for i in saved),
            offloaded=tuple(graph.values[i].name for i in moved),
            ahead=rng.randrange(2) if ahead is None else ahead,
        )
        regions.append(region if region.alone else changed)
    return tuple(regions)


def with_regions(graph, regions):
    return planners.Plan(tuple(regions), 0, 0.0, 0, 0.0, "by hand")


def function_of(plans, regions):
    """The function as planned, of its flat arguments."""
    traced = plans.judge.traced
    function = transform.transform(plans.judge.staged, with_regions(plans.judge.graph, regions))
    return lambda leaves: function(leaves, traced.constants)


def planned(plans, regions):
    """The value and gradient of a function as planned, of its flat arguments."""
    function, traced = function_of(plans, regions), plans.judge.traced
    places = sorted(traced.program.inputs.index(i) for i in traced.derivative.inputs)

    def loss(chosen, leaves):
        whole = list(leaves)
        for n, x in zip(places, chosen, strict=True):
            whole[n] = x
        return function(whole)[0]

    def run(leaves):
        return jax.value_and_grad(loss)([leaves[n] for n in places], leaves)

    return run


def residuals_on_host(plans, regions, args):
    """Shapes of what waits in the host's memory for the backward of a function as planned."""
    found, function = [], function_of(plans, regions)

    def look(leaves):
        pull = jax.vjp(lambda some: function(some)[0], leaves)[1]
        found.extend(map(jax.typeof, jax.tree.leaves(pull)))

    jax.eval_shape(look, jax.tree.leaves(args))
    return [x.shape for x in found if x.memory_space == jax.memory.Space.Host]


def assert_as_plain(fun, args, run):
    got = run(jax.tree.leaves(args))
    value, gradient = jax.jit(jax.value_and_grad(fun))(*args)
    for x, y in zip(jax.tree.leaves(got), [value, *jax.tree.leaves(gradient)], strict=True):
        assert_same(x, y)


def assert_mapped_as_plain(fun, args, run):
    """The same under `vmap`, over two sets of arguments."""
    several = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), args)
    mapped = jax.jit(jax.vmap(run))(jax.tree.leaves(several))
    plain = jax.vmap(jax.value_and_grad(fun))(*several)
    for x, y in zip(jax.tree.leaves(mapped), jax.tree.leaves(plain), strict=True):
        assert_same(x, y)


def assert_same(x, y):
    """The same but for rounding, by the largest element."""
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * float(jnp.max(jnp.abs(y))))


def temps(plans, regions):
    """Compiled temporaries."""
    return plans.judge.planned_bytes(with_regions(plans.judge.graph, regions)).temp_bytes
