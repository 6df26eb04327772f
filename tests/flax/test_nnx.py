"""A planned NNX module or function trains as the plain one: values, gradients, state, masks.

The full models are planned for real. In the other tests a stand-in recomputes all it can, and no
program is compiled.
"""

import functools as ft
import itertools

import jax
import jax.numpy as jnp
import networks
import nnx_models as models
import numpy as np
import optax
import pytest
from flax import nnx
from networks import assert_near, assert_same, skip_without_compiler
from networks import planning_calls as planning_calls
from thinning import thinned

import monet_jax
from monet_jax import _api
from monet_jax._plan import plan_from_json

planned = ft.partial(monet_jax.flax.remat, budget=0.5, cache=False)
# The key's bias of an attention has no gradient but rounding, which a small `eps` would blow up.
ADAMW = optax.adamw(1e-2, eps=1e-3)
X = jax.random.normal(jax.random.key(3), (4, 8))


class Block(nnx.Module):
    """Everything that keeps state: statistics and random keys."""

    def __init__(self, rngs: nnx.Rngs):
        self.widen, self.narrow = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, train=True):
        y = jnp.sin(self.widen(self.norm(x, use_running_average=not train)))
        return x + self.dropout(self.narrow(y), deterministic=not train)

    def scaled(self, x, power, *, shift=0.0):
        for _ in range(power):
            x = jnp.sin(self.narrow(jnp.sin(self.widen(x))))
        return x + shift


class Twice(nnx.Module):
    """The same block twice, by two names."""

    def __init__(self, rngs: nnx.Rngs, block: type = Block):
        self.first = block(rngs)
        self.other = block(rngs)
        self.again = self.first

    def __call__(self, x):
        return self.again(self.other(self.first(x)))


def model(kind=Twice, **changes):
    return kind(nnx.Rngs(0, dropout=1), **changes)


def loss(module, x):
    return jnp.mean(module(x) ** 2)


def stepped(loss, module, *args):
    """Value, gradient and the state after one jitted step."""
    step = nnx.jit(nnx.value_and_grad(loss))
    value, gradient = step(module, *args)
    return value, nnx.to_pure_dict(gradient), nnx.to_pure_dict(nnx.state(module))


def recomputes(fun, module, *args) -> bool:
    """Whether the gradient with respect to the parameters holds a region that is run again."""
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    pure = lambda params: jnp.sum(  # noqa: E731
        fun(nnx.merge(graphdef, params, rest, copy=True), *args)
    )
    return networks.recomputes(jax.grad(pure), params)


# ------------------------------------------------------------------------------ whole models


def step_bytes(loss, module, batch, target=None):
    """What one value and gradient of a model takes, and returns of state, as compiled."""
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)

    def step(params, rest, *batch):
        module = nnx.merge(graphdef, params, rest)
        value, gradient = nnx.value_and_grad(loss)(module, *batch)
        return value, gradient, nnx.state(module, nnx.Not(nnx.Param))

    return monet_jax.compiled_bytes(step, params, rest, *batch, target=target)


def under_a_budget(name, batch, target=None, whole=False):
    """The loss under a budget that it breaks as it is, and keeps as compiled for the target."""
    make = ft.partial(models.make, name, whole=whole)
    unplanned = step_bytes(models.loss, make(), batch, target)
    budget = unplanned.total_bytes - unplanned.temp_bytes // 4
    lean = monet_jax.flax.remat(models.loss, budget=budget, target=target)
    assert step_bytes(lean, make(), batch, target).total_bytes <= budget
    # Of a large vocabulary, to run the loss head in chunks may be enough.
    assert whole or recomputes(lean, make(), *batch)
    return lean


def trained(loss, module, batch, steps=3, adamw=ADAMW):
    """Losses, and the state of model and optimizer after some steps of AdamW."""
    optimizer = nnx.Optimizer(module, adamw, wrt=nnx.Param)

    @nnx.jit
    def step(module, optimizer, *batch):
        value, gradient = nnx.value_and_grad(loss)(module, *batch)
        optimizer.update(module, gradient)
        return value

    losses = [step(module, optimizer, *batch) for _ in range(steps)]
    return losses, nnx.to_pure_dict(nnx.state((module, optimizer)))


@pytest.mark.parametrize("name", thinned(models.MODELS))
def test_models_train_within_the_budget_as_they_do_without(name):
    batch = models.batch(name)
    lean = under_a_budget(name, batch)
    got = trained(lean, models.make(name), batch)
    assert_same(got, trained(models.loss, models.make(name), batch), least=1e-5)
    assert len(set(map(float, got[0]))) == 3  # it moves


@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
def test_models_as_published_train_within_the_budget_as_they_do_without(name):
    batch, make = models.batch(name), ft.partial(models.make, name, whole=True)
    lean = under_a_budget(name, batch, whole=True)
    got, expected = (
        trained(loss, make(), batch, adamw=optax.adamw(1e-3, eps=1e-3))
        for loss in (lean, models.loss)
    )
    assert_near((got[0], got[1][0]), (expected[0], expected[1][0]))  # not the optimizer's state


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
def test_budgets_of_models_as_published_are_kept_for_a_card_that_is_not_here(name):
    skip_without_compiler("gpu:h100")
    under_a_budget(name, models.batch(name, 64), "gpu:h100", whole=True)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
def test_budgets_are_kept_as_compiled_for_a_card_that_is_not_here(name):
    skip_without_compiler("gpu:h100")
    under_a_budget(name, models.batch(name, 64), "gpu:h100")


@pytest.mark.parametrize("name", thinned(models.MODELS))
def test_a_budget_on_the_blocks_trains_the_same(name, planning_calls):
    lean, batch = models.make(name, planned(models.BLOCKS[name])), models.batch(name, 2)
    got = stepped(models.loss, lean, *batch)
    assert_same(got, stepped(models.loss, models.make(name), *batch), least=1e-6)
    assert (
        len(planning_calls) == {"resnet": 3, "vit": 1, "gpt2": 1}[name]
    )  # one for each kind of block


# ------------------------------------------------------------------------------ ways to plan one

WAYS = {
    "class": lambda: (model(block=planned(Block)), loss),
    "class_of_a_whole": lambda: (model(planned(Twice)), loss),
    "instance": lambda: (planned(model()), loss),
    "function": lambda: (model(), planned(loss)),
    "bound_method": lambda: (model(), lambda m, x: jnp.mean(planned(m.__call__)(x) ** 2)),
    "both": lambda: (model(block=planned(Block)), planned(loss)),
}


@pytest.mark.parametrize("name", thinned(WAYS, "class"))
def test_every_way_to_plan_trains_the_same(name, planning_calls):
    module, lean = WAYS[name]()
    assert recomputes(lean, module, X)
    assert_same(stepped(lean, module, X), stepped(loss, model(), X))
    assert module.again is module.first


def test_the_outermost_plan_decides(planning_calls):
    module, lean = WAYS["both"]()
    assert recomputes(lean, module, X)
    (whole,) = planning_calls
    assert "checkpoint" not in {e.primitive for e in whole.program.equations}


@pytest.mark.slow
def test_an_instance_shares_its_state(planning_calls):
    module, plain = model(), model()
    lean = planned(module)
    assert type(module) is Twice and lean.first is module.first
    for m in (lean, plain):
        optimizer = nnx.Optimizer(m, optax.sgd(0.1), wrt=nnx.Param)
        optimizer.update(m, nnx.grad(loss)(m, X))
    assert planning_calls
    assert_same(nnx.to_pure_dict(nnx.state(module)), nnx.to_pure_dict(nnx.state(plain)))


def test_dropout_draws_the_masks_of_the_plain_module(planning_calls):
    class Mask(nnx.Module):
        def __init__(self, rngs):
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.weight = nnx.Param(jnp.ones(()))

        def __call__(self, x):
            return self.dropout(jnp.ones((64,))) * self.weight, self.dropout.rngs()

    def masks(module, steps=3):
        def total(module):
            mask, key = module(X)
            return jnp.sum(mask), (mask, key)

        step = nnx.jit(nnx.grad(total, has_aux=True))
        return [step(module)[1] for _ in range(steps)]

    got, plain, other = masks(model(planned(Mask))), masks(model(Mask)), masks(Mask(nnx.Rngs(7)))
    assert_same(got, plain)
    assert planning_calls
    first, second = (np.asarray(mask) for mask, _ in got[:2])
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, np.asarray(other[0][0]))


# ------------------------------------------------------------------------------ what it stands in


def test_an_eager_gradient_updates_the_module(planning_calls):
    module, plain = model(block=planned(Block)), model()
    assert_same(
        nnx.to_pure_dict(nnx.grad(loss)(module, X)), nnx.to_pure_dict(nnx.grad(loss)(plain, X))
    )
    assert planning_calls
    assert_same(nnx.to_pure_dict(nnx.state(module)), nnx.to_pure_dict(nnx.state(plain)))


class Scaled(nnx.Module):
    """A block with a number that is no state."""

    def __init__(self, rngs: nnx.Rngs):
        self.block, self.scale = Block(rngs), 1.0

    def __call__(self, x):
        TRACED.append(self.scale)
        return self.scale * self.block(x)


TRACED: list[float] = []


def test_eager_gradients_share_a_trace_until_something_changes(planning_calls):
    """State may change; what is no state makes another trace, as in `nnx.remat`."""
    results = []
    for call in (planned(Scaled.__call__), Scaled.__call__):
        net, gradients = model(Scaled), []
        for scale in (1.0, 1.0, 1.0, 2.0, 2.0):
            net.scale = scale
            gradients.append(nnx.grad(lambda net, call=call: jnp.sum(call(net, X) ** 2))(net))
            net.block.widen.kernel[...] += 0.1
        results.append([jax.tree.leaves(x) for x in gradients])
        TRACED.append(0.0)
    assert TRACED[: TRACED.index(0.0)] == [1.0, 2.0]
    assert_near(*results)


def test_without_a_gradient_nothing_is_planned(planning_calls):
    module, plain = model(block=planned(Block)), model()
    assert_same(module(X), plain(X))
    assert_same(nnx.to_pure_dict(nnx.state(module)), nnx.to_pure_dict(nnx.state(plain)))
    assert not planning_calls


@pytest.mark.parametrize("where", thinned(["inside", "outside"], "inside"))
def test_stacks_under_a_scan(where, planning_calls):
    """A planned block under `nnx.scan`, and a planned function with a scan in it."""

    def stack(block):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def made(rngs):
            return block(rngs)

        return made(nnx.Rngs(0, dropout=1))

    def scanned(stack, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def body(x, block):
            return block(x)

        return jnp.mean(body(x, stack) ** 2)

    plain = stepped(scanned, stack(Block), X)
    if where == "inside":
        got = stepped(scanned, stack(planned(Block)), X)
    else:
        got = stepped(planned(scanned), stack(Block), X)
        paths = {str(e.name_stack) for e in planning_calls[0].program.equations}
        assert paths
    assert_same(got, plain)
    assert len(planning_calls) == 1


def test_a_jitted_block_inside_is_planned_for_the_outer_budget_only(planning_calls):
    """`jit` keeps what it traced: once alone, where the block plans for itself, once inside."""
    block = model(planned(Block))
    jitted = nnx.jit(lambda block, x: jnp.mean(block(x) ** 2))
    alone = nnx.grad(jitted)(block, X)
    assert len(planning_calls) == 1
    whole = planned(lambda block, x: jitted(block, x))
    inside = nnx.grad(whole)(block, X)
    assert len(planning_calls) == 2
    assert "checkpoint" not in {e.primitive for e in planning_calls[1].program.equations}
    del alone, inside
    nnx.grad(jitted)(block, X)
    assert len(planning_calls) == 2


def test_new_attributes_and_sown_values_come_out(planning_calls):
    class Sowing(Block):
        def __call__(self, x, train=True):
            y = super().__call__(x, train)
            self.sow(nnx.Intermediate, "mean", jnp.mean(y))
            self.last = nnx.Variable(jnp.max(y))
            return y

    def total(module, x):
        y, sown = nnx.capture(lambda module, x: module(x), nnx.Intermediate)(module, x)
        return jnp.sum(y**2), nnx.to_pure_dict(sown)

    lean, plain = model(planned(Sowing)), model(Sowing)
    for _ in range(2):
        (gradient, sown), (expected, plainly) = (
            nnx.grad(total, has_aux=True)(module, X) for module in (lean, plain)
        )
        assert_same(nnx.to_pure_dict(gradient), nnx.to_pure_dict(expected))
        assert_same((sown, lean.last[...]), (plainly, plain.last[...]))
    assert planning_calls and sown


def test_arguments_of_all_kinds(planning_calls):
    method = planned(Block.scaled, static_argnums=1)  # as a function, `self` counts

    class Lean(Block):
        scaled = planned(Block.scaled, static_argnums=1)  # as a method, it does not

    def by(scaled, module):
        return nnx.grad(lambda m, x: jnp.mean(scaled(m, x, 2, shift=jnp.ones(8)) ** 2))(module, X)

    plain = nnx.to_pure_dict(by(Block.scaled, model(Block)))
    got = by(lambda m, x, n, *, shift: m.scaled(x, n, shift=shift), model(Lean))
    assert_same(nnx.to_pure_dict(got), plain)
    assert len(planning_calls) == 1
    with pytest.warns(monet_jax.PlanningWarning, match="cannot be traced"):  # it counts layers
        assert_same(nnx.to_pure_dict(by(method, model(Block))), plain)
    method = planned(Block.scaled, static_argnums=2)
    assert_same(nnx.to_pure_dict(by(method, model(Block))), plain)


def test_the_gradient_covers_parameters_and_argnums(planning_calls):
    count = sum(x.size for x in jax.tree.leaves(nnx.state(model(Block), nnx.Param)))
    for argnums, extra in [(0, X.size), ((), 0)]:
        planning_calls.clear()
        nnx.grad(loss)(model(planned(Block, argnums=argnums)), X)
        (traced,) = planning_calls
        sizes = [traced.program.avals[i].size for i in traced.derivative.inputs]
        assert sum(sizes) == count + extra


class Scale(nnx.Variable):
    """No parameter."""


def scaled(module, weight, scale, x):
    return jnp.mean((jnp.sin(module(x)) @ weight[...] * scale[...]) ** 2)


def with_variables():
    weight = jax.random.normal(jax.random.key(7), (8, 8))
    return model(), nnx.Param(weight), Scale(weight[0]), X


def eager(function):
    return function


@pytest.mark.parametrize(
    ("argnums", "wrt", "jit"),
    thinned(
        itertools.product(
            [
                pytest.param(1, 1, id="one"),
                pytest.param((0, 1), (0, 1), id="a module and one"),
                pytest.param((1, 2), (1, 2), id="two"),
                pytest.param((0, 1, 2, 3), (0, 1, 2, 3), id="all"),
                pytest.param(
                    (0, 2), (nnx.DiffState(0, nnx.PathContains("kernel")), 2), id="some of a module"
                ),
            ],
            [nnx.jit, eager],
        ),
        "one-jit",
        "some of a module-jit",
    ),
)
def test_variables_are_differentiated_as_they_are_without(argnums, wrt, jit, planning_calls):
    def both(fun):
        module, *others = with_variables()
        value, gradient = jit(nnx.value_and_grad(fun, argnums=wrt))(module, *others)
        return jax.tree.leaves((value, gradient)), nnx.to_pure_dict(nnx.state(module))

    assert_same(both(planned(scaled, argnums=argnums)), both(scaled))
    (traced,) = planning_calls
    chosen = [x for n, x in enumerate(with_variables()) if n in np.ravel(argnums)]
    params = [nnx.state(x, nnx.Param) if isinstance(x, Twice) else x for x in chosen]
    sizes = [traced.program.avals[i].size for i in traced.derivative.inputs]
    assert sum(sizes) == sum(x.size for x in jax.tree.leaves(params))


def test_variables_within_pytrees_and_states(planning_calls):
    module, weight, scale, x = with_variables()
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)

    def total(params, others, x):
        module = nnx.merge(graphdef, params, others["rest"], copy=True)
        return scaled(module, others["weight"], others["scale"], x)

    others = {"rest": rest, "weight": weight, "scale": scale}
    step = lambda fun: jax.tree.leaves(nnx.value_and_grad(fun)(params, others, x))  # noqa: E731
    assert_same(step(planned(total)), step(total))
    (traced,) = planning_calls
    assert len(traced.derivative.inputs) == len(jax.tree.leaves(params))


def test_the_reserved_bytes_of_an_optimizer_of_variables():
    _, weight, scale, x = with_variables()
    made = monet_jax.flax.plan(
        lambda weight, scale, x: jnp.mean(jnp.sin(x @ weight[...] * scale[...])),
        *(weight, scale, x),
        **{"argnums": (0, 1), "reserved": optax.sgd(0.1, momentum=0.9), "target": "cpu"},
        **{"budget": "1MiB", "verify": False, "cache": False},
    )
    assert made.reserved_bytes == 4 * (64 + 8)


def test_the_state_is_updated_once_where_a_plan_is_dropped(planning_calls, monkeypatch):
    """And a trace of the function after its call changes nothing."""
    traced = []

    def no_plan(self, trace, call):
        traced.append((trace, call))

    monkeypatch.setattr(_api.Planned, "plan_for", no_plan)
    module, plain = model(), model()
    got = stepped(planned(loss), module, X)
    for trace, call in traced:
        jax.eval_shape(trace.flat, call.call.leaves, ())
    assert_same(got, stepped(loss, plain, X))
    assert_same(stepped(planned(loss), module, X), stepped(loss, plain, X))


@pytest.mark.parametrize("jit", [ft.partial(nnx.jit, static_argnums=2), lambda fun: fun])
def test_static_arguments_are_counted_without_self_under_other_decorators(jit, planning_calls):
    class Lean(Block):
        @jit
        @planned(static_argnums=1)
        def scaled(self, x, power):
            return Block.scaled(self, x, power)

    got = stepped(lambda module, x: jnp.mean(module.scaled(x, 2)), model(Lean), X)
    assert_same(got, stepped(lambda module, x: jnp.mean(module.scaled(x, 2)), model(Block), X))
    assert len(planning_calls) == 1


def test_methods_without_arguments(planning_calls):
    class Norm(Block):
        def __call__(self):
            return jnp.sum(jnp.sin(jnp.sin(self.widen.kernel[...])))

    total = lambda module: module()  # noqa: E731
    assert_same(stepped(total, model(planned(Norm))), stepped(total, model(Norm)))
    assert len(planning_calls) == 1


# ------------------------------------------------------------------------------ plans made before


def made_before(fun, *args, **changes):
    """A plan of a function of modules, as a file would have it, for half of what it takes."""
    given = {"target": "cpu", "budget": 0.5, "cache": False} | changes
    made = monet_jax.flax.plan(fun, *args, **given)
    return plan_from_json(made.to_json())


#: A larger batch, and its shape.
LARGE = jnp.tile(X, (64, 1))
OF_LARGE = jax.ShapeDtypeStruct(LARGE.shape, LARGE.dtype)


@pytest.mark.slow
def test_a_plan_of_a_loss_from_elsewhere_trains_the_same():
    lean = monet_jax.flax.apply(made_before(loss, nnx.eval_shape(model), OF_LARGE), loss)
    assert recomputes(lean, model(), LARGE)
    assert_same(stepped(lean, model(), LARGE), stepped(loss, model(), LARGE))


@pytest.mark.slow
def test_a_plan_of_a_model_from_elsewhere_trains_the_same():
    of_model = made_before(nnx.eval_shape(model), OF_LARGE)
    lean = monet_jax.flax.apply(of_model, model())
    assert recomputes(loss, lean, LARGE)
    assert_same(stepped(loss, lean, LARGE), stepped(loss, model(), LARGE))
    with pytest.raises(monet_jax.PlanMismatch, match="Plan again"):
        nnx.grad(lambda module: loss(module, X))(lean)
    with pytest.raises(monet_jax.PlanMismatch, match="Plan again"):
        nnx.grad(monet_jax.flax.apply(of_model, loss))(model(), LARGE)


@pytest.mark.slow
def test_the_error_of_a_plan_is_limited_on_a_sample():
    x = jax.random.normal(jax.random.key(5), (2048, 8))
    abstract = nnx.eval_shape(lambda: model(Block))
    given = {"operators": "lossy", "error": 0.05, "verify": False, "budget": 0.7}
    made = made_before(loss, abstract, x, sample=(model(Block), 2 * x), **given)
    assert 0 < made.error <= made.error_limit == 0.05
    (_, exact, _), (_, found, _) = (
        stepped(fun, model(Block), x) for fun in (loss, monet_jax.flax.apply(made, loss))
    )
    wrong = optax.tree.norm(jax.tree.map(jnp.subtract, found, exact))
    assert 0 < wrong <= 0.1 * optax.tree.norm(exact)
    with pytest.raises(ValueError, match="sample"):  # the model is abstract
        made_before(loss, abstract, x, **given)


# ------------------------------------------------------------------------------ reports


def test_module_paths_and_lines_are_in_the_report():
    """Of an abstract model; its bytes are not asked for."""
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    given = {"verify": False, "cache": False, "budget": "1GiB", "target": "cpu"}
    made = monet_jax.flax.plan(loss, nnx.eval_shape(model), x, **given)
    rows = {(row.path, row.primitive): row for row in made.values}
    product = rows["Twice/other/widen", "dot_general"]
    assert product.shape == (64, 16) and __file__ in product.source
    whole = monet_jax.flax.plan(nnx.eval_shape(model), x, **given)
    assert whole.name == "Twice.__call__"
    assert ("Twice/other/widen", "dot_general") in {(r.path, r.primitive) for r in whole.values}


def test_naming_leaves_the_classes_alone(planning_calls):
    module = model()
    before = nnx.graphdef(module)
    nnx.grad(planned(loss))(module, X)
    paths = {str(e.name_stack) for e in planning_calls[0].program.equations}
    assert {"Twice/other/widen", "Twice/again/norm", "Twice/again/dropout"} <= paths
    assert not any("again/again" in path or "first" in path for path in paths)
    kinds = {type(m) for _, m in nnx.iter_modules(module)}
    assert kinds == {Twice, Block, nnx.Linear, nnx.BatchNorm, nnx.Dropout}
    assert nnx.graphdef(module) == before


# ------------------------------------------------------------------------------ bad input


def no_module(x):
    return x


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: planned(3), TypeError, "Only a Flax module"),
        (lambda: planned(dict), TypeError, "no class of Flax modules"),
        (lambda: planned(Block, methods="missing"), ValueError, "missing"),
        (lambda: planned(Block, argnums=5), ValueError, "argnums"),
        (lambda: planned(Block, argnums=0, static_argnums=0), ValueError, "static_argnums"),
        (lambda: planned(Block, budget="12 apples"), ValueError, "budget"),
        (lambda: planned(no_module)(X), TypeError, r"use `monet_jax\.remat`"),
        (lambda: monet_jax.flax.plan(no_module, X, budget=1.0), TypeError, r"`monet_jax\.plan`"),
    ],
)
def test_bad_input_is_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()
