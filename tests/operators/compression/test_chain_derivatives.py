"""A chain's local derivative is all that its gradient needs, and as wrong as its bits state.

Local derivatives are computed here by `jax.grad` of one number at a time. Gradients that read codes
are compared with JAX's: exactly, where codes keep everything, and in the mean.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import compiler_targets
from emission import assert_same, emitted, graph_and_stages, pulled, reference
from exact_operators import AWKWARD
from lossy_operators import (
    Whole,
    draws,
    encoding,
    lossy_bytes,
    plan_without_recomputation,
    with_every_code,
)
from programs import NAMED, Case, array
from thinning import thinned

from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.operators import (
    LocalDerivative,
    OfLocalDerivatives,
    Stored,
    is_hook,
    representation_name,
    representations_of,
)
from monet_jax.operators.codecs import Kind
from monet_jax.operators.compression import chain_derivatives
from monet_jax.operators.compression import encoding as encoding_module
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.step import step_to_compile
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer.transform import transform
from planners.plan import Region

#: Elementwise functions, and the ranges of their local derivatives.
CHAINS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "gelu": (jax.nn.gelu, -0.1289, 1.1289),
    "exact_gelu": (functools.partial(jax.nn.gelu, approximate=False), -0.1289, 1.1289),
    "silu": (jax.nn.silu, -0.0998, 1.0998),
    "tanh": (jnp.tanh, 0, 1),
    "sigmoid": (jax.nn.sigmoid, 0, 0.25),
    "softplus": (jax.nn.softplus, 0, 1),
    "erf": (jax.lax.erf, 0, 2 / math.sqrt(math.pi)),
    "elu": (jax.nn.elu, 0, 1),
    "mish": (jax.nn.mish, -0.1130, 1.0885),
    "hard_swish": (jax.nn.hard_swish, -0.5, 1.5),
    "capped": (lambda x: 5 * jnp.tanh((x + 1) / 5), 0, 1),
    "sine": (lambda x: jnp.sin(3 * x), -3, 3),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small values may be kept as codes."""
    monkeypatch.setattr(encoding_module, "_LEAST", 2)
    monkeypatch.setattr(encoding_module, "_SHARE", 0.0)


@dataclasses.dataclass(frozen=True)
class WholeLocalDerivatives(OfLocalDerivatives):
    """Keeps local derivatives as they are."""

    kind: ClassVar[Kind] = Kind.BIASED

    def over(self, low: float, high: float) -> Any:
        del low, high
        return Whole()


def between(function):
    """A loss in which a function stands between two products."""

    def loss(w, v, x):
        return jnp.sum(jnp.square(function(x @ w) @ v))

    return loss


ARGS = (array(1, 16, 24), array(2, 24, 8), 2 * array(3, 32, 16))


def local_derivatives_of(function, args=ARGS) -> list[LocalDerivative]:
    """The codecs of the local derivatives of a function."""
    made = encoding(Case(function, args), OfLocalDerivatives(8))
    _, staged = graph_and_stages(made)
    hooks = [e for stage in staged.stages for e in stage.equations if is_hook(e)]
    representations = [representation for e in hooks for representation, _ in representations_of(e)]
    return [
        x.codec
        for x in representations
        if isinstance(x, Stored) and isinstance(x.codec, LocalDerivative)
    ]


def cast(args, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), args)


# ------------------------------------------------------------------------------ what is a chain


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        itertools.product(CHAINS, [jnp.float32, jnp.bfloat16, jnp.float16]),
        *(f"{name}-float32" for name in list(CHAINS)[::2]),
        "gelu-bfloat16",
    ),
)
def test_a_chain_is_one_whole_and_no_local_derivative_is_outside_of_its_range(name, dtype):
    function, low, high = CHAINS[name]
    (local_derivative,) = local_derivatives_of(between(function), cast(ARGS, dtype))
    rough = 0.005 if dtype == jnp.float32 else 0.02
    assert local_derivative.low == pytest.approx(low, abs=rough * (high - low))
    assert local_derivative.high == pytest.approx(high, abs=rough * (high - low))
    rng = np.random.default_rng(0)
    numbers = np.concatenate([3 * rng.normal(size=20_000), np.linspace(-12, 12, 20_000)])
    found = jax.jit(jax.vmap(jax.grad(function)))(jnp.asarray(numbers, jnp.float32))
    outside = np.maximum(local_derivative.low - found, found - local_derivative.high)
    assert np.nanmax(outside) < (1e-6 if dtype == jnp.float32 else 0.01)


@jax.custom_jvp
def centred(x):
    """Its derivative is not elementwise, though it is itself."""
    return jnp.tanh(x)


@centred.defjvp
def _centred_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return centred(x), t - jnp.mean(t)


ROW, COLUMN = array(5, 24), jnp.arange(24.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**3,
        jnp.exp,
        jnp.square,
        jax.nn.relu,
        jax.nn.leaky_relu,
        lambda x: jnp.clip(x, -1, 1) * 2 + 1,
        lambda x: x * jnp.roll(x, 1),
        lambda x: x / (1 + jnp.sum(x * x)),
        lambda x: jnp.tanh(x) * x.mean(0),
        centred,
    ],
)
def test_what_is_no_chain_of_limited_local_derivative_is_left_alone(function):
    # Of a product of two arrays, each may be a chain by itself: `tanh` is.
    expected = int(function.__name__ == "<lambda>" and "tanh" in function.__code__.co_names)
    assert len(local_derivatives_of(between(function))) == expected


@pytest.mark.parametrize(
    ("function", "ranges"),
    [
        (lambda x: jnp.tanh(x * ROW), [(0, 1)]),  # the row is another array
        (lambda x: jnp.tanh(x + COLUMN), [(0, 1)]),  # no element is as the others
        (lambda x: jnp.tanh(x.T).T, [(0, 1)]),
        (
            lambda x: jnp.square(jnp.tanh(x**3)),
            [(-1.953, 1.953)],
        ),  # of `x**3` alone it is not limited
        (lambda x: jnp.tanh(x) ** 3 + x**3, [(0, 0.75)]),  # that of the sum is not limited
        (lambda x: jnp.tanh(jnp.roll(jax.nn.silu(x), 1)), [(-0.1, 1.1), (0, 1)]),
        (lambda x: (y := jax.nn.silu(x)) + jnp.roll(jnp.tanh(y), 1), [(-0.1, 1.1), (0, 1)]),
    ],
)
def test_chains_end_where_other_arrays_or_readers_come_in(function, ranges):
    found = sorted((x.low, x.high) for x in local_derivatives_of(between(function)))
    assert len(found) == len(ranges)
    for ours, theirs in zip(found, sorted(ranges), strict=True):
        assert ours == pytest.approx(theirs, abs=0.01)


# ---------------------------------------------------------------------------- values, gradients


def compared(case: Case) -> None:
    """Values are those of JAX bit for bit, and gradients as near as rounding allows."""
    made, found = with_every_code(case, WholeLocalDerivatives())
    assert lossy_bytes(found)
    for ours, plain in zip(found.function(*made.leaves), made.function(*made.leaves), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(plain).tobytes()
    results = reference(pulled(made, made.function), made.leaves)
    assert_same(jax.jit(pulled(made, found.function))(*made.leaves), *results)


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        itertools.product(CHAINS, [jnp.float32, jnp.bfloat16]),
        "gelu-float32",
        "hard_swish-float32",
        "sigmoid-bfloat16",
    ),
)
def test_gradients_are_those_of_jax_where_local_derivatives_are_kept_whole(name, dtype):
    compared(Case(between(CHAINS[name][0]), cast(ARGS, dtype)))


@pytest.mark.parametrize(
    "name",
    thinned(["layers_under_scan", "branches_under_scan", "user_checkpoint"], "branches_under_scan"),
)
def test_so_they_are_in_loops_and_branches(name):
    compared(NAMED[name]())


def test_a_wrong_slope_is_noticed(monkeypatch):
    right = chain_derivatives.ElementwiseChain.local_derivative
    monkeypatch.setattr(
        chain_derivatives.ElementwiseChain,
        "local_derivative",
        lambda chain, x: right(chain, x) * 1.01,
    )
    with pytest.raises(AssertionError):
        test_gradients_are_those_of_jax_where_local_derivatives_are_kept_whole("gelu", jnp.float32)


def test_where_no_code_is_kept_second_derivatives_are_those_of_jax():
    made = encoding(Case(between(jax.nn.gelu), ARGS), OfLocalDerivatives(2))
    graph, staged = graph_and_stages(made)
    found = emitted(made, graph, staged, [Region(s, s) for s in range(len(graph.stages))])

    def twice(function):
        gradient = jax.grad(lambda *args: function(*args)[0], argnums=(0, 1))
        return jax.jvp(gradient, ARGS, ARGS)

    for ours, plain in zip(
        jax.tree.leaves(twice(found.function)), jax.tree.leaves(twice(made.function)), strict=True
    ):
        assert jnp.allclose(ours, plain, rtol=1e-4, atol=1e-4 * float(jnp.abs(plain).max()))


# ------------------------------------------------------------------------------------ statistics


def network(params, x, key):
    """Layers of different chains; the key is there to draw noise from."""
    del key
    for function, w in zip((jax.nn.gelu, jnp.tanh), params, strict=True):
        x = x + function(2 * (x @ w)) @ w.T
    return jnp.sum(x**2)


PARAMS, BATCH = [array(i, 16, 16) / 3 for i in range(2)], array(20, 32, 16)


def joined(gradients):
    return jnp.concatenate([g.reshape(-1).astype(jnp.float32) for g in jax.tree.leaves(gradients)])


def drawn(codec, dtype=jnp.float32, count=400):
    """Many gradients of the network by a codec's codes, against that of plain JAX."""
    args = cast((PARAMS, BATCH), dtype)
    _, found = with_every_code(Case(network, (*args, jax.random.key(0))), codec)
    assert lossy_bytes(found)

    def estimate(key):
        loss = lambda *leaves: found.function(*leaves, key)[0]  # noqa: E731
        return joined(jax.grad(loss, argnums=tuple(range(3)))(*jax.tree.leaves(args)))

    exact = jax.grad(network, argnums=(0, 1))(PARAMS, BATCH, jax.random.key(0))
    return draws(estimate, joined(exact), count)


@pytest.mark.parametrize("bits", thinned([2, 4], "2"))
def test_gradients_are_unbiased(bits):
    found = drawn(OfLocalDerivatives(bits), count=1600)
    assert found.bias < 1.5
    assert found.largest_z(np.sqrt(found.mean_square)) < math.sqrt(2 * math.log(1024)) + 1


def test_what_a_chain_reads_would_be_biased(monkeypatch):
    """The published way: its input is encoded, and the local derivative computed from that."""

    def by_input(chain, x):
        @jax.custom_jvp
        def function(read, x):
            return chain(x)

        @function.defjvp
        def rule(primals, tangents):
            read, x = primals
            return chain(x), chain.local_derivative(read) * tangents[1]

        return function(jnp.negative(-x), x)

    monkeypatch.setattr(chain_derivatives, "_by_local_derivative", by_input)
    monkeypatch.setattr(chain_derivatives, "range_of", lambda *_: (-8.0, 8.0))
    assert drawn(OfLocalDerivatives(4)).bias > 3


@pytest.mark.parametrize(
    ("name", "bits"), thinned([("gelu", 2), ("sigmoid", 4), ("sine", 8)], "sine-8")
)
def test_the_variance_is_that_of_the_codec_and_within_its_bound(name, bits):
    """Where each gradient is one cotangent times one local derivative."""
    function, _, _ = CHAINS[name]
    identity, cotangent, x = jnp.eye(24), array(7, 32, 24), 2 * array(8, 32, 24)

    def loss(x, w, key):
        del key
        return jnp.sum(function(x @ w) * cotangent)

    (local_derivative,) = local_derivatives_of(loss, (x, identity, jax.random.key(0)))
    local_derivative = dataclasses.replace(local_derivative, bits=bits)
    case = Case(loss, (x, identity, jax.random.key(0)))
    _, found = with_every_code(case, OfLocalDerivatives(bits))
    saved = [found.staged.values[name] for region in found.regions for name in region.saved]
    assert {representation_name(found.staged.writer[i], i) for i in saved} == {f"slope{bits}"}

    def estimate(key):
        return jax.grad(lambda x: found.function(x, identity, key)[0])(x)

    seen = draws(estimate, jax.grad(loss)(x, identity, jax.random.key(0)), 1000)
    variances = local_derivative.mean_square(jax.vmap(jax.vmap(jax.grad(function)))(x))
    expected = np.asarray(variances * jnp.square(cotangent))
    assert seen.mean_square.sum() == pytest.approx(expected.sum(), rel=0.05)
    step = (local_derivative.high - local_derivative.low) / (2**bits - 2)
    assert (expected <= np.square(step * cotangent) / 4 * 1.0001).all()
    assert seen.bias < 1.5


@pytest.mark.slow
def test_noise_is_that_of_the_key_and_of_the_data():
    _, found = with_every_code(
        Case(network, (PARAMS, BATCH, jax.random.key(0))), OfLocalDerivatives(4)
    )
    first, *rest = PARAMS

    @jax.jit
    def gradient(w, x, key):
        return jax.grad(lambda w: found.function(w, *rest, x, key)[0])(w)

    one, two = jax.random.key(1), jax.random.key(2)
    same = gradient(first, BATCH, one)
    assert jnp.array_equal(same, gradient(first, BATCH, one))
    assert not jnp.array_equal(same, gradient(first, BATCH, two))
    exact = jax.grad(network)(PARAMS, BATCH, one)[0]
    nudged = gradient(first * (1 + 1e-6), BATCH, one)
    assert jnp.linalg.norm(nudged - same) > 0.1 * jnp.linalg.norm(same - exact)


@pytest.mark.slow
def test_codes_work_in_sixteen_bits_and_mapped():
    """Many gradients at once, of bfloat16: as near to the exact one as its rounding."""
    args = cast((PARAMS, BATCH), jnp.bfloat16)
    plain = joined(jax.grad(network, argnums=(0, 1))(*args, jax.random.key(0)))
    exact = joined(jax.grad(network, argnums=(0, 1))(PARAMS, BATCH, jax.random.key(0)))
    wrong = math.sqrt(drawn(OfLocalDerivatives(8), jnp.bfloat16, count=32).mean_square.sum())
    allowed = 1.5 * jnp.linalg.norm(plain - exact) + 0.01 * jnp.linalg.norm(exact)
    assert wrong < allowed < 0.2 * jnp.linalg.norm(exact)


@pytest.mark.parametrize("name", thinned(CHAINS, "hard_swish", "capped"))
def test_what_is_not_finite_in_a_gradient_stays_so(name):
    function, fixed = CHAINS[name][0], jax.lax.optimization_barrier
    x = jnp.asarray(np.resize([*AWKWARD, 1e4, -1e4, 88.0, -104.0], (8, 17)), jnp.float32)

    def loss(w, x):
        return jnp.sum(fixed(function(fixed(x + w))))

    case = Case(loss, (jnp.zeros_like(x), x))
    made, found = with_every_code(case, OfLocalDerivatives(4))
    assert lossy_bytes(found)
    ours = jax.jit(jax.grad(lambda *args: found.function(*args)[0]))(*made.leaves)
    plain = jax.jit(jax.grad(loss))(*made.leaves)
    assert not jnp.isfinite(ours[~jnp.isfinite(plain)]).any()
    # Where numbers are not finite, JAX may stop at a mask what we have multiplied before.
    assert jnp.isfinite(ours[jnp.isfinite(x) & jnp.isfinite(plain)]).all()
    assert not jnp.isfinite(plain).all()


# ------------------------------------------------------------------------------------------ bytes


def multilayer(params, x):
    for wide, narrow in params:
        x = x + jax.nn.gelu(x @ wide) @ narrow
    return jnp.mean(jnp.square(x))


@pytest.mark.parametrize("bits", thinned([2, 8], "2"))
@pytest.mark.parametrize("target", list(compiler_targets()))
def test_bytes_freed_by_local_derivatives_arrive_in_the_compiled_program(target, bits):
    rows, width, layers, target = 1024, 64, 8, resolve_target(target)
    spec = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    args = [(spec((width, 4 * width)), spec((4 * width, width)))] * layers, spec((rows, width))
    traced = trace_for(target, multilayer, args, operators=[f"slope{bits}"])
    compiled_plans = compiled_plans_of(traced, target, NO_PINS)
    graph = compiled_plans.graph
    whole, coded = (plan_without_recomputation(graph, codes) for codes in (False, True))
    predicted = layers * rows * 4 * width * (4 - bits / 8)
    saving = [compiled_plans.predicted_temp_bytes(x.regions) for x in (whole, coded)]
    assert saving[0] - saving[1] == pytest.approx(predicted, rel=0.2)

    def taken(plan):
        step = step_to_compile(traced, transform(compiled_plans.judge.staged, plan))
        return compile_bytes(*step, target=target).temp_bytes

    assert taken(whole) - taken(coded) >= 0.8 * predicted
