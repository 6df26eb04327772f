"""Steps of NNX objects are those of `nnx.jit`, within the budget of the whole step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from steps import ADAMW, WIDTH, normal
from thinning import thinned

import monet_jax

X = normal(9, 256, WIDTH)


class Layer(nnx.Module):
    """Normalized and dropped, so that a step changes statistics and the state of `Rngs`."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dense = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(jnp.sin(self.dense(self.norm(x))))


class Net(nnx.Module):
    """Layers, some of them the same object."""

    def __init__(self, rngs: nnx.Rngs, kind: type = Layer):
        self.layers = nnx.List([kind(rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in (*self.layers, self.layers[0]):
            x = layer(x)
        return x


def loss(model: Net, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


def step_of(marked, model: Net, optimizer: nnx.Optimizer, x: jax.Array, scale: float = 1.0):
    value, gradient = nnx.value_and_grad(lambda m: scale * marked(m, x))(model)
    optimizer.update(model, gradient)
    return value


def objects(kind: type = Layer):
    model = Net(nnx.Rngs(0, dropout=1), kind)
    return model, nnx.Optimizer(model, ADAMW, wrt=nnx.Param)


def taken(jitted, *arguments) -> int:
    found = jitted.lower(*arguments).compile().memory_analysis()
    fixed = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return fixed + found.temp_size_in_bytes


def marked_loss(model, optimizer, x):
    return step_of(monet_jax.remat(loss), model, optimizer, x)


def marked_layers(model, optimizer, x):
    return step_of(loss, model, optimizer, x)


@pytest.mark.parametrize(
    ("step", "kind"),
    thinned(
        [(marked_loss, Layer), (marked_layers, monet_jax.flax.remat(Layer))], "marked_loss-Layer"
    ),
)
def test_three_steps_are_those_of_nnx_within_the_budget(step, kind):
    plain = nnx.jit(functools.partial(step_of, loss), donate_argnums=(0, 1))
    options = {"donate_argnums": (0, 1), "max_compilations": 2}
    planned = monet_jax.flax.jit(step, budget=0.75, **options)
    plan = monet_jax.plan(planned, *objects(kind), X)
    assert plan.plans and plan.unplanned_bytes == taken(plain, *objects(), X)
    assert taken(planned, *objects(kind), X) == plan.compiled_bytes <= plan.budget_bytes
    planned = monet_jax.apply(plan, planned)  # as one that was carried here
    ours, theirs = objects(kind), objects()
    for _ in range(3):
        np.testing.assert_allclose(planned(*ours, X), plain(*theirs, X), rtol=1e-4)
    for a, b in zip(*(jax.tree.leaves(nnx.state(x)) for x in (ours, theirs)), strict=True):
        if jnp.issubdtype(b.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        elif not jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(a, b)  # counts of the optimizer and of `Rngs`


def test_it_is_a_jitted_function():
    @functools.partial(
        monet_jax.flax.jit, budget="1GiB", donate_argnums=(0, 1), static_argnames="scale"
    )
    def step(model, optimizer, x, scale):
        return step_of(monet_jax.remat(loss), model, optimizer, x, scale)

    model, optimizer = objects()
    shape = step.eval_shape(model, optimizer, X, scale=2.0)
    report = monet_jax.donation_report(step, model, optimizer, X, kwargs={"scale": 2.0})
    assert report.donated_bytes == report.aliased_bytes > 0 and not report.rows
    value = step(model, optimizer, X, scale=2.0)
    assert (value.shape, value.dtype) == (shape.shape, shape.dtype)
    assert float(value) == pytest.approx(2 * float(loss(objects()[0], X)), rel=1e-4)
    assert optimizer.step[...] == 1 and isinstance(model.layers[0].dense.kernel[...], jax.Array)
    assert step.lower(model, optimizer, X, scale=2.0).compile() is not None


def test_without_a_gradient_that_is_marked_the_error_says_what_to_mark():
    step = monet_jax.flax.jit(functools.partial(step_of, loss), budget=0.5, cache=False)
    with pytest.raises(monet_jax.InfeasibleBudget, match=r"monet_jax\.remat"):
        step(*objects(), X)


@pytest.mark.slow
def test_several_steps_need_several_optimizers():
    """Objects that share state are one state to the compiler."""
    model, optimizer = objects()
    other = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @functools.partial(monet_jax.flax.jit, budget="1GiB", cache=False)
    def step(model, optimizer, other, x):
        step_of(monet_jax.remat(loss), model, optimizer, x)
        return step_of(monet_jax.remat(loss), model, other, x)

    def counts():
        return int(optimizer.step[...]), int(other.step[...])

    step(model, optimizer, other, X)
    assert counts() == (1, 1)
