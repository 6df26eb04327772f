"""The operands and results of a scan: their places, and which of them are differentiated."""

import dataclasses
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core

from ..ir import compat
from ..ir.places import filled, float_places
from ..ir.program import flatten
from ..ir.stage import active_in

#: `(constants, carry, slices) -> (carry, slices of results)`. The constants are the loop's own
#: and, behind them, what is hoisted.
Body = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]


@dataclasses.dataclass(frozen=True)
class Hoisted:
    """What runs before a loop.

    Attributes:
        values: `constants -> values`.
        reached: places of constants -> places of the values that their tangents reach.
    """

    values: Callable[[Sequence[Any]], list[Any]]
    reached: Callable[[Sequence[int]], list[int]]


@dataclasses.dataclass(frozen=True)
class Shape:
    """A scan: counts of operands, trips, direction, results, and its body as it was traced."""

    consts: int
    carry: int
    trips: int
    reverse: bool
    results: tuple[Any, ...]
    body: Any

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Constants, what is carried, and what is stacked."""
        first, second = self.consts, self.consts + self.carry
        return list(operands[:first]), list(operands[first:second]), list(operands[second:])

    def carried_tangents(self, perturbed: Sequence[bool]) -> list[int]:
        """Places of what is carried that has tangents in some iteration, if these operands have."""
        program = flatten(self.body)
        own = slice(self.consts, self.consts + self.carry)
        reached = {i for i, p in zip(program.inputs, perturbed, strict=True) if p}
        pairs = list(zip(program.inputs[own], program.outputs, strict=False))
        while True:
            found = active_in(program.equations, reached)
            more = {i for i, o in pairs if isinstance(o, int) and o in found} - reached
            if not more:
                return [n for n, (i, _) in enumerate(pairs) if i in reached]
            reached |= more

    def at(self, k: Any) -> Any:
        """The place of iteration `k`."""
        return self.trips - 1 - k if self.reverse else k


@jax.tree_util.register_static
class Active:
    """The differentiated positions of a scan: constants, carry, stacked operands, and results.

    A carry without a tangent before the loop may have one inside it.
    """

    def __init__(
        self,
        shape: Shape,
        operands: Sequence[Any],
        perturbed: Sequence[bool],
        hoisted: Hoisted | None,
    ):
        consts, carry, xs = shape.split(operands)
        of_consts, _, of_xs = shape.split(perturbed)
        self.shape, self.operands = shape, len(operands)
        self.consts = [n for n in float_places(consts) if of_consts[n]]
        self.hoisted = hoisted.reached(self.consts) if hoisted else []
        tangents = {*shape.carried_tangents(perturbed)}
        self.carry = [n for n in float_places(carry) if n in tangents]
        self.xs = [n for n in float_places(xs) if of_xs[n]]
        self.ys = [n for n, a in enumerate(shape.results[shape.carry :]) if compat.is_float(a)]

    @property
    def all_consts(self) -> list[int]:
        """Positions of constants with those that are hoisted behind them."""
        return [*self.consts, *(self.shape.consts + n for n in self.hoisted)]

    def linked(
        self, values_of: Callable[[Sequence[Any]], list[Any]], consts: Sequence[Any]
    ) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
        """What is hoisted; and a function: gradients of `all_consts` -> gradients of `consts`."""

        def differentiated(some_consts):
            values = values_of(filled(consts, self.consts, some_consts))
            return [values[n] for n in self.hoisted], values

        own = [consts[n] for n in self.consts]
        _, pull, values = jax.vjp(differentiated, own, has_aux=True)

        def link(gradients):
            (more,) = pull(gradients[len(own) :])
            return [a + b for a, b in zip(gradients[: len(own)], more, strict=True)]

        return values, link

    def pulled(
        self, body: Body, consts: Sequence[Any], carry: Sequence[Any], slices: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Any]:
        """What a body returns, and its pulled-back gradient."""

        def differentiated(some_consts, some_carry, some_slices):
            new, ys = body(
                filled(consts, self.all_consts, some_consts),
                filled(carry, self.carry, some_carry),
                filled(slices, self.xs, some_slices),
            )
            return ([new[n] for n in self.carry], [ys[n] for n in self.ys]), (new, ys)

        _, pull, (new, ys) = jax.vjp(
            differentiated,
            [consts[n] for n in self.all_consts],
            [carry[n] for n in self.carry],
            [slices[n] for n in self.xs],
            has_aux=True,
        )
        return new, ys, pull

    def spread(self, gradients: tuple[list[Any], list[Any], list[Any]]) -> tuple[Any, ...]:
        """A gradient, or None, for every operand."""
        first, second = self.shape.consts, self.shape.consts + self.shape.carry
        places = [*self.consts, *(first + n for n in self.carry), *(second + n for n in self.xs)]
        return tuple(filled([None] * self.operands, places, it.chain(*gradients)))
