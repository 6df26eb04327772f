"""A state is placed where its plan has it, and refused elsewhere."""

import dataclasses
import functools

import jax
import optax
import pytest
from compilers import foreign_target
from hosted import HOST, kinds, layout_of, small_counts
from processes import run_python
from steps import assert_close, loss, normal, plain, updated

import monet_jax
from monet_jax.step import jit as step_jit
from monet_jax.step.updates.layout import UpdateLayout
from monet_jax.step.updates.link import CopySeconds


@pytest.fixture(scope="module")
def planned_once():
    case = plain()
    return monet_jax.plan(case.planned(1.0), case.state, case.batch)


@pytest.fixture
def hosted(monkeypatch, planned_once):
    """A step whose plan has four leaves of its state on the host."""
    small_counts(monkeypatch)
    case = plain()
    copies = CopySeconds(1e-3, 1e-4, 1e-2)
    plan = dataclasses.replace(planned_once, layout=layout_of(case, 4), copies=copies)
    monkeypatch.setattr(step_jit, "plan_step", lambda call, options: plan)
    return case, case.planned(1.0), plan


def test_a_placed_state_stays_placed_and_is_donated(hosted):
    case, step, _ = hosted
    given = step.place(case.fresh(), case.batch)
    state, value = step(given, case.batch)
    assert kinds(given) == kinds(state) and kinds(state).count(HOST) == 4
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert_close((state, value), case.plain(case.fresh(), case.batch), 1e-5)
    assert step.place(state, case.batch)[1][0].mu[0] is state[1][0].mu[0]
    assert not monet_jax.donation_report(step, state, case.batch).wasted
    assert step.eval_shape(state, case.batch)[1].shape == ()


def test_a_state_elsewhere_is_refused_with_the_call_that_places_it(hosted, monkeypatch):
    case, step, plan = hosted
    with pytest.raises(
        monet_jax.PlanMismatch, match=r"args\[0\]\[1\].*lies on the device"
    ) as found:
        step(case.state, case.batch)
    assert ".step.place(state, batch)`" in str(found.value)
    placed = step.place(case.fresh(), case.batch)
    back = dataclasses.replace(plan, layout=UpdateLayout(), copies=None)
    monkeypatch.setattr(step_jit, "plan_step", lambda call, options: back)
    other = case.planned(1.0)
    with pytest.raises(monet_jax.PlanMismatch, match="4 of its arrays lie on the host"):
        other(placed, case.batch)
    assert HOST not in kinds(other.place(placed, case.batch))


def test_shapes_are_placed_for_a_checkpoint_to_be_restored_into(hosted):
    case, step, _ = hosted
    shapes = jax.eval_shape(functools.partial(jax.tree.map, lambda x: x), case.state)
    target = step.place(shapes, case.batch)
    found = [leaf.sharding and leaf.sharding.memory_kind for leaf in jax.tree.leaves(target)]
    assert found.count(HOST) == 4
    restored = jax.device_put(
        case.state, jax.tree.map(lambda x, y: y.sharding or x.sharding, case.state, target)
    )
    state, _ = step(restored, case.batch)
    assert kinds(state).count(HOST) == 4


def test_nothing_is_placed_where_nothing_is_donated(hosted):
    case, _, _ = hosted
    step = case.planned(1.0, donate_argnums=())
    with pytest.raises(ValueError, match="donates no positional argument"):
        step.place(case.state, case.batch)


def test_the_plan_says_what_lives_on_the_host(hosted, tmp_path):
    *_, plan = hosted
    assert "4 leaves of the state (16.0 KiB) live on the host" in str(plan)
    assert "4.0 KiB  args[0][1][0].mu[2]" in str(plan)
    plan.to_html(tmp_path / "step.html")
    assert "4.0 KiB  args[0][1][0].mu[2]" in (tmp_path / "step.html").read_text()
    plan.save(tmp_path / "step.json")
    assert monet_jax.load_plan(tmp_path / "step.json") == plan


@pytest.mark.parametrize("target", [foreign_target("gpu:h100", slow=True)])
def test_a_step_is_planned_placed_and_run(target):
    """Planned for a GPU and run here, where the memory kinds are the same."""
    adamw, width = optax.adamw(1e-3), 128

    def step(state, x):
        return updated(adamw, state, jax.grad(loss)(state[0], x))

    params = [normal(n, width, width, scale=0.1) for n in range(4)]
    state, x = (params, adamw.init(params)), normal(9, 64, width)
    plain_step = jax.jit(step, donate_argnums=0)
    bytes_of = functools.partial(monet_jax.compiled_bytes, target=target)
    budget = bytes_of(plain_step, state, x).total_bytes - 5 * params[0].nbytes
    options = {"target": target, "host": "states", "donate_argnums": 0, "cache": False}
    planned = monet_jax.jit(step, budget=budget, **options)
    plan = monet_jax.plan(planned, state, x)
    assert plan.copies and not plan.plans and plan.compiled_bytes <= budget
    placed = planned.place(state, x)
    assert kinds(placed).count(HOST) == len(plan.layout.on_host) > 0
    assert bytes_of(planned, placed, x).total_bytes == plan.compiled_bytes
    assert monet_jax.check(plan, planned, state, x).holds
    expected = plain_step(jax.tree.map(jax.numpy.copy, state), x)
    assert_close(planned(placed, x), expected, 1e-5)


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings"])
def test_shardings_of_arguments_are_theirs(option):
    with pytest.raises(ValueError, match="Shard the arrays of the state themselves"):
        plain().planned(0.5, target="gpu:h100", host="states", **{option: None})


def test_state_on_the_host_is_for_steps_of_devices_with_a_host():
    with pytest.raises(ValueError, match='the target is "cpu"'):
        plain().planned(0.5, target="cpu", host="states")
    for ask in (monet_jax.remat, monet_jax.plan):
        with pytest.raises(ValueError, match="is about the optimizer's state"):
            ask(jax.numpy.sum, budget="1GiB", target="gpu:h100", host="states")
    with pytest.raises(ValueError, match="functional style"):
        monet_jax.flax.jit(lambda m: m, budget="1GiB", target="gpu:h100", host="states")


@pytest.mark.slow
def test_a_sharded_state_is_kept_sharded_on_the_host_and_in_checkpoints(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    run_python(
        """
import dataclasses, os
import jax, numpy as np, pytest
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from hosted import HOST, kinds, layout_of, small_counts
from steps import assert_close, plain
import monet_jax
from monet_jax.step import jit as step_jit
from monet_jax.step.updates.link import CopySeconds

small_counts(pytest.MonkeyPatch())
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
case = plain()
split = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*["data"] * (x.ndim > 0))))
state, x = jax.tree.map(split, case.fresh()), split(case.batch)
plan = monet_jax.plan(case.planned(1.0), state, x)
plan = dataclasses.replace(plan, layout=layout_of(case), copies=CopySeconds(1.0, 0.0, 1.0))
step_jit.plan_step = lambda call, options: plan
step = case.planned(1.0)
before = [leaf.sharding.spec for leaf in jax.tree.leaves(state)]
state, value = step(step.place(state, x), x)
assert kinds(state).count(HOST) == 6
assert [leaf.sharding.spec for leaf in jax.tree.leaves(state)] == before
assert_close((state, value), case.plain(case.fresh(), case.batch), 1e-5)

with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(os.environ["FOLDER"] + "/state", state)
    checkpointer.wait_until_finished()
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    restored = checkpointer.restore(os.environ["FOLDER"] + "/state", step.place(shapes, x))
assert kinds(restored) == kinds(state)
assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state)))
step(restored, x)
""",
        FOLDER=str(tmp_path),
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
    )
