"""Whole training steps, as people write them: `make(api)` is a step of JAX or of `monet_jax`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import monet_jax

WIDTH, BATCH, DEPTH = 32, 512, 3

#: The key's bias of an attention has no gradient but rounding, which a small `eps` would blow up.
ADAMW = optax.adamw(1e-2, eps=1e-3)


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step.

    Attributes:
        make: a module with `value_and_grad` and `grad` -> `(state, batch) -> (state, metrics)`.
        state, batch: its arguments.
        tolerance: relative to the largest number of an array.
    """

    make: Callable[[Any], Callable[..., Any]]
    state: Any
    batch: Any
    tolerance: float = 1e-5

    def fresh(self) -> Any:
        """A copy of the state, which may be donated."""
        return jax.tree.map(jnp.copy, self.state)

    def planned(self, share: float = 0.6, **options: Any) -> Any:
        """The step by `monet_jax.jit`, with its state donated.

        The budget leaves a share of the plain step's temporaries.
        """
        options = {"budget": self.budget(share), "donate_argnums": 0, "cache": False, **options}
        return monet_jax.jit(self.make(monet_jax), **options)

    @property
    def plain(self) -> Any:
        """The step by `jax.jit`, with its state donated."""
        return jax.jit(self.make(jax), donate_argnums=0)

    def budget(self, share: float) -> int:
        """Fixed bytes of the plain step, and a share of its temporaries."""
        fixed, temporaries = bytes_of(self.plain, self.state, self.batch)
        return fixed + int(share * temporaries)


def bytes_of(jitted: Any, *arguments: Any) -> tuple[int, int]:
    """Fixed and temporary bytes of a jitted function, as JAX's own compiler says."""
    found = jitted.lower(*arguments).compile().memory_analysis()
    fixed = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return fixed, found.temp_size_in_bytes


def assert_close(got: Any, expected: Any, tolerance: float) -> None:
    """Equal structure; arrays equal but for a share of each one's largest number."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        least = tolerance * float(np.abs(b).max(initial=0.0))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=least + 1e-7)


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    """Random numbers, the same for a seed."""
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), jnp.float32)


def layers(depth: int = DEPTH, width: int = WIDTH, seed: int = 0) -> list[jax.Array]:
    """Parameters of `residual`."""
    return [normal(seed + n, width, width, scale=0.1) for n in range(depth)]


def residual(params: list[jax.Array], x: jax.Array) -> jax.Array:
    """A residual network, whose activations take most of its memory."""
    for w in params:
        x = x + jnp.sin(jnp.sin(x @ w) @ w)
    return x


def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    """The mean square of the network's outputs."""
    return jnp.mean(residual(params, x) ** 2)


def updated(optimizer: Any, state: Any, gradient: Any) -> Any:
    """`(params, optimizer's state)` after an update."""
    params, inner = state
    updates, inner = optimizer.update(gradient, inner, params)
    return optax.apply_updates(params, updates), inner


def plain(optimizer: Any = ADAMW) -> Step:
    """Loss, gradient and the optimizer's update."""

    def make(api: Any) -> Callable[..., Any]:
        def step(state, x):
            value, gradient = api.value_and_grad(loss)(state[0], x)
            return updated(optimizer, state, gradient), value

        return step

    return Step(make, (layers(), optimizer.init(layers())), normal(9, BATCH, WIDTH))


def clipped() -> Step:
    """Clipping by the global norm, running averages of the parameters, the norm as a metric."""
    optimizer = optax.chain(optax.clip_by_global_norm(1e-3), ADAMW)

    def make(api: Any) -> Callable[..., Any]:
        def step(state, x):
            value, gradient = api.value_and_grad(loss)(state[0], x)
            new = updated(optimizer, state[:2], gradient)
            mean = optax.incremental_update(new[0], state[2], 0.01)
            return (*new, mean), (value, optax.tree.norm(gradient))

        return step

    state = layers(), optimizer.init(layers()), layers()
    return Step(make, state, normal(9, BATCH, WIDTH))


def accumulating(api: Any) -> Callable[..., Any]:
    """A step that adds up the gradients of `x[0]`, `x[1]`, ... by `lax.scan`."""

    def step(state, x):
        def add(total, part):
            value, gradient = api.value_and_grad(loss)(state[0], part)
            return jax.tree.map(jnp.add, total, gradient), value

        zeros = jax.tree.map(jnp.zeros_like, state[0])
        total, values = jax.lax.scan(add, zeros, x)
        mean = jax.tree.map(lambda g: g / len(x), total)
        return updated(ADAMW, state, mean), jnp.mean(values)

    return step


def accumulated(parts: int = 4) -> Step:
    """Gradients of micro-batches, added up."""

    def make(api: Any) -> Callable[..., Any]:
        step = accumulating(api)
        return lambda state, x: step(state, x.reshape(parts, -1, WIDTH))

    return Step(make, (layers(), ADAMW.init(layers())), normal(9, parts * BATCH, WIDTH))


def adversarial() -> Step:
    """A generator and a discriminator, each with a loss, a gradient and an optimizer of its own."""

    def critic(params, x):
        return jnp.mean(residual(params, x), axis=1)

    def make(api: Any) -> Callable[..., Any]:
        def step(state, x):
            generator, discriminator = state

            def real_or_not(params):
                made = jax.lax.stop_gradient(residual(generator[0], x))
                return jnp.mean(jax.nn.softplus(critic(params, made) - critic(params, jnp.cos(x))))

            def fools(params):
                return jnp.mean(jax.nn.softplus(-critic(discriminator[0], residual(params, x))))

            values = real_or_not(discriminator[0]), fools(generator[0])
            gradients = api.grad(real_or_not)(discriminator[0]), api.grad(fools)(generator[0])
            return (
                updated(ADAMW, generator, gradients[1]),
                updated(ADAMW, discriminator, gradients[0]),
            ), values

        return step

    both = layers(2), layers(2, seed=50)
    state = tuple((params, ADAMW.init(params)) for params in both)
    return Step(make, state, normal(9, BATCH, WIDTH))


def adapted() -> Step:
    """Low-rank adapters of frozen parameters (LoRA)."""

    def make(api: Any) -> Callable[..., Any]:
        def adapted_loss(adapters, frozen, x):
            whole = [w + down @ up for w, (down, up) in zip(frozen, adapters, strict=True)]
            return loss(whole, x)

        def step(state, batch):
            x, frozen = batch
            value, gradient = api.value_and_grad(adapted_loss)(state[0], frozen, x)
            return updated(ADAMW, state, gradient), value

        return step

    adapters = [(normal(n, WIDTH, 2), normal(n + 9, 2, WIDTH, scale=0.1)) for n in range(DEPTH)]
    return Step(make, (adapters, ADAMW.init(adapters)), (normal(9, BATCH, WIDTH), layers()))


def averaged() -> Step:
    """A running average of the parameters (EMA), and a scaled loss."""

    def make(api: Any) -> Callable[..., Any]:
        def step(state, x):
            (*inner, average), scale = state, 128.0
            value, gradient = api.value_and_grad(lambda p: scale * loss(p, x))(inner[0])
            inner = updated(ADAMW, inner, jax.tree.map(lambda g: g / scale, gradient))
            average = jax.tree.map(lambda a, w: 0.99 * a + 0.01 * w, average, inner[0])
            return (*inner, average), value / scale

        return step

    params = layers()
    state = params, ADAMW.init(params), jax.tree.map(jnp.copy, params)
    return Step(make, state, normal(9, BATCH, WIDTH))


def distilled() -> Step:
    """A student that follows a teacher, whose larger network is marked as well and not trained."""

    def make(api: Any) -> Callable[..., Any]:
        mark = api.remat if api is monet_jax else lambda f: f
        teacher, student = mark(residual), mark(residual)

        def step(state, batch):
            x, frozen = batch

            def distance(params):
                target = jax.lax.stop_gradient(teacher(frozen, x))
                return jnp.mean((student(params, x) - target) ** 2)

            value, gradient = jax.value_and_grad(distance)(state[0])
            return updated(ADAMW, state, gradient), value

        return step

    params = layers()
    batch = normal(9, BATCH, WIDTH), layers(2 * DEPTH, seed=50)
    return Step(make, (params, ADAMW.init(params)), batch)


def mixed() -> Step:
    """A transformer that computes in bfloat16, with float32 masters of its parameters."""
    heads, width = 2, 32

    def attention(p, x):
        q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
        q, k, v = (y.reshape(*y.shape[:2], heads, -1) for y in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ p["out"]

    def mixed_loss(params, x):
        params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        y = x.astype(jnp.bfloat16)
        for p in params:
            y = y + attention(p, jax.nn.standardize(y))
            y = y + jax.nn.gelu(jax.nn.standardize(y) @ p["wide"]) @ p["narrow"]
        return jnp.mean(y.astype(jnp.float32) ** 2)

    def make(api: Any) -> Callable[..., Any]:
        def step(state, x):
            value, gradient = api.value_and_grad(mixed_loss)(state[0], x)
            return updated(ADAMW, state, gradient), value

        return step

    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"wide": (width, 4 * width), "narrow": (4 * width, width)}
    params = [
        {name: normal(7 * n + len(name), *shape, scale=0.1) for name, shape in shapes.items()}
        for n in range(2)
    ]
    return Step(make, (params, ADAMW.init(params)), normal(9, 4, 64, width), tolerance=2e-3)


def of_linen() -> Step:
    """A Linen module."""
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(DEPTH):
                x = x + nn.Dense(WIDTH)(jnp.sin(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))
            return x

    net = Net()

    def make(api: Any) -> Callable[..., Any]:
        def linen_loss(params, x):
            return jnp.mean(net.apply(params, x) ** 2)

        def step(state, x):
            value, gradient = api.value_and_grad(linen_loss)(state[0], x)
            return updated(ADAMW, state, gradient), value

        return step

    x = normal(9, BATCH, WIDTH)
    params = net.init(jax.random.key(0), x)
    return Step(make, (params, ADAMW.init(params)), x)


def of_nnx() -> Step:
    """An NNX module with batch statistics, as NNX's functional loops have it."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.norms = nnx.List([nnx.BatchNorm(WIDTH, rngs=rngs) for _ in range(DEPTH)])
            self.dense = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(DEPTH)])

        def __call__(self, x):
            for norm, dense in zip(self.norms, self.dense, strict=True):
                x = x + jnp.sin(dense(norm(x)))
            return x

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, ADAMW, wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def make(api: Any) -> Callable[..., Any]:
        def nnx_loss(model, x):
            return jnp.mean(model(x) ** 2)

        marked = nnx_loss if api is jax else api.remat(nnx_loss)

        def step(state, x):
            model, optimizer = nnx.merge(graph, state)
            value, gradient = nnx.value_and_grad(marked)(model, x)
            optimizer.update(model, gradient)
            return nnx.state((model, optimizer)), value

        return step

    return Step(make, state, normal(9, BATCH, WIDTH))


#: By name, each made when it is needed.
STEPS: dict[str, Callable[[], Step]] = {
    "plain": plain,
    "clipped": clipped,
    "accumulated": accumulated,
    "adversarial": adversarial,
    "adapted": adapted,
    "averaged": averaged,
    "distilled": distilled,
    "mixed": mixed,
    "of_linen": of_linen,
    "of_nnx": of_nnx,
    "every_second": lambda: plain(optax.MultiSteps(ADAMW, 2)),
    "muon": lambda: plain(optax.contrib.muon(1e-2)),
}
