"""The examples run and show what they say."""

import importlib.util

import jax
import numpy as np
import pytest
from flax import nnx
from paths import ROOT

import monet_jax

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
    (losses, model), (plain, plain_model) = example.train(16), example.train(16, budget=None)
    np.testing.assert_allclose(losses, plain, rtol=1e-4)
    states = [
        jax.tree.leaves(nnx.to_pure_dict(nnx.state(m, nnx.Param))) for m in (model, plain_model)
    ]
    for a, b in zip(*states, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-4)  # Adam makes steps of small gradients
    assert losses[-1] < 0.8 * losses[0]


def test_the_budget_of_the_example_asks_for_a_plan():
    example = load("accumulate")
    model = nnx.eval_shape(lambda: example.Gpt(nnx.Rngs(0, dropout=1)))
    (batch,) = example.batches(1)
    plan = monet_jax.flax.plan(
        example.loss, model, *batch, budget=example.BUDGET, reserved=example.make_optimizer()
    )
    assert plan.decisions is not None and plan.compiled_bytes is not None
    assert plan.compiled_bytes + plan.reserved_bytes <= plan.budget_bytes
