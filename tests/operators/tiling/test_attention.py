"""Attention in tiles has the values and gradients of attention in less memory."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from thinning import thinned
from tiled_operators import BATCH, HEADS, KEYS, QUERIES, SMALL_TILES, WIDTH, plain_attention

import monet_jax
from monet_jax import operators
from monet_jax.compiler.backend import backend_of
from monet_jax.ir import compat
from monet_jax.ir import gradient as gradient_module
from monet_jax.ir import program as program_module
from monet_jax.operators.tiling.attention import Attention
from monet_jax.tracing.pipeline import stage

_random = np.random.default_rng(0)


def _array(*shape, dtype=jnp.float32):
    return jnp.asarray(_random.normal(size=shape), dtype)


def _qkv(dtype=jnp.float32, groups=HEADS, batch=BATCH, heads=HEADS):
    query = _array(batch, QUERIES, heads, WIDTH, dtype=dtype)
    return query, *(_array(batch, KEYS, groups, WIDTH, dtype=dtype) for _ in range(2))


def _tiled(function, *args, attention=SMALL_TILES, **place):
    """A function as the planner sees it, its flat program, and that without the operator."""
    jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    plain = program_module.flatten(jaxpr)
    derivative = gradient_module.derivative_of(plain, [True] * len(plain.inputs))
    program = attention(plain, derivative, operators.Context(backend_of("gpu"), **place))

    def run(*args):
        env = dict(zip(program.inputs, jax.tree.leaves(args), strict=True))
        env |= program.constants
        program_module.run(program.equations, env, {})
        results = program_module.values_of(env, program.outputs)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run, program, plain


def _tiles(program):
    """How many there are of each attention."""
    return [e.eqn.params["length"] for e in program.equations if e.primitive == "scan"]


@functools.partial(jax.jit, static_argnums=0)
def _pulled(function, *args):
    """What a function returns, and the gradients by all arguments for some cotangent."""
    results, pull = jax.vjp(function, *args)
    cotangents = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape), results)
    return results, pull(jax.tree.map(lambda c, x: c.astype(x.dtype), cotangents, results))


def _assert_same(got, want, tolerance=2e-5):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        other = np.asarray(other, np.float64)
        scale = np.max(np.abs(other), initial=0, where=np.isfinite(other))
        np.testing.assert_allclose(np.asarray(one, np.float64), other, tolerance, tolerance * scale)


def causal(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool), -2), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, where=scores > -jnp.inf), v)


def of_jax(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def capped_with_alibi(q, k, v):
    scores = 5 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 5)
    far = jnp.abs(jnp.arange(QUERIES)[:, None] - jnp.arange(KEYS))
    scores -= 2.0 ** -jnp.arange(1, HEADS + 1)[:, None, None] * far
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def with_sums(q, k, v):
    """The log of the sum of exponentials is returned as well."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    sums = jax.nn.logsumexp(scores, -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(scores - sums[..., None]), v), sums


def own_squares(q, k, v):
    """Keys are queries, and no function is a softmax."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, q)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.square(scores) / QUERIES, q) + k.mean() + v.mean()


FORMS = [plain_attention, causal, of_jax, capped_with_alibi, with_sums, own_squares]


@pytest.mark.parametrize("form", thinned(FORMS, "of_jax", "own_squares"))
def test_values_and_gradients_are_those_of_the_attention(form):
    args = _qkv()
    tiled, program, _ = _tiled(form, *args)
    assert _tiles(program) == [4]
    assert _largest(program.equations) <= BATCH * HEADS * QUERIES * QUERIES // 4
    _assert_same(_pulled(tiled, *args), _pulled(form, *args))


def _largest(equations):
    """Elements of the largest array that equations, or loops among them, compute."""
    found = [v.aval.size for e in equations for v in e.eqn.outvars]
    for e in equations:
        for body in compat.subjaxprs(e.eqn):
            found.append(_largest(program_module.flatten(body).equations))
    return max(found, default=0)


def in_half(q, k, v):
    """As in most models: products of bfloat16 round a softmax in float32."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores * WIDTH**-0.5).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


@pytest.mark.parametrize("heads", thinned([HEADS, 1], str(HEADS)))
def test_half_precision_is_as_good_as_without_tiles(heads):
    """Both are compared with float32.

    With one head of one example, tiles share keys and values, and each rounds its term of a
    gradient.
    """
    batch = BATCH if heads > 1 else 1
    args = _qkv(jnp.bfloat16, heads, batch, heads)
    tiled, program, _ = _tiled(in_half, *args)
    assert _tiles(program)
    exact = _pulled(in_half, *(x.astype(jnp.float32) for x in args))
    errors = []
    for form in (tiled, in_half):
        found = jax.tree.leaves(_pulled(form, *args))
        assert {x.dtype for x in found} == {jnp.dtype(jnp.bfloat16)}
        pairs = zip(found, jax.tree.leaves(exact), strict=True)
        errors.append([float(jnp.linalg.norm(a.astype(b.dtype) - b)) for a, b in pairs])
    most = 1.1 if heads > 1 else 3
    assert all(a <= most * b for a, b in zip(*errors, strict=True))


@pytest.mark.parametrize(
    "shape",
    thinned(
        [
            pytest.param((HEADS, 1, 1), id="of heads"),
            pytest.param((BATCH, 1, 1, KEYS), id="of keys"),
            pytest.param((HEADS, QUERIES, KEYS), id="of all"),
        ],
        "of keys",
    ),
)
def test_the_gradient_of_a_bias_is_that_of_the_attention(shape):
    def biased(q, k, v, bias):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * bias + bias
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    args = *_qkv(), _array(*shape)
    tiled, program, _ = _tiled(biased, *args)
    assert _tiles(program) == [4]
    _assert_same(_pulled(tiled, *args), _pulled(biased, *args))


@pytest.mark.parametrize("groups", thinned([1, 2], "2"))
def test_so_it_is_for_queries_that_share_keys(groups):
    args = _qkv(groups=groups)
    tiled, program, _ = _tiled(jax.nn.dot_product_attention, *args)
    assert _tiles(program)
    _assert_same(_pulled(tiled, *args), _pulled(jax.nn.dot_product_attention, *args))

    def repeated(q, k, v):
        return plain_attention(q, *(jnp.repeat(x, HEADS // groups, axis=2) for x in (k, v)))

    tiled, program, _ = _tiled(repeated, *args)
    assert _tiles(program)
    _assert_same(_pulled(tiled, *args), _pulled(repeated, *args))


def test_what_is_no_number_spreads_as_in_jax():
    """Some see nobody; some see what is infinite, or is no number."""
    q, k, v = _qkv()
    q, k = q.at[0, 3, 1].set(jnp.nan), k.at[1, 2, 0].set(jnp.inf)
    seen = jnp.asarray(_random.random((BATCH, 1, QUERIES, KEYS)) > 0.3).at[1, :, 5].set(False)

    def masked(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    tiled, program, _ = _tiled(masked, q, k, v)
    assert _tiles(program) == [4]
    got, want = _pulled(tiled, q, k, v), _pulled(masked, q, k, v)
    assert np.isnan(want[0]).any() and np.isfinite(want[0]).any()
    _assert_same(got, want)


def test_other_derivatives_and_transformations_are_those_of_the_attention():
    args = _qkv()
    tiled, program, _ = _tiled(causal, *args)
    assert _tiles(program) == [4]

    def twice(form):
        gradient = jax.grad(lambda *args: jnp.sum(jnp.sin(form(*args))), (0, 1, 2))
        return jax.jit(lambda *args: jax.jvp(gradient, args, tuple(map(jnp.cos, args))))(*args)

    _assert_same(twice(tiled), twice(causal), 1e-4)
    many = tuple(jnp.stack([x, x / 2]) for x in args)

    def of_many(form):
        return _pulled(jax.vmap(jax.checkpoint(form)), *many)

    _assert_same(of_many(tiled), of_many(causal))


def weights_returned(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v), weights


def weights_dropped(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, weights.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(kept, weights, 0), v)


def all_mixed(q, k, v):
    """Every result depends on all scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    weights = jnp.exp(scores - scores.max()) / jnp.exp(scores - scores.max()).sum()
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def checkpointed(q, k, v):
    return jax.checkpoint(plain_attention)(q, k, v)


def scores_of_another(q, k, v):
    """What the first one makes is part of what the second one's scores are added to."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    scores = jnp.einsum("bqhd,bkhd->bhqk", y, k) + scores
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def no_product_behind(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.tanh(scores).mean() + v.sum()


REFUSED = [
    weights_returned,
    weights_dropped,
    all_mixed,
    checkpointed,
    scores_of_another,
    no_product_behind,
]


@pytest.mark.parametrize("form", REFUSED, ids=lambda f: f.__name__)
def test_what_is_no_such_attention_stays_as_it_is(form):
    _, program, plain = _tiled(form, *_qkv())
    assert program is plain


def test_tiles_have_no_tiles_of_their_own():
    """Where tiles are larger than they should be, since there are no more heads."""
    args = _qkv()
    jaxpr = jax.make_jaxpr(plain_attention)(*args)
    attention = operators.Operator("small", operators.Kind.REORDERED, program=Attention(1, 1))
    rewrite = operators.rewriter([attention], operators.Context(backend_of("gpu")))
    program = program_module.flatten(jaxpr)
    derivative = gradient_module.derivative_of(program, [True] * len(args))
    changed = dataclasses.replace(rewrite.programs[0](program, derivative), rewrite=rewrite)
    (loop,) = stage(changed, derivative).loops
    assert "scan" not in [e.primitive for e in loop.body.program.equations]
    (again,) = [e for e in changed.equations if e.primitive == "scan"]
    unmarked = tuple(
        dataclasses.replace(e, apart="") if e is again else e for e in changed.equations
    )
    (loop,) = stage(dataclasses.replace(changed, equations=unmarked), derivative).loops
    assert "scan" in [e.primitive for e in loop.body.program.equations]


def test_small_attention_stays_as_it_is():
    _, program, plain = _tiled(plain_attention, *_qkv(), attention=Attention())
    assert program is plain


def _spread_over_eight(loss, q, k, v):
    """Compiled temporaries of a device, for examples that lie on eight of them."""
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    avals = (jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in (q, k, v))
    gradient = jax.grad(loss, argnums=(0, 1, 2))
    return monet_jax.compiled_bytes(gradient, *avals, target="cpu").temp_bytes


@pytest.mark.slow
@pytest.mark.parametrize("axis", thinned(["examples", "queries"], "queries"))
def test_examples_that_lie_on_several_devices_are_tiled_on_each(axis):
    batch, heads = 32 if axis == "examples" else 8, 2
    args = _qkv(batch=batch, groups=heads, heads=heads)
    scores_bytes = 4 * batch * heads * QUERIES * KEYS
    attention = Attention(tile_bytes=scores_bytes // 8 // 4, least_bytes=1)
    tiled, program, _ = _tiled(plain_attention, *args, attention=attention, devices=8, in_loop=True)
    assert _tiles(program) == [4]
    for ours, theirs in zip(
        *(jax.tree.leaves(_pulled(f, *args)) for f in (tiled, plain_attention)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

    def loss(function, *args):
        return jnp.sum(function(*args) ** 2)

    plain, ours = (
        _spread_over_eight(functools.partial(loss, f), *args) for f in (plain_attention, tiled)
    )
    # Of tiles that lie on one device each, every device must hold all.
    elsewhere, _, _ = _tiled(plain_attention, *args, attention=attention, in_loop=True)
    gathered = _spread_over_eight(functools.partial(loss, elsewhere), *args)
    assert ours < 0.6 * plain and ours < 0.7 * gathered


def test_only_its_name_chooses_it():
    for selection in ("exact", "lossy", "none"):
        assert "attention" not in [x.name for x in operators.selected(selection)]
    assert [x.name for x in operators.selected(["attention"])] == ["attention"]


# ---------------------------------------------------------------------------------------- plans


def layer(x, w):
    """[examples, tokens, width] to the same."""
    q, k, v = jnp.split(jnp.tanh(x @ w), 3, axis=-1)
    scores = jnp.where(jnp.tri(x.shape[1]) > 0, jnp.einsum("bqd,bkd->bqk", q, k), -1e9)
    return x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def network(params, x):
    """Layers of attention."""
    for w in params:
        x = layer(x, w)
    return jnp.mean(jnp.square(x))


EXACT = ["mask", "softmax"]


def under_scan(params, x):
    """The same with the layers under a scan."""
    step = lambda x, w: (layer(x, w), None)  # noqa: E731
    return jnp.mean(jnp.square(jax.lax.scan(step, x, jnp.stack(params))[0]))


@pytest.mark.parametrize(
    ("form", "share"), thinned([(network, 0.5), (under_scan, 0.3)], "under_scan-0.3")
)
def test_plans_of_tiles_have_the_gradient_of_the_network(form, share, monkeypatch):
    """Layers one after another, and under a scan with a budget for which there is no other plan."""
    small = dataclasses.replace(
        operators.selected(["attention"])[0],
        program=Attention(tile_bytes=2**14, least_bytes=2**12),
    )
    monkeypatch.setitem(operators.registry._REGISTRY, "attention", small)
    args = [_array(4, 12) for _ in range(2)], _array(4, 64, 4)
    made = monet_jax.plan(form, *args, operators=[*EXACT, "attention"], budget=share, target="cpu")
    assert made.decisions is not None and made.compiled_bytes <= made.budget_bytes
    planned = jax.jit(jax.value_and_grad(monet_jax.apply(made, form)))
    _assert_same(planned(*args), jax.jit(jax.value_and_grad(form))(*args))


@pytest.mark.parametrize(
    ("form", "target"),
    thinned(
        [
            (network, "cpu"),
            (under_scan, "cpu"),
            pytest.param(network, "gpu:h100", marks=pytest.mark.gpu),
        ]
    ),
)
def test_a_budget_is_kept_for_which_there_is_no_plan_without(form, target):
    spec = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    args = [spec((32, 96))] * 2, spec((8, 2048, 32))
    plan = functools.partial(monet_jax.plan, form, *args, target=target)
    with pytest.raises(monet_jax.InfeasibleBudget) as found:
        plan(budget="3MiB", operators=EXACT)
    assert "['attention']" in str(found.value)
    made = plan(budget=int(0.6 * found.value.minimum_budget), operators=[*EXACT, "attention"])
    assert made.compiled_bytes is not None and made.compiled_bytes <= made.budget_bytes


@pytest.mark.parametrize(
    "among",
    thinned(
        [
            pytest.param(EXACT, id="others"),
            pytest.param([*EXACT, "attention"], id="it as well"),
            pytest.param("none", id="none"),
        ],
        "others",
    ),
)
def test_the_operator_is_not_named_where_it_brings_nothing(among):
    args = (
        [jax.ShapeDtypeStruct((32, 96), jnp.float32)] * 2,
        jax.ShapeDtypeStruct((8, 32, 32), "f4"),
    )
    with pytest.raises(monet_jax.InfeasibleBudget) as found:
        monet_jax.plan(
            network, *args, target="cpu", budget=100_000, operators=among, max_compilations=3
        )
    assert "['attention']" not in str(found.value)
