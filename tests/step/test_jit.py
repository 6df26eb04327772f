"""Steps that `monet_jax.jit` made keep their budgets and are jitted functions like JAX's."""

import functools

import jax
import jax.numpy as jnp
import pytest
from networks import recomputes
from steps import ADAMW, STEPS, WIDTH, assert_close, bytes_of, layers, loss, normal, plain, updated
from thinning import thinned

import monet_jax
from monet_jax.step import jit as jit_module


@pytest.mark.parametrize("name", thinned(STEPS, "accumulated"))
def test_three_steps_are_those_of_jax_within_the_budget(name):
    case = STEPS[name]()
    budget, step = case.budget(0.6), case.planned(0.6, max_compilations=3)
    assert sum(bytes_of(step, case.state, case.batch)) <= budget
    unmarked = jax.jit(case.make(monet_jax), donate_argnums=0)
    assert sum(bytes_of(unmarked, case.state, case.batch)) > budget  # marks alone plan nothing
    state, expected, reference = case.fresh(), case.fresh(), case.plain
    for _ in range(3):
        state, value = step(state, case.batch)
        expected, other = reference(expected, case.batch)
        assert_close(value, other, case.tolerance)
    assert_close(state, expected, 10 * case.tolerance)


def test_a_step_that_fits_stays_as_it_is():
    case = plain()
    step = case.planned(1.0)
    lowered = (x.lower(case.state, case.batch).as_text() for x in (step, case.plain))
    assert len(set(lowered)) == 1
    assert not recomputes(step, case.state, case.batch)
    assert recomputes(case.planned(0.5), case.state, case.batch)


@pytest.mark.parametrize("unroll", thinned([1, True], "1"))
def test_a_step_that_fits_is_planned_where_that_is_faster(unroll):
    """To compute sines again takes less time than to keep them all in a loop's stacks."""

    def loss(weights, x):
        def layer(x, w):
            return jnp.cos(jnp.sin(jnp.exp(-((x * w) ** 2))) ** 2), None

        return jnp.mean(jax.lax.scan(layer, x, weights, unroll=unroll)[0] ** 2)

    def step(weights, x, value_and_grad):
        value, gradient = value_and_grad(loss)(weights, x)
        return weights - gradient, value

    def marked(weights, x):
        return step(weights, x, monet_jax.value_and_grad)

    weights, x = normal(1, 8, 8), normal(2, 4096, 8)
    planned = monet_jax.jit(marked, budget="1GiB", costs="model", cache=False)
    assert recomputes(planned, weights, x) == (unroll == 1)
    if unroll == 1:
        plan = monet_jax.plan(planned, weights, x)
        assert plan.overhead < -0.05 and plan.compiled_bytes < plan.unplanned_bytes
    expected = jax.jit(step, static_argnums=2)(weights, x, jax.value_and_grad)
    assert_close(planned(weights, x), expected, 1e-5)


def test_it_takes_what_jit_takes():
    case = plain()

    @functools.partial(
        monet_jax.jit,
        budget=case.budget(0.6),
        max_compilations=2,
        donate_argnames="state",
        static_argnames=("scale", "norms"),
        keep_unused=True,
        cache=False,
    )
    def step(state, x, *, scale: float, norms: tuple[str, ...] = ()):
        value, gradient = monet_jax.value_and_grad(lambda p: scale * loss(p, x))(state[0])
        return updated(ADAMW, state, gradient), value

    shapes = step.eval_shape(case.state, case.batch, scale=2.0)
    state, value = step(case.fresh(), x=case.batch, scale=2.0, norms=("l2",))
    assert jax.tree.map(lambda s: (s.shape, s.dtype), shapes[0]) == jax.tree.map(
        lambda s: (s.shape, s.dtype), state
    )
    assert_close(value, 2.0 * case.plain(case.fresh(), case.batch)[1], 1e-5)
    found = step.trace(case.state, x=case.batch, scale=2.0).lower().compile().memory_analysis()
    assert found.alias_size_in_bytes > 0
    with pytest.raises(TypeError, match="donate_argument"):
        monet_jax.jit(loss, budget=1, donate_argument=0)


def test_each_signature_has_a_plan_of_its_own(monkeypatch):
    made = []

    def counted(call, options):
        made.append(call)
        return plan_step(call, options)

    plan_step = jit_module.plan_step
    monkeypatch.setattr(jit_module, "plan_step", counted)
    case = plain()
    step = case.planned(1.0)
    for x in (case.batch, case.batch, case.batch[:64], case.batch[:64]):
        step(case.fresh(), x)
    assert len(made) == 2
    step.clear_cache()
    step(case.fresh(), case.batch)
    assert len(made) == 3


def test_it_works_under_jit_grad_and_vmap():
    case = plain()
    step = case.planned(0.6, donate_argnums=(), max_compilations=2)
    reference = case.make(jax)
    expected = reference(case.state, case.batch)
    assert_close(jax.jit(step)(case.state, case.batch), expected, 1e-5)

    def last(step, x):
        return step(case.state, x)[1]

    slope = jax.grad(functools.partial(last, step))(case.batch)
    assert_close(slope, jax.grad(functools.partial(last, reference))(case.batch), 1e-4)
    many = jnp.stack([case.batch, 2 * case.batch])
    got, wanted = (jax.vmap(functools.partial(last, f))(many) for f in (step, reference))
    assert_close(got, wanted, 1e-5)


def test_arguments_and_results_alone_may_exceed_the_budget():
    case = plain()
    step = monet_jax.jit(case.make(monet_jax), budget=50_000, donate_argnums=0, cache=False)
    with pytest.raises(monet_jax.InfeasibleBudget, match=r"donated arguments.* alone") as caught:
        step(case.fresh(), case.batch)
    least = caught.value.minimum_budget
    within = monet_jax.jit(case.make(monet_jax), budget=least, donate_argnums=0, cache=False)
    assert sum(bytes_of(within, case.state, case.batch)) <= least


@pytest.mark.slow
def test_the_minimum_works_and_a_little_less_does_not():
    case = plain()
    step = case.planned(0.02)
    with pytest.raises(monet_jax.InfeasibleBudget, match="smallest one found") as caught:
        step(case.fresh(), case.batch)
    least, made = caught.value.minimum_budget, case.make(monet_jax)
    kept = monet_jax.jit(made, budget=least, donate_argnums=0, cache=False)
    assert sum(bytes_of(kept, case.state, case.batch)) <= least
    broken = monet_jax.jit(made, budget=int(0.97 * least), donate_argnums=0, cache=False)
    with pytest.raises(monet_jax.InfeasibleBudget):
        broken(case.fresh(), case.batch)


def test_a_step_without_marks_is_judged():
    case = plain()
    step = monet_jax.jit(case.make(jax), budget=case.budget(0.6), donate_argnums=0, cache=False)
    with pytest.raises(monet_jax.InfeasibleBudget, match=r"monet_jax\.value_and_grad"):
        step(case.fresh(), case.batch)
    wide = monet_jax.jit(case.make(jax), budget=case.budget(1.0), donate_argnums=0, cache=False)
    assert_close(wide(case.fresh(), case.batch), case.plain(case.fresh(), case.batch), 1e-6)


def test_a_fault_of_planning_leaves_the_step_as_it_is(monkeypatch):
    def broken(*given):
        raise KeyError("planted")

    case = plain()
    monkeypatch.setattr(jit_module, "plan_step", broken)
    with pytest.raises(KeyError, match="planted"):
        case.planned(0.6)(case.fresh(), case.batch)
    monkeypatch.delenv("MONET_JAX_STRICT")
    with pytest.warns(monet_jax.PlanningWarning, match=r"planted.*please report"):
        got = case.planned(0.6)(case.fresh(), case.batch)
    assert_close(got, case.plain(case.fresh(), case.batch), 1e-6)


def test_errors_of_the_step_are_its_own(monkeypatch):
    monkeypatch.delenv("MONET_JAX_STRICT")

    @monet_jax.jit(budget="1GiB")
    def step(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        step(1.0)


def test_a_method_may_be_a_step():
    class Trainer:
        scale = 3.0

        @functools.partial(monet_jax.jit, budget="1GiB", static_argnums=0, cache=False)
        def step(self, params, x):
            return monet_jax.grad(lambda p: self.scale * loss(p, x))(params)

    x = normal(0, 4, WIDTH)
    expected = jax.tree.map(lambda g: 3 * g, jax.grad(loss)(layers(), x))
    assert_close(Trainer().step(layers(), x), expected, 1e-5)
