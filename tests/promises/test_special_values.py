"""Gradients through exact operators are JAX's at NaN, infinities, zeros and subnormals.

At NaN, infinities, zeros of both signs, subnormals, ties, huge and tiny numbers, in operands and in
cotangents: bit for bit where an operator says so, and of pooling on a CPU, where it happens to add
up in the order of XLA. Of the others, what is finite stays finite, and nothing else does. What
softmaxes and results do there is for their own tests.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coming_rules import IN_FORCE
from exact_operators import planned, planned_with_indices, pulled, same, saving_results
from jax import lax
from thinning import thinned
from tiled_operators import QUERIES, SMALL_CHUNKS, SMALL_TILES, plain_attention

from monet_jax import operators
from monet_jax.compiler.backend import backend_of
from monet_jax.ir import gradient
from monet_jax.ir import program as program_module
from monet_jax.operators import is_hook, masks, pooling
from monet_jax.transformer import names
from planners import Region
from planners.regions.simple_plans import saving_codes

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, 6.0, 3.0, -3.0, np.nan, np.inf, -np.inf]
# 1.2e-7 is subnormal in float16; its half is too. Half of the least one is kept by some CPUs only.
SPECIAL += [1e-40, -1e-40, 1e-45, 1.2e-7, -1.2e-7, 1.2e-38, 3e38, -3e38, 6e4, 1e-4, 5.9999]
SHAPE = (70, 33)


def special(shape, dtype, seed=0):
    """An array of such numbers, with ordinary ones between them."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(shape) < 0.6, rng.choice(SPECIAL, shape), rng.normal(size=shape))
    with np.errstate(over="ignore"):
        return jnp.asarray(x.astype(dtype))


def nothing(graph):
    """The plan that saves nothing by name, and uses no operator that keeps a code."""
    return [Region(s, s) for s, _ in enumerate(graph.stages)]


def pool(x, window=(3, 3), strides=(2, 2), padding: Any = "SAME", combine=lax.max, spread=(1, 1)):
    worst = np.array(-np.inf if combine is lax.max else np.inf, x.dtype)
    return lax.reduce_window(x, worst, combine, window, strides, padding, spread)


KEPT = np.random.default_rng(5).random(SHAPE) < 0.7

#: By operator: functions of an array.
FUNCTIONS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "mask": {
        "relu": jax.nn.relu,
        "relu6": jax.nn.relu6,
        "leaky_relu": jax.nn.leaky_relu,
        "maximum": lambda x: jnp.maximum(x, 0),
        "of_two": lambda x: jnp.maximum(x, x[::-1]),
        "minimum": lambda x: jnp.minimum(x, -x),
        "clip": lambda x: jnp.clip(x, -1, 6),
        "where": lambda x: jnp.where(x > 1, x * 2, -x),
        "dropout": lambda x: jnp.where(KEPT, x / 0.7, 0),
        "hard_tanh": jax.nn.hard_tanh,
        "hard_sigmoid": jax.nn.hard_sigmoid,
        "nan_to_num": jnp.nan_to_num,
    },
    "pool": {
        "apart": functools.partial(pool, window=(2, 2), padding="VALID"),
        "padded": pool,
        "every_place": functools.partial(pool, strides=(1, 1), padding=((1, 0), (2, 3))),
        "least": functools.partial(pool, combine=lax.min),
        "least_apart": functools.partial(pool, combine=lax.min, strides=(3, 3)),
        "sixteen": functools.partial(pool, window=(4, 4), strides=(1, 3)),
        "twenty": functools.partial(pool, window=(4, 5), strides=(2, 2)),
        "spread_out": functools.partial(pool, strides=(1, 2), padding=((1, 1),) * 2, spread=(2, 3)),
    },
    "narrow": {
        "sort": jnp.sort,
        "sort_first": lambda x: jnp.sort(x, 0),
        "top": lambda x: lax.top_k(x, 9)[0],
        "best": lambda x: jnp.take_along_axis(x, jnp.argmax(x, -1)[:, None], -1),
        "in_turn": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0), 0),
    },
}
#: What no operator is for: gradients that jump at zero, or are none.
OTHERS = {"abs": jnp.abs, "sign": jnp.sign, "max": lambda x: jnp.max(x, -1), "cummax": lax.cummax}
CASES = [(of, name) for of, some in FUNCTIONS.items() for name in some]
#: Whose places are a byte each.
WITHOUT_CODE = ("twenty",)
PLANS = {"codes": saving_codes, "results": saving_results, "nothing": nothing}


def flushed(x):
    """Subnormals are zeros: whether XLA:CPU takes them so depends on what it fuses."""
    x = np.asarray(x, np.float32)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def apart(function):
    """A function that is fused with nothing round it."""
    fixed = lax.optimization_barrier
    return lambda x: fixed(function(fixed(x)))


def on_samples(run, function, dtype):
    """Values and gradients of a function on some arrays, as `run` has them."""
    pull = jax.jit(functools.partial(pulled, run))
    arrays = [special(SHAPE, dtype, n) for n in range(3)]
    shape = jax.eval_shape(function, arrays[0]).shape
    results = [pull(x, special(shape, dtype, n + 10)) for n, x in enumerate(arrays)]
    return jax.tree.map(flushed, results)


@functools.cache
def plain_results(function, dtype):
    """The same by plain JAX."""
    return on_samples(_as_plain(apart(function)), function, dtype)


def _as_plain(function):
    """A `cummax` that is differentiated adds zeros; under a checkpoint of the coming rules not."""
    return jax.checkpoint(function) if IN_FORCE else function


def compared(function, dtype, regions, plan=planned):
    """A plan that has the values and gradients of a function, bit for bit."""
    ours, found = plan(apart(function), special(SHAPE, dtype), regions=regions)
    same(on_samples(ours, function, dtype), plain_results(function, dtype))
    return found


DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
#: Most functions in one dtype by the plan that keeps codes; a few in the others and by the others.
QUICK = (
    *(f"{of}-{name}-float32-codes" for of, name in CASES[::8]),
    *(f"{case}-bfloat16-codes" for case in ("mask-relu6", "mask-nan_to_num", "pool-padded")),
    *(f"{case}-float16-codes" for case in ("mask-clip", "pool-least", "narrow-sort")),
    *(f"{case}-float32-results" for case in ("mask-relu", "mask-where", "pool-apart")),
    *(f"{case}-float32-nothing" for case in ("mask-dropout", "pool-spread_out", "narrow-top")),
)


@pytest.mark.parametrize(
    ("of", "name", "dtype", "plan"),
    thinned([(*case, dtype, plan) for case in CASES for dtype in DTYPES for plan in PLANS], *QUICK),
)
def test_gradients_are_those_of_jax_bit_for_bit(of, name, dtype, plan):
    made = planned if of != "narrow" else planned_with_indices
    found = compared(FUNCTIONS[of][name], dtype, PLANS[plan], made)
    equations = [e for stage in found.staged.stages for e in stage.equations]
    assert not any(e.primitive.startswith("reduce_window") for e in equations)
    assert any(map(is_hook, equations)) == (name not in WITHOUT_CODE)
    optional = (op for stage in found.graph.stages for op in stage.forward if op.optional)
    codes = {found.graph.values[i].name for op in optional for i in op.outputs}
    saved = {name for region in found.regions for name in region.saved}
    if plan != "results":  # which saves the selectors of masks
        assert bool(codes & saved) == (plan == "codes" and name not in WITHOUT_CODE)


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(itertools.product(OTHERS, DTYPES[:2]), "abs-float32", "max-bfloat16"),
)
def test_so_they_are_without_an_operator(name, dtype):
    compared(OTHERS[name], dtype, nothing)


def first_of_equals(elements, keeps):
    """As it was before: where an element is no number, none equals the best."""
    best = functools.reduce(jnp.maximum, elements)
    places = jnp.full(best.shape, len(elements) - 1, jnp.uint8)
    for n, x in reversed([*enumerate(elements)]):
        places = jnp.where(x == best, jnp.uint8(n), places)
    return places


def test_another_place_or_mask_is_noticed(monkeypatch):
    monkeypatch.setattr(pooling, "_place", first_of_equals)
    monkeypatch.setattr(masks, "_is_positive", lambda result: ~(result <= 0))
    for of, name, plan in (("pool", "padded", "codes"), ("mask", "relu", "results")):
        with pytest.raises(AssertionError):
            test_gradients_are_those_of_jax_bit_for_bit(of, name, jnp.float32, plan)


# ------------------------------------------------------------------- operators of whole programs


def rewritten(operator, function, *args):
    """A function by an operator of programs, which applies to it."""
    plain = program_module.flatten(jax.make_jaxpr(function)(*args))
    derivative = gradient.derivative_of(plain, [True] * len(args))
    program = operator(plain, derivative, operators.Context(backend_of("gpu")))
    assert program is not plain

    def run(*args):
        env = dict(zip(program.inputs, args, strict=True)) | dict(program.constants)
        names.run_named(program.equations, env, {}, set())
        return env[program.outputs[0]]

    return run


def cross_entropy(x, w):
    logits = (x @ w).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, jnp.arange(len(x))[:, None] % 7, -1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


#: Where one of some rows is set to.
ROWS = [np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-40, 0.0, -0.0]


@pytest.mark.parametrize(
    ("operator", "number", "dtype"),
    thinned(
        itertools.product(("head", "attention"), ROWS, DTYPES[:2]),
        "head-nan-float32",
        "attention-nan-bfloat16",
    ),
)
def test_what_is_finite_in_a_gradient_stays_so(operator, number, dtype):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    if operator == "head":
        run, function, args = SMALL_CHUNKS, cross_entropy, (draw(32, 8), draw(8, 64))
    else:
        run, function = SMALL_TILES, plain_attention
        args = draw(2, QUERIES, 4, 2), draw(2, 90, 4, 2), draw(2, 90, 4, 2)
    ours = rewritten(run, function, *args)
    args = (args[0].at[1].set(number), *args[1:])
    cotangent = jax.eval_shape(function, *args)
    cotangent = jnp.full(cotangent.shape, 1.5, cotangent.dtype)
    got, want = (jax.jit(functools.partial(pulled, f))(*args, cotangent) for f in (ours, function))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_array_equal(np.where(np.isinf(a), a, 0), np.where(np.isinf(b), b, 0))
        finite = np.isfinite(b)
        scale = np.max(np.abs(b[finite]), initial=0)
        tolerance = 16 * float(jnp.finfo(dtype).eps) * scale
        np.testing.assert_allclose(a[finite], b[finite], rtol=0, atol=tolerance)


def test_no_operator_is_forgotten():
    tested = {*FUNCTIONS, "head", "attention", "softmax", "result", "matrix"}
    exact = {x.name for x in operators.registry._REGISTRY.values() if not x.kind.is_lossy}
    assert tested == exact
