"""A planned Linen module trains as the plain one: values, gradients, collections, masks.

The zoo's full models are planned for real. In the other tests a stand-in recomputes all it
can, and no program is compiled.
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from networks import assert_near, assert_same, recomputes, skip_without_compiler
from networks import planning_calls as planning_calls
from thinning import thinned

import monet_jax
from monet_jax import _api, zoo
from monet_jax.zoo import gpt2, resnet, vit
from monet_jax.zoo.problem import cross_entropy

planned = ft.partial(monet_jax.flax.remat, budget=0.5, cache=False)
X = jax.random.normal(jax.random.key(3), (4, 8))
KEY = jax.random.key(5)


class Block(nn.Module):
    """Parameters, statistics and random keys."""

    rate: float = 0.5

    @nn.compact
    def __call__(self, x, train=True):
        y = nn.BatchNorm(use_running_average=not train)(x)
        y = jnp.sin(nn.Dense(16)(y))
        return x + nn.Dropout(self.rate, deterministic=not train)(nn.Dense(x.shape[-1])(y))


class Net(nn.Module):
    """Some blocks, the last of which is used twice, and keys of its own."""

    block: type = Block

    @nn.compact
    def __call__(self, x, train=True):
        x = self.block()(x, train)
        block = self.block(name="last")
        x = block(block(x, train), train)
        return x + 0.1 * jax.random.normal(self.make_rng("dropout"), x.shape)


def variables(module, *args, **kwargs):
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    return module.init(keys, *args, **kwargs)


def loss_of(module, **options):
    """Loss and new collections of a module, as people write it."""

    def loss(params, others, x, key):
        out, new = module.apply(
            {"params": params, **others},
            x,
            rngs={"dropout": key},
            mutable=["batch_stats", "intermediates"],
            **options,
        )
        return jnp.mean(out**2), new

    return loss


def stepped(module, given, **options):
    """Value, new collections and gradient of one jitted step."""
    others = {name: group for name, group in given.items() if name != "params"}
    step = jax.jit(jax.value_and_grad(loss_of(module, **options), has_aux=True))
    return step(given["params"], others, X, KEY)


def is_recomputed(module, given) -> bool:
    others = {name: group for name, group in given.items() if name != "params"}
    return recomputes(
        lambda p: jax.grad(loss_of(module), has_aux=True)(p, others, X, KEY), given["params"]
    )


# ------------------------------------------------------------------------------ whole models

MODELS = {
    "resnet50": (resnet.ResNet(depths=(2, 1), width=8, classes=10), 8),
    "vit_s16": (vit.ViT(depth=2, width=32, heads=2, classes=10), 32),
    "gpt2": (gpt2.GPT2(depth=2, width=32, heads=2, vocab=128, context=16), 16),
}


#: The same as published, with the examples of a batch.
AS_PUBLISHED = {
    "resnet50": (resnet.ResNet(), 4),
    "vit_s16": (vit.ViT(), 4),
    "gpt2": (gpt2.GPT2(), 2),
}


def module_step(module):
    """The value and gradient that the budget of a module is about: inputs and cotangents given."""

    def step(params, stats, x, key, cotangent):
        def out(params, x):
            collections = {"params": params, "batch_stats": stats}
            return module.apply(collections, x, rngs={"dropout": key}, mutable=["batch_stats"])

        is_data = not jnp.issubdtype(x.dtype, jnp.floating)
        given = (params,) if is_data else (params, x)
        rest = (x,) if is_data else ()
        y, pull, new = jax.vjp(lambda *given: out(*given, *rest), *given, has_aux=True)
        return y, new, pull(cotangent)

    return step


def trained(module, params, stats, batch, key, steps=3, rate=1e-2):
    """Losses, and parameters, statistics and optimizer state after some steps of AdamW."""
    optimizer = optax.adamw(rate, eps=1e-3)

    @jax.jit
    def step(params, stats, state, key):
        def loss(params):
            logits, new = module.apply(
                {"params": params, "batch_stats": stats},
                batch[0],
                rngs={"dropout": key},
                mutable=["batch_stats"],
            )
            return cross_entropy(logits, batch[1]), new.get("batch_stats", {})

        (value, stats_after), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params)
        return value, optax.apply_updates(params, updates), stats_after, state

    losses, state = [], optimizer.init(params)
    for n in range(steps):
        value, params, stats, state = step(params, stats, state, jax.random.fold_in(key, n))
        losses.append(value)
    return losses, params, stats, state


def under_a_budget(name, module, size, scale="tiny", target=None):
    """The same model under a budget that it breaks as it is, and arguments of both.

    The budget is kept as compiled for the target.
    """
    params, stats, batch, key = zoo.build(name, scale=scale, batch=size).make_args(0)
    logits = jax.eval_shape(
        lambda p, x: module.apply(
            {"params": p, "batch_stats": stats}, x, rngs={"dropout": key}, mutable=["batch_stats"]
        )[0],
        params,
        batch[0],
    )
    given = params, stats, batch[0], key, logits
    unplanned = monet_jax.compiled_bytes(module_step(module), *given, target=target)
    budget = unplanned.total_bytes - unplanned.temp_bytes // 4
    lean = monet_jax.flax.remat(module, budget=budget, target=target)
    taken = monet_jax.compiled_bytes(module_step(lean), *given, target=target)
    assert taken.total_bytes <= budget < unplanned.total_bytes
    return lean, (params, stats, batch, key)


@pytest.mark.parametrize("name", thinned(MODELS))
def test_models_train_within_the_budget_as_they_do_without(name):
    module, size = MODELS[name]
    lean, given = under_a_budget(name, module, size)
    assert_same(trained(lean, *given), trained(module, *given), least=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_models_as_published_train_within_the_budget_as_they_do_without(name):
    module, size = AS_PUBLISHED[name]
    lean, given = under_a_budget(name, module, size, "bench")
    got, expected = (trained(model, *given, rate=1e-3) for model in (lean, module))
    assert_near(got[:-1], expected[:-1])  # without the optimizer's state


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_budgets_of_models_as_published_are_kept_for_a_card_that_is_not_here(name):
    skip_without_compiler("gpu:h100")
    under_a_budget(name, *AS_PUBLISHED[name], "bench", "gpu:h100")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_budgets_are_kept_as_compiled_for_a_card_that_is_not_here(name):
    skip_without_compiler("gpu:h100")
    module, size = MODELS[name]
    under_a_budget(name, module, 4 * size, target="gpu:h100")


# ------------------------------------------------------------------------------ ways to plan one


def method_planned():
    class Planned(nn.Module):
        @planned
        @nn.compact
        def __call__(self, x, train=True):
            y = nn.BatchNorm(use_running_average=not train)(x)
            y = jnp.sin(nn.Dense(16)(y))
            return x + nn.Dropout(0.5, deterministic=not train)(nn.Dense(x.shape[-1])(y))

    Planned.__name__ = "Block"
    return Net(Planned)


WAYS = {
    "class": lambda: Net(planned(Block)),
    "method": method_planned,
    "instance": lambda: planned(Net()),
    "class_of_a_whole": lambda: planned(Net)(),
    "both": lambda: planned(Net(planned(Block))),
    "of_nn_remat": lambda: Net(ft.partial(planned(nn.remat(Block, static_argnums=(2,))))),
}


@pytest.mark.parametrize("name", thinned(WAYS, "method"))
def test_every_way_to_plan_trains_the_same(name, planning_calls):
    module, plain = WAYS[name](), Net()
    if name == "of_nn_remat":
        plain = Net(nn.remat(Block, static_argnums=(2,)))
    given = variables(plain, X)
    assert_same(variables(module, X), given)
    assert not planning_calls  # parameters are created unplanned
    assert is_recomputed(module, given)
    assert_same(stepped(module, given), stepped(plain, given))


def test_equal_blocks_have_one_plan(planning_calls):
    module = Net(planned(Block))
    stepped(module, variables(module, X))
    assert len(planning_calls) == 1


@pytest.mark.slow
def test_the_outermost_plan_decides(planning_calls):
    given = variables(Net(), X)
    loss = loss_of(Net(planned(Block)))
    others = {"batch_stats": given["batch_stats"]}
    lean = monet_jax.remat(loss, budget=0.5, cache=False)
    assert_same(
        jax.grad(lean, has_aux=True)(given["params"], others, X, KEY),
        jax.grad(loss_of(Net()), has_aux=True)(given["params"], others, X, KEY),
    )
    (whole,) = planning_calls
    assert "checkpoint" not in {e.primitive for e in whole.program.equations}


class Masks(nn.Module):
    """Draws twice, in a module within and itself; called twice, too."""

    def setup(self):
        self.dropout = nn.Dropout(0.5, deterministic=False)

    def __call__(self, x):
        return self.dropout(x), jax.random.normal(self.make_rng("dropout"))


def test_keys_are_those_of_the_plain_module(planning_calls):
    def drawn(kind, key=KEY):
        class Outer(nn.Module):
            def setup(self):
                self.masks = kind()

            def __call__(self, x):
                return *self.masks(x), *self.masks(x), self.make_rng("dropout")

        def total(x):
            out = Outer().apply({}, x, rngs={"dropout": key})
            return jnp.sum(out[0]), out

        return jax.jit(jax.grad(total, has_aux=True))(jnp.ones(64))

    got = drawn(planned(Masks))
    assert planning_calls
    assert_same(got, drawn(Masks))
    assert not np.array_equal(got[1][0], got[1][2])
    assert not np.array_equal(got[1][0], drawn(Masks, jax.random.key(6))[1][0])


# ------------------------------------------------------------------------------ what it stands in


class Sowing(nn.Module):
    """Methods of its own, a static argument, a keyword, and values that are sown."""

    def setup(self):
        self.dense = nn.Dense(8)

    def encode(self, x, power, *, shift=0.0):
        for _ in range(power):
            x = jnp.sin(self.dense(jnp.sin(x)))
        self.sow("intermediates", "mean", jnp.mean(x))
        return x + shift

    def __call__(self, x):
        return self.encode(x, 1)


@pytest.mark.parametrize("method", ["encode", Sowing.encode])
def test_methods_and_static_arguments_without_self(method, planning_calls):
    lean = planned(Sowing, methods="encode", static_argnums=1)()
    given = variables(Sowing(), X)
    if not isinstance(method, str):
        method = type(lean).encode

    def out(module, method, x):
        return module.apply(given, x, 2, shift=1.0, method=method, mutable=["intermediates"])

    def both(module, method):
        return jax.grad(
            lambda x: (jnp.sum(out(module, method, x)[0] ** 2), out(module, method, x)),
            has_aux=True,
        )(X)

    assert_same(both(lean, method), both(Sowing(), "encode"))
    assert len(planning_calls) == 1


def decorated(*decorators):
    """A module class whose method is decorated, the innermost first."""

    class Powers(nn.Module):
        @ft.partial(ft.reduce, lambda fun, decorator: decorator(fun))
        @lambda fun: (fun, *decorators)
        def __call__(self, x, power, mode, train):
            for _ in range(power):
                x = getattr(jnp, mode)(nn.Dense(8)(x))
            return nn.Dropout(0.5, deterministic=not train)(x)

    return Powers


def watched(fun):
    """A decorator of somebody's."""

    @ft.wraps(fun)
    def run(*args, **kwargs):
        return fun(*args, **kwargs)

    return run


def hidden(fun):
    """One that does not say what it decorates."""
    return lambda *args, **kwargs: fun(*args, **kwargs)


STATIC = ft.partial(planned, static_argnums=1)
DECORATED = {
    "plain": (nn.compact, STATIC),
    "compact_above": (STATIC, nn.compact),
    "wrapped": (nn.compact, STATIC, watched, watched),
    "hidden": (STATIC, nn.compact, hidden, nn.compact),
    "by_name": (nn.compact, ft.partial(planned, static_argnames="power"), watched),
    "nn.remat": (nn.compact, STATIC, ft.partial(nn.remat, static_argnums=(2, 3, 4))),
}


@pytest.mark.parametrize("name", thinned(DECORATED, "compact_above", "nn.remat", "wrapped"))
def test_static_arguments_are_counted_without_self_under_other_decorators(name, planning_calls):
    given = 2, "cos"

    def both(kind):
        module = kind()
        params = variables(module, X, *given, False)
        total = lambda p: jnp.sum(module.apply(p, X, *given, True, rngs={"dropout": KEY}))  # noqa: E731
        return params, jax.jit(jax.value_and_grad(total))(params)

    assert_same(both(decorated(*DECORATED[name])), both(decorated(nn.compact)))
    assert len(planning_calls) == 1


def test_methods_without_arguments_by_position(planning_calls):
    class Table(nn.Module):
        @nn.compact
        def __call__(self, *, power):
            return jnp.sin(jnp.sin(self.param("table", nn.initializers.ones, (3,)))) ** power

    given = variables(Table(), power=2)

    def gradient(kind):
        return jax.grad(lambda p: jnp.sum(kind().apply(p, power=2)))(given)

    assert_same(gradient(planned(Table, static_argnames="power")), gradient(Table))
    assert len(planning_calls) == 1


@pytest.mark.parametrize("way", ["retraced", "late"])
def test_a_trace_more_changes_no_key(way, planning_calls, monkeypatch):
    """A plan may be dropped, or made when the call has long ended."""
    run, calls = _api.run_planned, []

    def run_once_more(source, fun, call):
        calls.append((fun, call))
        if way == "retraced":
            jax.eval_shape(fun, call.leaves)
        return run(source, fun, call)

    class Outer(nn.Module):
        kind: type

        def setup(self):
            self.masks = self.kind()

        def __call__(self, x):
            first, last = self.masks(x), self.masks(x)
            if way == "late":
                for fun, call in calls:
                    jax.eval_shape(fun, call.leaves)
            return *first, *last, self.masks(x), self.make_rng("dropout")

    def drawn(kind):
        def total(x):
            out = Outer(kind).apply({}, x, rngs={"dropout": KEY})
            return jnp.sum(out[0]), out

        return jax.grad(total, has_aux=True)(jnp.ones(64))

    monkeypatch.setattr(_api, "run_planned", run_once_more)
    assert_same(drawn(planned(Masks)), drawn(Masks))
    assert calls


@pytest.mark.parametrize("fun", [Net().apply, lambda module, given: module.apply(given, X)])
def test_a_module_without_its_parameters_is_refused(fun):
    with pytest.raises(TypeError, match=r"use `monet_jax\.remat`"):
        planned(fun)(*(() if hasattr(fun, "__self__") else (Net(),)), variables(Net(), X))


@pytest.mark.slow
def test_layers_under_nn_scan(planning_calls):
    class Layer(nn.Module):
        block: type = Block

        @nn.compact
        def __call__(self, x, _):
            return self.block(name="block")(x), None

    def stack(layer, block=Block):
        scan = nn.scan(
            layer,
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True, "dropout": True},
            length=3,
        )

        class Stack(nn.Module):
            @nn.compact
            def __call__(self, x):
                return scan(block, name="layers")(x, None)[0]

        return Stack()

    plain = stack(Layer)
    given = variables(plain, X)
    expected = stepped(plain, given)
    for module in (stack(Layer, planned(Block)), planned(plain), stack(planned(Layer))):
        planning_calls.clear()
        assert_same(stepped(module, given), expected)
        assert len(planning_calls) == 1


def test_a_module_that_is_given_another_one(planning_calls):
    """Fields that are modules, bound elsewhere, take part."""

    class Head(nn.Module):
        body: nn.Module

        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(jnp.sin(self.body(x)))

    class Whole(nn.Module):
        head: type = Head

        @nn.compact
        def __call__(self, x):
            shared = nn.Dense(8, name="shared")
            return self.head(shared)(shared(x))

    given = variables(Whole(), X)
    lean = Whole(planned(Head))
    assert_same(stepped(lean, given), stepped(Whole(), given))
    assert planning_calls and is_recomputed(lean, given)


def test_without_a_gradient_nothing_is_planned(planning_calls):
    module = Net(planned(Block))
    given = variables(module, X)
    assert_same(
        module.apply(given, X, False, rngs={"dropout": KEY}),
        Net().apply(given, X, False, rngs={"dropout": KEY}),
    )
    assert not planning_calls


def test_the_gradient_covers_parameters_and_argnums(planning_calls):
    given = variables(Block(), X)
    count = sum(x.size for x in jax.tree.leaves(given["params"]))
    for argnums, extra in [(0, X.size), ((), 0)]:
        planning_calls.clear()
        stepped(planned(Block, argnums=argnums)(), given)
        (traced,) = planning_calls
        assert sum(traced.program.avals[i].size for i in traced.derivative.inputs) == count + extra


def test_module_paths_are_there(planning_calls):
    module = planned(Net())
    stepped(module, variables(module, X))
    paths = {str(e.name_stack) for e in planning_calls[0].program.equations}
    assert {"Net/Block_0/Dense_1", "Net/last/BatchNorm_0"} <= paths


def test_an_instance_in_a_module_is_refused():
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return planned(Block())(x)

    with pytest.raises(ValueError, match="Give the class"):
        variables(Outer(), X)
