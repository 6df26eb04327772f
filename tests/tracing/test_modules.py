"""`monet_jax.remat` trains NNX modules as they train without it, however it is given them."""

import functools as ft

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx
from networks import assert_same
from networks import planning_calls as planning_calls
from processes import run_python
from thinning import thinned

import monet_jax
from monet_jax.compiler.targets import resolve_target
from monet_jax.tracing import trace

planned = ft.partial(monet_jax.remat, budget=0.5, cache=False)
X = jax.random.normal(jax.random.key(3), (4, 8))
PLAN = {"target": "cpu", "budget": "1GiB", "verify": False, "cache": False}


def block(decorator=lambda fun: fun):
    """A class of modules with statistics and random keys, whose method is decorated."""

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.widen, self.narrow = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        @decorator
        def __call__(self, x, power=1):
            for _ in range(power):
                x = x + self.dropout(self.narrow(jnp.sin(self.widen(self.norm(x)))))
            return x

    return Block


def model(kind=None):
    return (kind or block())(nnx.Rngs(0, dropout=1))


def loss(module, x):
    return jnp.mean(module(x, 1) ** 2)


class Trainer:
    """Whose method takes a module."""

    @planned
    def loss(self, module, x):
        return loss(module, x)


def setattr_on_a_class():
    kind = block()
    kind.__call__ = planned(kind.__call__, static_argnums=1)
    return model(kind), loss


STATIC = ft.partial(planned, static_argnums=1)
WAYS = {
    "function": lambda: (model(), planned(loss)),
    "method of another object": lambda: (model(), Trainer().loss),
    "keyword": lambda: (
        model(),
        lambda m, x: planned(lambda x, *, m: loss(m, x))(x, m=m),
    ),
    "pytree": lambda: (model(), lambda m, x: planned(lambda t: loss(t["m"][0], x))({"m": [m]})),
    "class": lambda: (model(STATIC(block())), loss),
    "instance": lambda: (STATIC(model()), loss),
    "bound method": lambda: (model(), lambda m, x: loss(STATIC(m.__call__), x)),
    "in the class": lambda: (model(block(STATIC)), loss),
    "below a decorator": lambda: (
        model(block(lambda fun: nnx.jit(STATIC(fun), static_argnums=2))),
        loss,
    ),
    "put into a class": setattr_on_a_class,
}


@pytest.mark.parametrize(
    "way",
    thinned(WAYS, "function", "in the class"),
)
def test_statistics_move_and_masks_change_as_without(way, planning_calls):
    def trained(module, loss):
        step = nnx.jit(nnx.value_and_grad(loss))
        steps = [step(module, X) for _ in range(3)]
        values, gradients = zip(*steps, strict=True)
        state = nnx.to_pure_dict(nnx.state(module))
        return values, jax.tree.leaves(gradients), state

    got = trained(*WAYS[way]())
    assert_same(got, trained(model(), loss))
    assert len(set(map(float, got[0]))) == 3
    assert planning_calls


def test_variables_are_updated(planning_calls):
    def counted(count, w, x):
        count[...] += 1
        return jnp.mean(jnp.sin(jnp.sin(x @ w)) ** 2 * count[...])

    def run(fun):
        count = nnx.Variable(jnp.zeros(()))
        steps = [jax.tree.leaves(nnx.grad(fun, argnums=1)(count, X.T @ X, X)) for _ in range(2)]
        return steps, count[...]

    assert_same(run(planned(counted, argnums=1)), run(counted))
    assert planning_calls


def test_what_is_functional_stays_so(planning_calls):
    """A `State`, pure dicts, and a Linen module that has no parameters of its own."""
    graphdef, params, rest = nnx.split(model(), nnx.Param, ...)

    def of_states(params, rest, x):
        return loss(nnx.merge(graphdef, params, rest, copy=True), x)

    step = lambda fun: jax.tree.leaves(jax.grad(fun)(params, rest, X))  # noqa: E731
    assert_same(step(planned(of_states)), step(of_states))
    module = nn.Dense(8)
    given = module.init(jax.random.key(0), X)

    def of_linen(module, given, x):
        return jnp.mean(jnp.sin(module.apply(given, x)))

    for fun, args in [(of_linen, (module, given, X)), (module.apply, (given, X))]:
        argnum = len(args) - 2
        gradient = lambda f: jax.grad(lambda *a: jnp.sum(f(*a)), argnum)(*args)  # noqa: B023, E731
        assert_same(gradient(planned(fun, argnums=argnum)), gradient(fun))
    assert len(planning_calls) == 3


def linen(decorator, above=lambda fun: fun):
    class Block(nn.Module):
        @above
        @decorator
        @nn.compact
        def __call__(self, x, train):
            y = nn.BatchNorm(use_running_average=not train)(x)
            y = nn.Dropout(0.5, deterministic=not train)(jnp.sin(nn.Dense(16)(y)))
            return x + nn.Dense(8)(y)

    return Block


LINEN = {
    "class": lambda: STATIC(linen(lambda fun: fun))(),
    "instance": lambda: STATIC(linen(lambda fun: fun)()),
    "in the class": lambda: linen(STATIC)(),
    "below compact": lambda: linen(STATIC, nn.compact)(),
    "below a decorator": lambda: linen(STATIC, ft.partial(nn.remat, static_argnums=(2,)))(),
}


@pytest.mark.parametrize("way", thinned(LINEN, "in the class"))
def test_linen_modules_are_planned(way, planning_calls):
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    plain = linen(lambda fun: fun)()
    params, stats = (plain.init(keys, X, True)[name] for name in ("params", "batch_stats"))

    def stepped(module):
        def total(params):
            given = {"params": params, "batch_stats": stats}
            out, new = module.apply(given, X, True, rngs=keys, mutable=["batch_stats"])
            return jnp.mean(out**2), new

        return jax.jit(jax.value_and_grad(total, has_aux=True))(params)

    assert_same(stepped(LINEN[way]()), stepped(plain))
    assert len(planning_calls) == 1


def test_plans_are_those_of_flax():
    abstract, x = nnx.eval_shape(model), jax.ShapeDtypeStruct(X.shape, X.dtype)
    made = monet_jax.plan(loss, abstract, x, **PLAN)
    of_flax = monet_jax.flax.plan(loss, abstract, x, **PLAN)
    assert made.fingerprint == of_flax.fingerprint
    assert {"Block/widen", "Block/norm"} <= {row.path for row in made.values}
    assert monet_jax.plan(abstract, x, **PLAN).fingerprint == (
        monet_jax.flax.plan(abstract, x, **PLAN).fingerprint
    )
    traced = trace.trace_for(resolve_target("cpu"), loss, (abstract, x))
    assert traced.fingerprint == made.fingerprint
    assert monet_jax.check(made, loss, abstract, x).holds
    gradient = jax.tree.leaves(nnx.grad(monet_jax.apply(made, loss))(model(), X))
    assert_same(gradient, jax.tree.leaves(nnx.grad(loss)(model(), X)))


def test_flax_is_not_imported_for_it():
    run_python(
        "import jax, sys, monet_jax; "
        "f = monet_jax.remat(lambda x: x.sum(), budget=1.0, cache=False); "
        "jax.grad(f)(jax.numpy.ones(3)); assert 'flax' not in sys.modules"
    )
