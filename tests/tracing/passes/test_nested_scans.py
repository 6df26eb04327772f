"""Nested scans keep values and gradients, and save less than one carry an iteration.

Bytes are the compiler's; the baseline is the same loop with `jax.checkpoint` round its body.
"""

import dataclasses
import functools as ft
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emission import analyzed, assert_same, emitted, flat, pulled, random_regions, reference
from jax import lax
from programs import LOOPS, NAMED, Case, array
from thinning import thinned

import monet_jax
from monet_jax._plan import load_plan
from monet_jax.tracing.passes.nested_scans import as_nested_scans, chunking

#: Iterations of the deep loop.
DEPTH = 60


def step(w, h, x):
    """One iteration of the deep loop."""
    return jnp.tanh(h @ w + x), None


def deep(w, h, xs, step=step):
    """A loop that carries much more than it is given."""
    return jnp.sum(lax.scan(ft.partial(step, w), h, xs)[0] ** 2)


def arguments(depth=DEPTH):
    """Of `deep`."""
    return array(0, 64, 64) * 0.3, array(1, 512, 64), jnp.linspace(0.0, 1.0, depth)


def temporaries(function, *args):
    """Compiled bytes beside arguments and results."""
    compiled = jax.jit(jax.value_and_grad(function)).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def assert_nested_scans_change_nothing(case, chosen):
    """Random plans of a case, its loops in the chosen chunks, against plain JAX."""
    f = flat(case)
    chunked = dataclasses.replace(f, program=as_nested_scans(f.program, chosen))
    expected = reference(pulled(f, f.function), f.leaves)
    for seed in range(2):
        rng = random.Random(seed)
        graph, staged = analyzed(chunked, rng)
        made = emitted(chunked, graph, staged, random_regions(graph, rng))
        assert_same(jax.jit(pulled(f, made.function))(*f.leaves), *expected)


# ------------------------------------------------------------------------------ derivatives


@pytest.mark.parametrize("name", thinned(LOOPS, "scan_under_scan"))
def test_nested_scans_keep_values_and_gradients(name):
    case = NAMED[name]()
    loops = [e for e in flat(case).program.equations if e.primitive == "scan"]
    assert_nested_scans_change_nothing(case, [2] * len(loops))


@pytest.mark.parametrize(
    ("trips", "reverse"), thinned(itertools.product((6, 7, 8), (False, True)), "7-True")
)
def test_what_is_left_over_runs_in_its_place(trips, reverse):
    """Iterations that depend on their order, with keys, integers, and results of each."""

    def function(w, h, xs, keys):
        def one(carry, item):
            h, count = carry
            x, key = item
            drawn = jax.random.normal(key, h.shape) * count
            return (jnp.sin(h * w + x + drawn), count + 1), (h * x, count)

        (h, count), (ys, counts) = lax.scan(one, (h, 0), (xs, keys), reverse=reverse)
        return jnp.sum(h) + jnp.vdot(ys, ys), (count, counts, ys)

    args = array(0, 3), array(1, 3), array(2, trips, 3), jax.random.split(jax.random.key(3), trips)
    case = Case(function, args)
    program = as_nested_scans(flat(case).program, [3])
    outer = [e.eqn.params["length"] for e in program.equations if e.primitive == "scan"]
    assert outer == ([2] if trips == 6 else [1, 2])
    assert_nested_scans_change_nothing(case, [3])


@pytest.mark.slow
def test_chunked_loops_can_be_pushed_forward_where_plans_must():
    """Of a plan without operators, `jax.jvp(jax.jit(...))` is that of the function."""
    args = arguments()
    least = smallest(deep, args, operators="none")
    planned = monet_jax.plan(deep, *args, budget=least, operators="none")
    assert any(planned.chunks)
    ours, plain = (
        jax.jvp(jax.jit(function), args, args) for function in (planned.apply(deep), deep)
    )
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# ------------------------------------------------------------------------------ bytes


def smallest(function, args, **options):
    """The smallest budget that works."""
    with pytest.raises(monet_jax.InfeasibleBudget) as caught:
        monet_jax.plan(function, *args, budget=1 << 10, **options)
    return caught.value.minimum_budget


@pytest.mark.parametrize("depth", thinned([DEPTH, DEPTH + 1], str(DEPTH)))
def test_nested_scans_take_a_fraction_of_a_loop_with_a_checkpoint_round_its_body(depth, tmp_path):
    args = arguments(depth)
    by_hand = ft.partial(deep, step=jax.checkpoint(step, prevent_cse=False))
    least = smallest(deep, args)
    plan = monet_jax.plan(deep, *args, budget=least)
    assert plan.chunks and plan.compiled_bytes <= least
    assert f"in chunks of {plan.chunks[0]} iterations" in str(plan)
    assert temporaries(plan.apply(deep), *args) < 0.5 * temporaries(by_hand, *args)
    # One more forward pass than with the checkpoint, without the last iterations.
    assert plan.flops <= 5 / 3 * plan.base_flops
    plan.save(tmp_path / "plan.json")
    applied = load_plan(tmp_path / "plan.json").apply(deep)
    ours, plain = (jax.jit(jax.grad(function))(*args) for function in (applied, deep))
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-3)
    assert monet_jax.check(plan, deep, *args).holds


@pytest.mark.slow
def test_a_budget_between_takes_less_work_than_the_least():
    """Some chunks keep the carries of their iterations, others run once more."""
    args = arguments()
    least = monet_jax.plan(deep, *args, budget=smallest(deep, args))
    more = monet_jax.plan(deep, *args, budget=int(1.5 * least.compiled_bytes))
    assert more.chunks and more.compiled_bytes <= more.budget_bytes
    assert more.flops < least.flops


def inner_loop(h, w):
    """Keeps many times what it carries."""

    def one(h, x):
        return jnp.tanh(jnp.sin(h * x) @ w + jnp.cos(h)), None

    return lax.scan(one, h, jnp.linspace(0.5, 1.0, 12))[0]


def in_loop(w, h, inner=inner_loop):
    """Loops in the body of one."""
    return jnp.sum(lax.scan(lambda h, w: (inner(h, w), None), h, w)[0] ** 2)


def in_branch(w, h, inner=inner_loop):
    """Loops in the branches of choices."""
    for n in range(2):
        h = lax.cond(h[0, 0] < 9, lambda h, n=n: inner(h, w[n]), lambda h: h, h)
    return jnp.sum(h**2)


@pytest.mark.parametrize("function", thinned([in_loop, in_branch]))
def test_loops_inside_others_keep_what_they_carry_and_no_more(function):
    w, h = array(0, 4, 64, 64) * 0.3, array(1, 512, 64)
    by_hand = ft.partial(function, inner=jax.checkpoint(inner_loop))
    plan = monet_jax.plan(function, w, h, budget=smallest(function, (w, h)))
    assert plan.chunks is not None
    assert temporaries(plan.apply(function), w, h) < 0.5 * temporaries(by_hand, w, h)
    ours, plain = (jax.jit(jax.grad(f))(w, h) for f in (plan.apply(function), function))
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-3)


def test_only_loops_that_carry_much_become_nested_scans():
    def lengths_of(function, *args):
        case = flat(Case(function, args))
        return chunking(case.program, case.derivative).lengths

    w, h, xs = arguments()
    (found,) = lengths_of(deep, w, h, xs)
    assert 6 <= found <= 10  # round the square root of 60
    assert lengths_of(deep, w, h, xs[:3]) == (0,)
    # Copies of wide slices in an inner scan would take as much as it frees.
    wide = jnp.broadcast_to(xs[:8, None, None], (8, 512, 64))
    assert lengths_of(deep, w, h, wide) == (0,)
    fixed = lax.stop_gradient
    assert lengths_of(lambda w, h, xs: jnp.sum(w) + deep(*fixed((w, h, xs))), w, h, xs) == (0,)
