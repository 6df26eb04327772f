"""Steps that `monet_jax.jit` made keep their budgets and compute what `jax.jit`'s do."""

import jax
import pytest
from networks import assert_same
from steps import STEPS

import monet_jax


def bytes_of(jitted, *arguments) -> jax.stages.Compiled:
    """Fixed and temporary bytes of a step, as JAX's own compiler says."""
    found = jitted.lower(*arguments).compile().memory_analysis()
    fixed = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return fixed, found.temp_size_in_bytes


@pytest.mark.parametrize("name", STEPS)
def test_three_steps_are_those_of_jax_within_the_budget(name):
    case = STEPS[name]()
    plain = jax.jit(case.make(jax), donate_argnums=0)
    fixed, temporaries = bytes_of(plain, case.state, case.batch)
    budget = fixed + int(0.6 * temporaries)
    step = monet_jax.jit(case.make(monet_jax), budget=budget, donate_argnums=0, cache=False)
    import time

    t = time.time()
    taken = sum(bytes_of(step, case.state, case.batch))
    print(name, budget, taken, taken / budget, fixed + temporaries, round(time.time() - t, 1))
    assert taken <= budget < fixed + temporaries
    state, expected = case.fresh(), case.fresh()
    for _ in range(3):
        (state, value), (expected, other) = step(state, case.batch), plain(expected, case.batch)
        assert_same(value, other)
    assert_same(state, expected, least=1e-5)
