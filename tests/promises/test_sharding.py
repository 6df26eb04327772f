"""A plan for a mesh of devices counts the bytes of each of them."""

import dataclasses
import functools
import math

import jax
import pytest
from compilers import foreign_target
from processes import finished, free_port, in_a_job, run_on_cpus, start
from sharded import (
    LAYOUTS,
    abstract,
    bytes_of_one_device,
    llama,
    loss,
    scalar,
    specs,
    tiny_llama,
    wider_llama,
)

import monet_jax
from monet_jax.compiler.targets import TARGETS, topology_of


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", foreign_target("gpu:h100", slow=True)])
def test_a_plan_for_devices_that_are_not_here_keeps_the_budget_of_each(target):
    arrays = specs(abstract(4, 2))
    unplanned = monet_jax.compiled_bytes(jax.value_and_grad(loss), *arrays, target=target)
    options = {"target": target, "max_compilations": 3, "cache": False}
    plan_for = functools.partial(monet_jax.plan, loss, *arrays, **options)
    try:
        plan = plan_for(budget=0.75)
    except monet_jax.InfeasibleBudget as error:  # the workspace of products takes more than it
        plan = plan_for(budget=error.minimum_budget)
    planned = jax.value_and_grad(plan.apply(loss))
    taken = monet_jax.compiled_bytes(planned, *arrays, target=target)
    assert plan.overhead > 0
    assert taken.total_bytes <= plan.budget_bytes < unplanned.total_bytes
    assert taken.argument_bytes == bytes_of_one_device(arrays)
    assert plan.devices == 8 and f"each of 8 {target}" in str(plan)
    nothing_saved = plan.compiled[1]  # predicted before it was compiled, by no other program
    assert nothing_saved.predicted_bytes == pytest.approx(nothing_saved.compiled_bytes, rel=0.35)
    older = dataclasses.replace(plan, jax_version="0.0.1")
    with pytest.warns(monet_jax.PlanningWarning, match="on 8 devices is not verified here"):
        jax.eval_shape(jax.grad(older.apply(loss)), *arrays)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", foreign_target("gpu:h100")])
def test_what_is_sharded_is_kept_in_sixteen_bits_where_it_lies(target):
    arrays = specs(abstract(4, 2))
    budget = monet_jax.plan(loss, *arrays, budget=0.65, target=target, cache=False).compiled_bytes
    exact, lossy = (
        monet_jax.plan(
            loss, *arrays, budget=budget, operators=operators, target=target, cache=False
        )
        for operators in ("exact", ["mask", "bf16"])
    )
    codes = [row for row in lossy.values if row.operator == "bf16"]
    assert codes and lossy.compiled_bytes <= budget
    assert lossy.overhead < exact.overhead


@pytest.mark.parametrize("target", [foreign_target("tpu:v5e")])
def test_a_program_is_compiled_for_sixteen_chips(target):
    arrays = specs(abstract(8, 2))
    taken = monet_jax.compiled_bytes(jax.value_and_grad(loss), *arrays, target=target)
    assert taken.argument_bytes == bytes_of_one_device(arrays)


def test_arguments_that_are_not_read_are_left_out_on_a_mesh_as_well():
    arrays = specs(abstract(4, 2))
    taken = monet_jax.compiled_bytes(lambda x, blocks: 2 * x, arrays[1], arrays[0], target="cpu")
    assert taken.argument_bytes == bytes_of_one_device(arrays[1])


@pytest.mark.parametrize(
    ("target", "devices", "topology"),
    [
        ("gpu:h100", 1, "1x1x1"),
        ("gpu:h100", 8, "1x1x8"),
        ("gpu:h100", 16, "1x2x8"),
        ("tpu:v5e", 16, "v5e:4x4"),
        ("tpu:v5p", 8, "v5p:2x2x2"),
        ("cpu", 8, None),
    ],
)
def test_devices_have_a_topology(target, devices, topology):
    assert topology_of(TARGETS[target], devices) == topology


@pytest.mark.parametrize(("target", "devices"), [("gpu:h100", 12), ("tpu:v5e", 3)])
def test_a_mesh_that_cannot_be_compiled_for_says_which_can(target, devices):
    with pytest.raises(NotImplementedError, match=rf"for {devices} devices.*give a mesh of"):
        topology_of(TARGETS[target], devices)


#: A mesh, a Llama whose temporaries matter there, and a budget that it is too large for.
AWAY = {
    "gpu:h100": ((4, 2), tiny_llama, 0.8),
    "tpu:v5e": ((8, 2), wider_llama, "48MiB"),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", [foreign_target("gpu:h100"), foreign_target("tpu:v5e")])
def test_a_sharded_llama_keeps_the_budget_of_devices_that_are_not_here(target, layout):
    sizes, make, budget = AWAY[target]
    problem = make()
    args = llama(abstract(*sizes), layout, problem)
    plan = monet_jax.plan(scalar(problem), *args, budget=budget, target=target, cache=False)
    planned = jax.value_and_grad(plan.apply(scalar(problem)))
    taken = monet_jax.compiled_bytes(planned, *args, target=target)
    assert plan.overhead > 0 and plan.devices == math.prod(sizes)
    assert taken.total_bytes <= plan.budget_bytes < plan.unplanned_bytes


# A process that sees eight CPUs: what JAX compiles and runs there is what the plan is about.
EIGHT = """
import jax, numpy as np, monet_jax
from sharded import AXES, AxisType, check, check_bytes, llama, loss, scalar, specs, tiny_llama

kind = AxisType.{kind}
mesh = jax.make_mesh((4, 2), AXES, axis_types=(kind,) * 2)
"""
TOY = """
avals = specs(mesh, None if kind is AxisType.Explicit else "model")
rng = np.random.default_rng(0)
values = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.1).astype("f4"), avals)
"""
LLAMA = """
problem = tiny_llama()
avals = llama(mesh, "{layout}", problem)
values, loss = problem.make_args(0), scalar(problem)
"""
CHECKED = """
plain = jax.jit(jax.value_and_grad(loss))(*values)
jax.set_mesh(mesh)
arrays = jax.tree.map(lambda v, s: jax.device_put(v, s.sharding), values, avals)
plan = monet_jax.plan(loss, *arrays, budget=0.75, cache=False)
check(plan.apply(loss), plan, arrays, plain)
if kind is AxisType.Explicit:  # then even a trace says how its arrays lie
    lean = monet_jax.remat(loss, budget=0.75, cache=False)
    jax.eval_shape(jax.grad(lean), *arrays)
    (made,) = lean._source._plans.values()
    check(lean, made, arrays, plain)
"""


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (TOY, "Auto"),
        pytest.param(TOY, "Explicit", marks=pytest.mark.slow),
        *(
            pytest.param(LLAMA.replace("{layout}", x), "Auto", marks=pytest.mark.slow)
            for x in LAYOUTS
        ),
    ],
    ids=["auto", "explicit", *LAYOUTS],
)
def test_sharded_training_keeps_the_budget_of_each_device_and_the_gradients(made, kind):
    run_on_cpus(8, EIGHT.replace("{kind}", kind) + made + CHECKED)


ENCODED = """
_, exact = jax.jit(jax.value_and_grad(loss))(*values)
jax.set_mesh(mesh)
arrays = jax.tree.map(lambda v, s: jax.device_put(v, s.sharding), values, avals)
plan = monet_jax.plan(loss, *arrays, budget=0.65, operators=["mask", "bf16"], cache=False)
assert "bf16" in [row.operator for row in plan.values]
planned = jax.jit(jax.value_and_grad(plan.apply(loss)))
assert planned.lower(*arrays).compile().memory_analysis().temp_size_in_bytes <= plan.budget_bytes
for ours, plain in zip(*map(jax.tree.leaves, (planned(*arrays)[1], exact)), strict=True):
    assert 0 < np.linalg.norm(ours - plain) < 2**-8 * np.linalg.norm(plain)
"""


@pytest.mark.slow
def test_gradients_from_sharded_codes_are_off_by_their_rounding():
    run_on_cpus(8, EIGHT.replace("{kind}", "Auto") + TOY + ENCODED)


# The toy in a process of a job.
SHARED = """
from monet_jax.planning import pipeline

if rank:
    pipeline._find_plan = None  # only process 0 plans
arrays = jax.tree.map(
    lambda v, s: jax.make_array_from_callback(v.shape, s.sharding, v.__getitem__), values, avals
)
plan = monet_jax.plan(loss, *arrays, budget=0.75, cache=False)
planned = jax.jit(jax.value_and_grad(plan.apply(loss)))
check_bytes(planned, plan, arrays)
value, gradient = planned(*arrays)
with jax.default_device(jax.local_devices()[0]):
    plain = jax.jit(jax.value_and_grad(loss))(*values)
np.testing.assert_allclose(value, plain[0], rtol=1e-5)
for ours, whole in zip(jax.tree.leaves(gradient), jax.tree.leaves(plain[1]), strict=True):
    for shard in ours.addressable_shards:
        part = np.asarray(whole)[shard.index]
        np.testing.assert_allclose(shard.data, part, rtol=1e-4, atol=1e-7)
print("the plan:", plan.to_json())
"""


@pytest.mark.slow
def test_a_job_of_eight_processes_runs_one_plan():
    port = free_port()
    code = in_a_job(EIGHT.replace("{kind}", "Auto") + TOY + SHARED, 8)
    jobs = [start(code, port, n, JAX_PLATFORMS="cpu") for n in range(8)]
    outputs = finished(*jobs, timeout=300)
    plans = {out.partition("the plan:")[2] for out in outputs}
    assert len(plans) == 1 and "regions" in plans.pop()
