"""Derivatives read from codes what they would read otherwise, and nothing else is encoded.

A codec that keeps everything stands in for the lossy ones: then gradients are those of JAX, if what
follows from a decoded value is computed right. With a coarse codec they are right in the mean.
"""

import random

import jax
import jax.numpy as jnp
import pytest
from emission import (
    analyzed,
    assert_same,
    emitted,
    graph_and_stages,
    pulled,
    reference,
)
from lossy_operators import (
    LAYOUTS,
    Encoder,
    Whole,
    convolve,
    draws,
    encoding,
    lossy_bytes,
    with_every_code,
)
from programs import NAMED, Case, array, straight_through
from thinning import thinned

from monet_jax import operators
from monet_jax.operators import codecs, emission
from monet_jax.operators.codecs import (
    Groups,
    Pixel,
    Pool,
    PoolResidual,
)
from monet_jax.operators.codecs import (
    noise as noise_module,
)
from monet_jax.operators.compression import encoding as encoding_module
from monet_jax.operators.compression import recomputation
from monet_jax.operators.compression.operands import Convolutions, Products
from planners.plan import Region
from planners.regions.simple_plans import saving_codes

_index = noise_module._index


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small values may be kept as codes."""
    monkeypatch.setattr(encoding_module, "_LEAST", 2)
    monkeypatch.setattr(encoding_module, "_SHARE", 0.0)


#: Programs that differ in what is encoded: loops, mixed precision, images; the others come below.
ENCODED = "conv_norm_relu u_net user_checkpoint layers_under_scan mixed_precision".split()


@pytest.mark.parametrize("name", thinned(ENCODED, "user_checkpoint"))
def test_gradients_are_those_of_jax_where_codes_keep_everything(name):
    made, found = with_every_code(NAMED[name](), Whole())
    assert lossy_bytes(found)
    results = reference(pulled(made, made.function), made.leaves)
    assert_same(jax.jit(pulled(made, found.function))(*made.leaves), *results)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_gradients_are_those_of_jax_wherever_a_program_is_cut(name):
    made = encoding(NAMED[name](), Whole())
    results = reference(pulled(made, made.function), made.leaves)
    for n in range(3):
        graph, staged = analyzed(made, random.Random(f"{name}:{n}"), 3)
        found = emitted(made, graph, staged, saving_codes(graph))
        assert_same(jax.jit(pulled(made, found.function))(*made.leaves), *results)


def test_a_wrong_chain_is_noticed(monkeypatch):
    right = recomputation.Recomputation.__call__
    monkeypatch.setattr(recomputation.Recomputation, "__call__", lambda *args: right(*args) * 1.01)
    with pytest.raises(AssertionError):
        test_gradients_are_those_of_jax_where_codes_keep_everything("conv_norm_relu")


@pytest.mark.parametrize(
    "function",
    thinned(
        [
            straight_through,
            jax.nn.relu,
            pytest.param(lambda x: jnp.where(x > 0, x, 0.1 * x), id="where"),
            pytest.param(lambda x: jnp.where(x[0, 0] > 0, x, -x), id="where one"),
            pytest.param(lambda x: jax.lax.select_n(x > 0, x * 2, jnp.ones_like(x)), id="selected"),
            pytest.param(
                lambda x: jnp.maximum(x, 0) + jnp.clip(x, -1, 1) / 3 - x.T.T, id="several"
            ),
            pytest.param(lambda x: (x - x.mean(0)) / x.std(0) * x.max(), id="normalized"),
        ],
        "straight_through",
        "where one",
        "several",
    ),
)
def test_what_follows_from_a_code_is_what_it_would_be(function):
    def loss(x, w):
        y = x @ w
        return jnp.sum((function(y) @ w + y * y) ** 2)

    made, found = with_every_code(Case(loss, (array(1, 24, 16), array(2, 16, 16))), Whole())
    assert lossy_bytes(found)
    results = reference(pulled(made, made.function), made.leaves)
    assert_same(jax.jit(pulled(made, found.function))(*made.leaves), *results)


def network(params, x, key):
    """Normalized, masked, squashed and squared; the key is there to draw noise from."""
    del key
    for w, scale in params:
        y = x @ w
        y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-3) * scale
        x = jnp.tanh(jax.nn.relu(y) + x)
    return jnp.sum(x**2)


PARAMS = [(array(i, 16, 16), 1 + array(9 + i, 16)) for i in range(3)]
BATCH = array(20, 32, 16)


def bias(codec, count=600, function=network, args=(PARAMS, BATCH)):
    """How far the mean gradient is from the exact one, over what chance gives."""
    _, found = with_every_code(Case(function, (*args, jax.random.key(0))), codec)
    assert lossy_bytes(found)

    def joined(gradients):
        return jnp.concatenate([g.reshape(-1) for g in jax.tree.leaves(gradients)])

    def estimate(key):
        leaves = jax.tree.leaves(args)
        loss = lambda *floats: found.function(*floats, key)[0]  # noqa: E731
        return joined(jax.grad(loss, argnums=tuple(range(len(leaves))))(*leaves))

    exact = joined(jax.grad(function, argnums=(0, 1))(*args, jax.random.key(0)))
    return draws(estimate, exact, count).bias


LOSSY = [x.codec for x in operators.selected(["bf16", "fp8", "int8"])]


@pytest.mark.slow
@pytest.mark.parametrize("codec", thinned(LOSSY, "int8"), ids=lambda codec: codec.name)
def test_gradients_are_as_wrong_as_their_codes(codec):
    """What is saved comes back as it was: an error of the code is one of the gradient."""
    made, found = with_every_code(Case(network, (PARAMS, BATCH, jax.random.key(0))), codec)
    assert lossy_bytes(found)
    exact = jax.jit(pulled(made, made.function))(*made.leaves)
    ours = jax.jit(pulled(made, found.function))(*made.leaves)
    of_code = jnp.sqrt(codec.mean_square(BATCH).mean() / jnp.square(BATCH).mean())
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        assert jnp.linalg.norm(a - b) <= 6 * of_code * jnp.linalg.norm(b)


def test_gradients_are_unbiased():
    assert bias(Groups(4, 64)) < 1.5


@pytest.mark.slow
def test_what_is_read_by_a_derivative_that_is_not_linear_would_be_biased(monkeypatch):
    monkeypatch.setitem(encoding_module._LINEAR, "tanh", {0: 0})
    assert bias(Groups(2, 64)) > 3


def test_noise_is_that_of_the_key_and_of_the_data():
    _, found = with_every_code(Case(network, (PARAMS, BATCH, jax.random.key(0))), Groups(4, 64))
    first, *rest = jax.tree.leaves(PARAMS)
    gradient = jax.jit(jax.grad(lambda w, x, key: found.function(w, *rest, x, key)[0]))
    one, two = jax.random.key(1), jax.random.key(2)
    same = gradient(first, BATCH, one)
    assert jnp.array_equal(same, gradient(first, BATCH, one))
    assert not jnp.array_equal(same, gradient(first, BATCH, two))
    # A step further, what was at random between two levels is drawn anew.
    exact = jax.grad(network)(PARAMS, BATCH, one)[0][0]
    nudged = gradient(first * (1 + 1e-6), BATCH, one)
    assert jnp.linalg.norm(nudged - same) > 0.1 * jnp.linalg.norm(same - exact)


def scanned(params, x):
    """Layers under a scan."""

    def layer(x, weights):
        a, b = weights
        return jnp.tanh(x + jnp.tanh(x @ a) @ b), None

    return jnp.sum(jax.lax.scan(layer, x, params)[0])


def temporary_bytes(case: Case, codec: Encoder) -> int:
    """Of a gradient whose plan saves every code, as compiled."""
    made, found = with_every_code(case, codec)
    assert lossy_bytes(found)
    step = jax.jit(pulled(made, found.function)).lower(*made.leaves).compile()
    return step.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("where", "name", "without"),
    [
        (emission, "_whole", lambda function: function),  # JAX moves it
        (noise_module, "_index", lambda shape, start: _index(shape, jnp.uint32(0))),  # XLA moves it
    ],
)
def test_what_follows_from_no_operand_is_not_kept_for_all_iterations(
    monkeypatch, where, name, without
):
    params = array(0, 3, 32, 32), array(1, 3, 32, 32)
    x = array(2, 1024, 32)
    ours = temporary_bytes(Case(scanned, (params, x)), Groups(8))
    monkeypatch.setattr(where, name, without)
    assert temporary_bytes(Case(scanned, (params, x)), Groups(8)) > ours + x.nbytes // 2


def filtered(layout):
    """Two convolutions, and their arguments in some layout."""

    def loss(first, second, x):
        hidden = jnp.tanh(convolve(x, first, layout))
        return jnp.sum(convolve(hidden, second, layout) ** 2)

    image = tuple("NHWC".index(a) for a in layout[0])
    kernel = tuple("HWIO".index(a) for a in layout[1])
    weights = [array(n, 3, 3, 4, 4).transpose(kernel) for n in (1, 2)]
    return loss, (*weights, array(3, 2, 8, 12, 4).transpose(image))


def in_windows(x, axes):
    """The means of 2 x 2 windows in place of their elements, by their four corners."""
    for axis in axes:
        halves = [jnp.take(x, jnp.arange(n, x.shape[axis], 2), axis) for n in (0, 1)]
        x = jnp.repeat((halves[0] + halves[1]) / 2, 2, axis)
    return x


@pytest.mark.parametrize("layout", thinned([pytest.param(x, id=x[0]) for x in LAYOUTS], "NCHW"))
def test_only_the_gradient_of_a_kernel_reads_what_was_pooled(layout):
    loss, args = filtered(layout)
    _, found = with_every_code(Case(loss, args), Convolutions(Pool()))
    assert lossy_bytes(found)
    wanted = jax.grad(loss, argnums=(0, 1))(*args)
    first, second = jax.grad(lambda *x: found.function(*x)[0], argnums=(0, 1))(*args)
    assert jnp.allclose(first, wanted[0], rtol=1e-4, atol=1e-4)

    hidden = jnp.tanh(convolve(args[2], args[0], layout))
    cotangent = 2 * convolve(hidden, args[1], layout)
    pooled = in_windows(hidden, [layout[0].index(a) for a in "HW"])
    (by_hand,) = jax.vjp(lambda w: convolve(pooled, w, layout), args[1])[1](cotangent)
    assert jnp.allclose(second, by_hand, rtol=1e-4, atol=1e-3)
    assert not jnp.allclose(second, wanted[1], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "kernel, options, is_pooled",
    [
        ((1, 1, 4, 4), {}, True),
        ((1, 1, 4, 4), {"strides": (2, 2)}, False),
        ((3, 3, 4, 4), {"strides": (2, 2)}, True),
        ((3, 3, 1, 4), {"groups": 4}, False),
    ],
)
def test_what_a_kernel_steps_over_is_not_pooled(kernel, options, is_pooled):
    def loss(w, x):
        return jnp.sum(convolve(jnp.tanh(x), w, **options) ** 2)

    case = Case(loss, (array(1, *kernel), array(2, 2, 8, 8, 4)))
    _, found = with_every_code(case, Convolutions(Pool()))
    assert bool(lossy_bytes(found)) == is_pooled


def products(params, x, key):
    """Images, and rows of one matrix."""
    del key
    first, second, third = params
    x = jnp.tanh(convolve(jnp.sin(convolve(x, first)), second))
    return jnp.sum((jnp.tanh(x.reshape(-1, 4)) @ third) ** 3)


#: Unbiased codecs for single operands.
OF_OPERANDS = [Convolutions(PoolResidual(2)), Convolutions(Pixel()), Products(codecs.Rows(0.5))]


@pytest.mark.slow
@pytest.mark.parametrize("codec", thinned(OF_OPERANDS, "rows0.5"), ids=lambda codec: codec.name)
def test_gradients_are_unbiased_where_windows_and_rows_are_kept(codec):
    params = [array(1, 3, 3, 4, 4) / 4, array(2, 3, 3, 4, 4) / 4, array(3, 4, 4)]
    assert bias(codec, function=products, args=(params, array(4, 2, 8, 8, 4))) < 1.5


def second(function, made):
    """First and second derivatives, along one direction."""
    chosen = [made.leaves[n] for n in made.places]
    rest = [leaf for n, leaf in enumerate(made.leaves) if n not in made.places]
    gradient = jax.grad(lambda *some: function(*some, *rest)[0], argnums=(0, 1))
    return jax.jvp(gradient, chosen, chosen)


@pytest.mark.slow
def test_without_codes_derivatives_are_those_of_jax_and_so_are_second_ones():
    made = encoding(Case(network, (PARAMS, BATCH, jax.random.key(0))), Groups(2, 64))
    graph, staged = graph_and_stages(made)
    found = emitted(made, graph, staged, [Region(s, s) for s in range(len(graph.stages))])
    ours, plain = second(found.function, made), second(made.function, made)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrap", thinned([lambda f: f, jax.jit], "jit"))
def test_codes_are_not_differentiated_twice(wrap):
    made, found = with_every_code(Case(network, (PARAMS, BATCH, jax.random.key(0))), Whole())
    with pytest.raises(TypeError, match='operators="exact"'):
        second(wrap(found.function), made)
    with pytest.raises(TypeError, match='operators="exact"'):
        leaf = made.leaves[0]
        gradient = wrap(jax.grad(lambda x: found.function(x, *made.leaves[1:])[0]))
        jax.grad(lambda x: jnp.sum(gradient(x)))(leaf)
