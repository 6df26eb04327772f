"""A planned function behaves as the function it was made from, however it is called.

What a plan decides is not the question here: in most tests a stand-in recomputes all it can, and
no program is compiled to make it. The tests of budgets plan for real.
"""

import copy
import dataclasses
import enum
import functools as ft
import pickle
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coming_rules import either_rules as either_rules
from jax.experimental import io_callback
from networks import BATCH, WIDTH, args, assert_same, made, net, recomputes, specs
from networks import planning_calls as planning_calls
from thinning import thinned

import monet_jax
import planners
from monet_jax.compiler import targets
from monet_jax.planning import options, pipeline

planned = ft.partial(monet_jax.remat, budget=0.5, cache=False)


def weights(seed=0, *shape):
    """A matrix, or an array of that shape."""
    numbers = np.random.default_rng(seed).normal(size=shape or (8, 8))
    return jnp.asarray(numbers, jnp.float32) / 3


def deep(w, x):
    """A few layers, with an array for a result."""
    for _ in range(3):
        x = jnp.sin(x @ w)
    return x


def loss(w, x):
    """The same with a scalar."""
    return jnp.sum(deep(w, x) ** 2)


# ------------------------------------------------------------------------------ what it takes


class Mode(enum.Enum):
    """A static argument."""

    MEAN = "mean"
    SUM = "sum"


class Level(enum.IntEnum):
    """A static argument that is a number as well."""

    LOW = 1
    HIGH = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A pytree with a static field."""

    w: jax.Array
    b: jax.Array | None
    name: str = dataclasses.field(metadata={"static": True})


def with_keywords(w, x, *, scale, shift=None):
    return loss(w, x) * scale + (0 if shift is None else jnp.sum(shift["s"][0]))


def with_pytree(params, x):
    return loss(params["a"][0], x) + jnp.sum(params["b"][1]) * loss(params["b"][0], x)


def with_dataclass(layer, x):
    assert layer.b is None and layer.name == "first"
    return loss(layer.w, x)


def with_static_leaves(w, x, flag, mode, level, act):
    assert flag is True and type(level) is Level
    y = act(deep(w, x))
    return {Mode.MEAN: jnp.mean, Mode.SUM: jnp.sum}[mode](y) * len(range(level))


def with_scalars(w, x, n, f):
    return loss(w, x * n) * f


def with_indices(w, x, index, mask):
    return jnp.sum(jnp.where(mask, deep(w, x)[index], 0) ** 2)


def with_key(w, x, key):
    return jnp.sum(jax.random.bernoulli(key, 0.5, x.shape) * deep(w, x) ** 2)


W, X = weights(), weights(1, 5, 8)
INDEX, MASK = jnp.array([1, 0, 3]), jnp.array([[True], [False], [True]])
CALLS = {
    "keywords": (with_keywords, (W, X), {"scale": 2.0, "shift": {"s": (weights(2), None)}}),
    "pytree": (with_pytree, ({"a": [W], "b": (W + 1, weights(3, 2), None)}, X), {}),
    "dataclass": (with_dataclass, (Layer(W, None, "first"), X), {}),
    "static_leaves": (with_static_leaves, (W, X, True, Mode.SUM, Level.HIGH, jnp.tanh), {}),
    "scalars": (with_scalars, (W, X, 2, 0.5), {}),
    "indices": (with_indices, (W, X, INDEX, MASK), {}),
    "typed_key": (with_key, (W, X, jax.random.key(1)), {}),
    "raw_key": (with_key, (W, X, jax.random.PRNGKey(1)), {}),
    "bfloat16": (loss, (W.astype(jnp.bfloat16), X.astype(jnp.bfloat16)), {}),
    "numpy": (loss, (np.asarray(W), np.asarray(X)), {}),
}


@pytest.mark.parametrize(
    "name", thinned(CALLS, "dataclass", "static_leaves", "indices", "raw_key", "numpy")
)
def test_takes_what_the_function_takes(name, planning_calls):
    fun, given, kwargs = CALLS[name]
    wrapped = planned(fun)
    plain = jax.value_and_grad(fun)(*given, **kwargs)
    assert_same(jax.value_and_grad(wrapped)(*given, **kwargs), plain)
    step = jax.jit(lambda first: jax.value_and_grad(wrapped)(first, *given[1:], **kwargs))
    assert_same(step(given[0]), plain)
    assert len(planning_calls) == 1
    assert recomputes(jax.grad(lambda first: wrapped(first, *given[1:], **kwargs)), given[0])
    assert_same(wrapped(*given, **kwargs), fun(*given, **kwargs))


def with_outputs(w, x):
    aux = {
        "text": "of Python",
        "none": None,
        "number": 3,
        "int": jnp.arange(3),
        "bool": x > 0,
        "half": deep(w, x).astype(jnp.bfloat16),
        "key": jax.random.key(0),
        "numpy": np.arange(4.0),
    }
    return loss(w, x), aux


def test_returns_what_the_function_returns(planning_calls):
    (value, aux), grad = jax.value_and_grad(planned(with_outputs), has_aux=True)(W, X)
    plain = jax.value_and_grad(with_outputs, has_aux=True)(W, X)
    aux["numpy"] = np.asarray(aux["numpy"], np.float64)
    assert_same(((value, aux), grad), plain)


def test_several_outputs_and_inputs_have_their_cotangents(planning_calls):
    def fun(w, b, x):
        return {"y": deep(w, x) + b, "z": jnp.sum(b * x), "n": x.shape[0] + jnp.arange(2)}

    given = W, weights(4, 8), X
    wrapped = planned(fun, argnums=(0, 1))
    (out, pull), (plain, plain_pull) = jax.vjp(wrapped, *given), jax.vjp(fun, *given)
    assert_same(out, plain)
    seeds = {"y": X, "z": jnp.float32(2.0), "n": np.zeros(2, jax.dtypes.float0)}
    assert_same(pull(seeds), plain_pull(seeds))


# ------------------------------------------------------------------------------ what it stands in

STEPS = jnp.stack([X, X + 1])
SETTINGS = {
    "jit_grad": lambda f: jax.jit(jax.grad(f))(W, X),
    "grad_jit": lambda f: jax.grad(jax.jit(f))(W, X),
    "vjp": lambda f: jax.vjp(f, W, X)[1](jnp.float32(2)),
    "linearize": lambda f: jax.linearize(f, W, X)[1](W, X),
    "jvp": lambda f: jax.jvp(f, (W, X), (X.T @ X, X)),
    "hessian_product": lambda f: jax.jvp(lambda w: jax.grad(f)(w, X), (W,), (W + 1,)),
    "twice": lambda f: jax.grad(lambda w: jnp.sum(jax.grad(f)(w, X) ** 2))(W),
    "scan": lambda f: jax.grad(
        lambda w: jax.lax.scan(lambda c, x: (c + f(w, x), None), 0.0, STEPS)[0]
    )(W),
    "map_in_jit": lambda f: jax.jit(
        jax.grad(lambda w: jnp.sum(jax.lax.map(lambda x: f(w, x), STEPS)))
    )(W),
    "cond": lambda f: jax.grad(
        lambda w: jax.lax.cond(w[0, 0] > 9, lambda: 0.0, lambda: jax.jit(f)(w, X))
    )(W),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(W, X),
    "remat_in_remat": lambda f: jax.grad(planned(lambda w, x: f(w, x) + loss(w, x + 1)))(W, X),
}


@pytest.mark.parametrize(
    "name",
    thinned(
        SETTINGS, "grad_jit", "vjp", "jvp", "hessian_product", "scan", "cond", "remat_in_remat"
    ),
)
def test_stands_in_other_transformations(name, planning_calls):
    assert_same(SETTINGS[name](planned(loss)), SETTINGS[name](loss))
    assert planning_calls


def test_the_outermost_plan_decides_and_jit_keeps_both_apart(planning_calls):
    inner = jax.jit(planned(loss))
    assert recomputes(jax.grad(inner), W, X) and len(planning_calls) == 1
    outer = planned(lambda w, x: inner(w, x) + loss(w, x + 1))
    plain = jax.grad(lambda w, x: loss(w, x) + loss(w, x + 1))(W, X)
    assert_same(jax.grad(outer)(W, X), plain)
    _, whole = planning_calls
    assert "checkpoint" not in {e.primitive for e in whole.program.equations}
    jax.clear_caches()
    assert recomputes(jax.grad(outer), W, X) and recomputes(jax.grad(inner), W, X)
    assert len(planning_calls) == 2


def test_what_fits_as_it_is_runs_so_with_all_that_is_in_it(monkeypatch):
    inner = planned(loss)
    outer = planned(lambda w, x: inner(w, x) ** 2)
    plans = iter([None])

    def find_plan(*given):
        return dataclasses.replace(made(*given), decisions=next(plans))  # of the outer one only

    monkeypatch.setattr(pipeline, "_find_plan", find_plan)
    assert not recomputes(jax.grad(outer), W, X)


def test_vmap_of_a_gradient_warns_once(planning_calls):
    wrapped = planned(loss)
    with pytest.warns(monet_jax.PlanningWarning, match="vmap") as caught:
        got = [jax.vmap(jax.grad(wrapped), (None, 0))(W, STEPS) for _ in range(2)]
    assert len(caught) == 1
    assert_same(got, [jax.vmap(jax.grad(loss), (None, 0))(W, STEPS)] * 2)


def test_gradient_of_a_vmap_warns_too(planning_calls):
    def mean(f):
        return jax.grad(lambda w: jnp.mean(jax.vmap(lambda x: f(w, x))(STEPS)))(W)

    with pytest.warns(monet_jax.PlanningWarning, match="vmap"):
        got = mean(planned(loss))
    assert_same(got, mean(loss))


def test_arrays_that_are_closed_over_are_not_differentiated(planning_calls):
    host, device = np.asarray(X), X
    wrapped = planned(lambda w: loss(w, host) + loss(w, device + 1))
    assert_same(jax.grad(wrapped)(W), jax.grad(lambda w: loss(w, X) + loss(w, X + 1))(W))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_gradient_flows_to_tracers_that_are_closed_over(transform, planning_calls):
    def outer(f):
        return transform(jax.grad(lambda w: f(lambda x: loss(w, x) + loss(w * 2, x))(X)))(W)

    assert_same(outer(planned), outer(lambda f: f))
    (traced,) = planning_calls
    assert len(traced.derivative.inputs) == 2  # the argument and the tracer


@pytest.mark.usefixtures("either_rules")
def test_what_a_rule_closes_over_is_not_differentiated(planning_calls):
    """JAX has no gradient by it, and refuses to take one."""

    def ruled(x):
        f = jax.custom_vjp(lambda w: loss(w, x))
        f.defvjp(lambda w: (f(w), w), lambda w, cotangent: (cotangent * jnp.cos(w),))
        return f

    def gradient(wrap):
        return jax.jit(lambda x: jax.grad(wrap(lambda w: ruled(x)(w) + loss(w, x)))(W))(X)

    assert_same(gradient(planned), gradient(lambda f: f))
    (traced,) = planning_calls
    assert len(traced.derivative.inputs) == 1  # the argument, and not the tracer


@pytest.mark.parametrize("checked", [False, True])
def test_stands_in_shard_map(checked, planning_calls):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("i")

    def step(f):
        def local(w, x):
            return jax.lax.psum(jax.grad(f, argnums=1)(w, x), "i")

        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=(whole, split), out_specs=whole, check_vma=checked
        )
        return jax.jit(mapped)(W, X)

    if checked:  # types that say what varies along a mesh have no meaning alone
        with pytest.warns(monet_jax.PlanningWarning, match="'i'"):
            got = step(planned(loss))
    else:
        got = step(planned(loss))
    assert_same(got, step(loss))
    assert bool(planning_calls) is not checked


# ------------------------------------------------------------------------------ as what


class Model:
    """Holds weights, which its methods close over."""

    def __init__(self, scale):
        self.scale = scale

    @planned(static_argnames="repeats")
    def loss(self, w, x, repeats):
        """A documented loss."""
        for _ in range(repeats):
            x = x + deep(w, x) * self.scale
        return jnp.sum(x**2)

    def plain(self, w, x, repeats):
        return Model.loss.__wrapped__(self, w, x, repeats)


def test_as_a_method_argnums_count_the_arguments(planning_calls):
    model = Model(jnp.float32(2))
    for arguments, kwargs in [((W, X, 2), {}), ((W, X), {"repeats": 2})]:
        assert_same(
            jax.grad(model.loss)(*arguments, **kwargs), jax.grad(model.plain)(*arguments, **kwargs)
        )
        assert planning_calls.pop().derivative.inputs == {0}
    assert Model.loss.__doc__ == "A documented loss."


def test_as_a_method_of_an_object_that_holds_tracers(planning_calls):
    expected = jax.grad(lambda s: Model(s).plain(W, X, 2))(2.0)
    assert_same(jax.grad(lambda s: Model(s).loss(W, X, 2))(2.0), expected)


def test_as_a_partial_and_a_lambda(planning_calls):
    partial = ft.partial(with_keywords, scale=2.0)
    assert_same(jax.grad(planned(partial))(W, X), jax.grad(partial)(W, X))
    assert_same(jax.grad(ft.partial(planned(loss), x=X))(W), jax.grad(loss)(W, X))
    assert_same(jax.grad(planned(lambda w: loss(w, X)))(W), jax.grad(loss)(W, X))


@planned()
def decorated(w, x):
    return loss(w, x)


as_function = planned(loss)


def test_pickles(planning_calls):
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    for again in (pickle.loads(pickle.dumps(as_function)), copy.deepcopy(as_function)):
        assert_same(jax.grad(again)(W, X), jax.grad(loss)(W, X))
    assert len(planning_calls) == 2


def test_keeps_the_names_of_the_function():
    assert (as_function.__name__, as_function.__doc__) == ("loss", loss.__doc__)
    assert "loss" in repr(as_function)


# ------------------------------------------------------------------------------ when it plans


def test_plans_once_for_each_signature(planning_calls):
    wrapped = planned(loss)
    for x in (X, X + 1, X[:2], X[1:3]):
        jax.jit(jax.grad(wrapped))(W, x)
        jax.grad(wrapped)(W, x)
    assert len(planning_calls) == 2


def test_plans_again_for_another_closure_of_another_shape(planning_calls):
    sizes = [X]
    wrapped = planned(lambda w: loss(w, sizes[-1]))
    jax.grad(wrapped)(W)
    sizes.append(X[:2])
    assert_same(jax.grad(wrapped)(W), jax.grad(loss)(W, X[:2]))
    assert len(planning_calls) == 2


def test_does_not_plan_where_no_gradient_can_be_taken(planning_calls):
    wrapped = planned(loss)
    assert_same(wrapped(W, X), loss(W, X))
    assert_same(jax.vmap(wrapped, (None, 0))(W, STEPS), jax.vmap(loss, (None, 0))(W, STEPS))
    assert not planning_calls


def test_threads_plan_once(planning_calls):
    wrapped, barrier, results = planned(loss), threading.Barrier(4), []

    def work():
        barrier.wait()
        results.append(jax.jit(jax.grad(wrapped))(W, X))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(planning_calls) == 1
    assert_same(results, [jax.grad(loss)(W, X)] * 4)


def test_static_arguments_tell_signatures_apart(planning_calls):
    def fun(w, x, depth):
        for _ in range(depth):
            x = deep(w, x)
        return jnp.sum(x)

    for wrapped, call in [
        (planned(fun, static_argnums=2), lambda f, n: jax.grad(f)(W, X, n)),
        (planned(fun, static_argnums=-1), lambda f, n: jax.grad(f)(W, X, n)),
        (planned(fun, static_argnames="depth"), lambda f, n: jax.grad(f)(W, X, n)),
        (planned(fun, static_argnums=2), lambda f, n: jax.grad(f)(W, X, depth=n)),
    ]:
        planning_calls.clear()
        for depth in (1, 2, 1):
            assert_same(call(wrapped, depth), call(fun, depth))
        assert len(planning_calls) == 2


def test_a_differentiated_argument_may_come_by_keyword(planning_calls):
    jax.grad(lambda w: planned(loss)(x=X, w=w))(W)
    (traced,) = planning_calls
    assert len(traced.derivative.inputs) == 1


# ------------------------------------------------------------------------------ effects

SEEN = []


def prints(x):
    jax.debug.callback(lambda y: SEEN.append(y), x[0, 0])
    return x


def calls_io(x):
    def host(y):
        SEEN.append(y)
        return np.cos(y)

    return x * io_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), jax.lax.stop_gradient(x))


def calls_pure(x):
    def host(y):
        SEEN.append(y)
        return np.cos(y)

    y = jax.lax.stop_gradient(x)
    return x * jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), y)


@pytest.mark.parametrize("effect", [prints, calls_io, calls_pure])
def test_effects_happen_once(effect, planning_calls):
    def fun(w, x):
        return loss(w, effect(deep(w, x)))

    counts, results = [], []
    for f in (fun, planned(fun)):
        SEEN.clear()
        results.append(jax.block_until_ready(jax.jit(jax.grad(f))(W, X)))
        jax.effects_barrier()
        counts.append(len(SEEN))
    assert counts == [1, 1]
    assert_same(*results)


def test_debug_print_prints_once(planning_calls, capfd):
    def fun(w, x):
        jax.debug.print("seen {}", x.shape[0])
        return loss(w, x)

    got = jax.jit(jax.grad(planned(fun)))(W, X)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen 5") == 1
    assert_same(got, jax.grad(loss)(W, X))


# ------------------------------------------------------------------------------ budgets


@ft.cache
def unplanned_bytes():
    """What the compiler says of the network as written, XLA's own rematerialization off."""
    return monet_jax.plan(net, *specs(), budget="1GiB").unplanned_bytes


BUDGETS = {
    "int": lambda total: (int(0.6 * total), 0),
    "string": lambda total: (f"{0.6 * total / 1e6:.4f} MB", 0),
    "fraction": lambda total: (0.6, 0),
    "reserved": lambda total: (int(0.6 * total) + 100_000, 100_000),
}


@pytest.mark.parametrize("kind", thinned(BUDGETS, "fraction", "reserved"))
def test_compiled_program_keeps_the_budget(kind):
    budget, reserved = BUDGETS[kind](unplanned_bytes())
    f = monet_jax.remat(net, budget=budget, reserved=reserved)
    taken = monet_jax.compiled_bytes(jax.value_and_grad(f), *args()).total_bytes
    assert 0.3 * unplanned_bytes() < taken <= 0.6 * unplanned_bytes() + 100
    if kind == "int":
        step = jax.jit(jax.value_and_grad(f))
        assert_same(step(*args()), jax.value_and_grad(net)(*args()))


def test_auto_is_the_memory_less_a_reserve(monkeypatch):
    memory = int(unplanned_bytes() * 0.6 / 0.9)
    monkeypatch.setattr(options, "usable_bytes", lambda target: memory)
    made = monet_jax.plan(net, *specs(), budget="auto")
    assert made.budget_bytes == pytest.approx(0.6 * unplanned_bytes(), abs=10)
    assert made.decisions is not None and made.compiled_bytes <= made.budget_bytes


@pytest.mark.slow
def test_smaller_budgets_cost_time():
    made = [monet_jax.plan(net, *specs(), budget=b) for b in (1.0, 0.8, 0.6, 0.5)]
    assert made[0].decisions is None
    seconds = [p.seconds for p in made]
    assert seconds == sorted(seconds) and seconds[0] < seconds[-1]
    assert all(p.compiled_bytes <= p.budget_bytes for p in made)
    assert all(p.bound_seconds <= p.seconds for p in made)


def test_infeasible_budget_says_the_smallest_one_and_why():
    with pytest.raises(monet_jax.InfeasibleBudget) as caught:
        monet_jax.plan(net, *specs(), budget="200KiB")
    minimum, message = caught.value.minimum_budget, str(caught.value)
    assert f"{minimum:_}" in message
    line = net.__code__.co_firstlineno + 3
    assert f"networks.py:{line}" in message and f"[{BATCH},{WIDTH}]" in message
    made = monet_jax.plan(net, *specs(), budget=minimum)
    assert made.compiled_bytes <= minimum
    with pytest.raises(monet_jax.InfeasibleBudget):
        monet_jax.plan(net, *specs(), budget=int(0.97 * minimum))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.minimum_budget) == (message, minimum)


def test_infeasible_budget_says_that_checkpoints_stayed_whole():
    says = 'with `checkpoints="plan"` it may take less'
    for function, is_said in ((net, False), (jax.checkpoint(net), True)):
        with pytest.raises(monet_jax.InfeasibleBudget) as caught:
            monet_jax.plan(function, *specs(), budget="200KiB")
        assert (says in str(caught.value)) == is_said


def test_infeasible_budget_is_raised_when_traced():
    f = monet_jax.remat(net, budget=1000)
    assert_same(f(*args()), net(*args()))
    with pytest.raises(monet_jax.InfeasibleBudget):
        jax.jit(jax.grad(f))(*args())


# ------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "budget", ["", "twelve", "12 parsecs", "-1GiB", "0", 0, -1, 0.0, -0.5, float("nan"), "12Gb"]
)
def test_budgets_that_are_no_amount(budget):
    with pytest.raises(ValueError, match="budget"):
        monet_jax.remat(net, budget=budget)


@pytest.mark.parametrize("budget", [True, [1]])
def test_budgets_that_are_no_number(budget):
    with pytest.raises(TypeError, match="budget"):
        monet_jax.remat(net, budget=budget)


def test_large_float_suggests_an_int():
    with pytest.raises(ValueError, match=r"int\(1\.5\)"):
        monet_jax.remat(net, budget=1.5)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"target": "gpu:z80"}, ValueError, "gpu:h100.*tpu:v5e"),
        ({"operators": "loose"}, ValueError, "operators.*exact"),
        ({"reserved": -1}, ValueError, "reserved"),
        ({"reserved": 0.5}, TypeError, "reserved"),
        ({"time_limit": 0}, ValueError, "time_limit"),
        ({"time_limit": "long"}, TypeError, "time_limit"),
        ({"max_compilations": 0}, ValueError, "max_compilations.*1 or more"),
        ({"max_compilations": -1}, ValueError, "max_compilations"),
        ({"max_compilations": 2.0}, TypeError, "max_compilations"),
        ({"max_compilations": True}, TypeError, "max_compilations"),
        ({"max_seconds": 0}, ValueError, "max_seconds"),
        ({"max_seconds": "long"}, TypeError, "max_seconds"),
        ({"planner": "best"}, TypeError, "planner"),
        ({"operators": 5}, TypeError, "`operators` must be one of"),
        ({"cache": "no"}, TypeError, "`cache` must be True or False"),
        ({"pins": ["a"]}, TypeError, "pins"),
        ({"pins": {"a": "drop"}}, ValueError, "'a'.*save.*recompute"),
        ({"argnums": 0.5}, TypeError, "argnums"),
        ({"argnums": 7}, ValueError, "argnums"),
        ({"argnums": (0, 1), "static_argnums": 1}, ValueError, "static"),
        ({"static_argnames": 1}, TypeError, "static_argnames"),
    ],
)
def test_options_that_make_no_sense(options, error, says):
    with pytest.raises(error, match=says):
        monet_jax.remat(net, **{"budget": 0.5, **options})


def test_static_and_differentiated_by_name(planning_calls):
    with pytest.raises(ValueError, match="argnums"):
        jax.grad(planned(loss, argnums=1, static_argnames="x"))(W, 3)


def test_what_is_no_function():
    with pytest.raises(TypeError, match="function"):
        planned(3)
    with pytest.raises(TypeError, match="function"):
        monet_jax.plan(3, budget=0.5)


def test_target_without_compiler_names_the_extra(monkeypatch):
    monkeypatch.setattr(targets, "_version", lambda package: None)
    f = monet_jax.remat(net, budget=0.5, target="tpu:v5e", cache=False)
    with pytest.raises(monet_jax.TargetUnavailable, match=r"extra `aot-tpu`.*jax\[tpu\]"):
        jax.grad(f)(*args())


def stopped(graph, budget):
    raise planners.SolverStopped("no answer in time")


def uncovering(graph, budget):
    return dataclasses.replace(planners.save_all(graph), regions=())


def test_planner_that_is_stopped_leaves_a_plan_that_keeps_the_budget():
    with pytest.warns(monet_jax.PlanningWarning, match="no answer in time") as caught:
        plan = monet_jax.plan(net, *args(), budget=0.6, planner=stopped)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert plan.decisions is not None and plan.compiled_bytes <= plan.budget_bytes


def test_planner_whose_answer_is_no_plan_warns_once_and_runs_plain():
    f = monet_jax.remat(net, budget=0.5, planner=uncovering)
    with pytest.warns(monet_jax.PlanningWarning, match="runs as it is") as caught:
        got = [jax.jit(jax.grad(f))(*args()) for _ in range(2)]
    assert len(caught) == 1 and caught[0].filename == __file__
    assert_same(got, [jax.grad(net)(*args())] * 2)


def test_planner_that_returns_no_plan():
    f = monet_jax.remat(net, budget=0.5, planner=lambda graph, budget: "save it all")
    with pytest.raises(TypeError, match=r"planner.*Plan"):
        jax.grad(f)(*args())


def test_planner_of_the_users_own_is_used():
    class Planner:
        def __init__(self):
            self.lock = threading.Lock()  # cannot be copied
            self.budgets = []

        def __call__(self, graph, budget):
            self.budgets.append(budget)
            return planners.save_nothing(graph)

    planner = Planner()
    made = monet_jax.plan(net, *specs(), budget=0.7, planner=planner, verify=False)
    assert planner.budgets and made.decisions is not None


def test_axis_names_of_an_outer_map_run_plain():
    def fun(w, x):
        return jax.lax.psum(loss(w, x), "i")

    def step(f):
        return jax.vmap(jax.grad(f), (None, 0), axis_name="i")(W, STEPS)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = step(monet_jax.remat(fun, budget=0.5))
    assert [c.category for c in caught] == [monet_jax.PlanningWarning]
    assert all(c.filename == __file__ for c in caught)
    assert_same(got, step(fun))


def test_a_function_without_float_results(planning_calls):
    f = planned(lambda x: (jnp.argmax(x), "label"))
    assert jax.jit(lambda x: f(x)[0])(X) == jnp.argmax(X)


def test_loss_that_is_a_number():
    f = monet_jax.remat(lambda w: 0.0, budget=1.0)
    assert_same(jax.grad(f)(W), jnp.zeros_like(W))
