"""The examples run and show what they say."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from paths import ROOT
from processes import finished, start
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
    if hasattr(example, "make_objects"):
        jit = nnx.jit if jit is jax.jit else jit
        return example.make_step(jit), *example.make_objects(), *example.batch(0)
    if hasattr(example, "make_state"):
        return example.make_step(jit), example.make_state(), example.batch(0)
    return *example.make_step(jit), *next(example.batches(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accumulate", "mixed_precision", "resnet"])
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


@pytest.mark.slow
def test_a_step_of_objects_trains_as_without_a_budget():
    example = load("resnet")
    (losses, ours), (plain, theirs) = example.train(10), example.train(10, nnx.jit)
    np.testing.assert_allclose(losses, plain, rtol=1e-2)
    assert losses[-1] < 0.5 * losses[0]
    for a, b in zip(*(jax.tree.leaves(nnx.state(x)) for x in (ours, theirs)), strict=True):
        if jnp.issubdtype(a.dtype, jnp.inexact):
            np.testing.assert_allclose(a, b, atol=2e-2)  # Adam makes steps of small gradients


#: In a process of its own: devices of a CPU are counted before JAX is used.
SHARDED = """
import sys, jax, numpy as np
sys.path.append(sys.argv[1])
from test_examples import load
from steps import bytes_of

example = load("fsdp")
mesh = example.make_mesh()
"""


def run_sharded(code: str) -> None:
    finished(start(SHARDED + code, ROOT / "tests/promises"), timeout=900)


@pytest.mark.slow
def test_each_device_of_a_sharded_step_keeps_the_budget():
    run_sharded(
        """
batch = example.batch(mesh, 0)
steps = (example.make_step(mesh, jit) for jit in (example.PLANNED, jax.jit))
planned, plain = (sum(bytes_of(*step, batch)) for step in steps)
budget = int(example.BUDGET.removesuffix("MiB")) << 20
assert planned <= budget < plain, (planned, plain)
params = example.make_step(mesh)[1][0]
for w in jax.tree.leaves(params):
    assert example.DEVICES * w.addressable_shards[0].data.nbytes == w.nbytes
"""
    )


@pytest.mark.slow
def test_a_sharded_step_trains_as_without_a_budget():
    run_sharded(
        """
losses, plain = example.train(mesh, 8), example.train(mesh, 8, jax.jit)
np.testing.assert_allclose(losses, plain, rtol=1e-3)
assert losses[-1] < 0.9 * losses[0]
"""
    )
