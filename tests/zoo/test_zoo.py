"""The zoo's models are the published ones, and block-remat baselines have the same losses."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import checkpoint_regions
from thinning import thinned

from monet_jax.zoo import FRONTIER, MODELS, build, moe

PUBLISHED = {
    "resnet50": 25_557_032,
    "googlenet": 6_624_904,
    "vgg16": 138_357_544,
    "mobilenet_v2": 3_504_872,
    "vit_s16": 22_050_664,
    "gpt2": 124_439_808,
    "gpt2_scan": 124_439_808,
    "neural_ode": 208_266,
    "diffusion_unet": 35_746_307,
}
AT_THE_FRONTIER = {
    "llama": 8_030_261_248,
    "vit_s16": 304_326_632,  # ViT-L/16
    "diffusion_unet": 113_673_219,
    "gpt2": 1_557_611_200 - 36 * 30_740_800,  # of GPT-2 XL's 48 layers, 12
    # Of Mixtral 8x7B's 32 layers, 4.
    "moe": 46_702_792_704 - 28 * 1_451_270_144,
}
WITH_BATCH_NORM = {"resnet50", "googlenet", "unet", "mobilenet_v2"}
POLICIES = ("nothing", "dots", "dots_no_batch")


def gradient(problem):
    return jax.value_and_grad(problem.loss, has_aux=True)


def assert_close(tree, other):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), tree, other)


@pytest.mark.parametrize(
    ("name", "scale"),
    thinned(
        itertools.product(PUBLISHED, ("full", "bench")),
        *(f"{name}-full" for name in ("mobilenet_v2", "gpt2", "vit_s16")),
        "gpt2-bench",
    ),
)
def test_parameter_count_is_the_published_one(name, scale):
    params = build(name, scale=scale).args[0]
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == PUBLISHED[name]


@pytest.mark.parametrize("name", thinned(MODELS, "mlp"))
def test_two_steps_move_the_state_and_block_remat_changes_nothing(name):
    plain = build(name, scale="tiny")
    remat = build(name, scale="tiny", block_remat="nothing")
    params, state, batch, key = plain.make_args(0)
    step, rematted_step = jax.jit(gradient(plain)), jax.jit(gradient(remat))

    (loss, new_state), grads = step(params, state, batch, key)
    (remat_loss, remat_state), remat_grads = rematted_step(params, state, batch, key)
    np.testing.assert_allclose(remat_loss, loss, rtol=1e-5)
    assert_close((remat_grads, remat_state), (grads, new_state))

    params = jax.tree.map(lambda w, g: w - 0.01 * g, params, grads)
    (loss, last_state), _ = step(params, new_state, batch, jax.random.fold_in(key, 1))
    assert np.isfinite(loss) and loss.dtype == jnp.float32
    assert bool(jax.tree.leaves(state)) == (name in WITH_BATCH_NORM)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(last_state), strict=True):
        assert not np.array_equal(before, after)


@pytest.mark.parametrize(
    ("name", "policy"),
    thinned(
        itertools.product(MODELS, POLICIES),
        *(f"{name}-nothing" for name in ("mlp", "gpt2", "gpt2_scan", "moe")),
        "mlp-dots",
        "resnet50-dots",
        "mlp-dots_no_batch",
    ),
)
def test_block_remat_wraps_blocks_and_keeps_the_arguments(name, policy):
    plain, remat = build(name, scale="tiny"), build(name, scale="tiny", block_remat=policy)
    assert remat.args == plain.args
    assert not checkpoint_regions(jax.make_jaxpr(plain.loss)(*plain.args))
    assert checkpoint_regions(jax.make_jaxpr(remat.loss)(*remat.args))


#: What people compute in bfloat16, and, of the forward pass, what they compute in float32: sums and
#: roots of statistics, the softmax of attention, the loss.
PRODUCTS = {"dot_general", "conv_general_dilated"}
IN_FLOAT32 = {"reduce_sum", "reduce_max", "rsqrt", "exp", "log", "scatter-add"}


def equations(jaxpr):
    """All equations of a jaxpr, those of loops and calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def of_other_dtypes(fun, args, names, dtype):
    """Equations with these names that read or write floating-point numbers of another dtype.

    The router of a mixture of experts computes in float32.
    """
    found = [
        e
        for e in equations(jax.make_jaxpr(fun)(*args).jaxpr)
        if e.primitive.name in names and "router" not in str(e.source_info.name_stack)
    ]
    assert found, f"none of {names}"
    return [
        str(e)
        for e in found
        for v in (*e.invars, *e.outvars)
        if jnp.issubdtype(v.aval.dtype, jnp.floating) and v.aval.dtype != dtype
    ]


@pytest.mark.parametrize("name", thinned(MODELS, "gpt2", "mlp"))
def test_bfloat16_is_computed_in_as_people_do(name):
    problem = build(name, scale="tiny", batch=3, dtype=jnp.bfloat16)
    (loss, state), gradients = jax.eval_shape(gradient(problem), *problem.args)
    leaves = jax.tree.leaves((problem.args[0], gradients, state, loss))
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(problem.args[2]))
    assert not of_other_dtypes(gradient(problem), problem.args, PRODUCTS, jnp.bfloat16)
    assert not of_other_dtypes(problem.loss, problem.args, IN_FLOAT32, jnp.float32)


def test_another_dtype_is_found():
    def narrow(x, w):
        return jnp.sum(jax.nn.softmax(x.astype(jnp.bfloat16)) @ w)

    args = [jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 2
    assert of_other_dtypes(narrow, args, PRODUCTS, jnp.bfloat16)
    assert of_other_dtypes(jax.checkpoint(narrow), args, {"exp"}, jnp.float32)
    plain = build("llama", scale="tiny")
    assert of_other_dtypes(gradient(plain), plain.args, PRODUCTS, jnp.bfloat16)


@pytest.mark.parametrize("name", thinned(FRONTIER, "vit_s16", "gpt2", "moe", "llama"))
def test_the_frontier_has_the_published_parameters(name):
    params = build(name, scale="frontier", dtype=jnp.bfloat16).args[0]
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == AT_THE_FRONTIER[name]


def test_a_scale_that_a_model_lacks_says_which_have_it():
    with pytest.raises(ValueError, match="'mlp' has no scale 'frontier': choose of llama"):
        build("mlp", scale="frontier")


def test_tokens_go_to_their_experts_until_these_are_full():
    """Against a loop over tokens, in the order of tokens and of their choices."""
    rng = np.random.default_rng(0)
    indices = np.argsort(rng.random((2, 12, 4)), axis=-1)[..., :2]
    gates = rng.random((2, 12, 2)).astype(np.float32)
    goes, weight = moe.dispatched(jnp.asarray(gates), jnp.asarray(indices), 4, 3)
    expected = np.zeros((2, 12, 4, 3), np.float32)
    for g in range(2):
        taken = [0] * 4
        for t, k in np.ndindex(12, 2):
            expert = indices[g, t, k]
            if taken[expert] < 3:
                expected[g, t, expert, taken[expert]] = gates[g, t, k]
            taken[expert] += 1
    np.testing.assert_allclose(weight, expected, rtol=1e-6)
    np.testing.assert_array_equal(goes, expected > 0)
    assert (expected > 0).sum() < indices.size  # some were full


def test_the_full_llama_has_the_published_parameters():
    params = build("llama").args[0]
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == 1_235_814_400


def test_unknown_name_says_what_there_is():
    with pytest.raises(ValueError, match="resnet50"):
        build("resnet51")
