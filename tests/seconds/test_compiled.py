"""Prices by the compiler's estimates, and what happens where there are none."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from compilers import foreign_target

import monet_jax
from monet_jax.analyzer.fusion import Fusions, group_of
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.estimates import Estimate
from monet_jax.compiler.targets import TARGETS
from monet_jax.ir.program import flatten
from monet_jax.seconds import sources
from monet_jax.seconds.attained import roofline_of
from monet_jax.seconds.compiled import ByCompiler, credible, total_seconds
from monet_jax.seconds.prices import ByRoofline

H100 = TARGETS["gpu:h100"]


def groups(fun, *shapes):
    """The ops of a function, as an H100 runs them."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = flatten(jax.make_jaxpr(fun)(*args))
    fusions = Fusions(program, backend_of("gpu:h100"))
    return [group_of(fusions, x) for x in fusions.all()]


def test_an_op_has_the_price_of_the_instruction_that_is_like_it():
    def fun(x, w):
        y = x @ w
        return y, jnp.tanh(y) + x

    product, added = groups(fun, (128, 128), (128, 128))
    size = 128 * 128
    estimates = [
        Estimate(7e-6, 1, 2 * 128**3, (size,) * 2, (size,)),
        Estimate(5e-6, 4, 0, (size, size), (size,)),
        Estimate(3e-6, 1, 0, (size,), (size,)),
    ]
    prices = ByCompiler(estimates, roofline_of(H100))
    assert (prices.of(product).seconds, prices.of(product).source) == (7e-6, "compiler")
    assert (prices.of(added).seconds, prices.of(added).source) == (5e-6, "compiler")
    # A product whose results are added up later is known by its work; a sum of other size by none.
    split = ByCompiler([Estimate(7e-6, 1, 2 * 128**3, (1, 2), (3,))], roofline_of(H100))
    assert (split.of(product).seconds, split.of(added).source) == (7e-6, "roofline")
    assert split.of(added) == ByRoofline(roofline_of(H100)).of(added)
    assert total_seconds(estimates) == pytest.approx(7e-6 + 4 * 5e-6 + 3e-6)


def test_an_estimate_far_beyond_the_roofline_is_not_believed():
    """The figures are XLA:GPU's: a product of a sum over 4096, which it splits, and one of 2048."""
    sides = 4096 * 2048, 2048 * 2048
    split = Estimate(2819e-6, 1, 2 * 2048 * 4096 * 2048, (sides[0],) * 2, (sides[1],))
    whole = Estimate(47.2e-6, 1, 2 * 4096 * 2048 * 2048, sides, (sides[0],))
    assert credible([split, whole], roofline_of(H100)) == [whole]
    (product,) = groups(lambda x, y: x.T @ y, (4096, 2048), (4096, 2048))
    assert ByCompiler([split], roofline_of(H100)).of(product).source == "roofline"


def test_a_compiler_that_says_nothing_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(sources, "compiler_version", lambda target: "XLA:GPU of tomorrow")
    with pytest.warns(UserWarning, match="XLA:GPU of tomorrow"):
        prices = sources.prices_of(H100, ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(sources.prices_of(H100, ()), ByRoofline)
        # The A100's is not asked, and what is not compiled yet has said nothing.
        sources.prices_of(TARGETS["gpu:a100"], ())
        sources.prices_of(H100, None)
    assert isinstance(prices, ByRoofline)


@pytest.mark.parametrize("target", [foreign_target("gpu:h100")])
def test_a_plan_for_a_card_has_the_seconds_of_its_compiler(target):
    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    weights = [jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)] * 8
    batch = jax.ShapeDtypeStruct((8192, 256), jnp.bfloat16)
    plan = monet_jax.plan(loss, weights, batch, budget=0.8, target=target, cache=False)
    shares = {row.source: row.seconds / plan.base_seconds for row in plan.sources}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["compiler"] > 0.8
    assert "estimated by the compiler" in str(plan)
