"""Marks inside of a `shard_map` are planned, collectives and all: each device keeps the budget."""

import pytest
from jax.sharding import AbstractMesh, AxisType
from mapped import AXIS, LOSSES, arguments, step_of
from processes import run_on_cpus
from thinning import thinned

import monet_jax

# A process that sees four CPUs.
FOUR = """
import jax, monet_jax
from jax.sharding import AxisType
from mapped import arguments, step_of, values
from steps import assert_close, bytes_of

mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
name, options = {name!r}, {options!r}
plain, args = jax.jit(step_of(name, jax, mesh, **options)), values(name, mesh)
fixed, temporaries = bytes_of(plain, *args)
budget = fixed + int(0.7 * temporaries)
marked = step_of(name, monet_jax, mesh, **options)
step = monet_jax.jit(marked, budget=budget, max_compilations=3, cache=False)
assert sum(bytes_of(step, *args)) <= budget
assert len(monet_jax.plan(step, *arguments(name, mesh)).plans) == 1
assert_close(step(*args), plain(*args), 1e-5)
"""

#: How a step is made: with types that say what differs along the axis or not, and with the gradient
#: taken inside of the `shard_map` or of it.
WAYS = {
    f"{name}-{'checked' if checked else 'unchecked'}-{'outside' if outside else 'inside'}": (
        name,
        {"checked": checked, "outside": outside},
    )
    for name in LOSSES
    for checked in (True, False)
    for outside in (False, True)
}


@pytest.mark.parametrize("way", thinned(WAYS, "gathered-checked-outside"))
def test_the_budget_of_each_device_is_kept_and_so_are_value_and_gradient(way):
    name, options = WAYS[way]
    run_on_cpus(4, FOUR.format(name=name, options=options))


def test_bytes_of_a_device_are_predicted_where_none_is():
    mesh = AbstractMesh((8,), (AXIS,), axis_types=(AxisType.Auto,))
    marked = step_of("examples", monet_jax, mesh)
    step = monet_jax.jit(marked, budget=0.7, target="cpu", max_compilations=3, cache=False)
    plan = monet_jax.plan(step, *arguments("examples", mesh))
    (own,) = plan.plans.values()
    for row in own.compiled[1:]:
        assert row.predicted_bytes == pytest.approx(row.compiled_bytes, rel=0.1)
    assert max(plan.timeline.total_bytes) == pytest.approx(plan.compiled_bytes, rel=0.2)
    assert plan.timeline.moments[plan.timeline.peak].primitive != "shard_map"
