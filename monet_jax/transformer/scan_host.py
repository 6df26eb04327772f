"""Residuals of a scan's iterations that wait in the host's memory, as stacks that are there.

An iteration's residuals leave while it runs, or one iteration later, and come back when its own
backward begins, or one iteration ahead. A loop bounds what is in flight: its iterations end with
what they stack, and begin with their slices. So the copies pass no barrier with results, as those
of a single region must (`host`): with a barrier between a copy out and the stack, XLA:GPU does not
compile the loop.

One iteration ahead, each iteration of the forward puts to the host what the one before it has left
in the carry. So its copies have a whole iteration in which to end. The first slot of each stack is
not used, and what the last iteration leaves stays on the device, for its backward is the first.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..ir.memories import on_device, on_host
from ..ir.places import filled
from .invariants import Step
from .scan_operands import Active, Body


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Away:
    """Which of the arrays that a loop stacks wait on the host.

    Attributes:
        own: places of those that are fetched for their own iteration.
        ahead: places of those that are fetched while the backward of the iteration behind runs.
    """

    own: tuple[int, ...]
    ahead: tuple[int, ...]

    @classmethod
    def among(cls, depths: Mapping[int, int], invariant_values: Sequence[Any]) -> "Away":
        """Those that are stacked: loop-invariant ones are not.

        Arguments:
            depths: by places among all arrays, how many iterations ahead they are fetched.
            invariant_values: of all arrays, None for each that is stacked.
        """
        places = [n for n, x in enumerate(invariant_values) if x is None]
        by_depth = [
            tuple(n for n, place in enumerate(places) if depths.get(place) == depth)
            for depth in (0, 1)
        ]
        return cls(*by_depth)

    def next_fetched(
        self, leaves: Sequence[Any], fetched: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """An iteration's arrays, with what is `fetched` for it, and what comes for the next one."""
        found = [on_device(leaves[n]) for n in self.ahead]
        return filled(leaves, self.ahead, fetched), found

    def fetched_now(self, leaves: Sequence[Any]) -> list[Any]:
        """An iteration's arrays, all of them on the device."""
        return filled(leaves, self.own, [on_device(leaves[n]) for n in self.own])


def moved_residuals(
    active: Active,
    marked: Mapping[int, Body],
    consts: Sequence[Any],
    carry: Sequence[Any],
    slices: Sequence[Any],
) -> list[int | None]:
    """For each residual of a body how many iterations ahead it is fetched from the host.

    Arguments:
        active: what is differentiated.
        marked: as in `Run`.
        consts, carry, slices: of one iteration.

    Returns:
        The depths, None for those that stay on the device; empty where all do.
    """
    found: list[int | None] = []
    for depth, body in marked.items():

        def look(*operands, body=body, depth=depth):
            leaves = jax.tree.leaves(active.pulled(body, *operands)[2])
            spaces = [jax.typeof(leaf).memory_space for leaf in leaves]
            known = found or [None] * len(spaces)
            found[:] = [
                depth if space == jax.memory.Space.Host else before
                for space, before in zip(spaces, known, strict=True)
            ]

        jax.eval_shape(look, list(consts), list(carry), list(slices))
    return found


def stacked(step: Step, state: Any, ks: jax.Array, away: Away) -> tuple[Any, list[Any], list[Any]]:
    """The results of a `lax.scan`, of whose stacks some are on the host.

    Arguments:
        step: `(state, k) -> (state, arrays)`.
        state: before the loop.
        ks: the iterations.
        away: which of the arrays are on the host.

    Returns:
        The state; what the last iteration has left of the arrays that are fetched ahead; and the
        stacks, which have what the others have left of these in the slots behind their own.
    """

    def sending(state, k):
        inner, before = state
        inner, leaves = step(inner, k)
        after = [leaves[n] for n in away.ahead]
        leaves = filled(leaves, away.ahead, before)
        places = (*away.own, *away.ahead)
        return (inner, after), filled(leaves, places, [on_host(leaves[n]) for n in places])

    nothing: list[Any] = []
    if away.ahead:
        avals = jax.eval_shape(step, state, ks[0])[1]
        nothing = [jnp.zeros(avals[n].shape, avals[n].dtype) for n in away.ahead]
    (state, last), stacks = lax.scan(sending, (state, nothing), ks)
    return state, last, stacks
