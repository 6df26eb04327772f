"""The seconds of traced steps, against traffic counted by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from monet_jax.analyzer.step_costs import step_costs
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import TARGETS
from monet_jax.ir.barriers import written_once
from monet_jax.seconds.attained import modelled, roofline_of
from monet_jax.seconds.prices import ByRoofline
from monet_jax.seconds.running import runnable

H100 = TARGETS["gpu:h100"]
ROOFLINE = roofline_of(H100)
SIDE = 4096
ARRAY = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
#: Seconds in which an array of `ARRAY` is read or written once.
ONCE = 4 * SIDE**2 / H100.bandwidth_bytes_per_second


def seconds(fun, *args) -> float:
    """On an H100, by its roofline."""
    return step_costs(fun, args, modelled(H100), backend_of("gpu:h100")).seconds


def test_what_passes_a_barrier_costs_its_reader_nothing_of_what_passes_beside_it():
    def fun(*arrays):
        barred = jax.lax.optimization_barrier(tuple(x + 1 for x in arrays))
        return [jnp.exp(x) for x in barred]

    # Each of eight is read and written behind the barrier, and before it.
    assert seconds(fun, *[ARRAY] * 8) == pytest.approx(8 * 4 * ONCE)


def test_a_residual_stream_is_written_where_many_read_it():
    def fun(x, weights):
        sums = []
        for w in weights:
            x = x + jnp.tanh(x @ w)
            sums += [x.sum(0), (x * x).sum(0), (x * x * x).sum(0)]
        return x, sums

    def at(depth):
        return seconds(fun, ARRAY, [ARRAY] * depth)

    # Summed up from the first block in each block, it would grow with the square of the depth.
    assert at(32) - at(16) == pytest.approx(2 * (at(16) - at(8)), rel=0.02)


def test_an_op_computes_once_what_it_reads_several_times():
    """Which of some elements is the greatest: each comparison decides the place and the element."""

    def fun(arrays):
        best, place = arrays[0], jnp.zeros((SIDE, SIDE), jnp.uint8)
        for n, x in enumerate(arrays[1:], 1):
            stays = best >= x
            place, best = jnp.where(stays, place, jnp.uint8(n)), jnp.where(stays, best, x)
        return place

    assert seconds(fun, [ARRAY] * 8) == pytest.approx((8 + 1 / 4) * ONCE, rel=0.01)


def test_a_cheap_value_is_computed_where_it_is_read():
    def fun(x):
        y = x * 2
        return y.sum(0), (y * y).sum(0), (y + 1).sum(0)

    assert seconds(fun, ARRAY) == pytest.approx(3 * ONCE, rel=0.01)


def test_no_op_is_launched_for_a_value_that_takes_less_to_compute_anew():
    """Scales of a normalization: a row that many ops read, from several rows."""

    def fun(arrays, rows):
        scale = sum(rows)
        return [x * scale for x in arrays]

    rows, launch = [jax.ShapeDtypeStruct((SIDE,), jnp.float32)] * 4, ROOFLINE.launch_seconds
    assert seconds(fun, [ARRAY] * 8, rows) == pytest.approx(8 * 2 * ONCE, abs=launch / 2)
    free = ByRoofline(dataclasses.replace(ROOFLINE, launch_seconds=0.0))
    found = step_costs(fun, ([ARRAY] * 8, rows), free, backend_of("gpu:h100")).seconds
    more = 8 * (len(rows) - 1) - len(rows) - 1  # rows that are read or written more, else
    assert seconds(fun, [ARRAY] * 8, rows) - found == pytest.approx(more * ONCE / SIDE, rel=0.01)


def test_slices_that_several_ops_read_are_not_written():
    """Each op reads its slices where they lie, and not the whole."""
    rows = SIDE // 4

    def fun(x):
        parts = [x[n * rows : (n + 1) * rows] for n in range(4)]
        return [(a - b).sum(0) for a in parts for b in parts if a is not b]

    assert seconds(fun, ARRAY) == pytest.approx(12 * 2 * ONCE / 4, rel=0.01)


def test_slices_are_read_and_updates_written_in_place():
    rows = SIDE // 2

    def read(x, i):
        return jax.lax.dynamic_slice_in_dim(x, i, rows, 0) * 2

    def written(x, y, i):
        return jax.lax.dynamic_update_slice_in_dim(x, y, i, 0)

    # An unsigned index: JAX would look whether another is negative.
    i, part = jax.ShapeDtypeStruct((), jnp.uint32), jax.ShapeDtypeStruct((rows, SIDE), jnp.float32)
    assert seconds(read, ARRAY, i) == pytest.approx(2 * ONCE / 2, rel=0.01)
    assert seconds(written, ARRAY, part, i) == pytest.approx(2 * ONCE / 2, rel=0.01)


def test_what_a_loop_collects_is_copied_into_its_stack():
    trips = 8

    def fun(collects, x):
        def body(x, _):
            x = jnp.sin(x)
            return x, x if collects else None

        return jax.lax.scan(body, x, length=trips)

    def more(collects):
        return seconds(lambda x: fun(collects, x), ARRAY)

    # A trip reads and writes its carry; a copy reads and writes it once more.
    assert more(False) == pytest.approx(trips * 2 * ONCE)
    assert more(True) == pytest.approx(trips * 4 * ONCE)


def test_a_slice_is_copied_out_of_its_stack_for_a_product_and_read_there_by_a_fusion():
    trips, weights = 8, jax.ShapeDtypeStruct((8, SIDE, SIDE), jnp.float32)

    def looped(step):
        def fun(x, stack):
            return jax.lax.scan(lambda x, w: (step(x, w), None), x, stack)[0]

        return seconds(fun, ARRAY, weights)

    once = seconds(jnp.matmul, ARRAY, ARRAY)
    assert looped(jnp.matmul) == pytest.approx(trips * (once + 2 * ONCE))
    assert looped(lambda x, w: jnp.sin(x * w)) == pytest.approx(trips * 3 * ONCE)


def test_a_broadcast_that_jax_moves_out_of_a_loop_costs_the_loop_nothing():
    trips = 8

    def fun(x):
        ones = jnp.broadcast_to(jnp.float32(2), x.shape)
        return jax.lax.scan(lambda x, _: (jnp.sin(x * ones), None), x, length=trips)[0]

    assert seconds(fun, ARRAY) == pytest.approx(trips * 2 * ONCE, rel=0.15)


def test_an_op_in_a_loop_runs_alone_with_a_broadcast_that_jax_moved_out(monkeypatch):
    def fun(x):
        low = jnp.broadcast_to(jnp.float32(-1), x.shape)
        return jax.lax.scan(lambda x, _: (jnp.where(x > 0, x, low), None), x, length=8)[0]

    prices, groups = modelled(H100), []
    price = prices.of
    monkeypatch.setattr(prices, "of", lambda group: groups.append(group) or price(group))
    step_costs(fun, (jnp.zeros((2, 3)),), prices, backend_of("gpu:h100"))
    inside = next(g for g in groups if g.equations[-1].primitive == "select_n")
    (got,) = runnable(inside)()
    assert got.shape == (2, 3)


def test_a_reduction_of_axes_of_size_one_is_no_op():
    def fun(x):
        return jnp.exp(jnp.exp(x)[:, None].sum(1))

    assert seconds(fun, ARRAY) == pytest.approx(2 * ONCE, rel=0.01)


@pytest.mark.parametrize(("bits", "more"), [(23, 0), (7, 2 * ONCE)], ids=["idle", "coarser"])
def test_rounding_to_the_precision_of_a_value_is_no_op(bits, more):
    def product(x):
        return x @ x

    def rounded(x):
        return jax.lax.reduce_precision(x @ x, exponent_bits=8, mantissa_bits=bits)

    assert seconds(rounded, ARRAY) - seconds(product, ARRAY) == pytest.approx(more, abs=ONCE / 10)


def test_a_barrier_with_a_derivative_of_its_own_costs_nothing_but_what_is_written_before_it():
    def product(x):
        return x @ x

    def barred(x):
        return written_once(x @ x)

    assert seconds(barred, ARRAY) == seconds(product, ARRAY)
    assert seconds(lambda x: written_once(x * 2) + 1, ARRAY) == pytest.approx(4 * ONCE)


@pytest.mark.parametrize(("through", "more"), [("float32", 0), ("float8_e5m2", 2 * ONCE / 2)])
def test_a_cast_to_a_wider_dtype_and_back_is_no_op(through, more):
    half = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.bfloat16)

    def product(x):
        return jax.lax.optimization_barrier(x @ x)

    def cast(x):
        return jax.lax.optimization_barrier((x @ x).astype(through).astype(x.dtype))

    assert seconds(cast, half) - seconds(product, half) == pytest.approx(more, abs=ONCE / 20)
