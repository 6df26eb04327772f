"""A lookup's derivatives are JAX's, and the zeros of its gradient are made when that begins."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from thinning import thinned

from monet_jax import zoo
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir import compat
from monet_jax.ir.program import flatten
from monet_jax.ir.stage import active_in
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.transformer import lookups, regions
from monet_jax.zoo import transformer

H100 = "gpu:h100"
TABLE = jax.random.normal(jax.random.key(0), (12, 3))
PLACES = jnp.array([[[3], [1]], [[11], [3]]])
PARAMS = {
    "dimension_numbers": jax.lax.GatherDimensionNumbers((2,), (0,), (0,)),
    "slice_sizes": (1, 3),
    "indices_are_sorted": False,
    "unique_indices": False,
    "mode": jax.lax.GatherScatterMode.CLIP,
    "fill_value": None,
}


def loss(primitive, table):
    """Of two lookups in a table."""
    rows = primitive.bind(table, PLACES, **PARAMS)
    return jnp.sum(rows**3) + jnp.sum(jnp.sin(primitive.bind(rows[0], PLACES % 2, **PARAMS)))


@pytest.mark.parametrize(
    "derivative",
    thinned(
        [
            lambda f: f,
            jax.grad,
            jax.jit,
            jax.hessian,
            lambda f: jax.jacrev(jax.grad(f)),
            lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
            lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
            lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f, 1)(jnp.stack([x, 2 * x], 1)))),
            lambda f: jax.grad(jax.checkpoint(f)),
        ],
        "grad",
        "jit",
        "<lambda>",
    ),
)
def test_its_derivatives_are_those_of_a_gather(derivative):
    ours, jaxs = (
        derivative(functools.partial(loss, x))(TABLE) for x in (compat.lookup_p, jax.lax.gather_p)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), ours, jaxs)


@pytest.mark.parametrize(
    ("function", "is_late"),
    [
        (lambda table, i: table[i], True),
        (lambda table, i: table.astype(jnp.bfloat16)[i], True),
        (lambda table, i: table[i] + table[0], False),  # something else reads it
        (lambda table, i: table[jnp.concatenate([i] * 8)], False),  # more is looked up than it has
        (lambda table, i: jax.lax.stop_gradient(table)[i], False),  # it has no gradient
    ],
)
def test_a_table_that_nothing_else_reads_is_looked_up_so(function, is_late):
    program = flatten(jax.make_jaxpr(function)(TABLE, jnp.array([3, 1])))
    active = active_in(program.equations, program.inputs[:1])
    found = lookups.with_lookups(program.equations, program, active, ())
    assert any(e.eqn.primitive is compat.lookup_p for e in found) == is_late
    shared = {i for e in program.equations if e.primitive == "gather" for i in e.reads}
    again = lookups.with_lookups(program.equations, program, active, shared)
    assert not any(e.eqn.primitive is compat.lookup_p for e in again)


@pytest.mark.slow
@pytest.mark.gpu
def test_lookups_in_one_table_share_no_zeros_that_wait(monkeypatch):
    shape = {"depth": 1, "width": 256, "heads": 4, "hidden": 256, "vocab": 32_128}
    monkeypatch.setitem(transformer._SCALES, "tiny", (4, 64, shape))
    problem, target = zoo.build("transformer", scale="tiny", dtype="bfloat16"), resolve_target(H100)
    plans = compiled_plans_of(trace_loss(problem.loss, problem.args, target), target, Pins())

    def temporaries():
        return plans.judge.planned_bytes(plans.calibration_plan).temp_bytes

    late = temporaries()
    monkeypatch.setattr(regions, "with_lookups", lambda equations, *_: equations)
    zeros = 2 * shape["vocab"] * shape["width"]
    assert late <= temporaries() - 0.9 * zeros
