"""Marks are JAX's transformations, and planned wherever they stand in a step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from networks import recomputes
from steps import BATCH, WIDTH, assert_close, bytes_of, layers, loss, normal
from thinning import thinned

import monet_jax
from monet_jax.step.context import Applying, Recording, Tracer
from monet_jax.tracing.trace import without_operators
from monet_jax.tracing.traced import Terms

X = normal(9, 2, BATCH, WIDTH)


def shifted(params, x, shift):
    """A loss with an auxiliary result."""
    return loss(params, x + shift), {"mean": jnp.mean(x)}


def norm_and_pull(api, params, x):
    value, pull = api.vjp(loss, params, x[0])
    return value, pull(2.0)


def pushed(api, params, x):
    value, push = api.linearize(lambda p: loss(p, x[0]), params)
    return value, push(params)


def in_branch(api, params, x):
    taken = functools.partial(api.grad(loss), params)
    return jax.lax.cond(x[0, 0, 0] > 0, taken, lambda x: params, x[0])


def of_ensemble(api, params, x):
    return jax.vmap(api.value_and_grad(loss), in_axes=(None, 0))(params, x)


def over_parts(api, params, x):
    return jax.lax.scan(lambda total, part: (total, api.grad(loss)(params, part)), 0.0, x)


def in_jit(api, params, x):
    return INNER[api](params, x[0])


def on_one_device(api, params, x):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    one = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), check_vma=False)
    return one(lambda p, x: api.grad(loss)(p, x[0]), out_specs=P())(params, x)


def with_remat(api, params, x):
    marked = loss if api is jax else api.remat(loss)
    return jax.value_and_grad(marked)(params, x[0])


# As a library has it: a jitted function, whose trace JAX keeps for later traces of a step.
INNER = {api: jax.jit(api.value_and_grad(loss)) for api in (jax, monet_jax)}
FUNCTIONS = {
    f.__name__: f
    for f in (norm_and_pull, in_branch, of_ensemble, over_parts, in_jit, on_one_device, with_remat)
}


@pytest.mark.parametrize("name", thinned(FUNCTIONS, "norm_and_pull", "in_branch"))
def test_a_mark_is_planned_wherever_it_stands(name):
    plain, marked = (functools.partial(FUNCTIONS[name], api) for api in (jax, monet_jax))
    fixed, temporaries = bytes_of(jax.jit(plain), layers(), X)
    budget = fixed + int(0.7 * temporaries)
    step = monet_jax.jit(marked, budget=budget, max_compilations=4, cache=False)
    assert sum(bytes_of(step, layers(), X)) <= budget < fixed + temporaries
    assert recomputes(step, layers(), X) and not recomputes(jax.jit(plain), layers(), X)
    assert_close(step(layers(), X), jax.jit(plain)(layers(), X), 1e-4)


def test_linearize_in_a_step_is_that_of_jax():
    step = monet_jax.jit(functools.partial(pushed, monet_jax), budget="1GiB", cache=False)
    assert_close(step(layers(), X), pushed(jax, layers(), X), 1e-5)


def test_arguments_and_auxiliary_results_are_those_of_jax():
    def step(api, params, x):
        both = api.value_and_grad(shifted, argnums=(0, 2), has_aux=True)(params, x[0], 0.5)
        return both, api.grad(shifted, has_aux=True)(params, x[1], shift=0.5)

    plain = jax.jit(functools.partial(step, jax))
    fixed, temporaries = bytes_of(plain, layers(), X)
    marked = functools.partial(step, monet_jax)
    budget = fixed + int(0.7 * temporaries)
    planned = monet_jax.jit(marked, budget=budget, max_compilations=2, cache=False)
    assert recomputes(planned, layers(), X)
    assert_close(planned(layers(), X), plain(layers(), X), 1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outside_of_a_step_a_mark_is_the_plain_function(name):
    programs = [
        jax.make_jaxpr(functools.partial(FUNCTIONS[name], api))(layers(1), X[:, :8])
        for api in (jax, monet_jax)
    ]
    assert str(programs[0]) == str(programs[1])


def test_a_function_that_is_called_often_has_one_plan():
    def step(params, x):
        layer = monet_jax.remat(lambda w, x: x + jnp.sin(jnp.sin(x @ w) @ w))

        def whole(params):
            y = x
            for w in params:
                y = layer(w, y)
            return jnp.mean(y**2)

        return jax.grad(whole)(params)

    made = monet_jax.plan(monet_jax.jit(step, budget=0.8, max_compilations=2), layers(), X[0])
    assert len(made.plans) == len(made.marks) == 1


def test_of_marks_in_marks_the_outer_one_decides():
    def step(params, x):
        def whole(params):
            return monet_jax.remat(loss)(params, x) + 1.0

        return monet_jax.grad(whole)(params)

    made = monet_jax.plan(monet_jax.jit(step, budget="1GiB"), layers(), X[0])
    assert [name.rpartition(".")[2] for name in made.marks.values()] == ["whole"]


def test_a_mark_that_changes_from_trace_to_trace_runs_as_it_is():
    seen = []

    def step(params, x):
        seen.append(0)
        return monet_jax.grad(lambda p: loss(p, x) + float(len(seen) % 2) * jnp.sum(x))(params)

    def other(params, x):
        seen.append(0)
        own = loss if len(seen) % 2 else lambda p, x: loss(p, jnp.sin(x))
        return monet_jax.grad(own)(params, x)

    options = {"budget": 0.9, "max_compilations": 2, "cache": False}
    monet_jax.jit(step, **options)(layers(), X[0])
    with pytest.warns(monet_jax.PlanningWarning, match="another program in this trace"):
        monet_jax.jit(other, **options)(layers(), X[0])


def test_options_of_a_plan_need_a_budget():
    with pytest.raises(ValueError, match=r"'operators'.*no budget"):
        monet_jax.remat(loss, operators="none")
    assert monet_jax.remat(argnums=1)(lambda x, y: x * y)(2.0, 3.0) == 6.0


def test_what_has_no_gradient_is_not_planned():
    step = monet_jax.jit(lambda x: monet_jax.remat(jnp.sin)(x), budget="1MiB", cache=False)
    np.testing.assert_array_equal(step(X), jnp.sin(X))


def test_an_array_that_a_mark_closes_over_beside_a_tracer_has_no_gradient():
    """A plan of the program without operators is for that program in every trace of the step."""
    table, params, now = X[1], layers(), []

    def step(params, x):
        return monet_jax.grad(lambda p: loss(p, x + table))(params)

    def emission(traced, inputs):
        now.append(without_operators(traced, "cpu").program_hash)
        return traced.flat(inputs)

    tracer = Tracer(Terms(), "cpu", 1)
    recording = Recording(tracer)
    call = monet_jax.jit(step, budget="1GiB").call_for((params, X[0]), {})
    call.traced(recording)
    ((name, mark),) = recording.found.items()
    call.traced(Applying(tracer, {name: emission}, (name,)))
    assert now == [without_operators(mark, "cpu").program_hash]
