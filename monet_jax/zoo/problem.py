"""The `Problem` of each model of the zoo: its loss, its data and its block remat."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

BlockRemat = Literal["nothing", "dots", "dots_no_batch"] | None
Scale = Literal["full", "bench", "tiny", "frontier"]
Loss = Callable[[jax.Array, jax.Array], jax.Array]
Sample = Callable[[jax.Array], tuple[Any, jax.Array]]

_POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A training loss, its arguments, and how to make real ones.

    `loss(params, state, batch, key)` returns a float32 scalar and the new state, so it is
    differentiated with `jax.value_and_grad(problem.loss, has_aux=True)`. `state` holds the
    BatchNorm statistics and is `{}` in a model without them; `batch` is (inputs, labels);
    `key` is a typed PRNG key and draws the dropout.

    Attributes:
      name: the model's name in `MODELS`.
      loss: the training loss.
      args: (params, state, batch, key) as `jax.ShapeDtypeStruct`, which allocate nothing.
      make_args: from a seed, initialised parameters and random data of the same structure.
    """

    name: str
    loss: Callable[..., tuple[jax.Array, Any]]
    args: tuple
    make_args: Callable[[int], tuple]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy, in float32, of logits [..., classes] against integer labels [...]."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def squared_error(predicted: jax.Array, right: jax.Array) -> jax.Array:
    """Mean squared error, in float32, of two arrays of one shape."""
    return jnp.mean(jnp.square(predicted.astype(jnp.float32) - right))


def make_problem(
    name: str, model: nn.Module, sample: Sample, criterion: Loss = cross_entropy
) -> Problem:
    """The problem of training `model` on the (inputs, labels) that `sample` draws.

    `criterion` maps the model's outputs and the labels to a float32 loss.
    """

    def loss(params, state, batch, key):
        inputs, labels = batch
        outputs, updates = model.apply(
            {"params": params, "batch_stats": state},
            inputs,
            rngs={"dropout": key},
            mutable=["batch_stats"],
        )
        return criterion(outputs, labels), updates.get("batch_stats", {})

    def init(key):
        param_key, batch_key, step_key = jax.random.split(key, 3)
        batch = sample(batch_key)
        variables = model.init({"params": param_key, "dropout": step_key}, batch[0])
        return variables["params"], variables.get("batch_stats", {}), batch, step_key

    def make_args(seed: int) -> tuple:
        return jax.jit(init)(jax.random.key(seed))

    args = jax.eval_shape(lambda: init(jax.random.key(0)))
    return Problem(name, loss, args, make_args)


def labelled(inputs: tuple[int, ...], labels: tuple[int, ...], classes: int) -> Sample:
    """Draws normal float32 inputs and uniform int32 labels of the given shapes."""

    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        input_key, label_key = jax.random.split(key)
        return (
            jax.random.normal(input_key, inputs),
            jax.random.randint(label_key, labels, 0, classes),
        )

    return sample


def text(batch: int, length: int, vocab: int) -> Sample:
    """Draws [batch, length] int32 token ids, and the ids that follow each."""

    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens = jax.random.randint(key, (batch, length + 1), 0, vocab)
        return tokens[:, :-1], tokens[:, 1:]

    return sample


def rematted(block: type[nn.Module], policy: BlockRemat) -> Callable[..., nn.Module]:
    """`block`, recomputed in the backward pass but for what `policy` saves; None changes nothing.

    Instances need an explicit `name`: Linen would name a rematted block after another class, and
    its parameters and dropout keys follow the name.
    """
    return block if policy is None else nn.remat(block, policy=_POLICIES[policy])


class Layer(nn.Module):
    """One iteration of `stacked`: `block`, as what a scan carries."""

    block: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array, *shared: jax.Array) -> tuple[jax.Array, None]:
        return self.block(name="block")(x, *shared), None


def stacked(
    block: Callable[..., nn.Module],
    depth: int,
    policy: BlockRemat,
    shared: int = 0,
    name: str = "layers",
) -> nn.Module:
    """`depth` layers under one `lax.scan`, their parameters stacked; `policy` as for `rematted`.

    Takes x and `shared` arrays that all layers read, as `block(name=...)` does, and returns
    `(x, None)`. Each layer draws its own dropout.
    """
    read_by_all: Any = (nn.broadcast,) * shared
    layers = nn.scan(
        rematted(Layer, policy),
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=read_by_all,
        length=depth,
    )
    return layers(block, name=name)


def repeated(step: type[nn.Module], policy: BlockRemat, axis: int = 0) -> Callable[..., nn.Module]:
    """`step` under one `lax.scan` over an axis, with the same parameters each time.

    Takes and returns what is carried and what stands along the axis, as a `step` does; `policy` as
    for `rematted`.
    """
    return nn.scan(
        rematted(step, policy),
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=axis,
        out_axes=axis,
    )
