"""The API keeps the conventions of Python and JAX: names of errors, keywords, checks."""

import functools
import importlib
import pkgutil
import traceback

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify
from networks import net, specs
from paths import ROOT

import monet_jax
import planners

W, X = [jnp.eye(64) / 8] * 4, jnp.ones((256, 64))


def exceptions_of(package):
    """The classes of exceptions that a package's files define, by what `raise` would print."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.startswith(("monet_jax.bench", "monet_jax.cli", "planners.solver.worker")):
            continue
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, type) and issubclass(found, BaseException):
                yield found


#: Errors that never leave a call.
INTERNAL = {"_Unknown", "OtherOptions", "CompilationFailed", "CapReached", "Untraceable"}


@pytest.mark.parametrize("package", [monet_jax, planners], ids=lambda x: x.__name__)
def test_every_error_that_leaves_a_call_can_be_imported_by_its_printed_name(package):
    pytest.importorskip("flax")
    ours = {x for x in exceptions_of(package) if x.__module__.split(".")[0] == package.__name__}
    public = {x for x in ours if x.__name__ not in INTERNAL}
    assert {"InfeasibleBudget"} <= {x.__name__ for x in public}
    for found in public:
        assert found.__module__ == package.__name__
        assert getattr(package, found.__name__) is found


def test_a_traceback_prints_the_public_name():
    with pytest.raises(monet_jax.InfeasibleBudget) as caught:
        monet_jax.plan(net, *specs(8), budget=1)
    (line, *_) = traceback.format_exception_only(caught.value)
    assert line.startswith("monet_jax.InfeasibleBudget: ")


@pytest.mark.parametrize("decorator", [monet_jax.remat, monet_jax.jit, monet_jax.flax.remat])
@pytest.mark.parametrize("given", [(net, "12GiB"), (net, 0.5), ("12GiB",), (0.5,)])
def test_a_budget_by_position_is_told_its_keyword(decorator, given):
    with pytest.raises(TypeError, match=rf"`budget` is a keyword of `\w+`: .*={given[-1]!r}"):
        decorator(*given)


def test_explain_prints_what_is_kept_and_plans_nothing(capsys, monkeypatch):
    monkeypatch.setattr(planners.Stages, "__call__", None)
    monkeypatch.setattr("monet_jax.compiler.compile.compile_bytes", None)

    def scoped(weights, x):
        for n, w in enumerate(weights):
            with jax.named_scope(f"layer{n}"):
                x = jnp.sin(jnp.sin(x @ w) @ w)
        return jnp.sum(x)

    monet_jax.debug.explain(scoped, W, jax.ShapeDtypeStruct((1024, 64), jnp.float32))
    text = capsys.readouterr().out
    assert text.startswith("`test_explain") and "by the model" in text
    assert "layer*" in text and "test_conventions.py:" in text and "256.0 KiB" in text
    with pytest.raises(TypeError, match="takes a function, not a step"):
        monet_jax.debug.explain(monet_jax.jit(net, budget=0.5), *specs(8))
    with pytest.raises(ValueError, match="cannot be planned"):
        monet_jax.debug.explain(lambda w, x: x > 0, W, X)


def loss(weights, x):
    for w in weights:
        x = x + jnp.sin(jnp.sin(x @ w) @ w)
    checkify.check(jnp.all(jnp.isfinite(x)), "not finite")
    return jnp.mean(x**2)


def test_checks_that_are_functionalized_inside_are_planned():
    def checked(weights, x):
        error, value = checkify.checkify(loss)(weights, x)
        return value, error

    lean = monet_jax.remat(checked, budget=0.6, max_compilations=2, cache=False)
    assert monet_jax.plan(lean, W, X).decisions is not None
    step = jax.jit(jax.value_and_grad(lean, has_aux=True))
    (_, error), gradient = step(W, X)
    error.throw()
    expected = jax.grad(lambda w: checked(w, X)[0])(W)
    for a, b in zip(gradient, expected, strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-6)
    with pytest.raises(checkify.JaxRuntimeError, match="not finite"):
        step(W, X * jnp.nan)[0][1].throw()


def test_checks_from_outside_run_the_function_as_it_is(monkeypatch):
    monkeypatch.delenv("MONET_JAX_STRICT")
    lean = monet_jax.remat(loss, budget=0.6, cache=False)
    with pytest.warns(monet_jax.PlanningWarning, match="checks of `checkify`") as caught:
        error, _ = checkify.checkify(jax.value_and_grad(lean))(W, X)
    error.throw()
    assert "fault of monet_jax" not in str(caught[0].message)


@pytest.mark.slow
def test_a_function_under_remat_is_traced_once():
    """So that `chex.assert_max_traces(fun, n=1)` holds inside of it."""
    traces = []

    @functools.partial(monet_jax.remat, budget=0.6, cache=False)
    def counted(weights, x):
        traces.append(1)
        return net(weights, x)

    step = jax.jit(jax.value_and_grad(counted))
    args = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), specs(64))
    step(*args), step(*args)
    assert len(traces) == 1


@pytest.mark.parametrize("form", ["fault", "slow-plan"])
def test_forms_for_faults_ask_for_what_env_prints(form):
    text = (ROOT / ".github/ISSUE_TEMPLATE" / f"{form}.yml").read_text()
    asked = text.partition("The output of `monet-jax env`")[2]
    assert "render: text" in asked and "required: true" in asked
