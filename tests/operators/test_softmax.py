"""The derivative of a softmax reads its weights alone, and is right, also in the mean.

The expected gradient is computed here in float64, from the weights that JAX computes.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import compiler_targets
from emission import (
    Flat,
    assert_same,
    emitted,
    flat,
    graph_and_stages,
    pulled,
    reference,
)
from lossy_operators import Whole, draws, lossy_bytes, plan_without_recomputation, with_every_code
from programs import Case, array
from thinning import thinned

from monet_jax import operators
from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.operators import softmax
from monet_jax.operators.codecs import Groups
from monet_jax.operators.compression import encoding
from monet_jax.planning.gradient_error import Errors
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.step import step_to_compile
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer.transform import transform
from planners.plan import Region
from planners.regions.simple_plans import save_all
from planners.regions.stages import Stages

SHAPE = (3, 8, 5)


def own(x):
    e = jnp.exp(x)
    return e / e.sum(-1, keepdims=True)


def of_seen(x, seen):
    """Whoever is not seen does not count, but has a weight."""
    e = jnp.exp(x)
    return e / jnp.sum(jnp.where(seen, e, 0), -1, keepdims=True)


SEEN = np.random.default_rng(7).random(SHAPE) > 0.3

#: Softmaxes, the axes that they sum over, and what counts.
SOFTMAXES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Any]] = {
    "last": (jax.nn.softmax, (2,), True),
    "first": (functools.partial(jax.nn.softmax, axis=0), (0,), True),
    "two": (functools.partial(jax.nn.softmax, axis=(0, 2)), (0, 2), True),
    "all": (functools.partial(jax.nn.softmax, axis=None), (0, 1, 2), True),
    "where": (functools.partial(jax.nn.softmax, where=SEEN), (2,), SEEN),
    "unshifted": (own, (2,), True),
    "twice": (lambda x: jnp.exp(x) / jnp.exp(x).sum(-1)[..., None], (2,), True),
    "number": (lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x)), (0, 1, 2), True),
    "seen": (lambda x: of_seen(x, SEEN), (2,), SEEN),
    "unseen": (lambda x: own(jnp.where(SEEN, x, -jnp.inf)), (2,), True),
}

#: What is none, or whose derivative is another one.
OTHERS = {
    "more": lambda x: (e := jnp.exp(x)) / (e.sum(-1, keepdims=True) + 1),
    "stopped": lambda x: (e := jnp.exp(x)) / jax.lax.stop_gradient(e.sum(-1, keepdims=True)),
    "greatest": lambda x: (e := jnp.exp(x)) / e.max(-1, keepdims=True),
    "turned": lambda x: (e := jnp.exp(x[:, :5])) / e.sum(-1)[:, None],
    "turned_back": lambda x: (e := jnp.exp(x[:, :5])) / e.sum(-1, keepdims=True).mT,
    "repeated": lambda x: (
        (e := jnp.exp(x)) / jnp.broadcast_to(e, (2, *SHAPE)).sum((0, 3))[..., None]
    ),
    "squares": lambda x: (e := jnp.exp(x)) / jnp.sum(e * e, -1, keepdims=True),
    "other": lambda x: jnp.exp(x) / jnp.exp(2 * x).sum(-1, keepdims=True),
    "one_column": lambda x: jnp.exp(x[..., :1]) / (2 + jnp.exp(x[..., :1])),
}


def saving(function, *args, saves: Callable[[Any], bool]):
    """A function under a plan that saves some values by name."""
    made = flat(Case(function, args))
    graph, staged = graph_and_stages(made)
    regions = []
    for s, stage in enumerate(graph.stages):
        ops = [op for op in stage.forward if not op.optional]
        values = [graph.values[i] for op in ops for i in op.outputs]
        regions.append(Region(s, s, tuple(v.name for v in values if v.savable and saves(v))))
    return made, emitted(made, graph, staged, regions)


#: What a plan saves by name: everything, or nothing.
PLANS: dict[str, Callable[[Any], bool]] = {"all": lambda _: True, "nothing": lambda _: False}


def gradient(function, x, cotangent):
    return jax.vjp(function, x)[1](cotangent)[0]


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        itertools.product(SOFTMAXES, [jnp.float32, jnp.bfloat16]),
        *(f"{name}-float32" for name in SOFTMAXES),
        "last-bfloat16",
    ),
)
def test_values_are_those_of_jax_and_gradients_within_the_bound(name, dtype):
    function, axes, counts = SOFTMAXES[name]
    x, cotangent = (3 * array(n, *SHAPE) for n in (1, 2))
    x, cotangent = x.astype(dtype), cotangent.astype(dtype)
    made, found = saving(function, x, saves=PLANS["all"])
    assert found.staged.program.keeps_other
    (y,), (ours,) = made.function(x), found.function(x)
    assert np.asarray(ours).tobytes() == np.asarray(y).tobytes()

    y, c = np.asarray(y, np.float64), np.asarray(cotangent, np.float64)
    expected = y * c - np.where(counts, y, 0) * np.sum(y * c, axes, keepdims=True)
    scale = y * (np.abs(c) + np.sum(y * np.abs(c), axes, keepdims=True))
    summed = np.prod([SHAPE[a] for a in axes]) * jnp.finfo(jnp.float32).eps / 2
    found = gradient(lambda x: found.function(x)[0], x, cotangent)
    wrong = np.abs(np.asarray(found, np.float64) - expected)
    assert (wrong <= (4 * float(jnp.finfo(dtype).eps) + summed) * scale).all()


def errors_of(function, plain, *inputs):
    """How far gradients are from those of JAX in float64, for many arguments and cotangents."""
    found = jax.jit(jax.vmap(functools.partial(gradient, function)))(*inputs)
    with jax.enable_x64(True):
        wide = (jnp.asarray(np.asarray(x), jnp.float64) for x in inputs)
        exact = jax.jit(jax.vmap(functools.partial(gradient, plain)))(*wide)
    return np.abs(np.asarray(found, np.float64) - np.asarray(exact))


CANCELLING = sorted(SOFTMAXES.keys() - {"seen"})


@pytest.mark.parametrize(
    ("name", "dtype", "plan"),
    thinned(
        itertools.product(CANCELLING, [jnp.bfloat16, jnp.float16], PLANS),
        *(f"{name}-bfloat16-all" for name in list(CANCELLING)[::2]),
        *("last-bfloat16-nothing", "last-float16-all"),
    ),
)
def test_in_sixteen_bits_nothing_is_lost_where_terms_cancel(name, dtype, plan, off=30):
    """Each element is as exact as what is left of it, not as what it is the difference of."""
    (function, axes, _), eps = SOFTMAXES[name], float(jnp.finfo(dtype).eps)
    x = jnp.asarray(jnp.round(8 * jnp.clip(3 * array(1, *SHAPE), -4, 4)) / 8, dtype)
    cotangent = (off + array(2, *SHAPE)).astype(dtype)  # differences of `x` are not rounded
    _, found = saving(function, x, saves=PLANS[plan])
    got = jax.jit(functools.partial(gradient, lambda x: found.function(x)[0]))(x, cotangent)
    with jax.enable_x64(True):
        wide = jnp.asarray(np.asarray(x), jnp.float64)
        y, c = np.asarray(function(wide)), np.asarray(cotangent, np.float64)
    rest = c - np.sum(y * c, axes, keepdims=True)
    scale = y * (np.abs(rest) + np.sum(y * np.abs(rest), axes, keepdims=True))
    wrong = np.abs(np.asarray(got, np.float64) - y * rest)
    assert (wrong <= 3 * eps * scale + eps**2 * y * np.abs(c) + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", SOFTMAXES)
def test_in_sixteen_bits_gradients_are_as_near_to_float64_as_those_of_jax(name, dtype):
    """In the worst and in the mean element; also where much of the cotangent cancels.

    Which of two roundings is the worst of half a million is chance: of each kind of arguments, that
    is the worst but for one of ten thousand.
    """
    function, rng = SOFTMAXES[name][0], np.random.default_rng(5)
    _, found = saving(function, jnp.zeros(SHAPE, dtype), saves=PLANS["all"])
    assert found.staged.program.keeps_other
    worst = []
    for scale, off in itertools.product((0.3, 1, 3), (0, 3)):
        x, c = (rng.normal(size=(4000, *SHAPE)) for _ in range(2))
        inputs = jnp.asarray(scale * x, dtype), jnp.asarray(off + c, dtype)
        ours = errors_of(lambda x: found.function(x)[0], function, *inputs)
        plain = errors_of(function, function, *inputs)
        # In float16, weights overflow that do not count in their sum, and squares of sums.
        known = np.isfinite(plain) & np.isfinite(jax.vmap(function)(inputs[0]))
        ours, plain = ours[known], plain[known]
        assert ours.mean() <= plain.mean()
        assert np.quantile(ours, 0.9999) <= np.quantile(plain, 0.9999)
        worst.append((ours.max(), plain.max()))
    assert np.less_equal(*np.max(worst, 0))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_softmax_is_left_alone(name):
    x = array(1, *SHAPE)
    _, found = saving(lambda x: jnp.sum(OTHERS[name](x) ** 2), x, saves=PLANS["nothing"])
    assert not found.staged.program.keeps_other


def test_a_wrong_derivative_is_noticed(monkeypatch):
    right = softmax._pushed
    monkeypatch.setattr(softmax, "_pushed", lambda *args: right(*args) * (1 + 1e-5))
    with pytest.raises(AssertionError):
        test_values_are_those_of_jax_and_gradients_within_the_bound("last", jnp.float32)


def attention(w, x):
    """One head of attention, masked, and another layer; with leading axes or without."""
    scores = (x @ w["q"]) @ (x @ w["k"]).mT
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return x + jnp.tanh(jax.nn.softmax(scores) @ (x @ w["v"]))


WEIGHTS = {name: array(n, 8, 8) for n, name in enumerate("qkv")}
TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: jax.vmap(f, (None, 0)),
    "scan": lambda f: lambda w, x: jax.lax.scan(lambda c, v: (f(w, c + v), None), x[0], x)[0],
    "cond": lambda f: (
        lambda w, x: jax.lax.cond(x[0, 0, 0] > 0, f, lambda w, x: f(w, 2 * f(w, x)), w, x)
    ),
    "checkpoint": jax.checkpoint,
}


def compared(made: Flat, function) -> None:
    """Gradients are as near to those in float64 as JAX's are."""
    results = reference(pulled(made, made.function), made.leaves)
    assert_same(jax.jit(pulled(made, function))(*made.leaves), *results)


@pytest.mark.parametrize(
    ("outer", "plan"),
    thinned(itertools.product(TRANSFORMED, PLANS), "vmap-nothing", "scan-all", "checkpoint-all"),
)
def test_so_they_are_in_other_transformations(outer, plan):
    made, found = saving(
        TRANSFORMED[outer](attention), WEIGHTS, array(9, 3, 6, 8), saves=PLANS[plan]
    )
    assert found.staged.program.keeps_other == (outer != "checkpoint")
    compared(made, found.function)


@pytest.mark.parametrize("outer", thinned(["vmap", "scan", "checkpoint"], "vmap"))
def test_so_they_are_where_a_plan_is_transformed(outer):
    x = array(9, 3, 6, 8)
    of_one = x if outer == "checkpoint" else x[0]
    _, found = saving(attention, WEIGHTS, of_one, saves=PLANS["all"])

    def planned(w, x):
        return found.function(*jax.tree.leaves((w, x)))[0]

    transformed = TRANSFORMED[outer]
    made = flat(Case(transformed(attention), (WEIGHTS, x)))
    compared(made, flat(Case(transformed(planned), (WEIGHTS, x))).function)


def test_tangents_and_second_derivatives_are_those_of_jax():
    made, found = saving(attention, WEIGHTS, array(9, 2, 6, 8), saves=PLANS["all"])

    def twice(function):
        def gradient(*leaves):
            loss = lambda *leaves: jnp.sum(jnp.sin(3 * function(*leaves)[0]))  # noqa: E731
            return jax.grad(loss, argnums=range(len(leaves)))(*leaves)

        return lambda *leaves: jax.jvp(gradient, leaves, (*map(jnp.cos, leaves),))

    results = reference(twice(made.function), made.leaves)
    assert_same(jax.jit(twice(found.function))(*made.leaves), *results)


#: Rows with what is not finite, equal, far apart, or nothing to see.
AWKWARD = [
    [np.nan, 0, 1, 2],
    [np.inf, 0, 1, 2],
    [np.inf, np.inf, 0, 1],
    [-np.inf, 0, 1, 2],
    [-np.inf, -np.inf, -np.inf, 3],
    [-np.inf, -np.inf, -np.inf, -np.inf],
    [0, 0, 0, 0],
    [1e4, 1e4, 0, -1e4],
    [-3e38, 3e38, 0, 0],
    [88, 80, -0.0, -104],
]


def masked(x):
    """As people mask attention; nobody is seen in some rows."""
    return jax.nn.softmax(jnp.where(x > -1e30, x, -jnp.inf))


@pytest.mark.parametrize("dtype", thinned([jnp.float32, jnp.bfloat16], "bfloat16"))
@pytest.mark.parametrize(
    "function",
    thinned(
        [jax.nn.softmax, own, masked, lambda x: jax.nn.softmax(x, where=x > 0)],
        "softmax",
        "own",
        "masked",
    ),
)
def test_what_is_finite_in_a_gradient_stays_so(function, dtype):
    x = jnp.asarray(AWKWARD, dtype)
    c = jnp.asarray(3 * array(2, *x.shape), dtype).at[6, 0].set(np.inf)
    _, found = saving(function, x, saves=PLANS["all"])
    assert np.asarray(found.function(x)[0]).tobytes() == np.asarray(function(x)).tobytes()
    ours = gradient(lambda x: found.function(x)[0], x, c)
    plain = gradient(function, x, c)
    finite = jnp.isfinite(plain)
    assert (jnp.isfinite(ours) == finite).all() and finite.any() and not finite.all()
    tolerance = 16 * float(jnp.finfo(dtype).eps)
    assert jnp.allclose(ours[finite], plain[finite], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (4, 1), (1,), ()])
def test_so_it_is_for_odd_shapes(shape):
    x = array(1, *shape)
    made, found = saving(
        lambda x: own(x) if shape else jax.nn.softmax(x, ()), x, saves=PLANS["all"]
    )
    compared(made, found.function)


# ---------------------------------------------------------------------------------------- plans


def heads(params, x, dtype=jnp.float32):
    """Layers of attention with many heads, whose scores are larger than all else."""
    for w in params:
        q, k, v = jnp.moveaxis((x @ w).reshape(*x.shape, 3), -1, 0).astype(dtype)
        q, k, v = (y.reshape(*y.shape[:-1], 8, -1).swapaxes(-2, -3) for y in (q, k, v))
        scores = (q @ k.mT).astype(jnp.float32)
        y = (jax.nn.softmax(scores).astype(dtype) @ v).swapaxes(-2, -3)
        x = x + y.reshape(x.shape).astype(x.dtype)
    return jnp.mean(jnp.square(x))


LAYERS, LENGTH, WIDTH = 6, 128, 32
SCORES = 4 * 2 * 8 * LENGTH * LENGTH
ARGS = (
    [jax.ShapeDtypeStruct((WIDTH, 3 * WIDTH), jnp.float32)] * LAYERS,
    jax.ShapeDtypeStruct((2, LENGTH, WIDTH), jnp.float32),
)


def compiled_plans(loss, operators, target="cpu"):
    target = resolve_target(target)
    return compiled_plans_of(trace_for(target, loss, ARGS, operators=operators), target, NO_PINS)


def of_a_layer(graph, plan) -> list[int]:
    """Bytes of what a plan keeps of a layer's scores and weights."""
    saved = [[graph.values[graph.index[n]].nbytes for n in region.saved] for region in plan.regions]
    return max(([x for x in some if 8 * x > SCORES] for some in saved), key=len)


@pytest.mark.parametrize(
    ("dtype", "operators", "kept"),
    [
        (jnp.float32, "none", 2 * SCORES),
        (jnp.float32, ["softmax"], SCORES),
        # The weights of the product are no copy of the exponentials, which a CPU keeps in float32.
        (jnp.bfloat16, "none", 3 * SCORES // 2),
        (jnp.bfloat16, ["softmax"], 3 * SCORES // 2),
    ],
)
def test_what_runs_nothing_again_keeps_no_scores_beside_the_weights(dtype, operators, kept):
    graph = compiled_plans(functools.partial(heads, dtype=dtype), operators).judge.graph
    assert sum(of_a_layer(graph, plan_without_recomputation(graph, False))) == kept


@pytest.mark.parametrize(
    ("dtype", "most_times"), thinned([(jnp.float32, 1.08), (jnp.bfloat16, 1.05)], "float32-1.08")
)
@pytest.mark.parametrize("share", thinned([0.9, 0.7, 0.5, 0.3], "0.5"))
def test_plans_are_little_worse_at_any_budget(dtype, most_times, share):
    """Weights can still be computed from scores that are saved; in float32, whatever the dtype.

    On a CPU, the sum of the derivative reads an array of products, which JAX's computes twice.
    """
    loss = functools.partial(heads, dtype=dtype)
    plain, ours = (
        compiled_plans(loss, operators).judge.graph for operators in ("none", ["softmax"])
    )
    most = save_all(plain).peak_bytes
    made = [Stages()(graph, int(share * most)) for graph in (plain, ours)]
    assert made[1].seconds <= made[0].seconds * most_times


# ------------------------------------------------------------------------------------ lossy codes


@pytest.fixture
def small(monkeypatch):
    """Small values may be kept as codes."""
    monkeypatch.setattr(encoding, "_LEAST", 2)
    monkeypatch.setattr(encoding, "_SHARE", 0.0)


def test_one_code_serves_the_softmax_and_the_product(small):
    made, found = with_every_code(Case(attention, (WEIGHTS, array(9, 6, 8))), Whole())
    saved = [found.staged.values[name] for region in found.regions for name in region.saved]
    sizes = [found.staged.program.avals[i].size for i in saved]
    assert sizes.count(36) == 1  # neither scores nor weights, nor another code
    compared(made, found.function)


SCORED = 3 * array(11, 16, 16), array(12, 16, 16)
COTANGENT = array(13, 16, 16)


def looked_up(x, values, key):
    """Each result reads one weight of each row; the key is there to draw noise from."""
    del key
    return jnp.sum((jax.nn.softmax(x @ jnp.eye(16)) @ values) * COTANGENT)


def drawn(codec, count=1000):
    """Many gradients of it, by the scores and by the values, from codes, against those of JAX."""
    _, found = with_every_code(Case(looked_up, (*SCORED, jax.random.key(0))), codec)
    assert lossy_bytes(found)

    def joined(function, key):
        gradients = jax.grad(lambda *args: function(*args, key), argnums=(0, 1))(*SCORED)
        return jnp.concatenate([x.reshape(-1) for x in gradients])

    def estimate(key):
        return joined(lambda *args: found.function(*args)[0], key)

    return draws(estimate, joined(looked_up, jax.random.key(0)), count)


@pytest.mark.slow
def test_gradients_are_off_in_the_mean_by_the_variance_of_each_weight(small):
    """A weight's own code enters twice; those of others do not."""
    codec = Groups(2, 64)
    seen = drawn(codec, count=4000)
    weights = jax.nn.softmax(SCORED[0])
    off = codec.mean_square(weights) * (COTANGENT @ SCORED[1].T)
    of_scores = np.concatenate([np.asarray(off).reshape(-1), np.zeros(256)])
    deviation = np.sqrt(seen.mean_square)
    assert (
        dataclasses.replace(seen, error_of_mean=seen.error_of_mean + of_scores).largest_z(deviation)
        < 5
    )
    assert seen.largest_z(deviation) > 10
    # No more than a step's share of the weight's own term.
    step = 1 / (2**codec.bits - 1)
    assert (np.abs(off) <= step * np.abs(weights * (COTANGENT @ SCORED[1].T)) * 1.01).all()


@pytest.mark.slow
def test_with_a_limit_of_the_error_all_that_the_code_does_counts(small):
    args, target = (*SCORED, jax.random.key(0)), resolve_target("cpu")
    traced = trace_for(target, looked_up, args, argnums=(0, 1), operators=["softmax", "int2"])
    errors = Errors(traced, [args], compiled_plans_of(traced, target, NO_PINS).judge.graph)
    exact = jax.grad(looked_up, argnums=(0, 1))(*args)
    seen = drawn(Groups(2, 64)).mean_square.sum() / sum(float(jnp.sum(x * x)) for x in exact)
    assert sum(errors.of_codes().values()) == pytest.approx(seen, rel=0.3)


def test_what_scores_are_encoded_for_would_be_biased(small, monkeypatch):
    """The published way: the derivative of the exponential from a code of what it reads."""
    monkeypatch.setitem(encoding._LINEAR, "exp", {0: 0})
    exact = [x for x in operators.selected("exact") if x.name != "softmax"]
    monkeypatch.setattr(operators, "selected", lambda _: exact)
    assert drawn(Groups(2, 64)).bias > 3


# ------------------------------------------------------------------------------------------ bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [pytest.param([], id="exact"), pytest.param(["int8"], id="int8", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("target", list(compiler_targets()))
def test_what_scores_took_arrives_in_the_compiled_program(target, others):
    """Of what is kept where nothing runs again, one array as large as the scores is freed_bytes."""

    def once(operators):
        made = compiled_plans(heads, operators, target)
        return made, plan_without_recomputation(made.graph, codes=bool(others))

    (plain, before), (ours, after) = once(["mask", *others]), once(["mask", "softmax", *others])
    freed_bytes = LAYERS * SCORES
    modelled = plain.model.modelled(before.regions) - ours.model.modelled(after.regions)
    assert modelled == pytest.approx(freed_bytes, rel=0.2)

    def taken(made, plan):
        judge = made.judge
        step = step_to_compile(judge.traced, transform(judge.staged, plan))
        return compile_bytes(*step, target=judge.target).temp_bytes

    assert taken(plain, before) - taken(ours, after) >= 0.8 * freed_bytes
