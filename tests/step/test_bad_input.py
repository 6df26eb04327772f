"""What a step cannot be is said; its values are those of JAX, or there are none."""

import functools
import logging
import warnings

import jax
import jax.numpy as jnp
import pytest
from steps import WIDTH, assert_close, layers, loss, normal, plain

import monet_jax

X = normal(9, 64, WIDTH)


def planned(step, budget: int | float | str = 0.7, **options):
    return monet_jax.jit(step, budget=budget, cache=False, max_compilations=3, **options)


@pytest.mark.slow
def test_a_mark_that_changes_is_said_once():
    traces = []

    def step(params, x):
        traces.append(0)
        own = loss if len(traces) % 2 else lambda p, x: loss(p, jnp.sin(x))
        return monet_jax.grad(own)(params, x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monet_jax.plan(planned(step, 0.9), layers(), X)
    said = [str(x.message) for x in caught if issubclass(x.category, monet_jax.PlanningWarning)]
    assert len(said) == 1 and "another program in this trace" in said[0]


@jax.custom_vjp
def with_own_rule(params, x):
    return monet_jax.remat(loss)(params, x)


def _rule(residuals, g):
    gradient = jax.grad(loss, argnums=(0, 1))(*residuals)
    return jax.tree.map(lambda a: a * g, gradient)


with_own_rule.defvjp(lambda p, x: (with_own_rule(p, x), (p, x)), _rule)


def over_an_axis(api, params, x):
    def one(params, x):
        return api.grad(lambda p, x: jax.lax.pmean(loss(p, x), "data"))(params, x)

    return jax.vmap(one, in_axes=(None, 0), axis_name="data")(params, x[None])


def with_reference(api, params, x):
    calls = jax.new_ref(jnp.zeros(()))

    def counted(params, x):
        calls[...] += 1.0
        return loss(params, x)

    return api.grad(counted)(params, x), calls[...]


def of_own_gradient(api, params, x):
    mark = api.remat if api is monet_jax else lambda f: f
    return mark(jax.value_and_grad(loss))(params, x)


#: A step -> what the error says, and whether a warning comes before it.
HIDDEN = {
    "its own rule": (lambda api, p, x: jax.grad(with_own_rule)(p, x), "hides it", False),
    "no gradient": (lambda api, p, x: monet_jax.remat(loss)(p, x), "no gradient is taken", False),
    "a mapped axis": (over_an_axis, r"mapped axes \('data',\)", True),
    "a reference": (with_reference, "mutable references", True),
    "its own gradient": (of_own_gradient, "no gradient is taken|its own gradient", True),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.filterwarnings("ignore::monet_jax.PlanningWarning")
def test_a_mark_that_is_hidden_is_named_where_the_step_does_not_fit(name):
    step, message, _ = HIDDEN[name]
    with pytest.raises(monet_jax.InfeasibleBudget, match=message) as error:
        planned(functools.partial(step, monet_jax), 0.5)(layers(), X)
    assert "is marked, but" in str(error.value)


@pytest.mark.parametrize("name", HIDDEN)
def test_a_mark_that_is_hidden_runs_as_it_is_where_the_step_fits(name):
    step, message, warns = HIDDEN[name]
    wide = planned(functools.partial(step, monet_jax), "1GiB")
    if warns:
        with pytest.warns(monet_jax.PlanningWarning, match=message):
            got = wide(layers(), X)
    else:
        got = wide(layers(), X)
    assert_close(got, jax.jit(functools.partial(step, jax))(layers(), X), 1e-5)


def test_donated_arguments_are_gone_as_under_jit():
    case = plain()
    for step in (case.planned(1.0), case.plain):
        state = case.fresh()
        step(state, case.batch)
        with pytest.raises(RuntimeError, match="deleted"):
            _ = state[0][0] + 1
        with pytest.raises(RuntimeError, match="deleted"):
            step(state, case.batch)


def test_a_step_may_return_its_gradient():
    def step(api, params, x):
        return api.value_and_grad(loss)(params, x)

    made = planned(functools.partial(step, monet_jax), 0.85)
    assert monet_jax.plan(made, layers(), X).plans
    assert_close(made(layers(), X), jax.jit(functools.partial(step, jax))(layers(), X), 1e-4)


def test_side_effects_are_those_of_a_jitted_function():
    heard, leaked = [], []

    def told(params, x):
        jax.debug.callback(lambda total: heard.append(float(total)), x.sum())
        return loss(params, x)

    def step(params, x):
        leaked.append(x)
        return monet_jax.grad(told)(params, x)

    made = planned(step)
    for n in (1, 2):
        made(layers(), X)
        jax.effects_barrier()
        assert len(heard) == n  # once a call, however often it was traced or compiled
    with pytest.raises(jax.errors.UnexpectedTracerError):
        _ = leaked[-1] + 1


def test_an_outer_transformation_is_said_once(caplog):
    def step(params, x):
        return monet_jax.grad(loss)(params, x)

    made = planned(step, "1GiB")
    with caplog.at_level(logging.WARNING, "monet_jax"):
        for _ in range(2):
            got = jax.vmap(made, in_axes=(None, 0))(layers(), X.reshape(2, 32, WIDTH))
    said = [x.getMessage() for x in caplog.records if "under an outer" in x.getMessage()]
    assert len(said) == 1 and "step" in said[0]
    expected = jax.vmap(jax.grad(loss), in_axes=(None, 0))(layers(), X.reshape(2, 32, WIDTH))
    assert_close(got, expected, 1e-5)


@pytest.mark.parametrize("wrong", [{"argnums": 0}, {"reserved": 1}])
def test_options_of_functions_are_refused(wrong):
    with pytest.raises(TypeError, match=next(iter(wrong))):
        monet_jax.jit(loss, budget=1, **wrong)
