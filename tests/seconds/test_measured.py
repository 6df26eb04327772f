"""Ops that run alone, parts of large ones, and prices by a clock that the tests set."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import monet_jax
from monet_jax import _disk
from monet_jax.analyzer.fusion import Fusions, group_of
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir.program import flatten
from monet_jax.planning.failures import PlanningWarning
from monet_jax.seconds import measured, rates
from monet_jax.seconds.clock import Timing
from monet_jax.seconds.measured import Measured
from monet_jax.seconds.prices import Price
from monet_jax.seconds.running import part_of, runnable
from monet_jax.seconds.store import Store

CPU = resolve_target("cpu")
OVERHEAD = 0.25


def groups(fun, *args):
    """The ops of a function."""
    program = flatten(jax.make_jaxpr(fun)(*args))
    fusions = Fusions(program, backend_of("cpu"))
    return [group_of(fusions, x) for x in fusions.all()]


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A clock that says 1 s, and 0.25 s for a run of nothing, and counts what it is asked."""
    monkeypatch.setenv(_disk.DIRECTORY, str(tmp_path))
    monkeypatch.delenv(_disk.DISABLE, raising=False)
    asked = []

    def says(run, *limits, seconds=(1.0, 1.0, 1.0)):
        asked.append(run())
        return Timing(seconds)

    for module in (measured, rates):
        monkeypatch.setattr(module, "timed", says)
    monkeypatch.setattr(measured, "_overhead", lambda store: OVERHEAD)
    monkeypatch.setattr(rates, "in_turns", lambda runs, turns: [Timing((2.0,)), Timing((1.0,))])
    return asked


def prices():
    return Measured(CPU, lambda text: None)


def layer(x, w):
    return jnp.tanh(jnp.reshape(x, (-1, 8)) @ w.T) * 2


def test_an_op_runs_alone_and_computes_what_it_computes_in_its_program():
    product, rest = groups(layer, jnp.ones((4, 4, 8)), jnp.ones((16, 8)))
    assert [e.primitive for e in product.equations] == ["reshape", "transpose", "dot_general"]
    rng = np.random.default_rng(0)
    x, w, y = ((rng.random(n, np.float32) + 0.5) for n in (128, 128, 256))
    for _ in range(3):  # each run writes over the results of the last one
        (got,) = runnable(rest)()
    del x, w
    y = np.random.default_rng(0).random(256, np.float32).reshape(16, 16) + 0.5
    np.testing.assert_allclose(got, 2 * np.tanh(y), rtol=1e-6)


def image(x, k):
    return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")


def loop(x, w):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0]


@pytest.mark.parametrize(
    ("fun", "shapes"),
    [
        (jnp.matmul, [(4096, 64), (64, 32)]),
        (image, [(64, 4, 8, 8), (4, 4, 3, 3)]),
        (loop, [(16, 16), (128, 16, 16)]),
    ],
)
def test_a_large_op_is_timed_on_a_part_that_is_scaled(fun, shapes):
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    (whole,) = groups(fun, *args)
    part, times = part_of(whole, 1 / 4)
    assert times == pytest.approx(4)
    assert part.work.flops * times == pytest.approx(whole.work.flops)
    jax.block_until_ready(runnable(part)())
    assert part_of(whole, 1.0) == (whole, 1.0)


def test_a_loop_with_what_it_begins_with_is_timed_on_a_part(clock, monkeypatch):
    def sums(w):
        def step(c, w):
            c = c + jnp.tanh(w)
            return c, c

        return jax.lax.scan(step, jnp.zeros((16, 16)), w)

    (whole,) = groups(sums, jax.ShapeDtypeStruct((128, 16, 16), jnp.float32))
    assert len(whole.equations) > 1
    part, times = part_of(whole, 1 / 4)
    assert times == 4
    assert [part.avals[i].shape for i in part.outputs] == [(16, 16), (32, 16, 16)]
    found = prices()
    monkeypatch.setattr(found, "_most_bytes", whole.moved_bytes - 1)
    assert found.of(whole).source == "measured"
    assert found.of(whole).seconds == pytest.approx(2 * (1.0 - OVERHEAD), rel=0.02)


def test_the_clock_is_asked_once_for_each_distinct_op_of_all_processes(clock):
    first, second, third = groups(lambda x, w: (x @ w, w @ x, x @ x), *[jnp.ones((8, 8))] * 2)
    found, known = prices(), len(clock)
    assert found.of(first).seconds == pytest.approx(1.0 - OVERHEAD)
    assert found.of(first) == found.of(second)
    assert found.of(first).source == "measured"
    assert len(clock) == known + 1
    assert found.of(third) and len(clock) == known + 2  # it reads one array twice
    assert found.finish() == ""
    asked, again = len(clock), prices()
    assert again.of(second) == found.of(first)
    assert len(clock) == asked


def test_what_cannot_run_alone_is_priced_by_the_roofline(clock, monkeypatch):
    def prints(x):
        jax.debug.callback(lambda x: None, x)
        return x @ x

    *_, effect = sorted(groups(prints, jnp.ones((8, 8))), key=lambda x: -len(x.outputs))
    (product,) = groups(jnp.matmul, *[jnp.ones((8, 8))] * 2)
    found = prices()
    assert found.of(effect).source == "roofline"
    monkeypatch.setattr(found, "_most_bytes", product.moved_bytes - 1)
    assert found.of(product).source == "roofline"  # it would take too much memory

    def fails(group):
        raise RuntimeError("RESOURCE_EXHAUSTED")

    late = prices()
    monkeypatch.setattr(measured, "runnable", fails)
    assert late.of(product).source == "roofline"
    assert late.of(product).seconds == late.roofline.seconds(product.work, product.moved_bytes)


def test_times_that_scatter_are_taken_again_then_said_and_not_kept(clock, monkeypatch):
    (product,) = groups(jnp.matmul, *[jnp.ones((8, 8))] * 2)
    found, asked = prices(), []

    def scatters(run, *limits):
        asked.append(limits)
        return Timing((1.0, 2.0, 3.0, 4.0))

    monkeypatch.setattr(measured, "timed", scatters)
    assert found.of(product) == found.of(product) == Price(2.5 - OVERHEAD, "measured")
    assert len(asked) == 2 and asked[1][0] > asked[0][0]
    assert "1 of 1 ops" in found.finish()
    assert found.finish() == ""
    monkeypatch.setattr(measured, "timed", lambda run, *limits: Timing((1.0, 1.0)))
    assert prices().of(product) == Price(1.0 - OVERHEAD, "measured")


def test_no_op_is_timed_when_the_time_is_over(clock, monkeypatch):
    monkeypatch.setattr(measured, "MOST_SECONDS", 0.0)
    (product,) = groups(jnp.matmul, *[jnp.ones((8, 8))] * 2)
    assert prices().of(product).source == "roofline"


def test_rates_that_scatter_are_those_of_the_table(clock, monkeypatch):
    table = measured.roofline_of(CPU)
    store = Store("a device")
    found = rates.measured_roofline(store, table)
    assert found.matmul_flops_per_second["float32"] == 2 * rates.SIDE**3
    monkeypatch.setattr(rates, "timed", lambda run, *limits: Timing((1.0, 2.0, 3.0)))
    assert rates.measured_roofline(Store("another"), table) == table
    assert rates.measured_roofline(store, table) == found


def test_a_first_touch_takes_what_fresh_memory_takes_longer(clock, monkeypatch):
    store = Store("a device")
    fresh, again = Timing((2.5, 3.0, 9.0)), Timing((1.0, 1.0, 1.0))
    monkeypatch.setattr(rates, "in_turns", lambda runs, turns: [fresh, again])
    assert rates.touch_seconds_per_byte(store) == 2.0 / (4 * rates.ELEMENTS)
    monkeypatch.setattr(rates, "in_turns", lambda runs, turns: [again, fresh])
    assert rates.touch_seconds_per_byte(store) == 2.0 / (4 * rates.ELEMENTS)  # from the store
    assert rates.touch_seconds_per_byte(Store("another")) == 0.0
    monkeypatch.setattr(rates.jax, "default_backend", lambda: "gpu")
    assert rates.touch_seconds_per_byte(store) == 0.0


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@pytest.mark.slow
def test_a_plan_by_the_clock_says_so_and_leaves_the_gradient_as_it_is(clock):
    args = [jnp.eye(64) / 2] * 6, jnp.ones((512, 64))
    plan = monet_jax.plan(loss, *args, budget=0.9, costs="measured", cache=False)
    assert {row.source for row in plan.sources} == {"measured"}
    assert "measured on this device" in str(plan)
    planned = monet_jax.remat(loss, budget=0.9, costs="measured", cache=False)
    got = jax.jit(jax.grad(planned))(*args)  # ops are timed while an outer function is traced
    for a, b in zip(got, jax.grad(loss)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_a_busy_device_is_warned_of(clock, monkeypatch):
    monkeypatch.setattr(measured, "timed", lambda run, *limits: Timing((1.0, 2.0, 3.0)))
    args = [jnp.eye(64) / 2] * 6, jnp.ones((512, 64))
    with pytest.warns(PlanningWarning, match="the device is busy"):
        plan = monet_jax.plan(loss, *args, budget=0.9, costs="measured", cache=False)
    assert {row.source for row in plan.sources} == {"measured"}


def test_costs_are_checked():
    with pytest.raises(ValueError, match='"model" or "measured"'):
        monet_jax.remat(loss, budget=0.5, costs="clock")


def test_the_copy_of_a_cotangent_is_added_to_a_product_that_was_timed_alone(clock):
    def gradient(y, x):
        return jnp.einsum("bsn,bsk->nk", y, x)

    def summed(y, xs):
        start = jnp.zeros((512, 16))
        return jax.lax.scan(lambda sum, x: (sum + gradient(y, x), None), start, xs)[0]

    y, x = jnp.ones((4, 256, 512)), jnp.ones((4, 256, 16))
    (product,) = groups(gradient, y, x)
    *_, scan = groups(summed, y, jnp.stack([x] * 3))
    found, alone = prices(), 1 - OVERHEAD
    copied = y.nbytes * found.roofline.relay_seconds
    assert copied > 0 and found.of(product).seconds == pytest.approx(alone + copied, rel=1e-9)
    assert scan.work.relaid_bytes == 3 * y.nbytes
    assert found.of(scan).seconds == pytest.approx(alone, rel=1e-9)
