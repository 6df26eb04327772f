"""Random programs of mixed precision, whose value and gradient no plan may change.

Parameters are float32; what is computed is bfloat16 or float16, but for what such programs keep in
float32: norms, softmax, losses, statistics. A program is written for any width. In float64 it casts
nothing, which is its reference: the error of the plain program is then what its casts cost.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from programs import STEPS, Case, Setting, array, dropout

ROWS, COLUMNS, HEADS, WORDS, LAYERS = 8, 16, 2, 11, 3  # enough elements for every operator
NARROW = ("bfloat16", "bfloat16", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class MixedRecipe:
    """A random program of mixed precision.

    Attributes:
        steps: (kind, first operand, second operand or parameter, whether the first is float32).
        outputs: values that are returned besides the last one.
        scalar: whether the first output is a loss.
        narrow: the dtype of what is computed.
        loss: which loss.
    """

    steps: tuple[tuple[str, int, int, bool], ...]
    outputs: tuple[int, ...]
    scalar: bool
    narrow: str
    loss: str

    def case(self, rows: int = ROWS) -> Case:
        """The program and its arguments, of so many rows; parameters are float32."""
        shapes = {
            **{name: (COLUMNS, COLUMNS) for name in ("w", "v", "q", "k")},
            **{"up": (COLUMNS, 2 * COLUMNS), "down": (2 * COLUMNS, COLUMNS)},
            **{"kernel": (3, 3, 1, 1), "scale": (COLUMNS,), "bias": (COLUMNS,)},
            **{"table": (WORDS, COLUMNS), "layers": (LAYERS, COLUMNS, COLUMNS)},
        }
        params = {name: 0.6 * array(n, *shape) for n, (name, shape) in enumerate(shapes.items())}
        params["scale"] = 1 + params["scale"]
        rng = np.random.default_rng(0)
        index = jnp.asarray(rng.permutation(rows) // 2 * 2)
        tokens = jnp.asarray(rng.integers(0, WORDS, rows))
        return Case(self._run, (params, array(99, rows, COLUMNS), index, tokens, jax.random.key(5)))

    def _run(self, params, x, index, tokens, key):
        pool = [x, jnp.cos(x)]
        first = MixedSetting.of(self.narrow, params, 0, index, key, x, tokens)
        pool.append(first.half(params["table"])[tokens])
        for n, (kind, i, j, is_full) in enumerate(self.steps):
            cast = first.full if is_full else first.half
            a, b = (cast(pool[-1 - place % len(pool)]) for place in (i, j))
            now = jax.random.fold_in(key, n)
            setting = MixedSetting.of(self.narrow, params, j, index, now, b, tokens)
            pool.append(KINDS[kind](a, setting))
        # Whatever the steps were, there is a gradient and something to recompute for it.
        pool.append(jnp.tanh(first.half(pool[-1]) + jnp.sin(first.half(x) @ first.w) @ first.v))
        results = [pool[-1 - i % len(pool)] for i in (0, *self.outputs)]
        loss = [LOSSES[self.loss](pool[-1], first)]
        return (loss if self.scalar else []) + results


@dataclasses.dataclass(frozen=True)
class MixedSetting(Setting):
    """What a step may use beside its first operand.

    Attributes:
        narrow: the dtype of what is computed.
        tokens: of a text.
        params: all of them, in float32.
    """

    narrow: str
    tokens: jax.Array
    params: dict[str, jax.Array]

    @classmethod
    def of(cls, narrow, params, choice, index, key, other, tokens) -> "MixedSetting":
        """For a step whose operands have the dtype of `other`; its weight is cast to that."""
        w, kernel = params["wv"[choice % 2]].astype(other.dtype), params["kernel"]
        return cls(w, kernel.astype(other.dtype), index, key, other, narrow, tokens, params)

    def __getattr__(self, name: str) -> jax.Array:
        """A parameter in the dtype of what is computed."""
        return self.half(self.params[name])

    def half(self, x: jax.Array) -> jax.Array:
        """`x` in the dtype of what is computed."""
        return self._cast(x, self.narrow)

    def full(self, x: jax.Array) -> jax.Array:
        """`x` in float32."""
        return self._cast(x, "float32")

    def _cast(self, x: jax.Array, dtype: Any) -> jax.Array:
        exact = self.params["w"].dtype == jnp.float64
        return x.astype(jnp.float64 if exact else dtype)

    @property
    def wide(self) -> Any:
        """The dtype of parameters."""
        return self.params["w"].dtype


def _positive(x):
    return jax.nn.softplus(x) + jnp.asarray(0.25, x.dtype)


# ------------------------------------------------------------------------------ layers


def _linear(x, s):
    return s.half(x) @ s.half(s.params["w"]) + s.bias


def _accumulated(x, s):
    """A product of narrow operands whose sums are returned in float32."""
    return jnp.dot(s.half(x), s.v, preferred_element_type=s.wide)


def _gated(x, s):
    gate, value = jnp.split(s.half(x) @ s.up, 2, -1)
    return x + (jax.nn.silu(gate) * value).astype(x.dtype)


def _feed_forward(x, s):
    return s.half(x) + jax.nn.gelu(s.half(x) @ s.up) @ s.down


def _adapted(x, s):
    return s.half(x) @ s.w + s.half(x) @ s.q[:, :4] @ s.k[:4]


def _unit_weights(x, s):
    """Weights normalized in float32, then cast."""
    w = s.params["q"]
    return s.half(x) @ s.half(w / jnp.linalg.norm(w, axis=0, keepdims=True))


def _layer_norm(x, s):
    y = s.full(x)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-3)
    return (y * s.params["scale"] + s.params["bias"]).astype(x.dtype)


def _rms_norm(x, s):
    y = s.full(x)
    y = y * lax.rsqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-3)
    return s.half(y) * s.scale


def _narrow_norm(x, s):
    y = s.half(x)
    return (y - y.mean(0)) / jnp.sqrt(y.var(0) + 0.1) * s.scale


def _heads(x, s):
    return s.half(x).reshape(len(x), HEADS, COLUMNS // HEADS).swapaxes(0, 1)


def _attention(x, s, *, wide=True, mask="causal", rate=0.0):
    q, k, v = (_heads(s.half(x) @ getattr(s, name), s) for name in "qkv")
    scores = jnp.einsum("htd,hsd->hts", q, k) / (COLUMNS // HEADS) ** 0.5
    scores = s.full(scores) if wide else scores
    seen = jnp.tril(jnp.ones((len(x), len(x)), bool))
    if mask == "causal":
        scores = jnp.where(seen, scores, -jnp.inf)
    elif mask == "lowest":
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    elif mask == "added":
        scores = scores + jnp.where(seen, 0, -30).astype(scores.dtype)
    where = seen if mask == "where" else None
    weights = s.half(jax.nn.softmax(scores, -1, where=where))
    weights = dropout(s.key, weights, rate) if rate else weights
    return x + (weights @ v).swapaxes(0, 1).reshape(x.shape).astype(x.dtype)


def _grouped(x, s):
    """One key for every two queries, and positions as rotations in float32."""
    q, k, v = (s.half(x) @ w for w in (s.q, s.k[:, :8], s.v[:, :8]))
    q, k = _rotated(q.reshape(len(x), 4, 4), s), _rotated(k.reshape(len(x), 2, 4), s)
    scores = jnp.einsum("tgrd,sgd->grts", q.reshape(len(x), 2, 2, 4), k) * 0.5
    weights = s.half(jax.nn.softmax(s.full(scores), -1))
    mixed = jnp.einsum("grts,sgd->tgrd", weights, v.reshape(len(x), 2, 4))
    return s.half(x) + mixed.reshape(len(x), COLUMNS)


def _rotated(x, s):
    angles = jnp.arange(len(x))[:, None] / 10.0 ** jnp.arange(2)
    a, b = jnp.split(s.full(x), 2, -1)
    sin, cos = jnp.sin(angles)[:, None].astype(a.dtype), jnp.cos(angles)[:, None].astype(a.dtype)
    return s.half(jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1))


def _routed(x, s):
    """Two of four experts for each row, by gates in float32."""
    gates = jax.nn.softmax(s.full(s.half(x) @ s.q[:, :4]), -1)
    best, chosen = lax.top_k(gates, 2)
    best = best / best.sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(chosen, 4, dtype=best.dtype)
    weights = s.half(jnp.einsum("tk,tke->te", best, chosen))
    experts = s.half(s.params["layers"][:1] * jnp.arange(1, 5, dtype=s.wide)[:, None, None] / 4)
    return jnp.einsum("te,td,edf->tf", weights, s.half(x), experts)


def _image(x):
    return x.reshape(2, len(x) // 2, COLUMNS // 2, 2)


def _convolved(x, s):
    """Of each channel by itself, in narrow numbers; then one by one, summed in float32."""
    numbers = ("NHWC", "HWIO", "NHWC")
    kernel = jnp.concatenate([s.half(s.params["kernel"])] * 2, -1)
    y = lax.conv_general_dilated(
        _image(s.half(x)), kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=2
    )
    y = jax.nn.relu(y)
    y = lax.conv_general_dilated(
        y,
        s.q[:2, :2][None, None],
        (1, 1),
        "VALID",
        dimension_numbers=numbers,
        preferred_element_type=s.wide,
    )
    return y.reshape(x.shape)


def _windows(reduce, start, finish=lambda y: y):
    """Windows of two by two of images."""

    def step(x, s):
        y = lax.reduce_window(_image(s.half(x)), start, reduce, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
        return finish(y).reshape(x.shape)

    return step


def _halved(x, s):
    """Windows that do not overlap, and their results twice."""
    y = lax.reduce_window(_image(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return y.repeat(2, 1).repeat(2, 2).reshape(x.shape)


# ------------------------------------------------------------------------------ softmax and losses


def _by_hand(x, s):
    e = jnp.exp(x - lax.stop_gradient(x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


def _some(x, s):
    return jax.nn.softmax(4 * x, -1, where=s.other > -0.5)


def _squared(y, s):
    return jnp.mean(s.full(y) ** 2)


def _cross_entropy(y, s):
    logits = s.full(s.half(y) @ s.table.T)
    scores = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(scores, s.tokens[:, None], -1))


def _with_z_loss(y, s):
    logits = s.full(y) @ s.params["table"].T
    total = jax.nn.logsumexp(logits, -1)
    wanted = jnp.sum(jax.nn.one_hot(s.tokens, WORDS, dtype=logits.dtype) * logits, -1)
    return jnp.mean(total - wanted) + 1e-2 * jnp.mean(total**2)


def _masked_mean(y, s):
    """Of the rows of some words, scaled as if for float16 and back."""
    mask = (s.tokens % 3 > 0)[:, None]
    errors = jnp.abs(s.full(y) - s.params["bias"]) * mask
    return jnp.sum(errors * 128) / (jnp.maximum(mask.sum(), 1) * 128)


def _huber(y, s):
    d = s.full(y) - s.params["scale"]
    return jnp.where(jnp.abs(d) < 1, d**2 / 2, jnp.abs(d) - 0.5).mean()


LOSSES: dict[str, Callable[[jax.Array, MixedSetting], jax.Array]] = {
    "squared": _squared,
    "narrow": lambda y, s: jnp.mean(s.half(y) ** 2),
    "cross_entropy": _cross_entropy,
    "z_loss": _with_z_loss,
    "masked_mean": _masked_mean,
    "huber": _huber,
}


# ------------------------------------------------------------------------------ control flow


def _layers(x, s, *, carry_full=True, wrap=lambda f: f, **options):
    """Layers with stacked parameters in float32, cast in the body."""

    def layer(h, w):
        y = jnp.tanh(s.half(h) @ s.half(w)) + s.bias
        h = h + y.astype(h.dtype)
        return h, s.full(h).mean()

    carry = s.full(x) if carry_full else s.half(x)
    h, means = lax.scan(wrap(layer), carry, s.params["layers"], **options)
    return h * (1 + means.sum().astype(h.dtype) / 8)


def _recurrent(x, s):
    """A narrow state, sums in float32, keys and a count; from a number, a key and zeros."""

    def step(state, row):
        h, total, key, count = state
        key, now = jax.random.split(key)
        h = jnp.tanh(h @ s.q + dropout(now, row))
        return (h, total + s.full(h) * 0.1, key, count + 1), h

    start = jnp.zeros_like(s.bias), s.params["bias"], s.key, 0
    (_, total, _, count), hs = lax.scan(step, start, s.half(x))
    return hs * s.half(total) / count


def _numbered(x, s):
    """A scan whose float carry starts as a number of Python."""

    def step(total, row):
        total = total * 0.5 + row.sum()
        return total, jnp.tanh(row) * total

    return lax.scan(step, 0.5, s.full(x))[1]


def _mapped(x, s):
    return lax.map(lambda row: jax.nn.softmax(row @ s.q), s.half(x))


def _prefixes(x, s):
    def joined(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return lax.associative_scan(joined, (jax.nn.sigmoid(x), s.other))[1]


def _chosen(x, s):
    def narrow(x):
        return s.half(x) @ s.q

    def wide(x):
        return s.half(_layer_norm(s.full(x) @ s.params["v"], s))

    return lax.cond(s.full(x).mean() > 0, narrow, wide, x)


def _switched(x, s):
    kind = jnp.int32(jnp.floor(3 * s.full(s.other).mean())) % 3
    branches = [_feed_forward, lambda x, s: s.half(x), lambda x, s: s.half(_layer_norm(x, s))]
    return lax.switch(kind, [lambda x, f=f: f(x, s) for f in branches], x)


def _counted(x, s):
    """A number found by a `while_loop`, which has no gradient."""
    size = lax.stop_gradient(jnp.abs(s.full(x)).mean())
    halvings = lax.while_loop(lambda c: c[0] > 0.3, lambda c: (c[0] / 2, c[1] + 1), (size, 1))[1]
    return x / halvings.astype(x.dtype)


def _repeated(x, s):
    return lax.fori_loop(0, 3, lambda i, y: jnp.sin(y @ s.q) + i.astype(y.dtype) / 4, s.half(x))


def _checkpointed(x, s):
    dots = jax.checkpoint_policies.dots_saveable
    return jax.checkpoint(lambda x, w: jax.nn.gelu(s.half(x) @ s.half(w)) @ s.v, policy=dots)(
        x, s.params["w"]
    )


# ------------------------------------------------------------------------------ rules of one's own


def _fake_quantized(x, s):
    """Rounded to eighths, with the derivative of the identity."""
    return x + lax.stop_gradient(jnp.round(x * 8) / 8 - x)


def _clipped_gradient(x, s):
    """An identity whose rule clips the cotangent, and holds an array by closure."""
    with jax.ensure_compile_time_eval():
        bound = jnp.full(x.shape, 0.5, x.dtype)

    @jax.custom_vjp
    def identity(x):
        return x

    identity.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -bound, bound),))
    return identity(x)


def _own_square(x, s):
    """A square in float32 with a rule, of a value computed in narrow numbers."""

    @jax.custom_jvp
    def square(x):
        return s.full(x) ** 2

    square.defjvp(lambda p, t: (square(*p), 2 * s.full(p[0]) * s.full(t[0])))
    return square(jnp.tanh(s.half(x)))


def _eighth(x, s):
    """Through a float of eight bits and back."""
    if s.wide == jnp.float64:
        return x
    return x.astype(jnp.float8_e4m3fn).astype(x.dtype)


# ------------------------------------------------------------------------------ algebra


def _solved(x, s):
    y = s.full(x)
    return jnp.linalg.solve(y @ y.T + 4 * jnp.eye(len(x), dtype=y.dtype), s.full(s.other))


def _decomposed(x, s):
    y = s.full(x)
    return jnp.linalg.cholesky(y @ y.T + jnp.eye(len(x), dtype=y.dtype)) @ y


def _filtered(x, s):
    spectrum = jnp.fft.rfft(s.full(x), axis=-1)
    decay = jnp.arange(spectrum.shape[-1], dtype=s.wide)
    return jnp.fft.irfft(spectrum * jnp.exp(-decay / 4), axis=-1)


def _looked_up(x, s):
    return s.half(x) + s.half(s.params["table"][s.tokens])


def _counts(x, s):
    """Columns of integers and bools."""
    level = jnp.floor(2 * s.full(x)).astype(jnp.int32) % 5
    return s.half(level) * s.half(s.other) + s.half(level > 2)


def _set(x, s):
    return x.at[s.index[1]].set(s.other[0]).at[:, 1].multiply(s.other[:, 0])


def _extreme(x, s):
    return x.at[s.index % 4].max(s.other).at[s.index[:4]].min(s.other[:4])


def _cached(x, s):
    """A narrow cache, written and read at a place that is computed."""
    cache = jnp.zeros((2 * len(x), COLUMNS), x.dtype)
    cache = lax.dynamic_update_slice(cache, x, (s.index[2], s.index[2] * 0))
    return lax.dynamic_slice(cache, (s.index[3], s.index[3] * 0), x.shape)


def _top(x, s):
    best, places = lax.top_k(x, 4)
    return jnp.concatenate([best, jnp.take_along_axis(s.other, places, -1)] * 2, -1)


def _ordered(x, s):
    order = jnp.argsort(x, 0)
    return jnp.take_along_axis(s.other, order, 0) + jnp.sort(x, 0)


#: Elementwise functions that programs of mixed precision call, defined everywhere.
_ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    **{f.__name__: f for f in (jnp.tanh, jnp.sin, jnp.square, jnp.expm1, jnp.arctan, jnp.abs)},
    **{f.__name__: f for f in (jax.nn.relu, jax.nn.relu6, jax.nn.leaky_relu, jax.nn.elu)},
    **{f.__name__: f for f in (jax.nn.selu, jax.nn.celu, jax.nn.silu, jax.nn.mish)},
    **{f.__name__: f for f in (jax.nn.softplus, jax.nn.sigmoid, jax.nn.log_sigmoid)},
    **{f.__name__: f for f in (jax.nn.hard_tanh, jax.nn.hard_sigmoid, jax.nn.hard_silu)},
    **{f.__name__: f for f in (jax.nn.squareplus, jax.nn.soft_sign, jax.nn.gelu, lax.erf)},
    "exact_gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "power": lambda x: _positive(x) ** 1.5,
    "log": lambda x: jnp.log(_positive(x)),
    "log1p": lambda x: jnp.log1p(_positive(x)),
    "sqrt": lambda x: jnp.sqrt(_positive(x)),
    "cbrt": lambda x: jnp.cbrt(_positive(x)),
    "rsqrt": lambda x: lax.rsqrt(_positive(x)),
    "reciprocal": lambda x: jnp.reciprocal(_positive(x)),
    "divide": lambda x: 1 / _positive(x),
    "exp": lambda x: jnp.exp(-x * x),
    "exp2": lambda x: jnp.exp2(-jnp.abs(x)),
    "clip": lambda x: jnp.clip(x, -0.5, 0.5),
    "round": lambda x: x - jnp.round(x),
    "where": lambda x: jnp.where(x > 0, x, x * x),
}

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{f.__name__: f for f in (jnp.maximum, jnp.minimum, jnp.logaddexp, jnp.arctan2, jnp.hypot)},
    "xlogy": lambda a, b: jax.scipy.special.xlogy(a, _positive(b)),
    "xlog1py": lambda a, b: jax.scipy.special.xlog1py(a, _positive(b)),
    "pow": lambda a, b: _positive(a) ** b,
    "quotient": lambda a, b: a / _positive(b),
    "remainder": lambda a, b: jnp.remainder(a, _positive(b)),
}

_ALONG: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "softmax_0": lambda x: jax.nn.softmax(3 * x, 0),
    "log_softmax": lambda x: jax.nn.log_softmax(x, -1),
    "logsumexp": lambda x: x - jax.nn.logsumexp(x, -1, keepdims=True),
    "standardize": lambda x: jax.nn.standardize(x),
    "cumsum": lambda x: jnp.cumsum(x, 0) / 4,
    "cumprod": lambda x: jnp.cumprod(jnp.tanh(x) + 1, -1) / 8,
    "cummax": lambda x: lax.cummax(x, 1),
    "cummin": lambda x: lax.cummin(x, 0),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 0, reverse=True),
    "max": lambda x: x - x.max(-1, keepdims=True),
    "min": lambda x: x * x.min(0),
    "mean": lambda x: x - x.mean(),
    "std": lambda x: x / (x.std(0) + 1),
    "prod": lambda x: x * jnp.prod(jnp.tanh(x[:3]), 0),
    "norm": lambda x: x / (1 + jnp.linalg.norm(x, axis=-1, keepdims=True)),
    "median": lambda x: x - jnp.median(x, -1, keepdims=True),
}


def _only(function):
    return lambda x, s: function(x)


KINDS: dict[str, Callable[[jax.Array, MixedSetting], jax.Array]] = {
    **STEPS,
    **{name: _only(f) for name, f in _ELEMENTWISE.items()},
    **{name: _only(f) for name, f in _ALONG.items()},
    **{name: lambda x, s, f=f: f(x, s.other) for name, f in _BINARY.items()},
    "linear": _linear,
    "accumulated": _accumulated,
    "gated": _gated,
    "feed_forward": _feed_forward,
    "adapted": _adapted,
    "unit_weights": _unit_weights,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "narrow_norm": _narrow_norm,
    "attention": _attention,
    "dropped_attention": lambda x, s: _attention(x, s, rate=0.25),
    "lowest_attention": lambda x, s: _attention(x, s, mask="lowest"),
    "added_attention": lambda x, s: _attention(x, s, mask="added", wide=False),
    "where_attention": lambda x, s: _attention(x, s, mask="where"),
    "narrow_attention": lambda x, s: _attention(x, s, wide=False),
    "grouped": _grouped,
    "routed": _routed,
    "convolved": _convolved,
    "max_pool": _windows(lax.max, -jnp.inf),
    "min_pool": _windows(lax.min, jnp.inf),
    "mean_pool": _windows(lax.add, 0.0, lambda y: y / 4),
    "halved": _halved,
    "wide_softmax": lambda x, s: s.half(jax.nn.softmax(s.full(x), -1)),
    "softmax_by_hand": _by_hand,
    "softmax_where": _some,
    "layers": _layers,
    "narrow_layers": lambda x, s: _layers(x, s, carry_full=False),
    "layers_back": lambda x, s: _layers(x, s, reverse=True),
    "checkpointed_layers": lambda x, s: _layers(x, s, wrap=jax.checkpoint),
    "recurrent": _recurrent,
    "numbered": _numbered,
    "mapped": _mapped,
    "prefixes": _prefixes,
    "chosen": _chosen,
    "switched": _switched,
    "counted": _counted,
    "repeated": _repeated,
    "checkpointed": _checkpointed,
    "vmapped": lambda x, s: jax.vmap(lambda row: jax.nn.silu(row @ s.w))(s.half(x)),
    "quantized": _fake_quantized,
    "clipped_gradient": _clipped_gradient,
    "own_square": _own_square,
    "eighth": _eighth,
    "solved": _solved,
    "decomposed": _decomposed,
    "filtered": _filtered,
    "looked_up": _looked_up,
    "counts": _counts,
    "set": _set,
    "extreme": _extreme,
    "cached": _cached,
    "top": _top,
    "ordered": _ordered,
    "to_float32": lambda x, s: s.full(x),
    "barrier": lambda x, s: lax.optimization_barrier(jnp.tanh(x)),
    "reduced": lambda x, s: x if s.wide == jnp.float64 else lax.reduce_precision(x, 8, 4),
}


def random_mixed(rng: random.Random) -> MixedRecipe:
    """A random program."""

    def small():
        return rng.randrange(6)

    kinds = [rng.choice(tuple(KINDS)) for _ in range(rng.randint(3, 6))]
    # What was written last is read most often, or most steps would lead nowhere.
    steps = tuple(
        (kind, rng.choice((0, 0, 0, small())), small(), rng.random() < 0.3) for kind in kinds
    )
    outputs = tuple(small() for _ in range(rng.randrange(3)))
    return MixedRecipe(
        steps, outputs, rng.random() < 0.6, rng.choice(NARROW), rng.choice(tuple(LOSSES))
    )
