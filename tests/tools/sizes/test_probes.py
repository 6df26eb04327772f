"""What is found to be small at one size is compiled first at others, where it is a plan."""

import pytest
from networks import net, specs

from monet_jax.candidates.programs import smallest_compiled
from monet_jax.planning.options import PlanOptions
from monet_jax.tools.sizes.sized import Sized


def sized(**axes) -> Sized:
    options = PlanOptions(budget="1GiB", target="cpu")
    return Sized(net, lambda size: specs(**{"depth": 3, **axes, "batch": size}), ("size",), options)


@pytest.fixture(scope="module")
def known():
    """A size at which small plans were searched for, though nothing can keep the limit."""
    probe, other = (sized().function_probe(0, 512) for _ in range(2))
    assert probe.least_bytes(1) < other.small_bytes() < probe.plain_bytes
    return probe


def smallest_of(probe):
    """The program and the regions of the smallest plan that a size has compiled."""
    return smallest_compiled(probe.search.programs)[1].key


def count(probe) -> int:
    return probe.search.compiled_plans.cap.compilations


def test_the_smallest_plan_of_another_size_takes_one_compilation(known):
    probe = sized().function_probe(0, 1024)
    taken = probe.small_bytes(known)
    assert count(probe) == 2  # the function as it is, and that plan
    assert smallest_of(probe) == smallest_of(known)
    # No search at this size finds one that takes clearly less, and saving nothing takes more.
    again = sized().function_probe(0, 1024)
    assert taken < again.small_bytes()
    assert taken <= 1.01 * again.least_bytes(1)


def test_that_plan_calibrates_the_model_as_well_as_the_one_that_saves_nothing(known):
    probe, other = (sized().function_probe(0, 1024) for _ in range(2))
    probe.small_bytes(known), other.small_bytes()
    learned, measured = (x.search.compiled_plans for x in (probe, other))
    assert learned.is_calibrated and learned.calibration_plan not in learned
    shifts = learned._calibration_shift, measured._calibration_shift
    assert abs(shifts[0] - shifts[1]) < 0.02 * measured.unplanned.temp_bytes
    assert learned.model.scale != learned.uncalibrated.scale


def test_where_it_is_no_plan_the_one_that_saves_nothing_is_compiled(known):
    deeper = sized(depth=6)
    probe, other = (deeper.function_probe(0, 1024) for _ in range(2))
    assert probe.small_bytes(known) == other.small_bytes()
    assert count(probe) == count(other) == 2


def test_plans_of_another_size_are_compiled_until_one_fits(known):
    probe = sized().function_probe(0, 1024)
    limit = probe.small_bytes(known) + 1000
    compilations = count(probe)
    assert probe.least_bytes(limit, known) <= limit
    assert count(probe) == compilations
    assert probe.least_bytes(limit // 2, known) > limit // 2
