"""Runs a chunked loss: a loop over chunks of tokens that computes the gradient with the value.

The loop adds up sums over tokens and writes the values that each token has of its own. The gradient
of one result is computed in the same pass: the derivative of a sum is known up to one factor, which
comes later. Values computed from several sums are linear in them (the *tail*), so that the weight
of each sum in the result is known before the loop.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ...ir.places import filled, float_places
from ...ir.program import Equation, run
from .division import Division
from .rules import summed_in
from .slicer import Sliced


@dataclasses.dataclass(frozen=True)
class Chunks:
    """A chunked loss.

    Attributes:
        sliced: the equations that run on a chunk.
        division: of the axis of tokens into chunks.
        results: the values that the loop returns, and the axis of each, which is None for sums.
        avals: of the results.
        active: the places of the sums that the leading exit depends on.
        tail: the equations behind the loop, which read sums and are linear in the active ones.
        scalars: the other values that the tail reads.
        exits: the values that are read outside: results, or computed by the tail.
        lead: the place among the exits of the one that is differentiated, a scalar.
    """

    sliced: Sliced
    division: Division
    results: tuple[tuple[int, int | None], ...]
    avals: tuple[Any, ...]
    active: tuple[int, ...]
    tail: tuple[Equation, ...]
    scalars: tuple[int, ...]
    exits: tuple[int, ...]
    lead: int

    @property
    def operands(self) -> tuple[int, ...]:
        """The values that are read; one may be read whole and in slices."""
        return (*(i for i, _ in self.sliced.operands), *self.scalars)

    def function(self) -> Callable[..., Any]:
        """The exits as a function of the operands."""
        function = jax.custom_jvp(lambda *operands: self._exits(operands))
        function.defjvp(self._pushed, symbolic_zeros=True)
        return function

    def _pushed(self, operands: Sequence[Any], tangents: Sequence[Any]) -> tuple[list, list]:
        live = [n for n, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
        chosen = [tangents[n] for n in live]
        exits, gradients = self._with_gradients(operands, live)
        lead = exits[self.lead]
        pushed = jnp.zeros_like(lead)
        for gradient, tangent in zip(gradients, chosen, strict=True):
            dtype = summed_in(gradient.dtype)
            term = jnp.sum(gradient.astype(dtype) * tangent.astype(dtype))
            pushed += term.astype(lead.dtype)
        # Tangents of other exits take another loop, which is dead code unless they are read.
        others = [n for n in float_places(exits) if n != self.lead]

        def run_others(*chosen):
            found = self._exits(filled(operands, live, chosen))
            return [found[n] for n in others]

        found = [np.zeros(x.shape, jax.dtypes.float0) for x in exits]
        if others:
            primals = tuple(operands[n] for n in live)
            found = filled(found, others, jax.jvp(run_others, primals, tuple(chosen))[1])
        return exits, filled(found, [self.lead], [pushed])

    def _exits(self, operands: Sequence[Any]) -> list[Any]:
        return self._with_gradients(operands, ())[0]

    def _with_gradients(
        self, operands: Sequence[Any], live: Sequence[int]
    ) -> tuple[list[Any], list[Any]]:
        """The exits, and the gradients of the leading exit by some operands."""
        count = len(self.sliced.operands)
        own, scalars = operands[:count], operands[count:]
        inner, outer = [n for n in live if n < count], [n for n in live if n >= count]
        start = [jnp.zeros((), self.avals[n].dtype) for n in self.active]
        lead, shares = jax.vjp(lambda sums: self._lead(sums, scalars), start)
        one = jnp.ones_like(lead)
        totals, gradients = self._loop(own, inner, shares(one)[0])
        sums = [totals[n] for n in self.active]
        if outer:
            places = [n - count for n in outer]
            _, pull = jax.vjp(
                lambda *chosen: self._lead(sums, filled(scalars, places, chosen)),
                *(operands[n] for n in outer),
            )
            gradients = [*gradients, *pull(one)]
        env = {i: x for (i, _), x in zip(self.results, totals, strict=True)}
        env |= self._behind(sums, scalars)
        return [env[i] for i in self.exits], gradients

    def _lead(self, sums: Sequence[Any], scalars: Sequence[Any]) -> Any:
        return self._behind(sums, scalars)[self.exits[self.lead]]

    def _behind(self, sums: Sequence[Any], scalars: Sequence[Any]) -> dict[int, Any]:
        """The active sums, and all values that the tail computes from them."""
        env: dict[int, Any] = dict(zip(self.scalars, scalars, strict=True))
        env |= {self.results[n][0]: x for n, x in zip(self.active, sums, strict=True)}
        run(self.tail, env, {})
        return env

    def _loop(
        self, operands: Sequence[Any], live: Sequence[int], shares: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The results of all chunks, and the gradients of the active sums times their shares."""
        axes = [axis for _, axis in self.results]
        read = [axis for _, axis in self.sliced.operands]

        def step(state, k):
            totals, gradients = state
            slices = [
                x if axis is None else self.division.slice_of(x, axis, k)
                for x, axis in zip(operands, read, strict=True)
            ]

            def chunk(*chosen):
                env = self.sliced.run(filled(slices, live, chosen))
                found = [env[key] for key in self.results]
                return [found[n] for n in self.active], found

            if live:
                _, pull, found = jax.vjp(chunk, *(slices[n] for n in live), has_aux=True)
                gradients = self._joined(gradients, pull(shares), [read[n] for n in live], k)
            else:
                _, found = chunk()
            return (self._joined(totals, found, axes, k), gradients), None

        start = (
            [_start(aval, axis) for aval, axis in zip(self.avals, axes, strict=True)],
            [_start(jax.typeof(operands[n]), read[n]) for n in live],
        )
        (totals, gradients), _ = lax.scan(step, start, jnp.arange(self.division.parts))
        totals = [x.astype(aval.dtype) for x, aval in zip(totals, self.avals, strict=True)]
        return totals, gradients

    def _joined(
        self, state: Sequence[Any], new: Sequence[Any], axes: Sequence[int | None], k: Any
    ) -> list[Any]:
        """Sums with the terms of chunk `k`, and arrays with its slices."""
        return [
            whole + x.astype(whole.dtype)
            if axis is None
            else self.division.with_slice(whole, x, axis, k)
            for whole, x, axis in zip(state, new, axes, strict=True)
        ]


def _start(aval: Any, axis: int | None) -> jax.Array:
    return jnp.zeros(aval.shape, aval.dtype if axis is not None else summed_in(aval.dtype))
