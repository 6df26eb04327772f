"""A chunked loss has the values and gradients of the loss in less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import NAMED
from thinning import thinned
from tiled_operators import SMALL_CHUNKS

import monet_jax
from monet_jax import operators, zoo
from monet_jax.compiler.backend import backend_of
from monet_jax.ir import compat, gradient
from monet_jax.ir import program as program_module
from monet_jax.ir.costs import flops_of
from monet_jax.operators.tiling.chunked_loss import Head

BATCH, LENGTH, WIDTH, WORDS = 2, 16, 8, 64

_random = np.random.default_rng(0)
LABELS = jnp.asarray(_random.integers(0, WORDS, (BATCH, LENGTH)))
WEIGHTS = jnp.asarray(_random.random((BATCH, LENGTH)) > 0.3, jnp.float32)
_cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def _features(dtype=jnp.float32):
    return jnp.asarray(_random.normal(size=(BATCH, LENGTH, WIDTH)), dtype)


def _matrix(dtype=jnp.float32):
    return jnp.asarray(_random.normal(size=(WIDTH, WORDS)) / 2, dtype)


def _chunked(loss, *args, head=SMALL_CHUNKS, target="gpu", devices=1):
    """A loss as the planner sees it, its flat program, and that without the operator."""
    jaxpr, shape = jax.make_jaxpr(loss, return_shape=True)(*args)
    plain = program_module.flatten(jaxpr)
    derivative = gradient.derivative_of(plain, [True] * len(plain.inputs))
    program = head(plain, derivative, operators.Context(backend_of(target), devices))

    def run(*args):
        env = dict(zip(program.inputs, jax.tree.leaves(args), strict=True))
        env |= program.constants
        program_module.run(program.equations, env, {})
        return jax.tree.unflatten(
            jax.tree.structure(shape), program_module.values_of(env, program.outputs)
        )

    return run, program, plain


def _gradient_of(loss, *args):
    """The loss, what it returns beside, and its gradients."""

    def first(*args):
        found = loss(*args)
        return (found[0], found[1:]) if isinstance(found, tuple) else (found, ())

    places = tuple(range(len(args)))
    return jax.jit(jax.value_and_grad(first, places, has_aux=True))(*args)


def _assert_same(got, want, tolerance=1e-5):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        other = np.asarray(other, np.float64)
        scale = np.max(np.abs(other), initial=0, where=np.isfinite(other))
        np.testing.assert_allclose(np.asarray(one, np.float64), other, tolerance, tolerance * scale)


def mean(x, w):
    return _cross_entropy(x @ w, LABELS).mean()


def ignored(x, w):
    labels = jnp.where(WEIGHTS > 0, LABELS, -100)
    losses = _cross_entropy(x @ w, labels)
    return jnp.sum(jnp.where(labels >= 0, losses, 0)) / jnp.sum(labels >= 0)


def one_hot_and_smooth(x, w):
    labels = optax.smooth_labels(jax.nn.one_hot(LABELS, WORDS), 0.1)
    return optax.softmax_cross_entropy(x @ w, labels).mean()


def with_z_loss(x, w):
    logits = x @ w
    return (_cross_entropy(logits, LABELS) + jax.nn.logsumexp(logits, -1) ** 2 / 100).mean()


def with_z_loss_apart(x, w):
    """The loss depends on two sums, which are returned as well."""
    logits = x @ w
    loss, z = _cross_entropy(logits, LABELS).mean(), jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)
    return loss + z / jnp.sum(WEIGHTS) + jnp.sum(w**2), loss, z


def with_accuracies(x, w):
    logits = x @ w
    _, best = jax.lax.top_k(logits, 5)
    right = (logits.argmax(-1) == LABELS).mean(), (best == LABELS[..., None]).any(-1).mean()
    return _cross_entropy(logits, LABELS).mean(), *right


def with_losses_of_tokens(x, w):
    losses = _cross_entropy(x @ w, LABELS)
    return losses.mean(), losses


def of_sequences(x, w):
    losses = _cross_entropy(x @ w, LABELS) * WEIGHTS
    return (losses.sum(-1) / WEIGHTS.sum(-1)).mean()


def flat(x, w):
    logits = (x @ w).reshape(-1, WORDS)
    return jnp.vdot(_cross_entropy(logits, LABELS.reshape(-1)), WEIGHTS.reshape(-1))


def shifted(x, w):
    return _cross_entropy((x @ w)[:, :-1], LABELS[:, 1:]).mean()


def capped_and_masked(x, w):
    logits = jnp.where(jnp.arange(WORDS) < 50, 30 * jnp.tanh(x @ w / 30), -1e9)
    return _cross_entropy(logits, LABELS % 50).mean()


def sigmoids(x, w):
    """Calls a function with a derivative of its own."""
    return optax.sigmoid_binary_cross_entropy(x @ w, jax.nn.one_hot(LABELS, WORDS)).sum(-1).mean()


def from_a_teacher(x, w):
    wanted = jax.lax.stop_gradient(jax.nn.softmax(x @ (2 * w)))
    return -(wanted * jax.nn.log_softmax(x @ w)).sum(-1).mean()


def in_half_precision(x, w):
    half = jnp.bfloat16
    logits = jnp.dot(x.astype(half), w.astype(half), preferred_element_type=jnp.float32)
    return _cross_entropy(logits, LABELS).mean()


LOSSES = [
    mean,
    ignored,
    one_hot_and_smooth,
    with_z_loss,
    with_z_loss_apart,
    with_accuracies,
    with_losses_of_tokens,
    of_sequences,
    flat,
    shifted,
    capped_and_masked,
    sigmoids,
    from_a_teacher,
]


@pytest.mark.parametrize(
    "loss",
    thinned(LOSSES, "with_z_loss_apart", "capped_and_masked", "from_a_teacher"),
)
def test_values_and_gradients_are_those_of_the_loss(loss):
    x, w = _features(), _matrix()
    chunked, program, _ = _chunked(loss, x, w)
    assert [e.primitive for e in program.equations if e.apart] == ["custom_jvp_call"]
    _assert_same(_gradient_of(chunked, x, w), _gradient_of(loss, x, w))


@pytest.mark.parametrize("loss", thinned(LOSSES, "capped_and_masked", "sigmoids"))
def test_tokens_that_lie_on_several_devices_are_in_chunks_on_each(loss):
    x, w = jnp.concatenate([_features(), _features()], -1), jnp.concatenate([_matrix(), _matrix()])
    head = Head(rows=4, least_rows=2)
    chunked, program, _ = _chunked(loss, x, w, head=head, devices=2)
    # These run in chunks of sequences, of which each device has one.
    expected = [] if loss in (shifted, flat, of_sequences) else ["in 4 chunks"]
    assert [e.apart for e in program.equations if e.apart] == expected
    _assert_same(_gradient_of(chunked, x, w), _gradient_of(loss, x, w))


@pytest.mark.parametrize("dtype", thinned([jnp.float32, jnp.bfloat16], "bfloat16"))
def test_half_precision_is_as_good_as_without_chunks(dtype):
    """Both are compared with float32. A chunk's term of the gradient is rounded by itself."""
    x, w = _features(jnp.bfloat16).astype(dtype), _matrix(jnp.bfloat16).astype(dtype)
    chunked, program, plain = _chunked(in_half_precision, x, w)
    assert program is not plain
    exact = jax.grad(mean, (0, 1))(x.astype(jnp.float32), w.astype(jnp.float32))
    errors = []
    for loss in (chunked, in_half_precision):
        _, found = _gradient_of(loss, x, w)
        assert [a.dtype for a in found] == [dtype, dtype]
        pairs = zip(found, exact, strict=True)
        errors.append([float(jnp.linalg.norm(a.astype(b.dtype) - b)) for a, b in pairs])
    assert all(a <= 3 * b for a, b in zip(*errors, strict=True))


def test_the_gradients_of_a_tied_embedding_and_a_bias_are_those_of_the_loss():
    def loss(w, x, bias, weights):
        logits = jnp.einsum("btd,vd->btv", jnp.tanh(x + w[LABELS]), w) + bias
        return jnp.sum(_cross_entropy(logits, LABELS) * weights) / jnp.sum(weights)

    args = _matrix().T, _features(), jnp.ones(WORDS) / 3, WEIGHTS
    chunked, program, plain = _chunked(loss, *args)
    assert program is not plain
    _assert_same(_gradient_of(chunked, *args), _gradient_of(loss, *args))


@pytest.mark.parametrize("loss", thinned([mean, ignored, with_accuracies], "mean"))
def test_constants_scale_the_loss_in_the_chunks(loss):
    """Behind them its cotangent is one, with which no gradient has to be written once more."""
    _, program, _ = _chunked(loss, _features(), _matrix())
    (chunks,) = (e for e in program.equations if e.apart)
    assert program.outputs[0] in chunks.outputs


def test_gradients_in_float16_are_those_of_a_loss_that_its_cotangent_scales():
    """Before it is known, they would vanish: these are all below the smallest number."""

    def loss(x, w):
        return _cross_entropy((x @ w).astype(jnp.float32), LABELS).sum() / 2**20

    args = _features(jnp.float16), _matrix(jnp.float16)
    chunked, program, plain = _chunked(loss, *args)
    assert program is not plain
    exact = jax.grad(loss, (0, 1))(*(a.astype(jnp.float32) for a in args))
    found = jax.vjp(chunked, *args)[1](jnp.float32(2**20))
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, other * 2**20, rtol=1e-2, atol=1e-2)


def test_what_is_no_number_spreads_as_in_jax():
    x = _features().at[0, 3].set(jnp.nan).at[1, 2].set(jnp.inf)
    labels = LABELS.at[1, 5].set(WORDS + 7)

    def loss(x, w):
        losses = _cross_entropy(x @ w, labels)
        return losses.mean(), losses

    w = _matrix()
    chunked, program, plain = _chunked(loss, x, w)
    assert program is not plain
    got, want = _gradient_of(chunked, x, w), _gradient_of(loss, x, w)
    assert np.isnan(want[0][1][0]).sum() == 3
    _assert_same(got, want)


@pytest.mark.slow
def test_other_derivatives_are_those_of_the_loss():
    x, w = _features(), _matrix()
    chunked, program, plain = _chunked(sigmoids, x, w)
    assert program is not plain
    tangents = _features(), _matrix()

    def along(loss):
        return jax.grad(lambda x, w: jax.jvp(loss, (x, w), tangents)[1], (0, 1))(x, w)

    _assert_same(jax.jvp(chunked, (x, w), tangents), jax.jvp(sigmoids, (x, w), tangents))
    _assert_same(along(chunked), along(sigmoids))
    many = jnp.stack([x, 2 * x])
    of_many = jax.vmap(jax.grad(chunked), (0, None)), jax.vmap(jax.grad(sigmoids), (0, None))
    _assert_same(*(f(many, w) for f in of_many))


def over_all(x, w):
    return jax.nn.log_softmax(x @ w, axis=(0, 1, 2)).mean()


def centred(x, w):
    logits = x @ w
    return jax.nn.logsumexp(logits - logits.mean((0, 1)), -1).mean()


def summed_up(x, w):
    logits = jnp.cumsum(jnp.cumsum(x @ w, 0), 1)
    return _cross_entropy(logits, LABELS).mean()


def returned(x, w):
    logits = x @ w
    return _cross_entropy(logits, LABELS).mean(), logits


def of_each_token(x, w):
    return _cross_entropy(x @ w, LABELS)


def a_layer_more(x, w):
    """Token by token down to the loss, but a network rather than a head."""
    return jnp.mean((jax.nn.relu(x @ w) @ w.T) ** 2)


def a_product_of_sums(x, w):
    logits = x @ w
    return _cross_entropy(logits, LABELS).sum() * jnp.sum(logits**2)


@pytest.mark.parametrize(
    "loss",
    [over_all, centred, summed_up, returned, of_each_token, a_layer_more, a_product_of_sums],
    ids=lambda f: f.__name__,
)
def test_what_is_no_linear_cross_entropy_stays_as_it_is(loss):
    _, program, plain = _chunked(loss, _features(), _matrix())
    assert program is plain
    assert any(e.outputs and plain.nbytes(e.outputs[0]) >= 8192 for e in program.equations)


def test_a_loss_is_left_whole_where_little_memory_is_freed():
    problem = zoo.build("gpt2", scale="tiny")
    _, program, plain = _chunked(problem.loss, *problem.args, head=Head())
    assert program is plain
    many = jnp.zeros((4096, 512)), jnp.zeros((512, 600))  # columns hardly more than rows
    _, program, plain = _chunked(lambda x, w: jax.nn.logsumexp(x @ w, -1).mean(), *many)
    assert program is plain


@pytest.mark.parametrize(
    ("rows", "tokens", "on_tpu"), [(8192, 2048, True), (65536, 2048, False), (65536, 4096, True)]
)
def test_a_large_tied_matrix_has_to_pay_for_its_sums_on_a_tpu(rows, tokens, on_tpu):
    """The larger one has 256 MiB, as many as a chunk's logits and their gradient there."""
    shapes = (rows, 1024), (tokens, 1024)
    table, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    ids = jax.ShapeDtypeStruct((tokens,), jnp.int32)

    def with_barrier(table, ids):
        return jax.nn.logsumexp(table[ids] @ table.T, -1).mean()

    def untied(table, x):
        return jax.nn.logsumexp(x @ table.T, -1).mean()

    def is_chunked(loss, *args, target):
        _, program, plain = _chunked(loss, *args, head=Head(), target=target)
        return program is not plain

    assert is_chunked(with_barrier, table, ids, target="tpu:v5e") is on_tpu
    assert is_chunked(with_barrier, table, ids, target="gpu:h100")
    assert is_chunked(untied, table, x, target="tpu:v5e")


def test_no_logits_of_all_tokens_and_no_product_more():
    x, w = _features(), _matrix()
    chunked, _, _ = _chunked(mean, x, w)
    steps = [
        program_module.flatten(jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, w))
        for loss in (chunked, mean)
    ]
    assert flops_of(steps[0].equations) == flops_of(steps[1].equations)
    logits = BATCH * LENGTH * WORDS
    assert [_largest(step.equations) >= logits for step in steps] == [False, True]


@pytest.mark.parametrize(
    "name",
    thinned(["attention_raw_key", "mlp", "u_net", "empty_and_scalar"], "empty_and_scalar"),
)
def test_whatever_can_be_sliced_gives_the_same(name, monkeypatch):
    """Programs that are no language models, as if slicing them were worth it."""
    for limit, any_value in (("_WIDE", 0), ("_LARGE_SHARE", 4), ("_WORTH", 100)):
        monkeypatch.setattr(operators.tiling.chunked_loss, limit, any_value)
    case = NAMED[name]()
    chunked, program, _ = _chunked(case.function, *case.args, head=Head(4, 1))
    assert any(e.apart for e in program.equations)
    floats, *others = case.args

    def values(loss):
        def first(floats):
            found = loss(floats, *others)
            return jax.tree.leaves(found)[0], found

        return jax.value_and_grad(first, has_aux=True)(floats)

    _assert_same(values(chunked), values(case.function), 1e-4)


def _largest(equations):
    """Elements of the largest array that equations, or loops among them, compute."""
    found = [v.aval.size for e in equations for v in e.eqn.outvars]
    for e in equations:
        for body in compat.subjaxprs(e.eqn):
            found.append(_largest(program_module.flatten(body).equations))
    return max(found, default=0)


def _wide(words=2048, tokens=4096, width=32):
    """A network with a large vocabulary, and its arguments."""

    def loss(params, batch):
        x = params["words"][batch[0]]
        for widen, narrow in params["layers"]:
            x = x + jax.nn.relu(x @ widen) @ narrow
        return _cross_entropy(x @ params["words"].T, batch[1]).mean()

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    layer = array(width, 4 * width), array(4 * width, width)
    params = {"words": array(words, width), "layers": [layer] * 2}
    return loss, (params, (array(tokens, dtype=jnp.int32),) * 2)


def _keeps_a_budget_that_others_do_not(target):
    loss, args = _wide()
    plan = monet_jax.plan(loss, *args, budget=0.5, target=target)
    assert "head" in plan.operators and "in 4 chunks" in str(plan)
    assert plan.compiled_bytes is not None and plan.decisions is not None
    assert plan.compiled_bytes <= plan.budget_bytes
    assert plan.decisions.flops == plan.base_flops
    budget = plan.compiled_bytes
    with pytest.raises(monet_jax.InfeasibleBudget):
        monet_jax.plan(loss, *args, budget=budget, target=target, operators=["mask", "pool"])


def test_a_budget_is_kept_for_which_there_is_no_plan_without():
    _keeps_a_budget_that_others_do_not("cpu")


@pytest.mark.slow
@pytest.mark.gpu
def test_a_budget_is_kept_on_a_gpu_for_which_there_is_no_plan_without():
    _keeps_a_budget_that_others_do_not("gpu:h100")


def test_a_sum_over_skip_connections_is_not_taken_into_the_chunks():
    """It is wide beside the logits, and each of its terms is computed from more bytes than it."""
    x = jax.ShapeDtypeStruct((4, 2048, 64), jnp.float32)
    layers = [(jax.ShapeDtypeStruct((64, 64), jnp.float32),) * 2] * 6
    table = jax.ShapeDtypeStruct((64, 256), jnp.float32)

    def loss(layers, table, x):
        skip = 0.0
        for w, v in layers:
            x = jnp.tanh(jnp.sort(x @ w, 1))
            skip = skip + x @ v
        return -jnp.mean(jax.nn.log_softmax(jax.nn.relu(skip) @ table)[..., 0])

    _, program, plain = _chunked(loss, layers, table, x, head=Head(), target="cpu")
    assert program is not plain
    (chunked,) = (e for e in program.equations if "chunks" in e.apart)
    assert sum(program.nbytes(i) > 2**20 for i in chunked.reads) == 1
