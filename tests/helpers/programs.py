"""Named and random programs whose value and derivatives no plan may change.

Named ones, each with a feature that a transformation may get wrong, and a hypothesis strategy of
random ones. All are written for any float width: the tests take their reference in float64, with
the same random bits. `Case.args` is any pytree; what is float in it is differentiated.
"""

import dataclasses
import functools as ft
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name


@dataclasses.dataclass(frozen=True)
class Case:
    """A program and arguments for it.

    Attributes:
        function: of `*args`; returns any pytree.
        args: pytrees of arrays and keys.
        smooth: whether second derivatives exist and JAX can take them.
        forward_mode: whether `jax.jvp` works.
        maps: whether `jax.vmap` over the float arguments works.
    """

    function: Callable
    args: tuple[Any, ...]
    smooth: bool = True
    forward_mode: bool = True
    maps: bool = True


NAMED: dict[str, Callable[[], Case]] = {}
#: Of these, programs with loops that are planned.
LOOPS = [
    "scan",
    "layers_under_scan",
    "states_under_scan",
    "joined_under_scan",
    "scan_under_scan",
    "loops",
]


def _named(make: Callable[[], Case]) -> Callable[[], Case]:
    NAMED[make.__name__.lstrip("_")] = ft.cache(make)
    return make


def array(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    """Normal numbers of size about a half, the same for the same seed."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * 0.5, dtype)


def dropout(key: jax.Array, x: jax.Array, rate: float = 0.25) -> jax.Array:
    """Dropout whose mask does not depend on the width of `x`."""
    kept = jax.random.bernoulli(key, jnp.float32(1 - rate), x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


# ------------------------------------------------------------------------------ networks


@_named
def _mlp():
    def loss(layers, x, y):
        for w, b in layers:
            x = jnp.tanh(x @ w + b)
        return jnp.mean((x - y) ** 2)

    layers = [(array(i, 6, 6), array(i + 9, 6)) for i in range(4)]
    return Case(loss, (layers, array(20, 5, 6), array(21, 5, 6)))


def _convolve(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _normalise(x, scale):
    mean = x.mean((0, 1, 2))
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean((0, 1, 2)) + 1e-3) * scale


@_named
def _conv_norm_relu():
    def loss(params, x):
        statistics = []
        for kernel, scale in params:
            y = _convolve(x, kernel)
            statistics.append(lax.stop_gradient(y.mean((0, 1, 2))))
            x = x + jax.nn.relu(_normalise(y, scale))
        return jnp.mean(x**2), statistics

    params = [(array(i, 3, 3, 3, 3), 1 + array(i + 5, 3)) for i in range(3)]
    return Case(loss, (params, array(9, 2, 4, 4, 3)), smooth=False)


def pool(x: jax.Array) -> jax.Array:
    """Max pooling of the two axes before the last, three by three, every second one."""
    sizes = [1] * (x.ndim - 3) + [3, 3, 1]
    return lax.reduce_window(x, -jnp.inf, lax.max, sizes, [1 + (s > 1) for s in sizes], "SAME")


@_named
def _pooling():
    def loss(params, x):
        for kernel in params:
            x = jnp.tanh(pool(jax.nn.relu(_convolve(x, kernel))))
        return jnp.mean(x**2), x

    return Case(
        loss, ([array(i, 3, 3, 3, 3) for i in range(2)], array(9, 2, 8, 6, 3)), smooth=False
    )


def _attend(params, x, key):
    q, k, v = (x @ params[name] for name in "qkv")
    scores = q @ k.mT / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    x = x + dropout(key, weights) @ v
    return x + dropout(jax.random.fold_in(key, 1), jax.nn.gelu(x @ params["up"]) @ params["down"])


def _attention(key):
    def loss(blocks, x, key):
        for i, block in enumerate(blocks):
            x = _attend(block, x, jax.random.fold_in(key, i))
        return jnp.mean(x * x)

    shapes = dict(q=(4, 4), k=(4, 4), v=(4, 4), up=(4, 8), down=(8, 4))
    blocks = [
        {name: array(9 * i + n, *s) for n, (name, s) in enumerate(shapes.items())} for i in (0, 1)
    ]
    return Case(loss, (blocks, array(50, 2, 5, 4), key))


@_named
def _attention_typed_key():
    return _attention(jax.random.key(3))


@_named
def _attention_raw_key():
    return _attention(jax.random.PRNGKey(3))


@_named
def _attention_rbg_key():
    return dataclasses.replace(_attention(jax.random.key(3, impl="rbg")), maps=False)


@_named
def _u_net():
    def loss(down, up, x):
        skips = []
        for w in down:
            skips.append(x)
            x = jnp.tanh(x @ w)
        for w in up:
            x = jnp.sin(jnp.concatenate([x, skips.pop()], -1) @ w)
        return jnp.mean(x**2)

    down, up = [array(i, 4, 4) for i in range(3)], [array(i + 5, 8, 4) for i in range(3)]
    return Case(loss, (down, up, array(9, 3, 4)))


@_named
def _tied_embedding():
    def loss(table, w, tokens):
        x = jnp.tanh(table[tokens] @ w)
        logits = jnp.tanh(x @ w.T) @ table.T
        scores = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(scores, tokens[..., None], -1))

    return Case(loss, (array(0, 7, 4), array(1, 4, 4), jnp.arange(6).reshape(2, 3) % 7))


# ------------------------------------------------------------------------------ derivative rules


@jax.custom_jvp
def straight_through(x):
    """A `relu` whose derivative somebody has declared to be one from -1 on."""
    return jnp.maximum(x, 0)


straight_through.defjvps(lambda t, ans, x: jnp.where(x > -1, t, 0))


@jax.custom_jvp
def doubled_derivative(x):
    """A sine whose derivative is declared twice what it is, so that losing the rule shows."""
    return jnp.sin(x)


@doubled_derivative.defjvp
def _doubled_derivative_jvp(primals, tangents):
    return doubled_derivative(*primals), 2 * jnp.cos(primals[0]) * tangents[0]


@jax.custom_vjp
def tripled_derivative(x, y):
    """A product whose derivative is declared three times what it is."""
    return jnp.tanh(x) * y


tripled_derivative.defvjp(
    lambda x, y: (tripled_derivative(x, y), (jnp.tanh(x), y)),
    lambda kept, ct: (3 * ct * (1 - kept[0] ** 2) * kept[1], 3 * ct * kept[0]),
)


@_named
def _custom_jvp():
    def function(w, x):
        for _ in range(3):
            x = doubled_derivative(x @ w)
        return x.sum(), x

    return Case(function, (array(0, 4, 4), array(1, 3, 4)))


@_named
def _custom_vjp():
    def function(w, x):
        for _ in range(3):
            x = tripled_derivative(x @ w, x)
        return x

    return Case(function, (array(0, 4, 4), array(1, 3, 4)), forward_mode=False)


@_named
def _user_checkpoint():
    """The user's names and policies; "v3" is also how plans call a value."""

    policy = jax.checkpoint_policies.save_only_these_names("v3", "mine")

    @ft.partial(jax.checkpoint, policy=policy)
    def block(w, x):
        return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "mine") @ w)

    def function(w, x):
        for _ in range(3):
            x = block(w, x)
            x = x + checkpoint_name(jnp.cos(x @ w), "v3")
        return jnp.mean(x**2)

    return Case(function, (array(0, 4, 4), array(1, 3, 4)))


@_named
def _stop_gradient():
    def function(w, x):
        target = lax.stop_gradient(jnp.sin(x @ w))
        x = jnp.tanh(x @ w) * target
        return jnp.mean((x @ lax.stop_gradient(w) - target) ** 2), x

    return Case(function, (array(0, 4, 4), array(1, 3, 4)))


# ------------------------------------------------------------------------------ control flow


@_named
def _scan():
    def function(w, u, xs, h):
        def step(h, x):
            h = jnp.tanh(h @ w + x @ u)
            return h, h.sum(-1)

        for _ in range(2):
            h, sums = lax.scan(step, jnp.sin(h), xs)
        return jnp.mean(h**2) + jnp.mean(sums), sums

    return Case(function, (array(0, 4, 4), array(1, 4, 4), array(2, 5, 3, 4), array(3, 3, 4)))


@_named
def _layers_under_scan():
    """Stacked weights, shared ones, slices of something computed, stacked results; backwards."""

    def function(layers, shared, x):
        def layer(h, layer):
            w, row = layer
            h = h + jnp.tanh(h @ w) @ shared
            return h * 0.9, (h + row).sum(0)

        rows = jnp.sin(x @ shared)
        h, sums = lax.scan(layer, x, (layers, jnp.stack([rows, rows[::-1], -rows])), reverse=True)
        return jnp.mean(h**2) + jnp.mean(sums**2), sums

    return Case(function, (array(0, 3, 4, 4), array(1, 4, 4), array(2, 3, 4)))


@_named
def _states_under_scan():
    """Keys and integers that are carried, what passes unchanged, what starts as a number."""

    def function(w, x, key):
        def step(state, key_and_index):
            key, total, count, h, fixed = state
            other, index = key_and_index
            key, now = jax.random.split(key)
            h = dropout(now, jnp.tanh(h @ w)) + fixed * dropout(other, h)
            return (key, total + h.sum(), count + index, h, fixed), None

        start = key, jnp.zeros((), x.dtype), 0, jnp.cos(x), x
        xs = jax.random.split(key, 4), jnp.arange(4)
        (key, total, count, h, _), _ = lax.scan(step, start, xs)
        return total * jnp.mean(h**2), count, jax.random.key_data(key)

    return Case(function, (array(0, 4, 4), array(1, 3, 4), jax.random.key(3)))


@_named
def _joined_under_scan():
    """What is hoisted: weights that are joined or made positive, and indices."""

    def function(left, right, scale, x, tokens):
        def cell(state, row):
            h, total = state
            z = jnp.concatenate([row, h]) @ jnp.concatenate([left, right.T], 1)
            gate, update = jnp.split(z, 2)
            h = jax.nn.sigmoid(gate) * h + jnp.tanh(update @ jnp.exp(scale)) + left[0]
            picked = jnp.take(x, tokens + 1, axis=0)
            return (h, total + picked @ h), jnp.sin(h)

        start = jnp.zeros_like(x[0]), jnp.zeros((2,))
        (h, total), ys = lax.scan(cell, start, x, reverse=True)
        return jnp.mean(ys**2) + jnp.sum(total) * jnp.mean(h), h

    weights = array(0, 8, 4), array(1, 4, 8), array(2, 4, 4)
    return Case(function, (*weights, array(3, 5, 4), jnp.asarray([1, 3])))


@_named
def _scan_under_scan():
    """A loop in a loop, a branch, and a `map`."""

    def function(layers, x):
        def inner(h, w):
            return lax.cond(h.sum() > 0, jnp.sin, jnp.cos, h @ w), h

        def outer(h, ws):
            h, rows = lax.scan(inner, h, ws)
            return jnp.tanh(h + rows.mean(0)), None

        h, _ = lax.scan(outer, x, layers)
        return jnp.mean(lax.map(lambda row: jnp.sin(row) @ layers[0, 0], h) ** 2)

    return Case(function, (array(0, 3, 2, 4, 4), array(1, 3, 4)))


@_named
def _cond_and_switch():
    def function(w, x, which):
        x = lax.cond(which > 0, lambda x: jnp.sin(x @ w), lambda x: x * 2, x)
        x = jnp.tanh(x @ w)
        branches = [lambda x: x @ w, jnp.cos, lambda x: x**2]
        x = lax.switch(which, branches, x)
        return jnp.mean(lax.cond(x.sum() > 100, jnp.tanh, lambda x: jnp.exp(-x * x), x @ w))

    return Case(function, (array(0, 4, 4), array(1, 3, 4), jnp.int32(2)))


def deep(w, x):
    """Two layers, with something to save."""
    return x + jnp.sin(jnp.tanh(jnp.sin(x @ w) @ w) @ w)


@_named
def _branches_of_layers():
    """Keys and integers as operands; results that pass through, and numbers."""

    def function(w, v, x, which, key, flags):
        def dropped(w, x, key, n):
            return dropout(key, deep(w, x)), n + 1, jnp.sum(x), x

        def passed(w, x, key, n):
            return x, n, jnp.zeros((), x.dtype), jnp.sin(x) @ w

        def mixed(w, x, key, n):
            x = jnp.where(flags, deep(w, x), deep(v, x))
            return x, jnp.int32(7), jnp.mean(deep(w, jnp.cos(x))), jnp.cos(x)

        total, n = 0.0, which
        for k in range(2):
            x, n, more, y = lax.switch(which - k, [dropped, passed, mixed], w, x, key, n)
            total = total + more
        x, n, more, y = lax.cond(x.sum() > 0, mixed, dropped, w, jnp.sin(x + y), key, n)
        return jnp.mean(x**2) + total + more, n, y

    flags = jnp.array([True, False, True])[:, None]
    args = array(0, 4, 4), array(3, 4, 4), array(1, 3, 4), jnp.int32(2), jax.random.key(3), flags
    return Case(function, args)


@_named
def _branches_under_scan():
    """Layers of three kinds, stacked results, a shared weight, and a branch in a branch."""

    def function(layers, shared, x, kinds):
        def third(w, x):
            return lax.cond(x.mean() > 0, lambda x: deep(shared, x), lambda x: deep(w, x) @ w, x)

        def step(x, item):
            kind, w = item
            x = lax.switch(kind, [deep, lambda w, x: x, third], w, x)
            return jnp.tanh(x), x.sum(0)

        x, rows = lax.scan(step, x, (kinds, layers))
        return jnp.mean(x**2) + jnp.mean(rows**2), rows

    kinds = jnp.array([0, 2, 1, 2, 0])
    return Case(function, (array(0, 5, 4, 4), array(1, 4, 4), array(2, 3, 4), kinds))


@_named
def _loops_in_branches():
    def function(layers, x):
        def looped(layers, x):
            h, rows = lax.scan(lambda h, w: (deep(w, h), h.sum(0)), x, layers)
            return h, rows.sum(0)

        def plain(layers, x):
            return x @ layers[0], x.sum(0)

        x, row = lax.cond(x[0, 0] < 5, looped, plain, layers, x)
        return jnp.mean(jnp.sin(x @ layers[1]) ** 2) + row.sum()

    return Case(function, (array(0, 3, 4, 4), array(1, 3, 4)))


@_named
def _loops():
    """`while_loop` has no reverse derivative: it runs on what needs none."""

    def function(w, x, trips):
        first = lax.stop_gradient(w[0, 0])
        count, _ = lax.while_loop(
            lambda c: c[1] < 2.0, lambda c: (c[0] + 1, c[1] * 1.5), (0, first**2 + 1)
        )
        power = lax.fori_loop(0, trips, lambda i, a: a + i, jnp.int32(0))
        x = lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a @ w) + i, x)
        return jnp.mean(x**2) * count, power, count

    return Case(function, (array(0, 4, 4), array(1, 3, 4), jnp.int32(4)))


# ------------------------------------------------------------------------------ dtypes


@_named
def _integers_and_bools():
    def function(w, x, n, flags):
        x = jnp.where(flags[:, None], jnp.tanh(x @ w), x)
        parity = (n * n + 1) % 2 == 0
        y = jnp.where(parity[:, None], jnp.sin(x), x @ w) * n[:, None]
        return y, n + 1, ~flags, y > 0, jnp.argmax(y, -1)

    flags = jnp.array([True, False, True])
    return Case(function, (array(0, 4, 4), array(1, 3, 4), jnp.arange(3), flags))


@_named
def _bfloat16():
    def function(w, x):
        for _ in range(3):
            x = jax.nn.gelu(x @ w) + x
        return jnp.mean(x.astype(jnp.promote_types(x.dtype, jnp.float32)) ** 2), x

    return Case(function, (array(0, 4, 4, dtype=jnp.bfloat16), array(1, 3, 4, dtype=jnp.bfloat16)))


@_named
def _mixed_precision():
    def function(w, x, half):
        for _ in range(2):
            y = jnp.tanh(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16))
            x = x + y.astype(x.dtype) + jnp.sin(half @ w.astype(jnp.float16)).astype(x.dtype)
        return jnp.mean(x**2), y

    return Case(function, (array(0, 4, 4), array(1, 3, 4), array(2, 3, 4, dtype=jnp.float16)))


@_named
def _complex():
    def function(w, x):
        z = lax.complex(x, jnp.cos(x)) @ (w + 1j * w.T)
        z = jnp.exp(1j * z.real) * jnp.conj(z)
        return jnp.mean(jnp.abs(jnp.fft.fft(z)) ** 2), z @ w

    return Case(function, (array(0, 4, 4), array(1, 3, 4)))


# ------------------------------------------------------------------------------ inputs, outputs


@_named
def _passed_through():
    def function(w, x, unused, n, key):
        y = jnp.tanh(x @ w) @ w
        return y, x, n, key, y, jnp.float32(3.0), jnp.zeros((0, 4))

    args = (array(0, 4, 4), array(1, 3, 4), array(2, 5), jnp.int32(3), jax.random.key(0))
    return Case(function, args)


@_named
def _closed_over():
    table, weights = np.random.default_rng(1).standard_normal((4, 4)).astype("f"), array(3, 4, 4)

    def function(x, w):
        return jnp.mean(jnp.sin(jnp.tanh(x @ weights) @ table + x @ w) @ weights)

    return Case(function, (array(1, 3, 4), array(2, 4, 4)))


@_named
def _empty_and_scalar():
    def function(x, empty, scale):
        y = jnp.tanh(x * scale) @ jnp.concatenate([empty, empty]).reshape(4, 0)
        z = jnp.sin(x * scale) + jnp.exp(scale)
        return (y @ jnp.zeros((0, 4), y.dtype) + z).sum() * scale, y, scale**3

    return Case(function, (array(0, 3, 4), array(1, 0, 4), array(2)))


@_named
def _one_equation():
    return Case(jnp.sin, (array(0, 4),))


@_named
def _identity():
    return Case(lambda x, n: (x, n), (array(0, 4), jnp.int32(1)))


@_named
def _constant_result():
    return Case(lambda x: (jnp.float32(2.0), jnp.arange(3)), (array(0, 4),))


@_named
def _keys():
    """Keys as an array, split, folded, returned."""

    def function(w, x, keys):
        more = jax.vmap(lambda k: jax.random.split(k, 2))(keys)
        x = jnp.tanh(dropout(more[0, 1], x) @ w)
        noise = jax.random.normal(jax.random.fold_in(keys[1], 7), x.shape, jnp.float32)
        x = jnp.sin(x @ w) * noise.astype(x.dtype)
        order = jax.random.permutation(more[1, 0], x.shape[0])
        return jnp.mean(x[order] @ w), more

    return Case(function, (array(0, 4, 4), array(1, 3, 4), jax.random.split(jax.random.key(1), 2)))


# ------------------------------------------------------------------------------ indexing


@_named
def _ordering():
    def function(w, x):
        x = jnp.sort(jnp.tanh(x @ w), -1)
        x = jnp.cumsum(x, 0) @ w
        best, places = lax.top_k(jnp.sin(x), 2)
        return jnp.mean(best * x[:, :2]) + jnp.max(x @ w), places, jnp.argmin(x)

    return Case(function, (array(0, 4, 4), array(1, 3, 4)), smooth=False)


@_named
def _updates():
    def function(w, x, i):
        cache = jnp.zeros((6, 4), x.dtype)
        cache = lax.dynamic_update_slice(cache, jnp.tanh(x @ w), (i, i * 0))
        cache = cache.at[jnp.array([0, 0, 2])].add(jnp.sin(x) @ w)
        cache = cache.at[1].set(cache[2] @ w).at[::2].multiply(0.5)
        return jnp.mean(lax.dynamic_slice(cache @ w, (i, i * 0), (2, 4)) ** 2), cache

    return Case(function, (array(0, 4, 4), array(1, 3, 4), jnp.int32(2)))


# ------------------------------------------------------------------------------ random programs

ROWS, COLUMNS = 4, 6


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A random program, as data that hypothesis can shrink.

    Attributes:
        steps: (kind, first operand, second operand or parameter), modulo what there is.
        outputs: values that are returned besides the last one.
        scalar: whether the first output is a loss.
    """

    steps: tuple[tuple[str, int, int], ...]
    outputs: tuple[int, ...]
    scalar: bool

    def case(self) -> Case:
        """The program and its arguments; some are unused, one is an integer array, one a key."""
        shapes = (ROWS, COLUMNS), (COLUMNS, COLUMNS), (COLUMNS, COLUMNS), (3, 3, 1, 1)
        floats = [array(i, *shape) for i, shape in enumerate(shapes)]
        index = jnp.array([2, 0, 3, 1])
        return Case(self._run, (floats, index, jax.random.key(5)), forward_mode=False)

    def _run(self, floats, index, key):
        x, *params = floats
        pool = [x, jnp.cos(x)]
        for n, (kind, i, j) in enumerate(self.steps):
            operands = [pool[-1 - i % len(pool)], pool[-1 - j % len(pool)]]
            a, b = (v.astype(x.dtype) for v in operands)
            setting = Setting(params[:2][j % 2], params[2], index, jax.random.fold_in(key, n), b)
            pool.append(STEPS[kind](a, setting))
        # Whatever the steps were, there is a gradient and something to recompute for it.
        pool.append(jnp.tanh(pool[-1].astype(x.dtype) + jnp.sin(x @ params[0]) @ params[1]))
        results = [pool[-1 - i % len(pool)] for i in (0, *self.outputs)]
        loss = [jnp.mean(pool[-1].astype(x.dtype) ** 2)]
        return (loss if self.scalar else []) + results


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a step may use beside its first operand."""

    w: jax.Array
    kernel: jax.Array
    index: jax.Array
    key: jax.Array
    other: jax.Array


def _image(x, s):
    return _convolve(x.reshape(1, *x.shape, 1), s.kernel).reshape(x.shape)


def _rnn(x, s):
    return lax.scan(lambda h, row: (jnp.tanh(h @ s.w + row), h), x[0], x)[1]


def _branches(x, s):
    return lax.cond(x.mean() > s.other.mean(), lambda x: jnp.sin(x @ s.w), lambda x: x * s.other, x)


def _kinds(x, s):
    """One of three layers, two of them with something to save."""

    def gated(x):
        return jnp.tanh(deep(s.w, x)) * jax.nn.sigmoid(s.other @ s.w)

    kind = (4 * x.mean()).astype(jnp.int32) % 3
    return lax.switch(kind, [lambda x: deep(s.w, x), gated, lambda x: x], x)


def _narrow(x, dtype):
    """A cast, which the reference in float64 does without.

    The plain program's error then shows what rounding to `dtype` costs. It would not if both
    rounded: plans may round the parts of a sum, or the sum, and neither is the better.
    """
    return x if x.dtype == jnp.float64 else x.astype(dtype)


def _pooled(x, s):
    """Overlapping windows, whose greatest element is often one of several zeros."""
    best = pool(jax.nn.relu(x - s.other)[..., None])
    return best.repeat(2, 0).repeat(2, 1).reshape(x.shape)


STEPS: dict[str, Callable[[jax.Array, Setting], jax.Array]] = {
    "tanh": lambda x, s: jnp.tanh(x),
    "relu": lambda x, s: jax.nn.relu(x),
    "gelu": lambda x, s: jax.nn.gelu(x),
    "bump": lambda x, s: jnp.exp(-x * x),
    "add": lambda x, s: (x + s.other) / 2,
    "multiply": lambda x, s: x * jnp.sin(s.other),
    "maximum": lambda x, s: jnp.maximum(x, s.other),
    "select": lambda x, s: jnp.where(x > s.other, jnp.sin(x), s.other),
    "matmul": lambda x, s: x @ s.w,
    "matmul_bf16": lambda x, s: _narrow(x, jnp.bfloat16) @ _narrow(s.w, jnp.bfloat16),
    "outer": lambda x, s: jnp.tanh(x @ s.other.T) @ s.other,
    "convolution": _image,
    "pool": _pooled,
    "softmax": lambda x, s: jax.nn.softmax(x, -1),
    "normalise": lambda x, s: (x - x.mean(0)) * lax.rsqrt(x.var(0) + 0.1),
    "largest": lambda x, s: x - x.max(-1, keepdims=True),
    "gather": lambda x, s: x[s.index],
    "pick": lambda x, s: jnp.take_along_axis(x, s.index[:, None], 1) * s.other,
    "update": lambda x, s: lax.dynamic_update_slice(x, s.other[:2], (s.index[1], s.index[1])),
    "scatter": lambda x, s: x.at[s.index % 2].add(jnp.sin(s.other)),
    "sort": lambda x, s: jnp.sort(x, -1),
    "cumsum": lambda x, s: jnp.tanh(jnp.cumsum(x, 0)),
    "best": lambda x, s: jax.nn.one_hot(jnp.argmax(x, -1), x.shape[1], dtype=x.dtype) * s.other,
    "branch": _branches,
    "kinds": _kinds,
    "scan": _rnn,
    "half": lambda x, s: _narrow(x, jnp.float16),
    "integers": lambda x, s: jnp.floor(4 * x).astype(jnp.int32),
    "bools": lambda x, s: x > s.other,
    "dropout": lambda x, s: dropout(s.key, x),
    "noise": lambda x, s: x + jax.random.normal(s.key, x.shape, jnp.float32).astype(x.dtype),
    "custom_jvp": lambda x, s: doubled_derivative(x),
    "custom_vjp": lambda x, s: tripled_derivative(x, s.other),
    "checkpoint": lambda x, s: jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x @ s.w) @ s.w))(x),
    "stop": lambda x, s: lax.stop_gradient(x) * s.other,
    "inner_jit": lambda x, s: jax.jit(lambda x: jnp.tanh(x @ s.w) * x)(x),
    "pad": lambda x, s: jnp.concatenate([x[1:], s.other[:1]]),
}
#: Drawn more often: what has residuals worth recomputing.
_COMMON = ("matmul", "tanh", "gelu", "bump", "convolution", "softmax", "multiply", "kinds")


def recipes(max_steps: int = 10) -> st.SearchStrategy[Recipe]:
    """Random programs."""
    small = st.integers(0, 5)
    kinds = st.sampled_from([*STEPS, *_COMMON * 2])
    steps = st.lists(st.tuples(kinds, small, small), min_size=3, max_size=max_steps).map(tuple)
    return st.builds(Recipe, steps, st.lists(small, max_size=2).map(tuple), st.booleans())


def random_recipe(rng: random.Random, kinds: tuple[str, ...] = ()) -> Recipe:
    """A random program without hypothesis, for runs that are too long to shrink."""

    def small():
        return rng.randrange(6)

    kinds = kinds or tuple(STEPS)
    steps = tuple((rng.choice(kinds), small(), small()) for _ in range(rng.randint(3, 12)))
    return Recipe(steps, tuple(small() for _ in range(rng.randrange(3))), rng.random() < 0.5)
