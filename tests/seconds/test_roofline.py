"""Seconds by a roofline: its two sides, the staircase of tiles, and where seconds come from."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import planners
from monet_jax.analyzer.analyze import analyze
from monet_jax.analyzer.step_costs import step_costs
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import TARGETS, resolve_target
from monet_jax.seconds.attained import measurement_of, modelled, roofline_of
from monet_jax.tracing.trace import trace_for


def seconds(target: str, fun, *shapes, dtype=jnp.bfloat16) -> float:
    """Of a traced function, by the roofline of a target."""
    found = resolve_target(target)
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return step_costs(fun, args, modelled(found), backend_of(target)).seconds


def matmul(target: str, rows: int, depth: int, columns: int) -> float:
    return seconds(target, jnp.matmul, (rows, depth), (depth, columns))


def test_an_op_takes_the_longer_of_its_arithmetic_and_its_traffic():
    target = TARGETS["gpu:h100"]
    # By hand: 2 * 8192 ** 3 at 0.661 of 989 TFLOP/s; and 3 * 2 GiB at 3.35 TB/s.
    assert matmul("gpu:h100", 8192, 8192, 8192) == pytest.approx(1.681e-3, rel=1e-2)
    traffic = 3 * 2**31 / target.bandwidth_bytes_per_second
    added = seconds("gpu:h100", jnp.add, (2**15, 2**15), (2**15, 2**15))
    assert added == pytest.approx(traffic)


def test_an_op_takes_a_gpu_at_least_as_long_as_to_launch_it():
    def steps(x):
        return jax.lax.scan(lambda x, _: (jnp.sin(x) @ x, None), x, length=100)[0]

    assert seconds("gpu:h100", steps, (8, 8)) == pytest.approx(200 * 4e-6)
    assert seconds("gpu:h100", lambda x: x.T, (8, 8)) == 0
    assert seconds("tpu:v5e", steps, (8, 8)) < 1e-5


def test_a_cpu_looks_through_the_windows_of_a_pooling_one_by_one():
    def pooled(x, stride):
        pool = functools.partial(nn.max_pool, window_shape=(3, 3), strides=(stride, stride))
        return jax.vjp(pool, x)[1](jnp.ones(jax.eval_shape(pool, x).shape))[0]

    for stride, sides in ((1, 62), (2, 31)):
        pool = functools.partial(pooled, stride=stride)
        elements = 8 * sides**2 * 32 * 9
        found = seconds("cpu", pool, (8, 64, 64, 32), dtype=jnp.float32)
        assert 1.0 < found / (elements * 6.5e-9) < 1.2
        assert seconds("gpu:h100", pool, (8, 64, 64, 32), dtype=jnp.float32) < 1e-4
    loop = functools.partial(jax.lax.map, functools.partial(pooled, stride=2))
    assert seconds("cpu", loop, (5, 8, 64, 64, 32), dtype=jnp.float32) > 5 * elements * 6.5e-9


def test_a_cpu_copies_the_cotangent_for_the_gradient_of_weights_by_several_axes():
    def gradient(x, w, y):
        return jax.vjp(jnp.matmul, x, w)[1](y)[1]

    def found(target, *batch):
        shapes = (*batch, 64), (64, 256), (*batch, 256)
        return seconds(target, gradient, *shapes, dtype=jnp.float32)

    copied = 4 * 2048 * 256 * 1.0e-9
    assert found("cpu", 4, 512) == pytest.approx(found("cpu", 2048) + copied)
    for target in ("gpu:h100", "tpu:v5e"):
        assert found(target, 4, 512) == pytest.approx(found(target, 2048))
    # A product over several axes of a layer, heads and their parts, is no such gradient.
    products = [
        seconds("cpu", functools.partial(jnp.einsum, axes), *shapes)
        for axes, shapes in (
            ("bshk,hkd->bsd", ((4, 512, 4, 16), (4, 16, 256))),
            ("bsk,kd->bsd", ((4, 512, 64), (64, 256))),
        )
    ]
    assert products[0] == pytest.approx(products[1])


def casting(inside, w, xs):
    """A loss whose loop multiplies with weights that are cast in each iteration, or before it."""

    def step(h, x):
        return jnp.tanh(h + x @ (w.astype(jnp.bfloat16) if inside else w)), None

    w = w if inside else w.astype(jnp.bfloat16)
    return jnp.mean(jax.lax.scan(step, xs[0], xs)[0].astype(jnp.float32))


def graph_of_casting(inside, operators):
    shapes = ((4096, 4096), jnp.float32), ((64, 8, 4096), jnp.bfloat16)
    args = [jax.ShapeDtypeStruct(*x) for x in shapes]
    target = resolve_target("gpu:h100")
    traced = trace_for(target, functools.partial(casting, inside), args, operators=operators)
    return analyze(traced.staged(), modelled(target), backend_of(target.name))[0]


def test_what_is_loop_invariant_is_priced_and_kept_once():
    """As JAX does without our operators: weights that each iteration casts cost what casting them
    before the loop does."""

    def costs(inside):
        """Seconds of all forward ops, and bytes of what an iteration keeps if it is left alone."""
        graph = graph_of_casting(inside, operators=())
        backward = sum(op.seconds for stage in graph.stages for op in stage.backward)
        return graph.seconds - backward, sum(stage.alone_bytes for stage in graph.stages)

    assert costs(inside=True) == pytest.approx(costs(inside=False), rel=0.02)


@pytest.mark.parametrize(("operators", "casts"), [((), 64), ("exact", 1)])
def test_an_iteration_that_runs_again_computes_what_is_loop_invariant_anew(operators, casts):
    """Unless we hoist it out of the loop: XLA does not, past the barrier of the recomputation."""

    def more(inside):
        graph = graph_of_casting(inside, operators)
        return planners.save_nothing(graph).seconds - planners.save_all(graph).seconds

    forward = (op for stage in graph_of_casting(False, ()).stages for op in stage.forward)
    (cast,) = (op.seconds for op in forward if op.name == "convert_element_type" and op.seconds)
    found = more(inside=True) - more(inside=False)
    assert found == pytest.approx(casts * cast, rel=0.1, abs=cast)


def test_a_product_with_65_columns_takes_as_long_as_one_with_128_on_a_gpu():
    at = [matmul("gpu:h100", 2**14, 2**14, 2**11 + n) for n in (-1, 0, 1, 64)]
    assert at[0] == pytest.approx(at[1])
    assert at[2] == pytest.approx(at[3]) == pytest.approx(33 / 32 * at[1])


def test_a_tpu_sums_over_multiples_of_128():
    """Of the other sides, one may be a multiple of 8 only: the operand that moves."""
    depths = [matmul("tpu:v5e", 2**13, 2**11 + n, 2**13) for n in (-1, 0, 1, 128)]
    assert depths[0] == pytest.approx(depths[1])
    assert depths[2] == pytest.approx(depths[3]) == pytest.approx(17 / 16 * depths[1])
    columns = [matmul("tpu:v5e", 2**13, 2**13, 2**11 + n) for n in (1, 8)]
    assert columns[0] == pytest.approx(columns[1])


def test_a_product_with_one_column_is_not_charged_for_a_tile():
    """It runs in the vector units, as fast as its matrix is read."""
    found = seconds("tpu:v5e", jnp.matmul, (16384, 16384), (16384,))
    traffic = 2 * (16384**2 + 2 * 16384) / TARGETS["tpu:v5e"].bandwidth_bytes_per_second
    assert found == pytest.approx(traffic)


def convolved(image, kernel):
    return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME")


def test_a_convolution_takes_as_long_as_the_product_that_it_is():
    image, kernel = (64, 512, 32, 32), (512, 512, 3, 3)
    found = seconds("gpu:h100", convolved, image, kernel)
    assert found == pytest.approx(matmul("gpu:h100", 64 * 32 * 32, 9 * 512, 512))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_names_the_measurement_of_its_rates(target):
    assert "JAX 0.1" in measurement_of(TARGETS[target])
    rates = roofline_of(TARGETS[target])
    assert rates.matmul_flops_per_second.keys() == {"float32", "bfloat16", "float16"}


def test_seconds_by_source_are_those_of_the_step_that_recomputes_nothing():
    def loss(w, x):
        for _ in range(3):
            x = jnp.tanh(x @ w)
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, jnp.stack([w] * 4))[0].sum()

    traced = trace_for(resolve_target("cpu"), loss, (jnp.ones((64, 64)), jnp.ones((32, 64))))
    graph, inverse = analyze(traced.staged(), modelled(resolve_target("cpu")), backend_of("cpu"))
    assert inverse.seconds_by_source.keys() == {"roofline"}
    assert inverse.seconds_by_source["roofline"] == pytest.approx(graph.seconds)
