"""Runs equations on tiles of an axis, one after another, in a loop that is planned like others.

The loop has no derivative of its own: JAX differentiates it, so that a plan decides for each tile
whether its residuals are saved or recomputed.
"""

import dataclasses

import jax
from jax import lax

from ...ir.places import filled
from .division import Division
from .rules import summed_in
from .slicer import Sliced


@dataclasses.dataclass(frozen=True)
class Tiles:
    """A region that runs in tiles.

    Attributes:
        sliced: the equations that run on a tile.
        division: of the axis into tiles.
        exits: the values that are read outside, and the axis of each.
        summed: the places of operands whose gradients are sums over tiles.
        is_planned: whether a plan decides for each tile if its residuals are saved; else all tiles
            run again.
    """

    sliced: Sliced
    division: Division
    exits: tuple[tuple[int, int], ...]
    summed: tuple[int, ...]
    is_planned: bool

    @property
    def operands(self) -> tuple[int, ...]:
        """The values that are read; one may be there whole and in slices."""
        return tuple(i for i, _ in self.sliced.operands)

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        """The exits, computed tile by tile."""
        axes = {n: d for n, (_, d) in enumerate(self.sliced.operands) if d is not None}
        dtypes = [operands[n].dtype for n in self.summed]
        wide = [operands[n].astype(summed_in(operands[n].dtype)) for n in self.summed]

        def tile(carry, slices):
            # A gradient is summed in the dtype of the loop's operand.
            shared = [x.astype(dtype) for x, dtype in zip(wide, dtypes, strict=True)]
            values = filled(filled(operands, self.summed, shared), [*axes], slices)
            found = self.sliced.run(values)
            return carry, [found[key] for key in self.exits]

        stacked = [self.division.stacked(operands[n], d) for n, d in axes.items()]
        if not self.is_planned:
            tile = jax.checkpoint(tile, prevent_cse=False)  # a loop keeps its tiles apart
        _, results = lax.scan(tile, None, stacked)
        return [self.division.joined(x, d) for x, (_, d) in zip(results, self.exits, strict=True)]
