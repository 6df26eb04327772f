"""The compiler's estimates of a program: what they add up to, and which are not believed."""

from monet_jax.compiler.estimates import Estimate
from monet_jax.compiler.targets import TARGETS
from monet_jax.seconds.attained import roofline_of
from monet_jax.seconds.compiled import credible, total_seconds

H100 = TARGETS["gpu:h100"]


def test_a_loop_counts_as_often_as_it_runs():
    assert total_seconds([Estimate(7.0, 1, 0, (), ()), Estimate(5.0, 4, 0, (), ())]) == 27.0


def test_an_estimate_far_beyond_the_roofline_is_not_believed():
    """The figures are XLA:GPU's: a product of a sum over 4096, which it splits, and one of 2048."""
    sides = 4096 * 2048, 2048 * 2048
    split = Estimate(2819e-6, 1, 2 * 2048 * 4096 * 2048, (sides[0],) * 2, (sides[1],))
    whole = Estimate(47.2e-6, 1, 2 * 4096 * 2048 * 2048, sides, (sides[0],))
    assert credible([split, whole], roofline_of(H100)) == [whole]
