"""A marked function is planned once, when it is differentiated, never worse than plain JAX."""

import dataclasses
import functools as ft
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coming_rules import either_rules as either_rules
from leaks import leaks_are_errors
from networks import args, assert_same, compiled, made, net, specs
from networks import planning_calls as planning_calls
from thinning import thinned

import monet_jax
import planners
from monet_jax import _plan
from monet_jax.planning import failures, pipeline

planned = ft.partial(monet_jax.remat, budget=0.5, cache=False)


@pytest.fixture
def lenient(monkeypatch):
    """As a user runs: faults of ours are warnings."""
    monkeypatch.delenv(failures.STRICT)


def wide(w, x):
    """A loss whose activations take most of its memory."""
    for _ in range(4):
        x = jnp.sin(x @ w)
    return jnp.mean(x**2)


W, X = jnp.eye(16) / 2, jnp.ones((512, 16))

# ------------------------------------------------------------------------- when it is planned


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f(W, X),
        lambda f: jax.jit(f)(W, X),
        lambda f: jax.eval_shape(f, W, X),
        lambda f: jax.jit(f).lower(W, X).compile() and None,
        lambda f: jax.vmap(jax.jit(f), (None, 0))(W, jnp.stack([X, X])),
        lambda f: jax.lax.map(lambda x: f(W, x), jnp.stack([X, X])),
        lambda f: jax.grad(lambda w: jnp.sum(w) + f(jax.lax.stop_gradient(W), X))(W),
        lambda f: jax.jit(jax.grad(lambda w: jnp.sum(w) * jax.lax.stop_gradient(f(W, X))))(W),
    ],
)
def test_nothing_is_planned_where_no_gradient_is_taken(call, planning_calls):
    assert_same(call(planned(wide)), call(wide))
    assert not planning_calls


@pytest.mark.parametrize(
    "gradient",
    [
        lambda f: jax.grad(f),
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
        lambda f: jax.jit(jax.grad(jax.jit(jax.jit(f)))),
        lambda f: lambda w, x: jax.vjp(jax.jit(f), w, x)[1](jnp.float32(1.0))[0],
        lambda f: jax.grad(
            lambda w, x: jax.lax.scan(lambda c, _: (c + f(w, x), c), 0.0, None, 2)[0]
        ),
        pytest.param(
            lambda f: jax.grad(lambda w, x: jax.lax.cond(x[0, 0] > 0, f, lambda w, x: 0.0, w, x)),
            marks=pytest.mark.slow,
        ),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: lambda w, x: jax.linearize(jax.jit(lambda w: f(w, x)), w)[1](w),
        lambda f: lambda w, x: jax.jvp(jax.jit(lambda w: f(w, x)), (w,), (w,))[1],
        pytest.param(
            lambda f: lambda w, x: jax.hessian(jax.jit(lambda s: f(s * w, x)))(1.0),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_is_planned_once_it_is_differentiated(gradient, planning_calls):
    assert_same(gradient(planned(wide))(W, X), gradient(wide)(W, X))
    assert len(planning_calls) >= 1


def test_what_is_planned_late_has_the_same_plan():
    late = jax.jit(jax.value_and_grad(jax.jit(monet_jax.remat(net, budget=0.6))))
    taken = monet_jax.compiled_bytes(late, *args())
    plan = monet_jax.plan(net, *specs(), budget=0.6)
    assert taken.total_bytes == plan.compiled_bytes < 0.61 * compiled(net, *specs())
    assert_same(late(*args()), jax.value_and_grad(net)(*args()))


def test_under_vmap_and_jit_the_plan_is_for_one_example():
    batch = jnp.stack([X, 2 * X])

    def mean(f):
        return lambda w: jnp.mean(jax.vmap(jax.jit(f), (None, 0))(w, batch))

    with pytest.warns(monet_jax.PlanningWarning, match="one example"):
        got = jax.jit(jax.grad(mean(planned(wide))))(W)
    assert_same(got, jax.grad(mean(wide))(W))


@pytest.mark.slow
def test_tracers_that_are_closed_over_outlive_no_trace():
    def outer(f):
        return jax.jit(lambda w, x: jax.jit(lambda w: f(lambda v: wide(v, jnp.sin(x)))(w))(w))

    with leaks_are_errors():
        got = jax.grad(outer(planned))(W, X)
    assert_same(got, jax.grad(outer(lambda f: f))(W, X))


def test_a_linear_function_is_transposed_as_it_is():
    def linear(x):
        return (x @ W) * 2 + jnp.roll(x, 1)

    transposed = [jax.linear_transpose(f, X)(X) for f in (planned(linear), linear)]
    assert_same(*transposed)


def test_effects_happen_as_often_as_they_do(capsys):
    def loud(w, x):
        jax.debug.print("once")
        return wide(w, x)

    jax.block_until_ready(jax.jit(planned(loud))(W, X))
    jax.effects_barrier()
    assert capsys.readouterr().out.count("once") == 1


# ------------------------------------------------------------------------------ how often


def counting(trips=3):
    """A loss that counts its traces, and what it closes over by name."""
    box = {"traces": 0, "trips": trips, "table": jnp.arange(3.0)}

    def loss(w, x):
        box["traces"] += 1
        y, _ = jax.lax.scan(lambda y, _: (jnp.sin(y @ w), None), x, None, length=box["trips"])
        return jnp.mean(y**2) + jnp.sum(box["table"])

    return loss, box


@pytest.mark.parametrize(
    "make",
    thinned(
        [lambda f: f, jax.jit, pytest.param(lambda f: ft.partial(f, x=X), id="partial")], "partial"
    ),
)
def test_many_eager_calls_trace_once(make, planning_calls):
    loss, box = counting()
    f = planned(make(loss))
    for _ in range(10):
        jax.grad(f)(W, **({} if isinstance(f._fun, ft.partial) else {"x": X}))
    assert box["traces"] == 1 and len(planning_calls) == 1


def test_other_dtypes_and_modes_trace_again(planning_calls):
    loss, box = counting()
    f = planned(loss)
    for w, x in ((W, X), (W, X[:8]), (W.astype(jnp.bfloat16), X)):
        jax.grad(f)(w, x)
    with jax.default_matmul_precision("highest"):
        jax.grad(f)(W, X)
    assert box["traces"] == 4


@pytest.mark.parametrize(
    "change", thinned(["trips", "table", "global", "attribute"], "table", "attribute")
)
def test_what_a_function_closes_over_may_change_between_calls(change, monkeypatch):
    loss, box = counting()
    holder = type("Holder", (), {})()
    holder.scale = 1.0
    monkeypatch.setitem(globals(), "SCALE", 1.0)

    def scaled(w, x):
        return loss(w, x) * holder.scale * SCALE  # noqa: F821

    f = monet_jax.remat(scaled, budget="1GiB")
    for value in (3, 5, 2):
        if change == "global":
            monkeypatch.setitem(globals(), "SCALE", float(value))
        elif change == "attribute":
            holder.scale = float(value)
        else:
            box[change] = value if change == "trips" else jnp.arange(float(value))
        assert_same(jax.value_and_grad(f)(W, X), jax.value_and_grad(scaled)(W, X))


def test_a_loop_of_another_length_is_another_function():
    first, second = (monet_jax.plan(counting(n)[0], W, X, budget="1GiB") for n in (3, 5))
    assert first.fingerprint != second.fingerprint


# ------------------------------------------------------------------------------- batches


def test_a_smaller_last_batch_never_ends_a_run():
    f = monet_jax.remat(wide, budget=0.6, max_compilations=2, cache=False)
    step = jax.jit(jax.value_and_grad(f))
    for rows in (512, 512, 300, 26, 1):
        assert_same(step(W, X[:rows]), jax.value_and_grad(wide)(W, X[:rows]))
    budget = 0.6 * compiled(wide, W, X)
    assert all(compiled(f, W, X[:rows]) <= budget for rows in (512, 300, 26))


@pytest.mark.slow
def test_a_larger_batch_raises_what_a_share_is_of():
    f = monet_jax.remat(wide, budget=0.6, max_compilations=2, cache=False)
    for rows in (128, 512):
        jax.jit(jax.grad(f))(W, X[:rows])
        assert compiled(f, W, X[:rows]) <= 0.6 * compiled(wide, W, X[:rows])


def test_a_smaller_batch_without_a_plan_takes_the_least(monkeypatch):
    f = monet_jax.remat(wide, budget=0.6, max_compilations=2, cache=False)
    jax.grad(f)(W, X)
    find_plan, refused = pipeline._find_plan, []

    def hard(traced, settings, target):
        if not refused:
            refused.append(monet_jax.InfeasibleBudget("none", 10**7))
            raise refused[0]
        return find_plan(traced, settings, target)

    monkeypatch.setattr(pipeline, "_find_plan", hard)
    with pytest.warns(monet_jax.PlanningWarning, match="smaller batch"):
        assert_same(jax.grad(f)(W, X[:100]), jax.grad(wide)(W, X[:100]))
    refused.clear()
    with pytest.raises(monet_jax.InfeasibleBudget, match="none"):
        jax.grad(f)(W, jnp.concatenate([X, X]))


def test_plans_by_shares_of_something_larger_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    calls, find_plan = [], pipeline._find_plan
    monkeypatch.setattr(pipeline, "_find_plan", lambda *x: calls.append(x) or find_plan(*x))
    for _ in range(2):
        f = monet_jax.remat(wide, budget=0.6)
        for rows in (512, 256):
            jax.grad(f)(W, X[:rows])
    assert len(calls) == 2
    jax.grad(monet_jax.remat(wide, budget=0.6))(W, X[:256])
    assert len(calls) == 3


# ------------------------------------------------------------------------------- mistakes


def grads(w, x):
    return jax.value_and_grad(wide)(w, x)


def train_step(w, x):
    value, gradient = jax.value_and_grad(wide)(w, x)
    return w - 0.1 * gradient, value


@pytest.mark.parametrize(
    ("fun", "given", "options", "says"),
    [
        (lambda w, x: jnp.sum(x > 0), (W, X), {}, "no differentiable output"),
        (lambda w, x: None, (W, X), {}, "no differentiable output"),
        (wide, (jnp.eye(16, dtype=int), X), {}, "hold no floats"),
        (grads, (W, X), {}, "own gradient"),
        (train_step, (W, X), {}, "own gradient"),
        (wide, (W, X), {"budget": 1}, "arguments, results and gradients alone take"),
        (wide, (W, X), {"budget": "10MB", "reserved": 20_000_000}, "`reserved` alone"),
        (wide, (W, X), {"pins": {"nosuch": "save"}}, "nosuch"),
    ],
)
def test_mistakes_have_answers_of_their_own_at_once(fun, given, options, says, monkeypatch):
    monkeypatch.setattr(pipeline, "_find_plan", None)  # nothing is planned to find out
    with pytest.raises(ValueError, match=says):
        monet_jax.plan(fun, *given, **{"budget": 0.5, **options})


def test_a_gradient_in_a_loss_is_no_mistake(planning_calls):
    def penalized(w, x):
        local_derivative = jax.grad(lambda x: wide(w, x))(x)
        return wide(w, x) + jnp.sum(local_derivative**2), jax.grad(wide)(w, x)

    assert monet_jax.plan(penalized, W, X, budget=0.9, cache=False).fingerprint
    got, expected = (jax.grad(f, has_aux=True)(W, X) for f in (planned(penalized), penalized))
    assert_same(got, expected)


def test_a_training_step_that_is_marked_runs_and_says_where_to_put_the_mark(planning_calls):
    with pytest.warns(monet_jax.PlanningWarning, match="round the loss") as caught:
        got = jax.jit(planned(train_step))(W, X)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert_same(got, train_step(W, X))
    assert not planning_calls


@pytest.mark.slow
def test_the_least_budget_is_looked_for_when_it_is_asked_for():
    with pytest.raises(monet_jax.InfeasibleBudget) as caught:
        monet_jax.plan(wide, W, X, budget=1)
    least = caught.value.minimum_budget
    plan = monet_jax.plan(wide, W, X, budget=least, time_limit=60)
    assert plan.compiled_bytes <= least


# ---------------------------------------------------------------------- never worse than plain

#: Where something goes wrong: module and name, for each step from a call to its result.
STEPS = [
    "tracing.marked.closure_key",
    "tracing.trace.traced_as",
    "tracing.trace.list_program",
    "tracing.trace.derivative_of",
    "planning.options.PlanOptions.kept_by",
    "plans.cache.key_of",
    "planning.pipeline.resolve_target",
    "planning.pipeline.compiled_plans_of",
    "planning.judge.analyze",
    "tracing.traced.program_hash",
    "tracing.traced.stage",
    "tracing.passes.partition.split",
    "tracing.staged.cut_hash",
    "analyzer.analyze.joint_of",
    "planning.step.transform",
    "planning.judge.compile_bytes",
    "planning.step.value_and_gradient",
    "planning.pipeline.PlanSearch",
    "planning.outcome.timeline_of",
    "planning.outcome.value_rows",
    "plans.cache.read",
    "plans.cache.write",
    "_sources.outputs_as_planned",
    "transformer.apply.as_traced_for",
    "transformer.apply.mismatch",
    "transformer.transform.run_region",
]


def eager(f):
    return jax.grad(f)


def jitted(f):
    return jax.jit(jax.grad(jax.jit(f)))


CALLS = (eager, jitted)
#: After a whole search, like steps beside them.
LATE = ("planning.outcome.timeline_of", "transformer.apply.as_traced_for")
#: Every third of the other steps is broken in one of them always.
QUICK = (
    f"{step}-{CALLS[n % 2].__name__}"
    for n, step in enumerate(x for x in STEPS if x not in LATE)
    if n % 3 == 0
)


@pytest.mark.parametrize(("step", "call"), thinned(itertools.product(STEPS, CALLS), *QUICK))
def test_a_fault_in_any_step_ends_in_the_function_as_it_is(
    step, call, monkeypatch, lenient, tmp_path
):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))

    def broken(*given, **options):
        raise KeyError("planted")

    monkeypatch.setattr(f"monet_jax.{step}", broken)
    f = monet_jax.remat(wide, budget=0.5, time_limit=60)
    with pytest.warns(monet_jax.PlanningWarning, match="planted.*please report") as caught:
        got = call(f)(W, X)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert_same(got, jax.grad(wide)(W, X))
    monkeypatch.setenv(failures.STRICT, "1")
    with pytest.raises(KeyError, match="planted"):
        call(monet_jax.remat(wide, budget=0.5, time_limit=60))(W, X)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, monet_jax.TargetUnavailable])
def test_what_is_said_to_the_user_passes(error, monkeypatch, lenient):
    def broken(*given):
        raise error("said")

    monkeypatch.setattr(pipeline, "_find_plan", broken)
    with pytest.raises(error, match="said"):
        jax.grad(planned(wide))(W, X)


def test_after_a_fault_nothing_is_planned_again(monkeypatch, lenient):
    calls = []

    def broken(*given):
        calls.append(given)
        raise KeyError("planted")

    monkeypatch.setattr(pipeline, "_find_plan", broken)
    f = planned(wide)
    with pytest.warns(monet_jax.PlanningWarning, match="report"):
        for _ in range(3):
            assert_same(jax.grad(f)(W, X), jax.grad(wide)(W, X))
    assert len(calls) == 1


def test_a_plan_of_another_layout_is_made_again(monkeypatch, tmp_path):
    """A file of the cache, whatever it holds, makes no call fail."""
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    find_plan = pipeline._find_plan

    def other(traced, settings, target):
        plan = made(traced, settings, target)
        regions = (planners.Region(0, 0, ()),)
        wrong = dataclasses.replace(plan.decisions, regions=regions)
        return dataclasses.replace(plan, decisions=wrong)

    monkeypatch.setattr(pipeline, "_find_plan", other)
    monet_jax.plan(net, *specs(), budget=0.6)
    monkeypatch.setattr(pipeline, "_find_plan", find_plan)
    f = monet_jax.remat(net, budget=0.6)
    assert_same(jax.grad(f)(*args()), jax.grad(net)(*args()))
    (plan,) = f._source._plans.values()
    assert len(plan.decisions.regions) > 1 and plan.compiled_bytes <= plan.budget_bytes


def test_what_cannot_be_traced_runs_as_it_is():
    def branching(w, x):
        return wide(w, x) if w[0, 0] > 0 else 0.0

    f = monet_jax.remat(branching, budget=0.5)
    with pytest.warns(monet_jax.PlanningWarning, match="cannot be traced"):
        assert_same(jax.grad(f)(W, X), jax.grad(branching)(W, X))


@pytest.mark.usefixtures("either_rules")
@pytest.mark.parametrize("gradient", [jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_a_rule_that_reads_what_the_function_computes_runs_as_it_is(gradient):
    """A `jax.checkpoint` fails there."""

    def clipped(w, x):
        bound = jnp.full(x.shape, 1e-4)

        @jax.custom_vjp
        def identity(x):
            return x

        identity.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -bound, bound),))
        return wide(w, identity(jnp.sin(x @ w)))

    with pytest.warns(monet_jax.PlanningWarning, match="custom_vjp"):
        got = gradient(monet_jax.remat(clipped, budget=0.8))(W, X)
    assert_same(got, gradient(clipped)(W, X))


def test_errors_of_the_function_are_its_own():
    def wrong(w, x):
        return jnp.sum(x @ w.nosuch)

    with warnings.catch_warnings(), pytest.raises(AttributeError, match="nosuch"):
        jax.jit(jax.grad(planned(wrong)))(W, X)


# ---------------------------------------------------------------------------------- time


def test_planning_takes_as_long_as_the_call_and_the_cache_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    clock = iter(np.arange(0.0, 1e6, 100.0))
    monkeypatch.setattr(pipeline.time, "perf_counter", lambda: next(clock))
    plan = monet_jax.plan(wide, W, X, budget=0.6)
    taken = next(clock) - 100.0
    assert plan.planning_seconds >= taken - 200.0 and not plan.is_cached
    monkeypatch.undo()
    monkeypatch.setenv("MONET_JAX_CACHE_DIR", str(tmp_path))
    again = monet_jax.plan(wide, W, X, budget=0.6)
    assert again.is_cached and again == plan
    assert "From the cache" in str(again) and "From the cache" not in str(plan)
    assert not _plan.plan_from_json(again.to_json()).is_cached
