"""Steps are planned for devices that are not here, and for the bytes of each of several."""

import jax
import pytest
from compilers import foreign_target
from jax.sharding import NamedSharding, PartitionSpec
from processes import run_python
from sharded import abstract, bytes_of_one_device, loss, specs
from steps import ADAMW, updated

import monet_jax


def step(state, x):
    value, gradient = monet_jax.value_and_grad(loss)(state[0], x)
    return updated(ADAMW, state, gradient), value


def arguments(mesh):
    """Parameters and their optimizer's state, sharded alike, and a batch."""
    params, x = specs(mesh)
    state = jax.eval_shape(ADAMW.init, params)
    layout = {w.shape: w.sharding for w in jax.tree.leaves(params)}
    layout[()] = NamedSharding(mesh, PartitionSpec())
    inner = jax.tree.map(lambda s: s.update(sharding=layout[s.shape]), state)
    return (params, inner), x


@pytest.mark.parametrize("target", ["cpu", foreign_target("gpu:h100", slow=True)])
def test_a_step_on_a_mesh_keeps_the_budget_of_each_device(target):
    state, x = arguments(abstract(4, 2))
    options = {"donate_argnums": 0, "max_compilations": 2, "cache": False}
    planned = monet_jax.jit(step, budget=0.75, target=target, **options)
    plan = monet_jax.plan(planned, state, x)
    assert plan.devices == 8 and plan.overhead > 0
    assert plan.compiled_bytes <= plan.budget_bytes < plan.unplanned_bytes
    assert plan.unplanned.argument_bytes == bytes_of_one_device((state, x))


@pytest.mark.parametrize(
    "target", [foreign_target(name, slow=True) for name in ("gpu:h100", "tpu:v5e")]
)
def test_a_step_is_planned_for_a_device_that_is_not_here(target):
    shapes = (256, 512), (512, 256)
    blocks = [tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)] * 3
    state = blocks, jax.eval_shape(ADAMW.init, blocks)
    x = jax.ShapeDtypeStruct((8192, 256), "float32")
    planned = monet_jax.jit(step, budget=0.7, target=target, donate_argnums=0, cache=False)
    plan = monet_jax.plan(planned, state, x)
    assert plan.target == target and plan.unplanned.alias_bytes > 0
    assert plan.compiled_bytes <= plan.budget_bytes < plan.unplanned_bytes


@pytest.mark.slow
def test_sharded_arrays_are_planned_for_one_device_of_theirs():
    run_python(
        """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from steps import assert_close, bytes_of, layers, normal, plain

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
case = plain()
put = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
state, x = jax.tree.map(put, case.fresh()), put(case.batch, "data")
fixed, temporaries = bytes_of(case.plain, state, x)
import monet_jax
step = monet_jax.jit(
    case.make(monet_jax), budget=fixed + int(0.7 * temporaries), donate_argnums=0, cache=False
)
assert sum(bytes_of(step, state, x)) <= fixed + 0.7 * temporaries
expected = case.plain(case.fresh(), case.batch)
assert_close(step(state, x), expected, 1e-4)

places = tuple(NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
step = case.planned(0.6, budget=fixed + int(0.7 * temporaries), in_shardings=places)
plan = monet_jax.plan(step, case.state, case.batch)
assert plan.devices == 4 and plan.compiled_bytes <= plan.budget_bytes
assert_close(step(case.fresh(), case.batch), expected, 1e-4)
""",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
