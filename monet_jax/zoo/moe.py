"""A mixture of experts in the place of every MLP of a Llama (Jiang et al., 2024, Mixtral)

Each token goes to the two of eight experts that a router, in float32, likes best. Tokens are
dispatched in groups by products with one-hot arrays, and an expert takes a limited number of each
group (Lepikhin et al., 2021, GShard); tokens beyond it pass by. The loss that balances the load is
left out.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from . import llama
from .problem import BlockRemat, Problem, Scale, make_problem, text

#: Experts that a token goes to, and how many tokens more than its share an expert takes.
CHOSEN, CAPACITY = 2, 1.25

# Batch, sequence length, and what differs from the defaults of MixtureOfExperts: of Mixtral 8x7B's
# 32 layers, four at the frontier.
_SMALL = {"depth": 4, "width": 512, "heads": 8, "groups": 4, "hidden": 1408, "vocab": 32_000}
_TINY = {"depth": 2, "width": 32, "heads": 4, "groups": 2, "hidden": 64, "vocab": 128}
_SCALES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full": (1, 4096, {"depth": 1}),
    "bench": (2, 512, _SMALL),
    "tiny": (2, 16, _TINY),
    "frontier": (8, 4096, {}),
}


def dispatched(
    gates: jax.Array, indices: jax.Array, experts: int, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Where each token goes, and with which weight: both [groups, tokens, experts, capacity].

    Args:
      gates: [groups, tokens, chosen] weights of the chosen experts.
      indices: [groups, tokens, chosen], the experts.
      experts: how many there are.
      capacity: tokens that an expert takes of a group, the first ones that choose it.
    """
    groups, tokens, chosen = indices.shape
    choice = jax.nn.one_hot(indices, experts, dtype=jnp.int32)
    in_order = choice.reshape(groups, tokens * chosen, experts)
    place = (jnp.cumsum(in_order, axis=1) - in_order).reshape(choice.shape)
    place = jnp.sum(place * choice, axis=-1)  # a place beyond the capacity is no place
    slots = jax.nn.one_hot(place, capacity, dtype=gates.dtype)
    chosen_expert = choice.astype(gates.dtype)
    goes = jnp.einsum("gtke,gtkc->gtec", chosen_expert, slots)
    return goes, jnp.einsum("gtke,gtkc,gtk->gtec", chosen_expert, slots, gates)


class Experts(nn.Module):
    """[batch, tokens, width] to the same: two experts for each token; sequences are groups."""

    hidden: int
    experts: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        tokens, width = x.shape[1:]
        scores = nn.Dense(self.experts, use_bias=False, dtype=jnp.float32, name="router")(x)
        gates, indices = jax.lax.top_k(jax.nn.softmax(scores), CHOSEN)
        gates = gates / jnp.sum(gates, axis=-1, keepdims=True)
        capacity = max(1, int(CAPACITY * CHOSEN * tokens / self.experts))
        goes, weight = dispatched(gates.astype(self.dtype), indices, self.experts, capacity)
        y = jnp.einsum("gtd,gtec->egcd", x, goes)
        gate, up = self._each("gate", self.hidden, y), self._each("up", self.hidden, y)
        y = self._each("down", width, jax.nn.silu(gate) * up)
        return jnp.einsum("egcd,gtec->gtd", y, weight)

    def _each(self, name: str, features: int, x: jax.Array) -> jax.Array:
        """A product with a matrix of each expert."""
        init = nn.initializers.lecun_normal(batch_axis=(0,))
        matrices = self.param(name, init, (self.experts, x.shape[-1], features))
        return jnp.einsum("egcd,edf->egcf", x, matrices.astype(self.dtype))


class Block(llama.Block):
    """A layer of a Llama, with experts in the place of its MLP."""

    experts: int = 8

    def _mlp(self, x: jax.Array, dense: Any) -> jax.Array:
        del dense
        return Experts(self.hidden, self.experts, self.dtype, name="experts")(x)


class MixtureOfExperts(llama.Llama):
    """[batch, tokens] token ids to [batch, tokens, vocab] logits."""

    depth: int = 4
    width: int = 4096
    hidden: int = 14_336
    vocab: int = 32_000
    is_tied: bool = False
    experts: int = 8

    def block(self) -> Callable[..., nn.Module]:
        """Makes one layer, given its name."""
        sizes = self.heads, self.groups, self.hidden
        return ft.partial(Block, *sizes, self.dtype, experts=self.experts)


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Prediction of the next token at every position of [batch, length] token ids."""
    default_batch, length, changes = _SCALES[scale]
    model = MixtureOfExperts(dtype=dtype, block_remat=block_remat, **changes)
    return make_problem("moe", model, text(batch or default_batch, length, model.vocab))
