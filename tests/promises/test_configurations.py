"""Planned programs work under each configuration of JAX under which plain ones do.

The named programs run under each: by random plans, and by `monet_jax.remat` with plans that no
compiler has seen. One network is planned for a budget under each, and compiled.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from coming_rules import IN_FORCE
from emission import Flat, assert_same, flat, in_double, is_float, is_key, pulled, random_emissions
from jax.ad_checkpoint import checkpoint_name
from leaks import leaks_are_errors
from programs import NAMED, Case
from ways import WAYS
from ways import plans as plans

import monet_jax

#: JAX's options, as contexts.
CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "x64": lambda: jax.enable_x64(True),
    "strict_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "debug_nans": lambda: jax.debug_nans(True),
    "tracer_leaks": leaks_are_errors,
    "rbg_keys": lambda: jax.default_prng_impl("rbg"),
    "key_reuse": lambda: jax.debug_key_reuse(True),
}
#: Programs that always run: one with a loop, and one with integers.
QUICK = {
    "layers_under_scan": ("tracer_leaks",),
    "integers_and_bools": ("x64",),
}


def _case(name: str) -> Case:
    """A named program, whose arguments are made here and now; floats as wide as they can be."""
    case = NAMED[name].__wrapped__()
    is_wide = jax.config.jax_enable_x64

    def widened(x):
        return jnp.asarray(np.asarray(x, np.float64)) if is_wide and _is_float32(x) else x

    return Case(case.function, jax.tree.map(widened, case.args))


def _is_float32(x: Any) -> bool:
    return not is_key(x) and x.dtype == jnp.float32


def _plain(case: Case) -> tuple[Flat, Any]:
    """A case without a plan, and its results and gradients; skips what plain JAX refuses.

    Under the coming rules it refuses some checkpoints: their barriers use keys up, and what they
    save by name leaks tracers.
    """
    leaves, tree = jax.tree.flatten(case.args)

    def function(*leaves):
        return jax.tree.leaves(case.function(*jax.tree.unflatten(tree, leaves)))

    places = tuple(n for n, leaf in enumerate(leaves) if is_float(leaf))
    made = Flat(function, tuple(leaves), places, None)
    try:
        if IN_FORCE:
            jax.jit(pulled(made, _checkpointed(function)))(*leaves)
        return made, jax.jit(pulled(made, function))(*leaves)
    except Exception as error:
        pytest.skip(f"plain JAX refuses it: {type(error).__name__}")


def _checkpointed(function: Callable) -> Callable:
    """The same under a `jax.checkpoint` that saves the floats it is given by name."""

    @functools.partial(
        jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("float")
    )
    def named(*leaves):
        return function(*(checkpoint_name(x, "float") if is_float(x) else x for x in leaves))

    return named


def _rematerialized(case: Case, function: Callable) -> Callable:
    """`monet_jax.remat` of a case, as a function of its leaves."""
    tree = jax.tree.structure(case.args)
    floats = [all(map(is_float, jax.tree.leaves(arg))) for arg in case.args]
    argnums = tuple(n for n, some in enumerate(floats) if some)
    planned = monet_jax.remat(function, budget=0.5, argnums=argnums, cache=False)
    return lambda *leaves: jax.tree.leaves(planned(*jax.tree.unflatten(tree, leaves)))


def _parameters():
    """Every program under every configuration, with ways to plan in turns."""
    for m, configuration in enumerate(CONFIGURATIONS):
        for n, name in enumerate(NAMED):
            is_quick = configuration in QUICK.get(name, ())
            marks = [] if is_quick else [pytest.mark.slow]
            way = WAYS[(n + m) % len(WAYS)]
            yield pytest.param(configuration, name, way, id=f"{configuration}-{name}", marks=marks)


@pytest.mark.parametrize(
    ("configuration", "name", "plans"), list(_parameters()), indirect=["plans"]
)
def test_named_program_works_as_in_plain_jax(configuration, name, plans):
    with CONFIGURATIONS[configuration]():
        case = _case(name)
        plain, expected = _plain(case)
        f = flat(case)
        (made,) = random_emissions(f, 0, 1)
        by_random_plan = jax.jit(pulled(f, made.function))(*f.leaves)
        by_remat = jax.jit(pulled(plain, _rematerialized(case, case.function)))(*f.leaves)
    # In float64 the plain program is as exact as the reference; what raw keys mean is configured.
    kept = CONFIGURATIONS[configuration] if configuration == "rbg_keys" else contextlib.nullcontext
    with kept():
        exact = in_double(pulled(plain, plain.function), f.leaves)
    assert_same(by_random_plan, expected, exact)
    assert_same(by_remat, expected, exact)
    floats = [a for a in jax.tree.leaves(expected) if is_float(a)]
    assert plans or not floats


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_network_keeps_its_budget(configuration):
    with CONFIGURATIONS[configuration]():
        args = networks.args()
        plan = monet_jax.plan(networks.net, *args, budget=0.6, cache=False)
        planned = monet_jax.apply(plan, networks.net)
        step = jax.jit(jax.value_and_grad(planned))
        networks.assert_same(step(*args), jax.jit(jax.value_and_grad(networks.net))(*args))
        assert networks.compiled(planned, *args) <= plan.budget_bytes
        assert networks.recomputes(jax.grad(planned), *args)


def test_a_configuration_is_in_force():
    """Under each, something is refused or different that otherwise is not."""
    keys = functools.partial(jax.random.key, 0)

    def reuses_a_key():
        key = keys()
        return jax.random.normal(key) + jax.random.normal(key)

    leaked = []
    shown = {
        "strict_promotion": lambda: jnp.float32(1) + jnp.bfloat16(1),
        "rank_promotion": lambda: jnp.ones((2, 3)) + jnp.ones(3),
        "debug_nans": lambda: jnp.log(jnp.float32(-1)),
        "tracer_leaks": lambda: jax.jit(leaked.append)(1.0),
        "key_reuse": reuses_a_key,
    }
    for name, show in shown.items():
        show()
        with CONFIGURATIONS[name](), pytest.raises(Exception, match=r"."):
            show()
    with CONFIGURATIONS["x64"]():
        assert jnp.asarray(1.0).dtype == jnp.float64
    with CONFIGURATIONS["rbg_keys"]():
        assert str(jax.random.key_impl(keys())) == "rbg"
