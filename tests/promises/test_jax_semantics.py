"""`monet_jax.remat` keeps what JAX's own tests say of remat and of custom_vjp.

A row is one test of JAX's classes `RematTest` and `CustomVJPTest`, restated: a function of `remat`,
which is `monet_jax.remat` or nothing at all, and whose results must be equal. The plans are drawn
up without a compiler, in four ways, each of which recomputes something in every row that has
anything to recompute.
"""

import collections
import contextlib
import dataclasses
import functools as ft
import logging
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coming_rules import IN_FORCE, fault_of_jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from networks import assert_same, recomputes
from ways import WAYS, as_cut, by_equation, nested, saving
from ways import plans as plans

import monet_jax

FLOAT0 = jax.dtypes.float0
POLICIES = jax.checkpoint_policies


# ------------------------------------------------------------------------------ the table


@dataclasses.dataclass(frozen=True)
class Row:
    """One test of JAX.

    Attributes:
        name: its class and name there.
        show: a function of `remat` that shows the behaviour; None where it is not applicable.
        warns: what the `PlanningWarning` says that planning gives; "" where it gives none.
        error: what is raised; None where values are compared.
        match: what the error says.
        plain_too: whether plain JAX raises the same.
        why: the reason why it is refused, or not applicable, or why nothing can be recomputed.
        recomputes: whether a plan is made, and recomputes something.
        told_all: whether `jax.checkpoint` tells rules, under the coming rules, that all operands
            are differentiated; then the results are its own.
        fault: what is wrong with plain JAX under the coming rules; "" where nothing is.
        defect: why it is not yet as it should be; "" where it is.
        ways: the ways to plan in which it holds; none given, all of them.
    """

    name: str
    show: Callable[[Any], Any] | None = None
    warns: str = ""
    error: type[Exception] | None = None
    match: str = ""
    plain_too: bool = False
    why: str = ""
    recomputes: bool = True
    told_all: bool = False
    fault: str = ""
    defect: str = ""
    ways: tuple[Callable, ...] = ()

    @property
    def kind(self) -> str:
        if self.show is None:
            return "not applicable"
        return "same" if self.error is None else "refused"


ROWS: list[Row] = []


def row(name: str, **attributes) -> Callable:
    """Puts the decorated function into the table."""

    def add(show):
        ROWS.append(Row(name, show, **attributes))
        return show

    return add


def not_applicable(name: str, why: str) -> None:
    ROWS.append(Row(name, why=why))


# ------------------------------------------------------------------------------ plans


planned = ft.partial(monet_jax.remat, budget=0.5, cache=False)


def plain(fun=None, **options):
    """What stands for `remat` in plain JAX."""
    del options
    return plain if fun is None else fun


def checkpointed(fun=None, **options):
    """What stands for `remat` where plain JAX runs again as well."""
    del options
    return checkpointed if fun is None else jax.checkpoint(fun)


def arrays(results):
    """The results, with Python's numbers as the arrays that tracing makes of them."""
    numbers = int, float  # and with them what JAX makes of a number under no transformation
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, numbers) else x, results)


# ------------------------------------------------------------------------------ what rows use

X = np.linspace(0.1, 0.9, 4, dtype=np.float32)
SQUARE = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def derivatives(f, *args, forward=True):
    """Value, gradient, second derivative and tangent of the sum of the results.

    They are compiled as one program, which takes less time than each by itself.
    """

    def total(x):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(f(x, *args[1:])))

    @jax.jit
    def all_of_them(x):
        second = jax.grad(lambda x: jnp.sum(jax.grad(total)(x) ** 2))(x)
        return jax.value_and_grad(total)(x), second, jax.jvp(total, (x,), (x,)) if forward else ()

    return all_of_them(args[0])


def doubled(fun=jnp.sin, local_derivative=jnp.cos):
    """A function whose rule doubles its gradient: JAX itself would find another one."""
    f = jax.custom_vjp(fun)
    f.defvjp(lambda x: (f(x), local_derivative(x)), lambda s, g: (2 * s * g,))
    return f


def ruled(fun, fwd, bwd, **options):
    """A function with a rule."""
    f = jax.custom_vjp(fun)
    f.defvjp(fwd, bwd, **options)
    return f


def once(body, x, length=1):
    """`body` as the body of a scan."""
    return lax.scan(lambda c, _: (body(c), None), x, None, length=length)[0]


def text_of(fun, *args) -> str:
    return str(jax.make_jaxpr(fun)(*args))


class Counting(logging.Handler):
    """Counts the programs that JAX compiles."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += record.getMessage().startswith("Compiling")


def compilations(call) -> int:
    """How many programs are compiled while `call` is called."""
    log, counting = logging.getLogger("jax"), Counting()
    log.addHandler(counting)
    try:
        with jax.log_compiles():
            call()
    finally:
        log.removeHandler(counting)
    return counting.count


def counted_primitive(name="add_one"):
    """`x + 1` as a primitive that counts how often it is evaluated, with a gradient of `x + 1`."""
    primitive, counts = Primitive(name), collections.Counter()

    def evaluate(x):
        counts["all"] += 1
        return x + 1

    def push(primals, tangents):
        y = primitive.bind(*primals)
        return y, y * tangents[0]

    primitive.def_impl(evaluate)
    primitive.def_abstract_eval(lambda x: x)
    ad.primitive_jvps[primitive] = push
    return primitive.bind, counts


def evaluations(f, x, counts):
    """Value, gradient, and how often a counted primitive runs forward and backward."""
    counts.clear()
    y, pull = jax.vjp(f, x)
    forward = counts["all"]
    gradient = pull(jnp.ones_like(y))
    return y, gradient, forward, counts["all"] - forward


# ------------------------------------------------------------------------------ RematTest


@row("RematTest.test_remat_basic")
def _(remat):
    g = remat(lambda x: (lax.sin(lax.sin(x)), 3.0))
    y, push = jax.linearize(lambda x: g(x)[0], 2.0)
    assert (" sin " in text_of(push, 3.0)) is (remat is not plain)  # it runs again
    return y, push(3.0), g(2.0)


@row("RematTest.test_remat_freevars")
def _(remat):
    def f(x):
        y = 2 * jnp.sin(x)
        return remat(lambda x: jnp.cos(x) * jnp.sin(y))(x)

    y, push = jax.linearize(f, 2.0)
    return y, push(3.0), jax.grad(f)(2.0)


@row(
    "RematTest.test_remat_grad_python_control_flow_static_argnums",
    error=ValueError,
    match="both `argnums` and `static_argnums`",
    why="a static argument has no gradient; JAX skips the test itself",
)
def _(remat):
    g = remat(lambda x: lax.sin(x) if x > 0 else lax.cos(x), static_argnums=0)
    return g(2.0)


@row(
    "RematTest.test_remat_grad_python_control_flow_unhashable_static_argnums",
)
def _(remat):
    class Unhashable:
        __hash__ = None
        sign = 1.0

    g = remat(lambda x, a: lax.sin(x) * a.sign, static_argnums=1)
    return jax.grad(g)(2.0, Unhashable())


@row("RematTest.test_remat_retracing")
def _(remat):
    g = remat(lambda x: (lax.sin(x), 3.0))
    step = jax.jit(lambda x: g(x)[0])
    jax.grad(step)(2.0)
    again = compilations(lambda: [jax.grad(step)(2.0) for _ in range(3)])
    return again, [g(2.0) for _ in range(3)]


@row("RematTest.test_remat_static_agnums_retracing")
def _(remat):
    traced = []

    def f(positive, x):
        traced.append(positive)
        return lax.sin(x) if positive else lax.cos(x)

    g = jax.jit(remat(f, argnums=1, static_argnums=0), static_argnums=0)
    results = [jax.grad(g, argnums=1)(True, 2.0) for _ in range(3)]
    assert len(traced) == 1
    return results


@row("RematTest.test_remat_jit")
def _(remat):
    g = remat(lambda x: lax.sin(lax.sin(x)))
    f = jax.jit(lambda x: g(x))
    return f(2.0), jax.grad(f)(2.0), jax.jit(jax.grad(g))(2.0)


@row("RematTest.test_remat_vmap")
def _(remat):
    g = remat(lambda x: lax.sin(lax.sin(x)))
    adds = Primitive("adds_a_constant")  # its batching rule brings a constant in
    adds.def_impl(lambda x: x)
    adds.def_abstract_eval(lambda x: x)
    batching.primitive_batchers[adds] = lambda xs, dims: (xs[0] + np.arange(4.0, dtype="f4"), *dims)
    return jax.vmap(g)(X), jax.jacfwd(g)(X), jax.jacrev(g)(X), jax.vmap(remat(adds.bind))(X)


@row("RematTest.test_remat_vmap_not_leading_dim", warns="vmap")
def _(remat):
    g = jax.vmap(remat(lambda x: lax.sin(lax.sin(x))), 1, 0)
    return g(SQUARE), jax.grad(lambda x: g(x).sum())(SQUARE)


@row("RematTest.test_remat_higher_order_autodiff")
def _(remat):
    g = remat(lambda x: lax.cos(lax.sin(x)))
    return jax.grad(jax.grad(g))(3.0), jax.hessian(g)(3.0)


@row("RematTest.test_remat_higher_order_ad_preserves_remat_primitive")
def _(remat):
    results = []
    for f in (
        lambda x: jnp.sin(jnp.sin(x)),
        lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x),
    ):
        twice = jax.grad(jax.grad(remat(f)))
        results.append(twice(0.3))
        assert remat is plain or recomputes(twice, 0.3)
    return results


@row("RematTest.test_remat_scan")
def _(remat):
    def f(x):
        return lax.scan(remat(lambda c, x: (jnp.sin(c), None)), x, np.arange(3.0))[0]

    assert remat is plain or " cos " in text_of(jax.linearize(f, 4.0)[1], 1.0)
    return f(4.0), jax.grad(f)(4.0), jax.jit(jax.grad(f))(4.0)


@row("RematTest.test_remat_no_redundant_flops")
def _(remat):
    g = jax.jit(lambda x: remat(lambda x, y: jnp.sin(x) * y)(2.0, x))
    pull = jax.vjp(g, 3.0)[1]
    assert text_of(pull, 1.0).count(" sin ") <= 1
    return jax.grad(g)(3.0)


@row("RematTest.test_remat_binomial_checkpointing")
def _(remat):
    def binomial(funs):
        if len(funs) == 1:
            return funs[0]
        f, g = binomial(funs[: len(funs) // 2]), binomial(funs[len(funs) // 2 :])
        return remat(lambda x: f(g(x)))

    return derivatives(binomial([jnp.sin] * 4), 4.0)


@row("RematTest.test_remat_symbolic_zeros")
def _(remat):
    start = jax.random.uniform(jax.random.key(0), (5, 3))

    def f(scale):
        def move(r, i):
            return r + 0.001 * scale * r, jnp.array([0.0])

        return lax.scan(remat(move), start, jnp.arange(2))[0][0, 0]

    return jax.value_and_grad(f)(5.0)


@row("RematTest.test_remat_jit2")
def _(remat):
    def f(x):
        y = 2 * x
        return remat(lambda: y, argnums=())()

    return jax.jit(f)(3), jax.grad(jax.jit(f))(3.0)


@row("RematTest.test_remat_nontrivial_env")
def _(remat):
    @remat
    def step(state, dt=0.5, c=1):
        u, v = state
        v = v + c**2 * u * dt
        return u, v

    @ft.partial(jax.jit, static_argnums=1)
    def steps(state, count, dt, c):
        return lax.scan(lambda s, _: (step(s, dt, c), _), state, None, count)[0]

    def loss(u):
        return (steps((u, jnp.zeros_like(u)), 3, 1 / jnp.sqrt(2), 1)[0] ** 2).mean()

    return loss(SQUARE), jax.grad(loss)(SQUARE)


@row("RematTest.test_remat_jit3")
def _(remat):
    def attention(w, x):
        a = jnp.dot(x, w)
        b = jnp.einsum("btd,bTd->btT", a, a)
        return jnp.sum(jnp.einsum("btT,btd->btd", b, a))

    multiply = jax.jit(lambda a, b: a * b)

    def square(w, x):
        a = multiply(w, x)
        return multiply(a, a)

    x = np.ones((1, 2, 4), np.float32)
    return jax.grad(remat(attention))(SQUARE, x), jax.grad(remat(square))(1.0, 1.0)


@row("RematTest.test_remat_scan2")
def _(remat):
    def f(x):
        inner = remat(lambda x, _: (lax.scan(lambda x, _: (x + 1, None), x, None, 1)[0], None))
        return inner(x, None)[0]

    return jax.value_and_grad(f)(1.0)


@row("RematTest.test_remat_jit_static_argnum_omnistaging")
def _(remat):
    f = remat(lambda flag, y: jnp.sin(y) + 1 if flag else y, argnums=1, static_argnums=0)
    return jax.jit(f, static_argnums=0)(True, 1.0), jax.grad(f, argnums=1)(True, 1.0)


@row("RematTest.test_remat_eval_counter", ways=(as_cut, nested))
def _(remat):
    add_one, counts = counted_primitive()
    f = remat(add_one)
    g = remat(lambda x: add_one(f(x)))
    y, gradient, forward, backward = evaluations(g, np.zeros(1, np.float32), counts)
    assert forward == 2
    assert (backward > 0) is (remat is not plain)
    return y, gradient


@row("RematTest.test_remat_recursive_checkpoint_recompute_counts", ways=(as_cut, nested))
def _(remat):
    add_one, counts = counted_primitive()

    def recursive(funs):
        if len(funs) <= 2:
            return lambda x: ft.reduce(lambda x, f: f(x), funs, x)
        f, g = recursive(funs[: len(funs) // 2]), recursive(funs[len(funs) // 2 :])
        return lambda x: f(remat(g)(x))

    results = []
    for n in (4, 8):
        y, gradient, forward, backward = evaluations(
            recursive([add_one] * n), np.float32(1), counts
        )
        assert forward == n
        assert (backward > 0) is (remat is not plain)
        results.append((y, gradient))
    return results


@row(
    "RematTest.test_escaped_tracer_remat",
    error=jax.errors.UnexpectedTracerError,
    match="global state|side effect",
    why="a tracer that outlives its trace is refused by JAX itself",
)
def _(remat):
    def f(x):
        seen = [x]

        def g():
            seen[0] += 1
            return seen[0]

        return remat(g, argnums=())() + remat(lambda: g(), argnums=())()

    return jax.jit(f)(1.0)


not_applicable(
    "RematTest.test_no_cse_widget_on_primals",
    "of the compiled form of a value alone: regions are tied by barriers there as well",
)
for _name in (
    "test_no_cse_widget_with_prevent_cse_false",
    "test_remat_partial_cse_prevention",
    "test_remat_partial_cse_prevention_all_false",
    "test_remat_partial_cse_prevention_pytree",
):
    not_applicable(f"RematTest.{_name}", "of the argument `prevent_cse`, which `remat` has not")


# A policy is the user's own inside the planned function: a `jax.checkpoint` that it holds.


@row("RematTest.test_remat_custom_policy")
def _(remat):
    def sin(x):
        return checkpoint_name(jnp.sin(x), "sin")

    square = jax.jit(jnp.square)
    policies = POLICIES.everything_saveable, None, POLICIES.save_only_these_names("sin")
    return [
        derivatives(remat(jax.checkpoint(lambda x: sin(square(sin(x))), policy=policy)), 1.0)
        for policy in policies
    ]


def saves(primitive):
    """A policy that saves the results of one primitive."""
    return lambda prim, *_, **__: str(prim) == primitive


@row("RematTest.test_remat_custom_policy_save_cos")
def _(remat):
    f = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)), policy=saves("cos"))
    return derivatives(remat(f), 1.0)


def dots_and_sines(x, dot=jnp.dot):
    for _ in range(3):
        x = jnp.sin(dot(x, x) * 0.3)
    return x


@row("RematTest.test_remat_checkpoint_dots")
def _(remat):
    f = jax.checkpoint(dots_and_sines, policy=POLICIES.checkpoint_dots)
    return derivatives(remat(f), SQUARE)


@row("RematTest.test_remat_checkpoint_dots_with_no_batch_dims")
def _(remat):
    policy = POLICIES.checkpoint_dots_with_no_batch_dims
    f = ft.partial(dots_and_sines, dot=ft.partial(jnp.einsum, "ij,jk->ik"))
    return derivatives(remat(jax.checkpoint(f, policy=policy)), SQUARE)


@row("RematTest.test_remat_checkpoint_dots_with_no_batch_dims2")
def _(remat):
    policy = POLICIES.checkpoint_dots_with_no_batch_dims
    f = ft.partial(dots_and_sines, dot=ft.partial(jnp.einsum, "nij,njk->nik"))
    return derivatives(remat(jax.checkpoint(f, policy=policy)), np.stack([SQUARE, SQUARE + 1]))


@row("RematTest.test_remat_checkpoint_dots_jit")
def _(remat):
    f = jax.jit(remat(jax.checkpoint(dots_and_sines, policy=POLICIES.checkpoint_dots)))
    return derivatives(f, SQUARE)


def recurrent(w):
    """Two products and sines of a vector."""

    def f(x):
        for _ in range(2):
            x = jnp.sin(jnp.dot(x, w))
        return x

    return f


@row("RematTest.test_remat_checkpoint_dots_inside_scan")
def _(remat):
    def f(w):
        return once(jax.checkpoint(recurrent(w), policy=POLICIES.checkpoint_dots), X, 2)

    inside = jax.jit(jax.grad(lambda w: once(remat(recurrent(w)), X, 2).sum()))
    return derivatives(remat(f), SQUARE), inside(SQUARE)


@row("RematTest.test_remat_checkpoint_dots_outside_scan")
def _(remat):
    f = jax.checkpoint(lambda w: once(recurrent(w), X, 2), policy=POLICIES.checkpoint_dots)
    return derivatives(remat(f), SQUARE)


@row("RematTest.test_remat_checkpoint_dots_inside_cond")
def _(remat):
    def f(w):
        return lax.cond(X.sum() + w.sum() > -9, recurrent(w), lambda x: x, X)

    checkpointed = jax.checkpoint(f, policy=POLICIES.checkpoint_dots)
    return derivatives(remat(f), SQUARE), jax.grad(lambda w: remat(checkpointed)(w).sum())(SQUARE)


@row("RematTest.test_remat_checkpoint_dots_outside_cond")
def _(remat):
    def f(w):
        g = jax.checkpoint(recurrent(w), policy=POLICIES.checkpoint_dots)
        return lax.cond(X.sum() > 0, remat(g), lambda x: x, X)

    return derivatives(f, SQUARE)


def custom_jvp_sin():
    f = jax.custom_jvp(jnp.sin)
    f.defjvp(lambda primals, tangents: (f(*primals), 2 * jnp.cos(*primals) * tangents[0]))
    return f


@row("RematTest.test_remat_custom_jvp_policy")
def _(remat):
    sin = custom_jvp_sin()

    def f(x):
        for _ in range(3):
            x = sin(jnp.dot(x, x) * 0.3)
        return x

    f = remat(jax.checkpoint(f, policy=POLICIES.checkpoint_dots))
    return derivatives(f, 3.0), jax.jit(jax.grad(lambda x: once(f, x, 2)))(3.0)


@row("RematTest.test_remat_custom_vjp_policy")
def _(remat):
    sin = doubled()

    def f(x):
        dot = jax.named_call(lambda y, z: jnp.dot(x, jnp.dot(y, z)), name="dot")
        for _ in range(3):
            x = sin(dot(x, x) * 0.3)
        return x

    f = remat(jax.checkpoint(f, policy=POLICIES.checkpoint_dots))
    return derivatives(f, 3.0, forward=False), jax.jit(jax.grad(lambda x: once(f, x, 2)))(3.0)


@row("RematTest.test_remat_dropvar_policy")
def _(remat):
    g = jax.checkpoint(
        lambda x: jax.grad(lambda x: (x * x, x)[0])(x), policy=POLICIES.checkpoint_dots
    )
    return jax.grad(remat(g))(3.0)


@row("RematTest.test_remat_custom_jvp_linear_policy")
def _(remat):
    total = jax.custom_jvp(lambda x: jnp.sum(x, axis=0))
    total.defjvp(lambda primals, tangents: (total(*primals), total(*tangents)))
    f = remat(jax.checkpoint(lambda x: total(x), policy=POLICIES.checkpoint_dots))
    return derivatives(f, X), derivatives(
        lambda xs: lax.scan(lambda _, x: (None, f(x)), None, xs)[1], SQUARE
    )


def residuals(f, x) -> int:
    """How many numbers the backward of `f` keeps."""
    return sum(np.size(leaf) for leaf in jax.tree.leaves(jax.vjp(f, x)[1]))


@row("RematTest.test_constants_not_hoisted")
def _(remat):
    cases = [  # a function, and how much its backward may keep: at most its input
        (lambda x: jnp.einsum("ii->i", x), 0),
        (lambda x: jnp.zeros_like(x) * x, 0),
        (lambda x: jnp.zeros_like(x) * jnp.sin(x), SQUARE.size),
    ]
    for f, most in cases:
        assert remat is plain or residuals(remat(f), SQUARE) <= most
    return [jax.grad(lambda x, f=f: remat(f)(x).sum())(SQUARE) for f, _ in cases]


def named_products(x):
    names = [checkpoint_name(jnp.multiply(2.0, x), name) for name in "yzw"]
    return x * names[0] * names[1] * names[2] * jnp.multiply(2.0, x)


@row("RematTest.test_name_saveable_input")
def _(remat):
    def f(x):
        x = checkpoint_name(jnp.dot(x, x), "foo")
        return jnp.dot(x, x)

    g = jax.checkpoint(f, policy=POLICIES.save_only_these_names("foo"))
    pinned = remat(f, pins={"foo": "save"})
    return derivatives(remat(g), SQUARE), derivatives(pinned, SQUARE)


@row("RematTest.test_name_pytree")
def _(remat):
    def f(x):
        x = checkpoint_name({"a": jnp.dot(x, x)}, "foo")["a"]
        return jnp.dot(x, x)

    g = jax.checkpoint(f, policy=POLICIES.save_only_these_names("foo"))
    return derivatives(remat(g), SQUARE), derivatives(remat(f, pins={"foo": "save"}), SQUARE)


@row("RematTest.test_name_denylist")
def _(remat):
    def functions():
        for names in ("yzw", "zw", "w", ""):
            policy = POLICIES.save_any_names_but_these(*names)
            yield remat(jax.checkpoint(named_products, policy=policy))
            yield remat(named_products, pins=dict.fromkeys(names, "recompute"))

    return jax.jit(lambda x: [jax.value_and_grad(f)(x) for f in functions()])(1.5)


@row("RematTest.test_name_allowlist")
def _(remat):
    def functions():
        for names in ("yzw", "zw", "w", ""):
            policy = POLICIES.save_only_these_names(*names)
            yield remat(jax.checkpoint(named_products, policy=policy))
            yield remat(named_products, pins=dict.fromkeys(names, "save"))

    return jax.jit(lambda x: [jax.value_and_grad(f)(x) for f in functions()])(1.5)


@row("RematTest.test_checkpoint_name_vmap", warns="vmap")
def _(remat):
    def f(x):
        return checkpoint_name(jnp.sin(x) * 2, "y") + 1

    g = jax.vmap(remat(jax.checkpoint(f, policy=POLICIES.save_only_these_names("y"))))
    return g(SQUARE), jax.grad(lambda x: g(x).sum())(SQUARE)


for _name in ("test_saved_residuals_utility", "test_saved_residuals_utility_jit"):
    not_applicable(f"RematTest.{_name}", "of a printing utility of JAX, not of remat")
not_applicable("RematTest.test_remat_residual_logging", "of what `jax.checkpoint` writes to a log")


@row("RematTest.test_checkpoint_dropvars")
def _(remat):
    def f(x):
        _, x = jax.jit(lambda: (x, jnp.sin(x)))()
        return x

    return jax.grad(remat(f))(3.0)


@row("RematTest.test_dce_keeps_eqns_with_used_outputs_but_no_used_inputs")
def _(remat):
    return jax.grad(remat(lambda x: jax.jit(lambda: 3.0)() * jnp.sin(x)))(3.0)


@row("RematTest.test_linearize_caching")
def _(remat):
    push = jax.linearize(remat(jax.jit(lambda x: 2 * jnp.sin(x))), 1.0)[1]
    first = push(1.0)
    assert compilations(lambda: [push(1.0) for _ in range(3)]) == 0
    return first


@row("RematTest.test_vjp_caching")
def _(remat):
    pull = jax.vjp(remat(jax.jit(lambda x: 2 * jnp.sin(x))), 1.0)[1]
    first = pull(1.0)
    assert compilations(lambda: [pull(1.0) for _ in range(3)]) == 0
    return first


@row("RematTest.test_vjp_caching_static_argnums")
def _(remat):
    f = remat(lambda x, y: jax.jit(lambda x: 2 * jnp.sin(x) if y else x)(x), static_argnums=1)
    pull = jax.vjp(lambda x: f(x, True), 1.0)[1]
    first = pull(1.0)
    assert compilations(lambda: [pull(1.0) for _ in range(3)]) == 0
    return first


@row("RematTest.test_fwd_caching")
def _(remat):
    f = remat(jax.jit(lambda x: 2 * jnp.sin(x)))
    y = jax.vjp(f, 1.0)[0]
    assert compilations(lambda: [jax.vjp(f, 1.0) for _ in range(3)]) == 0
    return y


@row("RematTest.test_fwd_caching_static_argnums")
def _(remat):
    f = remat(jax.jit(lambda n, x: n * jnp.sin(x), static_argnums=0), argnums=1, static_argnums=0)
    y = jax.vjp(lambda x: f(2, x), 1.0)[0]
    assert compilations(lambda: [jax.vjp(lambda x: f(2, x), 1.0) for _ in range(3)]) == 0
    return y


@row("RematTest.test_remat_of_scan")
def _(remat):
    f = remat(lambda x: lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=3))
    text = text_of(jax.linearize(f, 4.0)[1], 1.0)
    assert " cos " in text or remat is plain
    return derivatives(f, 3.0)


@row("RematTest.test_remat_of_scan_unused_extensive_output_grad")
def _(remat):
    def body(c, a):
        b = jnp.sin(a).sum() + jnp.sin(c).sum()
        return jnp.sin(c * b), b

    g = remat(ft.partial(lax.scan, body))
    xs = np.linspace(0, 1, 15, dtype=np.float32).reshape(5, 3)
    return jax.grad(lambda c, xs: g(c, xs)[0].sum())(X, xs)


@row("RematTest.test_remat_of_jit_residual_forwarding")
def _(remat):
    def f(x):
        y = checkpoint_name(jnp.sin(jnp.ones(2)), "y")
        x = jax.jit(lambda: x * y)()
        return jax.jit(lambda: x * y)()

    g = jax.checkpoint(f, policy=POLICIES.save_only_these_names("y"))
    return [jax.grad(lambda x, h=h: remat(h)(x).sum())(3.0) for h in (f, g)]


OFFLOADS = {"offload_src": "device", "offload_dst": "pinned_host"}


def named_sines(x):
    y = checkpoint_name(jnp.sin(x), "y")
    z = checkpoint_name(jnp.sin(y), "z")
    w = checkpoint_name(jnp.sin(z), "w")
    return w, jnp.sum(w * z)


def offloading():
    return POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=["y"], names_which_can_be_offloaded=["z", "w"], **OFFLOADS
    )


def offloads(f, *args) -> bool:
    """Whether the gradient has copies to the host and back."""
    text = text_of(jax.grad(f), *args)
    return "MemorySpace.Host" in text and "MemorySpace.Device" in text


def offloading_once_planned(remat, f, *args):
    """`f` under `remat`, which is shown to offload as in a `jax.checkpoint` round it.

    Under the coming rules the policy of the outer `jax.checkpoint` is that of the inner one, too.
    """
    assert offloads(f, *args) and offloads(checkpointed(f), *args) is not IN_FORCE
    g = remat(f)
    assert offloads(g, *args) is offloads(f if remat is plain else checkpointed(f), *args)
    return g


@row("RematTest.test_remat_offload_names_jaxpr")
def _(remat):
    f = jax.checkpoint(lambda x: named_sines(x)[1], policy=offloading())
    return offloading_once_planned(remat, f, X)(X)


@row("RematTest.test_remat_offload_names_of_scan_jaxpr")
def _(remat):
    def body(x):
        return lax.scan(lambda y, _: named_sines(y), x, None, length=3)[1].sum()

    f = jax.checkpoint(body, policy=offloading())
    return offloading_once_planned(remat, f, X)(X)


@row("RematTest.test_remat_offload_dot_with_no_batch_dims_jaxpr")
def _(remat):
    def body(x, b):
        x = jnp.sin(jnp.einsum("ij,jk->ik", x, x))
        return jnp.sum(x) + jnp.sum(jnp.sin(jnp.einsum("bij,bjk->bik", b, b)))

    policy = POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")
    b = np.stack([SQUARE, SQUARE])
    f = jax.checkpoint(body, policy=policy)
    return offloading_once_planned(remat, f, SQUARE, b)(SQUARE, b)


def with_constant_in_rule():
    f = jax.custom_jvp(lambda x: x * jnp.arange(4.0))
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 2 * jnp.arange(4.0)))
    return f


@row("RematTest.test_const_in_jvp_scan")
def _(remat):
    f = with_constant_in_rule()
    return jax.value_and_grad(remat(lambda x: once(f, x).sum()))(X)


@row("RematTest.test_const_in_jvp_cond")
def _(remat):
    f = with_constant_in_rule()
    return jax.value_and_grad(remat(lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x).sum()))(X)


@row("RematTest.test_remat_of_scan_policy")
def _(remat):
    def f(x):
        return lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=3)

    return derivatives(remat(jax.checkpoint(f, policy=saves("cos"))), 3.0)


def funky_sin(pair):
    """A custom_jvp sine whose rule computes sine and cosine by `pair`."""
    f = jax.custom_jvp(jnp.sin)

    @f.defjvp
    def rule(primals, tangents):
        y, c = pair(primals[0])
        return y, c * tangents[0]

    return f


def funky(remat, apply, pair):
    """The sine under all policies, applied once and twice."""
    sin = funky_sin(pair)
    policies = saves("cos"), saves("sin"), POLICIES.everything_saveable, POLICIES.nothing_saveable
    fs = [remat(jax.checkpoint(ft.partial(apply, sin), policy=p)) for p in policies]
    twice = remat(lambda x: apply(sin, apply(sin, x)))

    @jax.jit
    def run(x):
        return [jax.value_and_grad(f)(x) for f in fs], jax.grad(jax.grad(twice))(x)

    return run(3.0)


def in_cond(f, x):
    return lax.cond(x.sum() > -jnp.inf, f, lambda x: x, x)


def sin_and_cos(x):
    return jnp.sin(x), jnp.cos(x)


@row("RematTest.test_remat_of_scan_funky_custom_jvp")
def _(remat):
    return funky(remat, once, lambda x: jax.jit(lambda: sin_and_cos(x))())


@row("RematTest.test_remat_of_scan_funky_custom_jvp2")
def _(remat):
    return funky(remat, once, lambda x: once(lambda xs: (jnp.sin(xs[0]), jnp.cos(xs[1])), (x, x)))


@row("RematTest.test_remat_of_cond_funky_custom_jvp")
def _(remat):
    return funky(remat, in_cond, lambda x: jax.jit(lambda: sin_and_cos(x))())


@row("RematTest.test_remat_of_cond_funky_custom_jvp2")
def _(remat):
    def pair(x):
        return lax.cond(x > -9, lambda xs: (jnp.sin(xs[0]), jnp.cos(xs[1])), lambda xs: xs, (x, x))

    return funky(remat, in_cond, pair)


@row("RematTest.test_remat_of_cond")
def _(remat):
    branches = [
        (lambda c: (jnp.sin(c), jnp.sin(c)), lambda c: (jnp.sin(c), jnp.sin(c))),
        (lambda c: jnp.sin(jnp.sin(c)), lambda c: c),
    ]
    return [derivatives(remat(lambda x, b=b: lax.cond(x > 0, *b, x)), 3.0) for b in branches]


@row("RematTest.test_remat_of_cond_policy")
def _(remat):
    f = jax.checkpoint(lambda x: lax.cond(x > 0, jnp.sin, lambda x: x, x), policy=saves("cos"))
    return derivatives(remat(f), 3.0)


def three_sines(x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


REVERSE_MODE = "Reverse-mode differentiation does not work for lax.while_loop"


@row(
    "RematTest.test_remat_of_while_loop",
    warns=REVERSE_MODE,
    recomputes=False,
    why="what is planned is the gradient, which a while loop has not; it runs as it is",
)
def _(remat):
    return jax.linearize(remat(three_sines), 3.0)[1](1.0)


@row(
    "RematTest.test_remat_of_while_loop_policy",
    warns=REVERSE_MODE,
    recomputes=False,
    why="what is planned is the gradient, which a while loop has not; it runs as it is",
)
def _(remat):
    f = remat(jax.checkpoint(three_sines, policy=saves("cos")))
    return jax.linearize(f, 4.0)[1](1.0)


@row("RematTest.test_excess_precision_hell", ways=(saving,))
def _(remat):
    # What a region has saved by name is rounded, and so is what the program returns of it. What
    # runs again need not be: neither is it under a `jax.checkpoint` that saves nothing.
    dot = ruled(lambda x: jnp.dot(x, x), lambda x: (jnp.dot(x, x), None), lambda _, g: (g,))
    widen = ruled(
        lambda x: x.astype("float32"),
        lambda x: (x.astype("float32"), x),
        lambda x, g: (x * g.astype(x.dtype),),  # JAX's own rule returns another dtype
    )

    def f(x):
        return widen(dot(x))

    if remat is plain:
        f = jax.checkpoint(f, policy=lambda *_, **__: True)
    x = (1 + jnp.finfo("bfloat16").eps) * jnp.eye(2, dtype="bfloat16")
    y, pull = jax.vjp(jax.jit(remat(f)), x)
    (gradient,) = pull(jnp.ones_like(y))
    np.testing.assert_array_equal(np.asarray(gradient, np.float32), y)
    return y, gradient


def with_users_line(call):
    """Calls; what it raises must show the line of the user's that could not be traced."""
    try:
        return call()
    except jax.errors.TracerBoolConversionError:
        assert "if x > 0 else jnp.sin(x)" in traceback.format_exc()
        raise


@row(
    "RematTest.test_concreteness_error_includes_user_code",
    warns="cannot be traced",
    recomputes=False,
    why="what is planned is traced, as under `jax.checkpoint`; else it runs as it is",
)
def _(remat):
    f = remat(lambda x: x if x > 0 else jnp.sin(x))
    return with_users_line(lambda: jax.grad(f)(3.0))


@row(
    "RematTest.test_concreteness_error_includes_user_code_with_static_argnums",
    warns="cannot be traced",
    recomputes=False,
    why="what is planned is traced, as under `jax.checkpoint`; else it runs as it is",
)
def _(remat):
    f = remat(lambda x, _: x if x > 0 else jnp.sin(x), static_argnums=1)
    return with_users_line(lambda: jax.grad(f)(3.0, 1.0))


@row("RematTest.test_name_stack_annotation")
def _(remat):
    def layer(x, w):
        with jax.named_scope("the_layer"):
            return jnp.tanh(checkpoint_name(x @ w, "product"))

    f = remat(lambda x, w: jnp.sum(jax.named_call(jax.jit(layer), name="the_call")(x, w)))
    pulled = jax.make_jaxpr(jax.vjp(f, SQUARE, SQUARE)[1])(jnp.float32(1)).jaxpr
    text = pulled.pretty_print(name_stack=True)
    assert "the_call" in text and "the_layer" in text
    assert remat is plain or "rematted_computation" in text
    return jax.grad(f)(SQUARE, SQUARE)


@row("RematTest.test_remat_grad_accum_refs")
def _(remat):
    y, pull = jax.vjp(remat(jnp.sin), jnp.float32(2))
    total = jax.new_ref(jnp.float32(1))
    pull.with_refs(total)(jnp.float32(1))
    return y, total[...]


# ------------------------------------------------------------------------------ CustomVJPTest


@row("CustomVJPTest.test_basic")
def _(remat):
    f = remat(doubled())
    return f(3.0), jax.value_and_grad(f)(3.0), jax.grad(lambda x: remat(doubled())(f(x)))(3.0)


@row("CustomVJPTest.test_invariance")
def _(remat):
    f = ruled(
        lambda x: jnp.cos(2 * x) / 2, lambda x: (f(x), x), lambda x, g: (g * 3 + jnp.sin(x) * 0,)
    )
    g = remat(f)
    h = remat(lambda x: jax.value_and_grad(g)(x)[0])
    return [k(1.0) for k in (g, h, jax.grad(g), jax.grad(h))]


@row(
    "CustomVJPTest.test_python_control_flow",
    warns="cannot be traced",
    recomputes=False,
    fault="its functions with rules are traced",
    why="what is planned is traced, as under `jax.checkpoint`; else it runs as it is",
)
def _(remat):
    f = ruled(
        lambda x: jnp.sin(x) if x > 0 else jnp.cos(x),
        lambda x: (f(x), x),
        lambda x, g: (2 * g if x > 0 else 3 * g,),
    )
    return jax.value_and_grad(remat(f))(2.0)


@row(
    "CustomVJPTest.test_python_control_flow_bwd",
    warns="boolean conversion of traced array",
    recomputes=False,
    why="what is planned is traced, its rules too: these cannot be, and it runs as it is",
)
def _(remat):
    f = ruled(
        lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x),
        lambda x: (jnp.sin(x) if x > 0 else jnp.cos(x), x),
        lambda x, g: (2 * g if x > 0 else 3 * g,),
    )
    return jax.value_and_grad(remat(f))(2.0)


def scalar_doubled():
    """As `doubled`, but it insists on scalars."""

    def sin(x):
        assert jnp.ndim(x) == 0
        return jnp.sin(x)

    return doubled(sin)


@row("CustomVJPTest.test_vmap", warns="vmap")
def _(remat):
    f = remat(scalar_doubled())
    g = remat(jax.vmap(scalar_doubled()))
    return [
        jax.vmap(f)(X),
        jax.vmap(jax.vmap(f))(SQUARE),
        jax.vmap(jax.value_and_grad(f))(X),
        jax.vmap(jax.vmap(jax.grad(f)))(SQUARE),
        jax.grad(lambda x: jax.vmap(f)(x).sum())(X),
        jax.grad(lambda x: jax.vmap(jax.vmap(f))(x).sum())(SQUARE),
        jax.grad(lambda x: g(x).sum())(X),
        jax.vmap(jax.grad(lambda x: g(x).sum()))(SQUARE),
    ]


@row("CustomVJPTest.test_jit")
def _(remat):
    f = remat(doubled())
    return [g(3.0) for g in (jax.jit(f), jax.jit(jax.grad(f)), jax.grad(jax.jit(f)))]


@row("CustomVJPTest.test_pytrees")
def _(remat):
    f = ruled(
        lambda x: {"b": jnp.sin(x["a"])},
        lambda x: (f(x), {"r": jnp.cos(x["a"])}),
        lambda res, g: ({"a": 2 * res["r"] * g["b"]},),
    )
    return f({"a": 3.0}), jax.grad(lambda x: remat(f)(x)["b"])({"a": 3.0})


FORWARD_MODE = r"can't apply forward-mode autodiff \(jvp\) to a custom_vjp function"


@row("CustomVJPTest.test_jvp_error", error=TypeError, match=FORWARD_MODE, plain_too=True)
def _(remat):
    return jax.jvp(remat(doubled()), (3.0,), (1.0,))


@row("CustomVJPTest.test_jvp_error: vmap", error=TypeError, match=FORWARD_MODE, plain_too=True)
def _(remat):
    return jax.jvp(remat(jax.vmap(doubled())), (X,), (X,))


@row("CustomVJPTest.test_jvp_error: jit", error=TypeError, match=FORWARD_MODE, plain_too=True)
def _(remat):
    return jax.jvp(jax.jit(remat(doubled())), (3.0,), (1.0,))


@row("CustomVJPTest.test_kwargs")
def _(remat):
    @jax.custom_vjp
    def f(x, y, c=1.0):
        return c * (x + y)

    f.defvjp(lambda x, y, c=1.0: (f(c, y, c), None), lambda _, g: (g, g, g))
    g = remat(lambda x, y: jnp.square(f(x, y, c=2.0)).sum())
    return g(10.0, 5.0), jax.value_and_grad(g)(10.0, 5.0)


@row("CustomVJPTest.test_initial_style")
def _(remat):
    f = doubled()
    inside, outside = remat(lambda x: once(f, x)), lambda x: once(remat(f), x)
    return [derivatives(g, 3.0, forward=False) for g in (inside, outside)]


@row("CustomVJPTest.test_initial_style_vmap")
def _(remat):
    f = scalar_doubled()
    g = remat(jax.vmap(lambda x: once(f, x)))
    return g(X), jax.grad(lambda x: g(x).sum())(X)


@row("CustomVJPTest.test_nondiff_argnums")
def _(remat):
    @ft.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def call(f, x):
        return f(x)

    call.defvjp(lambda f, x: (call(f, x), jnp.cos(x)), lambda f, c, g: (c * g,))
    g = remat(lambda x: call(lambda y: 2 * y, x))
    whole = remat(call, argnums=1)
    return g(1), jax.value_and_grad(g)(1.0), jax.grad(whole, argnums=1)(jnp.sin, 1.0)


@row("CustomVJPTest.test_nondiff_argnames")
def _(remat):
    @ft.partial(jax.custom_vjp, nondiff_argnames=("f",))
    def call(f, x):
        return f(x)

    call.defvjp(lambda f, x: (call(f, x), jnp.cos(x)), lambda f, c, g: (c * g,))
    g = remat(lambda x: call(lambda y: 2 * y, x))
    return g(1), jax.value_and_grad(g)(1.0)


@row("CustomVJPTest.test_nondiff_argnums_argnames")
def _(remat):
    @ft.partial(jax.custom_vjp, nondiff_argnums=(0,), nondiff_argnames=("g",))
    def call(f, g, x):
        return f(x) + g(x)

    call.defvjp(lambda f, g, x: (call(f, g, x), jnp.cos(x)), lambda f, g, c, v: (c * v,))
    return jax.value_and_grad(remat(lambda x: call(jnp.sin, jnp.exp, x)))(1.0)


def closing(x):
    """A function of `y` whose rule reads `y` alone, and which closes over `x`."""
    f = ruled(lambda y: x * y, lambda y: (f(y), jnp.cos(y)), lambda c, g: (c * g,))
    return f


not_applicable(
    "CustomVJPTest.test_closed_over_jit_tracer", "JAX skips it: the behaviour is gone from JAX too"
)


@row("CustomVJPTest.test_closed_over_vmap_tracer", warns="vmap")
def _(remat):
    g = jax.vmap(lambda x: jax.value_and_grad(remat(lambda y: closing(x)(y)))(3.0))
    return jax.vmap(remat(lambda x: closing(x)(3.0)))(X), g(X)


@row("CustomVJPTest.test_closed_over_tracer3", warns="vmap")
def _(remat):
    def outer(x):
        f = ruled(
            lambda y: x * y, lambda y: (f(y), (x, jnp.cos(y))), lambda r, g: (r[1] * g * r[0],)
        )
        return jax.grad(remat(f))

    def beside(x):  # what is closed over is read elsewhere as well
        return jax.grad(remat(lambda y: closing(x)(y) + x * y))(3.0)

    return jax.vmap(lambda x: outer(x)(3.0))(X), jax.vmap(beside)(X), jax.jit(beside)(2.0)


@row(
    "CustomVJPTest.test_nondiff_arg_tracer_error",
    error=jax.errors.UnexpectedTracerError,
    match="custom_vjp",
    plain_too=True,
)
def _(remat):
    @ft.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def f(x, y):
        return x * y

    f.defvjp(lambda x, y: (f(x, y), jnp.cos(y)), lambda x, c, g: (c * g,))
    return jax.grad(jax.jit(remat(lambda x, y: f(x, y), argnums=1)), 1)(2.0, 3.0)


for _name in ("test_vmap_axes", "test_pmap"):
    not_applicable(f"CustomVJPTest.{_name}", "JAX has not written the test")


@row(
    "CustomVJPTest.test_missing_vjp_rule_error",
    error=AttributeError,
    match="No VJP defined for custom_vjp function <lambda> using defvjp",
    plain_too=True,
)
def _(remat):
    return jax.grad(remat(jax.custom_vjp(lambda x: x**2)))(2.0)


@row(
    "CustomVJPTest.test_vjp_rule_inconsistent_pytree_structures_error",
    error=ValueError if IN_FORCE else TypeError,
    match="Custom VJP bwd rule .*must produce",
    plain_too=True,
)
def _(remat):
    f = ruled(jnp.sin, lambda x: (jnp.sin(x), None), lambda _, g: (g, g))
    return jax.grad(remat(f))(2.0)


@row(
    "CustomVJPTest.test_vjp_bwd_returns_non_tuple_error",
    error=TypeError,
    match="Custom VJP bwd rule .* must produce a tuple",
    plain_too=True,
)
def _(remat):
    f = ruled(jnp.sin, lambda x: (jnp.sin(x), None), lambda _, g: 2 * g)
    return jax.grad(remat(f))(3.0)


WRONG_PAIR = r"Custom VJP fwd rule <lambda> for function .* must produce a pair "
WRONG_SHAPE = r"got fwd output type float32\[3\] which doesn't match primal output type float32\[\]"


@row(
    "CustomVJPTest.test_fwd_rule_primal_out_type_doesnt_match_primal_error_message",
    error=TypeError,
    match=WRONG_PAIR,
    plain_too=True,
)
def _(remat):
    f = ruled(lambda x: x, lambda x: ((x, x), None), lambda _, g: (g,))
    return jax.grad(remat(lambda x: once(f, x)))(1.0)


@row(
    "CustomVJPTest.test_fwd_rule_primal_out_type_doesnt_match_primal_error_message: shapes",
    error=TypeError,
    match=WRONG_SHAPE if IN_FORCE else WRONG_PAIR,
    plain_too=True,
)
def _(remat):
    f = ruled(lambda x: x, lambda x: (jnp.zeros((3, *x.shape)), None), lambda _, g: (g,))
    return jax.grad(remat(lambda x: once(f, x)))(jnp.float32(1))


@row("CustomVJPTest.test_issue2511")
def _(remat):
    f = remat(jax.vmap(jnp.linalg.det))
    return jax.jit(jax.grad(lambda x: f(x).sum()))(np.stack([np.eye(2, dtype="f4")] * 3) * 2)


class Scaled(collections.namedtuple("Scaled", ["a"])):
    """A function that is a pytree."""

    def __call__(self, x):
        return jax.nn.relu(self.a) * jnp.sin(x)


@row("CustomVJPTest.test_lowering_out_of_traces")
def _(remat):
    g = jax.jit(remat(lambda f, x: f(x), argnums=(0, 1)))
    return jax.grad(g, argnums=(0, 1))(Scaled(2.0), 0.5)


@row("CustomVJPTest.test_clip_gradient")
def _(remat):
    clip = ruled(
        lambda lo, hi, x: x,
        lambda lo, hi, x: (x, (lo, hi)),
        lambda res, g: (None, None, jnp.clip(g, *res)),
    )
    return jax.grad(remat(lambda x: clip(-0.1, x + 0.1, x)))(0.1)


@row("CustomVJPTest.test_nestable_vjp")
def _(remat):
    g = ruled(lambda x: x**2, lambda x: jax.vjp(lambda x: x**2, x), lambda pull, y: pull(y))
    pull = jax.jit(lambda x: jax.vjp(remat(g), x)[1])(1.0)
    return jax.vjp(remat(g), 1.0)[1](1.0), pull(3.0)


@row("CustomVJPTest.test_initial_style_vmap_2")
def _(remat):
    total = ruled(lambda x: x.sum(), lambda x: (x.sum(), jnp.ones_like(x)), lambda r, g: (g * r,))
    step = jax.grad(remat(lambda x: jax.vmap(total)(x).sum()))
    return lax.scan(lambda x, _: (x, step(x)), SQUARE, jnp.arange(3))


@row("CustomVJPTest.test_initial_style_vmap_3")
def _(remat):
    y = jnp.arange(1.0, 4.0)
    f = doubled(lambda x: 3 * x * jnp.sum(y))
    g = remat(jax.vmap(lambda x: once(f, x)))
    return g(X), jax.grad(lambda x: g(x).sum())(X)


@row(
    "CustomVJPTest.test_initial_style_vmap_with_collective",
    recomputes=False,
    why="no gradient is taken",
)
def _(remat):
    f = ruled(
        lambda x: lax.psum(x, "i"),
        lambda x: (lax.psum(x, "i"), None),
        lambda _, g: (jnp.asarray(g),),
    )
    g = jax.jit(remat(lambda x: f(x) * 2))
    return jax.vmap(lambda _, x: g(x), (0, None), None, axis_name="i")(X, 2.0)


def with_closed_over(remat, residual):
    """Gradients of a function whose rule reads the tracer `y`, as a residual or in its backward."""

    def f(y):
        if residual:
            g = ruled(
                lambda x: 2 * jnp.sin(x), lambda x: (g(x), y), lambda y, v: (2 * jnp.cos(y) * v,)
            )
        else:
            g = ruled(
                lambda x: 2 * jnp.sin(x), lambda x: (g(x), ()), lambda _, v: (2 * jnp.cos(y) * v,)
            )
        return jax.grad(remat(lambda x: g(x)))(1.0)

    vmapped = jax.vmap(f), jax.jit(jax.vmap(f)), jax.vmap(jax.jit(f))
    return jax.jit(f)(2.0), [g(X) for g in vmapped], jax.grad(f)(4.0)


@row("CustomVJPTest.test_bwd_closes_over_tracer")
def _(remat):
    return with_closed_over(remat, residual=False)


@row("CustomVJPTest.test_fwd_closes_over_tracer")
def _(remat):
    return with_closed_over(remat, residual=True)


@row("CustomVJPTest.test_float0")
def _(remat):
    f = ruled(lambda x, _: x, lambda x, _: (x, (2.0, 1)), lambda *_: (2.0, 1))
    return jax.grad(remat(f, argnums=(0, 1)), allow_int=True, argnums=(0, 1))(2.0, 3)


@row("CustomVJPTest.test_float0_initial_style")
def _(remat):
    f = ruled(lambda x: x, lambda x: (x, (2.0, x)), lambda *_: ((2.0, np.zeros((), dtype=FLOAT0)),))
    g = remat(lambda x, y: once(f, (x, y))[0], argnums=(0, 1))
    return jax.grad(g, allow_int=True, argnums=(0, 1))(2.0, 3)


@row("CustomVJPTest.test_remat")
def _(remat):
    f = doubled()
    g = remat(lambda x: f(f(x)))
    checkpointed = remat(jax.checkpoint(lambda x: f(f(x))))
    return g(2.0), jax.grad(g)(2.0), jax.grad(checkpointed)(2.0), jax.grad(jax.checkpoint(g))(2.0)


@row("CustomVJPTest.test_remat_higher_order")
def _(remat):
    f = doubled()
    g = remat(lambda x: f(f(x)))
    twice = jax.grad(jax.grad(g))
    return twice(2.0), jax.grad(remat(jax.grad(lambda x: f(f(x)))))(2.0), jax.grad(twice)(2.0)


def without_first_gradient():
    f = ruled(
        lambda x, y: x * jnp.sin(y),
        lambda x, y: (f(x, y), jnp.cos(y)),
        lambda c, g: (None, 2 * c * g),
    )
    return f


@row("CustomVJPTest.test_bwd_nones")
def _(remat):
    f = without_first_gradient()
    return jax.grad(remat(lambda x: f(x, x)))(3.0), jax.grad(remat(f, argnums=(0, 1)), (0, 1))(
        1.0, 3.0
    )


@row("CustomVJPTest.test_bwd_nones_vmap")
def _(remat):
    f = without_first_gradient()
    return jax.grad(remat(lambda x: jax.vmap(f)(x, x).sum()))(X)


@row("CustomVJPTest.test_bwd_nones_pytree")
def _(remat):
    f = ruled(
        lambda xs, y: xs[0] * xs[1] * jnp.sin(y),
        lambda xs, y: (f(xs, y), jnp.cos(y)),
        lambda c, g: (None, 2 * c * g),
    )
    return jax.grad(remat(lambda x: f((x, x), x)))(3.0)


@row("CustomVJPTest.test_custom_vjp_closure_4521")
def _(remat):
    def never(*_):
        raise AssertionError

    g = ruled(lambda x, y: None, lambda x, y: (None, y), never)
    f = remat(lambda xs, y: (jax.vmap(g, (0, None), None)(xs, y), jnp.sin(xs).sum())[1])

    def body(xs, _):
        y, pull = jax.vjp(f, xs, jnp.zeros(1))
        return xs, (y, pull(1.0))

    return lax.scan(body, X, None, 3)


@row("CustomVJPTest.test_float0_bwd_none")
def _(remat):
    f = ruled(
        lambda i, x: jnp.sin(x), lambda i, x: (f(i, x), jnp.cos(x)), lambda c, g: (None, 2 * c * g)
    )
    return jax.grad(remat(f, argnums=1), 1)(jnp.array([1, 2]), 3.0)


@row("CustomVJPTest.test_custom_gradient")
def _(remat):
    f = remat(jax.custom_gradient(lambda x: (x**2, lambda g: (g * x,))))
    return f(3.0), jax.grad(f)(3.0), jax.grad(jax.grad(f))(3.0)


@row("CustomVJPTest.test_custom_gradient_2")
def _(remat):
    f = remat(jax.custom_gradient(lambda x, y: (x * y, lambda g: (y, x))), argnums=(0, 1))
    return f(3.0, 4.0), jax.grad(f, argnums=(0, 1))(3.0, 4.0)


@row("CustomVJPTest.test_custom_gradient_3")
def _(remat):
    @jax.custom_gradient
    def f(x):
        return jnp.sum(jnp.sin(x)), lambda g: (jnp.cos(x) * jnp.arange(3.0, 7.0),)

    return remat(f)(jnp.arange(4)), jax.grad(remat(f))(X)


@row("CustomVJPTest.test_custom_gradient_can_return_singleton_value_in_vjp")
def _(remat):
    f = remat(jax.custom_gradient(lambda x: (x**2, lambda g: g * x)))
    return f(3.0), jax.grad(f)(3.0), jax.grad(jax.grad(f))(3.0)


@ft.partial(jax.custom_vjp, nondiff_argnums=(0,))
def cos_after(fun, x, *args):
    return jnp.cos(fun(x, *args))


cos_after.defvjp(
    lambda fun, x, *args: (cos_after(fun, x, *args), (x, args)),
    lambda fun, res, g: (17.0 * res[0], *[42.0 * a for a in res[1]]),
)


def cos_after_closure(fun, x):
    # What is closed over without a gradient may be hoisted as well: under `jit` it is, too.
    converted, closed_over = jax.closure_convert(fun, x)
    return cos_after(converted, x, *closed_over)


@row("CustomVJPTest.test_closure_convert")
def _(remat):
    def solve(c, x):
        return cos_after_closure(lambda x: jnp.sum((x - c) ** 2), x)

    f = remat(solve, argnums=(0, 1))
    return f(2 * X, X), jax.jit(jax.grad(f, argnums=(0, 1)))(2 * X, X)


@row("CustomVJPTest.test_closure_convert_mixed_consts")
def _(remat):
    def solve(c, s, x):
        return cos_after_closure(lambda x: jnp.sum(s * (x - c) ** 2), x)

    f = remat(solve, argnums=(0, 2))
    return f(2 * X, 3 * X, X), jax.grad(f, argnums=(0, 2))(2 * X, 3 * X, X)


@row(
    "CustomVJPTest.test_closure_convert_pytree_mismatch",
    error=TypeError,
    match="The inputs to the closure produced by closure_convert",
    plain_too=True,
)
def _(remat):
    pull = jax.vjp(remat(lambda x, z: jnp.sin(z) * x), 2.0, 3.0)[1]
    pure, closed_over = jax.closure_convert(pull, 2.0)
    return pure(2.0, closed_over)


@row("CustomVJPTest.test_float0_cotangents_automatically_handled")
def _(remat):
    f = ruled(lambda x, y: jnp.sin(x), lambda x, y: (jnp.sin(x), None), lambda _, z: (3 * z, 1))
    return jax.jit(lambda y: jax.vjp(remat(f), 0.5, y)[1](1.0)[0])(1)


@row("CustomVJPTest.test_custom_vjp_scan_batching_edge_case")
def _(remat):
    multiply = ruled(
        lambda x, c: x * c, lambda x, c: (x * c, (x, c)), lambda r, g: (g * r[1], (r[0] * g).sum())
    )

    def scanned(x, c):
        return lax.scan(lambda x, _: (multiply(x, c), None), x, jnp.arange(3))[0]

    f = remat(jax.vmap(scanned, (0, None), 0), argnums=(0, 1))
    y, pull = jax.vjp(f, SQUARE, 1.5)
    return (
        y,
        pull(SQUARE),
        jax.grad(lambda x: (jax.grad(lambda x: f(x, 1.5).sum())(x) ** 2).sum())(SQUARE),
    )


@row(
    "CustomVJPTest.test_closure_with_vmap2",
    warns="JAX cannot trace the gradient",
    recomputes=False,
    fault="its rules cannot read tracers of `vmap` by closure",
    why="a rule reads a tracer of `vmap` by closure, which `jax.checkpoint` refuses",
)
def _(remat):
    def h(z):
        def f(x):
            g = ruled(lambda y: x * y, lambda y: (x * y, x), lambda x, w: (x * w,))
            return g(z)

        return jax.vmap(f)(X).sum()

    return jax.value_and_grad(remat(h))(3.14)


class NotNone(list):
    """A pytree that cannot hold None."""


def _not_none(_, children):
    assert children[0] is not None
    return NotNone(children)


jax.tree_util.register_pytree_node(NotNone, lambda x: (x, None), _not_none)


@row("CustomVJPTest.test_pytrees_not_required_to_contain_nones")
def _(remat):
    f = ruled(
        lambda x: jnp.sin(x[0]), lambda x: (jnp.sin(x[0]), None), lambda _, g: (NotNone([g]),)
    )
    return jax.grad(remat(f))(NotNone([1.0]))


@row("CustomVJPTest.test_vmap_vjp_called_twice", warns="vmap")
def _(remat):
    f = ruled(lambda x: jnp.sin(x), lambda x: (jnp.sin(x), x), lambda x, g: (g * x,))
    pull = jax.vjp(jax.vmap(remat(f)), X)[1]
    return pull(X), pull(X), jax.vjp(remat(jax.vmap(f)), X)[1](X)


# What a rule with symbolic zeros is told must not depend on where the program was cut: such a rule
# writes it into the gradient.


def code(flags) -> float:
    return float(sum(10**n for n, flag in enumerate(flags) if flag))


def telling(fun):
    """`fun`, with a rule that adds to each gradient what it is told.

    The digits are: which inputs are perturbed, and before them, which cotangents are zeros.
    """

    def fwd(*args):
        assert all(isinstance(a, CustomVJPPrimal) for a in args)
        values = [a.value for a in args]
        return fun(*values), (values, jnp.float32(code(a.perturbed for a in args)))

    def bwd(residuals, cotangents):
        values, perturbed = residuals
        cts = cotangents if isinstance(cotangents, tuple) else (cotangents,)
        zeros = [type(ct) is SymbolicZero for ct in cts]
        total = sum(jnp.sum(ct) for ct, zero in zip(cts, zeros, strict=True) if not zero)
        total += perturbed + 10_000 * code(zeros)
        return tuple(jnp.full(jnp.shape(v), total) for v in values)

    return ruled(fun, fwd, bwd, symbolic_zeros=True)


@row("CustomVJPTest.test_symbolic_zero_custom_vjp_basic", told_all=True)
def _(remat):
    pair = telling(lambda x, y, z: (x * y, jnp.sin(x) + z))
    both = remat(lambda *xs: pair(*xs), argnums=(0, 1, 2))
    one = remat(lambda x, y, z: pair(x, y, z))
    parts = [remat(lambda *xs, n=n: pair(*xs)[n], argnums=(0, 1, 2)) for n in (0, 1)]
    part = remat(lambda x, y, z: pair(x, y, z)[1])
    xs, i = (4.0, 5.0, 6.0), np.array(7, np.int32)
    return [
        jax.vjp(both, *xs)[1]((1.0, 2.0)),
        jax.vjp(lambda x: one(x, 5.0, 6.0), 4.0)[1]((1.0, 2.0)),
        [jax.vjp(f, *xs)[1](1.0) for f in parts],
        jax.grad(part)(*xs),
        jax.grad(part)(4.0, 5.0, i),
        jax.jit(jax.grad(part))(*xs),
        jax.jit(jax.grad(jax.jit(parts[1]), (0, 1, 2)))(*xs),
    ]


@row(
    "CustomVJPTest.test_symbolic_zero_custom_vjp_bwd_shape_error",
    error=ValueError,
    match="Consider just returning a None here",
    plain_too=True,
)
def _(remat):
    f = ruled(
        lambda x, y, z: (x, y, z),
        lambda x, y, z: ((x.value, y.value, z.value), None),
        lambda _, gs: (gs[1], gs[0], gs[2]),
        symbolic_zeros=True,
    )
    g = remat(lambda x, y, z: f(x, y, z)[2].sum())
    return jax.grad(g)(jnp.ones(1), jnp.ones(2), jnp.ones(3))


@row("CustomVJPTest.test_symbolic_zero_custom_vjp", told_all=True)
def _(remat):
    f = telling(lambda static, fixed, x, y: (static, fixed, static + x, fixed + y))

    def packed(*args):
        out = jax.vmap(f)(*[jnp.broadcast_to(a, (1, *jnp.shape(a))) for a in args])
        return tuple(x[0] for x in out)

    def run(f):
        g = remat(lambda x, y: f(1.0, jnp.array([2.0, 3.0]), x, y)[1:], argnums=(0, 1))
        y, pull = jax.vjp(g, jnp.float32(4), jnp.array([5.0, 6.0]))
        return y, pull((jnp.array([10.0, 11.0]), jnp.float32(7), jnp.array([8.0, 9.0])))

    return [run(f), run(packed), jax.jit(lambda: run(f))(), jax.jit(lambda: run(packed))()]


@row("CustomVJPTest.test_symbolic_zero_custom_vjp_vmap_output", told_all=True)
def _(remat):
    f = telling(lambda x, y: (jnp.sin(x), y))
    return jax.grad(remat(lambda x, y: jax.vmap(f)(x, y)[0].sum()))(X, X)


@jax.tree_util.register_pytree_node_class
class Box:
    """A pytree of one value."""

    def __init__(self, value):
        self.value = value

    def tree_flatten(self):
        return [self.value], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@row("CustomVJPTest.test_symbolic_zero_custom_vjp_custom_pytree", told_all=True)
def _(remat):
    values = jax.custom_derivatives.custom_vjp_primal_tree_values

    def fwd(box, y):
        told = jnp.float32(code([box.value.perturbed, y.perturbed]))
        box, y = values((box, y))
        return box.value * y, (box, y, told)

    def bwd(residuals, g):
        box, y, told = residuals
        return Box(y * g + told), box.value * g + told

    f = ruled(lambda box, y: box.value * y, fwd, bwd, symbolic_zeros=True)
    box, y = Box(jnp.float32(72)), jnp.float32(73)
    return jax.grad(remat(f))(box, y), jax.grad(remat(f, argnums=1), 1)(box, y)


@row("CustomVJPTest.test_symbolic_zeros_memoization_caching")
def _(remat):
    f = ruled(
        lambda x, y: x * y,
        lambda x, y: (x.value * y.value, None),
        lambda _, z: (z, None),
        symbolic_zeros=True,
    )
    g = remat(f, argnums=(0, 1))
    return jax.vjp(g, 2.0, 3.0)[1](1.0), jax.vjp(lambda x: g(x, 3.0), 2.0)[1](1.0)


@row("CustomVJPTest.test_run_rules_more_than_once")
def _(remat):
    f = ruled(
        lambda x, y: x + y,
        lambda x, y: (x.value + y.value, None if y.perturbed else []),
        lambda _, ct: (ct, ct),
        symbolic_zeros=True,
    )

    def g(x):
        return lax.scan(lambda c, _: ((f(*c), c[0]), None), (x, 1.0), None, length=2)[0][0]

    return jax.grad(remat(g))(1.0)


@row("CustomVJPTest.test_symbolic_zeros_remat")
def _(remat):
    f = ruled(lambda x: x, lambda x: (f(x.value), None), lambda _, g: (g,), symbolic_zeros=True)
    return jax.grad(remat(lambda x: jnp.sin(f(f(x)))))(3.0)


def first_of(x):
    return jnp.sin(x[0])


@row("CustomVJPTest.test_nones_representing_zeros_in_subtrees_returned_by_bwd")
def _(remat):
    f = ruled(first_of, lambda x: (first_of(x), None), lambda _, z: ((z, (None, None)),))
    return jax.grad(remat(f))((1.0, (2.0, 3.0)))


@row("CustomVJPTest.test_pytree_nones_returned_by_bwd")
def _(remat):
    f = ruled(first_of, lambda x: (first_of(x), None), lambda _, z: ((z, (None, None)),))
    return jax.grad(remat(f))((1.0, (2.0, None)))


@row(
    "CustomVJPTest.test_bwd_rule_shape_mismatch",
    error=ValueError,
    match=r"output\[1\] the bwd rule .*produced an output of type float32\[3\]",
    plain_too=True,
)
def _(remat):
    f = ruled(lambda x, y: x, lambda x, y: (x, None), lambda _, g: (jnp.zeros(3), jnp.zeros(3)))
    g = remat(lambda x, y: f(x, y * y).sum(), argnums=1)
    return jax.grad(g, 1)(jnp.ones(3), jnp.ones(4))


not_applicable("CustomVJPTest.test_bwd_rule_shape_mismatch_disable", "of a private flag of JAX")


@row("CustomVJPTest.test_bwd_rule_can_produce_list_or_tuple")
def _(remat):
    f = ruled(lambda x, y: x * y, lambda x, y: (x * y, (x, y)), lambda r, g: [g * r[1], r[0] * g])
    return jax.grad(remat(f))(1.0, 2.0)


# JAX shows `optimize_remat` on a private function; `defvjp` takes it too. Which of the two values a
# program has, that of the function or that of its rule, may differ with what is kept: so each row
# takes one in whose results they agree, and shows that the rule's gradient is kept.


def optimized(fun=lambda x: jnp.sin(x)):
    def bwd(x, g):
        return (3 * jnp.cos(x) * g,)

    return ruled(fun, lambda x: (fun(x), x), bwd, optimize_remat=True)


@row("CustomVJPTest.test_optimize_remat")
def _(remat):
    f = optimized(lambda x: np.array([1.0], np.float32) * jnp.sin(x))  # it holds a constant
    return jax.jit(remat(f))(X), jax.jit(jax.grad(lambda x: remat(f)(x).sum()))(X)


@row("CustomVJPTest.test_optimize_remat_vmap")
def _(remat):
    f = optimized(lambda x: (np.array([1.0], np.float32) * jnp.sin(x))[0])
    return jax.jit(jax.grad(lambda x: remat(jax.vmap(f))(x).sum()))(X)


@row("CustomVJPTest.test_optimize_remat_cond")
def _(remat):
    f = optimized()
    return jax.jit(jax.grad(remat(lambda x: lax.cond(x > 0, f, lambda x: 2 * x, x))))(1.0)


not_applicable(
    "CustomVJPTest.test_optimize_remat_jvp", "of forward mode through a private function of JAX"
)


@row("CustomVJPTest.test_optimize_remat_gh21303")
def _(remat):
    f = optimized(jnp.tan)
    g = remat(lambda x: jax.checkpoint(f)(x) ** 2)
    return jax.value_and_grad(g)(3.2), jax.value_and_grad(lambda x: remat(f)(x) ** 2)(3.2)


@row("CustomVJPTest.test_optimize_remat_multiple_args")
def _(remat):
    f = ruled(
        lambda x, y: jnp.sin(x) * y,
        lambda x, y: (f(x, y), (jnp.cos(x), jnp.sin(x), y)),
        lambda r, g: (r[0] * g * r[2], r[1] * g),
        optimize_remat=True,
    )
    return jax.grad(remat(f, argnums=(0, 1)), (0, 1))(3.2, 1.0)


@row("CustomVJPTest.test_optimize_remat_kwargs")
def _(remat):
    def fwd(x, y, *, keyword=False):
        return f(x, y), (jnp.cos(x), y)

    f = ruled(
        lambda x, y: jnp.sin(x) * y, fwd, lambda r, g: (r[0] * g * r[1], g), optimize_remat=True
    )
    return jax.grad(remat(f))(3.2, 1.0)


@row("CustomVJPTest.test_optimize_remat_custom_vmap")
def _(remat):
    @jax.custom_batching.custom_vmap
    def fwd(x, y):
        return f(x, y), (jnp.cos(x), jnp.sin(x), y)

    @fwd.def_vmap
    def rule(_, batched, x, y):
        out = np.array([2.0], np.float32) * jnp.sin(x) * y
        return (out, (jnp.cos(x), jnp.sin(x), y)), (True, (True, True, True))

    f = ruled(
        lambda x, y: jnp.sin(x) * y,
        fwd,
        lambda r, g: (r[0] * g * r[2], r[1] * g),
        optimize_remat=True,
    )
    return jax.jit(jax.grad(lambda x, y: remat(jax.vmap(f))(x, y).sum()))(X, X)


@row("CustomVJPTest.test_dce")
def _(remat):
    f = ruled(
        lambda x, y: (jnp.sin(x), x + jnp.cos(y)),
        lambda x, y: (f(x, y), (jnp.cos(x), jnp.sin(y))),
        lambda r, g: (2 * r[0] * g[0] + 1.5 * g[1], -0.5 * r[1] * g[1]),
    )
    return [
        jax.jit(jax.grad(remat(lambda x, y, n=n: f(x, y)[n], argnums=(0, 1)), (0, 1)))(0.1, -1.3)
        for n in (0, 1)
    ]


def unresolved(*_):
    raise AssertionError("it should not be run")


@row(
    "CustomVJPTest.test_resolve_kwargs_error_message",
    error=TypeError,
    match="missing a required argument: 'y'",
    plain_too=True,
)
def _(remat):
    f = ruled(lambda x, y, *, z=None: jnp.sin(x), unresolved, unresolved)
    return jax.grad(remat(lambda x: f(x)))(0.5)


@row(
    "CustomVJPTest.test_resolve_kwargs_error_message: keyword",
    error=TypeError,
    match="The following keyword arguments could not be resolved to positions: z",
    plain_too=True,
)
def _(remat):
    f = ruled(lambda x, y, *, z=None: jnp.sin(x), unresolved, unresolved)
    return jax.grad(remat(lambda x: f(x, 0.1, z=1.0)))(0.5)


for _name in ("test_pretty_print", "test_custom_lin_pretty_print"):
    not_applicable(f"CustomVJPTest.{_name}", "of how JAX prints an equation")


# ------------------------------------------------------------------------------ the tests


def of_kind(kind: str) -> list[Row]:
    return [r for r in ROWS if r.kind == kind]


#: Rows that take longest, of which others show as much: in the slow run alone.
REPEATED = {
    *(f"RematTest.test_remat_checkpoint_dots{x}" for x in ("", "_jit", "_with_no_batch_dims")),
    *(f"RematTest.test_remat_checkpoint_dots_outside_{x}" for x in ("scan", "cond")),
    "RematTest.test_remat_checkpoint_dots_with_no_batch_dims2",
    "RematTest.test_remat_checkpoint_dots_inside_cond",
    "RematTest.test_remat_higher_order_ad_preserves_remat_primitive",
    "RematTest.test_remat_nontrivial_env",
    "RematTest.test_remat_jit3",
    "RematTest.test_remat_custom_policy",
    "RematTest.test_remat_custom_jvp_policy",
    "RematTest.test_constants_not_hoisted",
    *(f"RematTest.test_name_{x}" for x in ("saveable_input", "denylist", "allowlist")),
    "RematTest.test_remat_of_jit_residual_forwarding",
    *(f"RematTest.test_remat_of_{x}" for x in ("cond", "scan_policy", "scan_funky_custom_jvp")),
    *(f"RematTest.test_remat_of_{x}_funky_custom_jvp2" for x in ("scan", "cond")),
    *(f"RematTest.test_remat_{x}" for x in ("freevars", "vmap", "jit", "higher_order_autodiff")),
    *(f"RematTest.test_remat_{x}" for x in ("scan", "of_cond_funky_custom_jvp", "of_cond_policy")),
    *(
        f"RematTest.test_remat_{x}"
        for x in ("custom_policy_save_cos", "offload_names_of_scan_jaxpr")
    ),
    *(f"RematTest.test_{x}" for x in ("excess_precision_hell", "name_stack_annotation")),
    "RematTest.test_const_in_jvp_cond",
    *(f"CustomVJPTest.test_{x}" for x in ("initial_style", "initial_style_vmap_3", "issue2511")),
    *(f"CustomVJPTest.test_{x}" for x in ("vmap", "initial_style_vmap", "fwd_closes_over_tracer")),
    *(f"CustomVJPTest.test_{x}" for x in ("symbolic_zero_custom_vjp", "closure_convert", "kwargs")),
    *(f"CustomVJPTest.test_optimize_remat_{x}" for x in ("cond", "gh21303", "custom_vmap")),
}


def shown():
    """Every row with every way to plan it: mostly one of them always, others in the slow run."""
    for n, found in enumerate(of_kind("same")):
        ways = found.ways or WAYS
        for m, way in enumerate(ways):
            is_quick = m == n % len(ways) and found.name not in REPEATED
            marks = [] if is_quick else [pytest.mark.slow]
            if found.fault:
                marks.append(fault_of_jax(found.fault))
            if found.defect:
                marks.append(pytest.mark.xfail(strict=True, reason=found.defect))
            yield pytest.param(found, way, id=f"{found.name}-{way.__name__}", marks=marks)


@pytest.mark.parametrize(("row", "plans"), list(shown()), indirect=["plans"])
def test_is_as_in_plain_jax(row, plans):
    expected = row.show(checkpointed if row.told_all and IN_FORCE else plain)
    warned = pytest.warns(monet_jax.PlanningWarning, match=row.warns)
    with warned if row.warns else contextlib.nullcontext():
        got = row.show(planned)
    assert_same(arrays(got), arrays(expected))
    assert any(not r.alone for regions in plans for r in regions) is row.recomputes


@pytest.mark.parametrize("plans", [by_equation], indirect=True, ids=[""])
@pytest.mark.parametrize("row", of_kind("refused"), ids=lambda row: row.name)
def test_is_refused(row, plans):
    with warnings.catch_warnings(), pytest.raises(row.error, match=row.match):
        # Where the gradient itself is refused, it is said first that none was planned.
        warnings.filterwarnings("ignore", "No plan was made: JAX cannot trace the gradient")
        row.show(planned)
    if row.plain_too:
        with pytest.raises(row.error, match=row.match):
            row.show(plain)
    else:
        row.show(plain)


@pytest.mark.parametrize("plans", [as_cut, nested], indirect=True, ids=["as_cut", "nested"])
def test_rules_run_as_often_as_they_must(plans):
    names = "function", "forward", "backward"
    (function, forward, backward), counts = zip(*map(counted_primitive, names), strict=True)
    f = ruled(function, lambda x: (forward(x), x), lambda x, g: (backward(g) * x,))
    y, pull = jax.vjp(planned(lambda x: f(f(x))), np.float32(2))
    first = [count["all"] for count in counts]
    gradient = pull(y)
    again = [count["all"] - n for count, n in zip(counts, first, strict=True)]
    assert (y, *gradient) == (4, 32)  # by the rule: the function itself has another gradient
    assert (first[0] + first[1], first[2]) == (2, 0)
    assert (again[0] + again[1], again[2]) == (1, 2)  # the inner result is made again
    assert plans


def test_compilations_are_counted():
    assert compilations(lambda: jax.jit(lambda x: jnp.sin(x) * 3)(1.0)) > 0


def test_table_is_sound():
    """No name twice, a reason where there must be one, and few rows that show nothing."""
    names = [r.name for r in ROWS]
    assert len(set(names)) == len(names) and {*names} >= REPEATED
    assert all(r.why for r in ROWS if not (r.plain_too or (r.kind == "same" and r.recomputes)))
    counts = collections.Counter(r.kind for r in ROWS)
    assert counts == {"same": 132, "refused": 16, "not applicable": 15}
    assert len({name.partition(":")[0] for name in names}) == 80 + 79  # tests of the two classes
