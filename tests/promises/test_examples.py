"""The examples run and show what they say."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT
from steps import bytes_of

EXAMPLES = ROOT / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_accumulation_trains_as_without_a_budget():
    example = load("accumulate")
    (losses, state), (plain, plain_state) = example.train(16), example.train(16, jax.jit)
    np.testing.assert_allclose(losses, plain, rtol=1e-4)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(plain_state), strict=True):
        if jnp.issubdtype(a.dtype, jnp.inexact):
            np.testing.assert_allclose(a, b, atol=5e-4)  # Adam makes steps of small gradients
    assert losses[-1] < 0.8 * losses[0]


def made(example, jit):
    """The example's step, its state and its first batch."""
    if hasattr(example, "make_state"):
        return example.make_step(jit), example.make_state(), example.batch(0)
    return *example.make_step(jit), *next(example.batches(1))


@pytest.mark.parametrize("name", ["accumulate", "mixed_precision"])
def test_the_step_of_an_example_keeps_the_budget_that_it_names(name):
    example = load(name)
    budget = int(example.BUDGET.removesuffix("MiB")) << 20
    planned, plain = (sum(bytes_of(*made(example, jit))) for jit in (example.PLANNED, jax.jit))
    assert planned <= budget < plain


@pytest.mark.slow
def test_a_step_in_mixed_precision_trains_as_without_a_budget():
    example = load("mixed_precision")
    losses, plain = example.train(8), example.train(8, jax.jit)
    np.testing.assert_allclose(losses, plain, rtol=2e-2)  # bfloat16
    assert losses[-1] < 0.9 * losses[0]
