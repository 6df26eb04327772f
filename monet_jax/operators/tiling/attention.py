"""Attention in tiles, as in FlashAttention (Dao et al., 2022): no scores of all queries and keys.

Scores, weights and their gradients are the largest arrays of a long-context step, between operands
and a result that are small. All equations between a product whose result is large and the products
that make it small again run in a loop over tiles, along an axis of which nothing is summed: batch,
heads or queries. The loop has no derivative of its own: a plan decides for each tile whether its
weights are saved or recomputed, as for the iterations of any loop, so that no more than a tile need
be in memory at once (as also in Rabe and Staats, 2021). In the body of a loop, where no other loops
are planned, every tile is recomputed. The gradient of an operand that tiles share, such as keys and
values, is a sum over tiles, in float32 at least.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...ir import compat
from ...ir.primitives import PRODUCTS, Kind, is_random, kind_of
from ...ir.program import Equation, Program, dependents, listed, without_dead_code
from ...ir.stage import Differentiation, active_values
from ..context import Context
from .division import Division, nearest
from .rules import cuts_of
from .slicer import Slicer
from .tiles import Tiles

#: The bytes of the loop's largest array over those that it reads and returns, at least.
_WORTH = 4


@dataclasses.dataclass(frozen=True)
class Attention:
    """Runs the attention of a program in tiles.

    Attributes:
        tile_bytes: bytes of a tile's largest array, as nearly as the axis can be divided.
        least_bytes: bytes of a tile's largest array, at least: starting the products of smaller
            tiles takes longer than the products.
    """

    tile_bytes: int = 32 * 2**20
    least_bytes: int = 8 * 2**20

    def __call__(self, program: Program, derivative: Differentiation, context: Context) -> Program:
        """The program, its attention in tiles; itself where no attention is worth it."""
        found = self._replaced(program, derivative, context)
        while found is not None:
            program, found = found, self._replaced(found, derivative, context)
        return program

    def _replaced(
        self, program: Program, derivative: Differentiation, context: Context
    ) -> Program | None:
        active = active_values(program, derivative)
        for position, equation in enumerate(program.equations):
            if not active.intersection(equation.outputs) or not _makes_large(program, equation):
                continue
            region = _Region.of(program, position, active, context.in_loop)
            for axis, division in self._divisions(region, context.devices):
                tiles = region.tiles(axis, division)
                replaced = None if tiles is None else region.replaced(tiles)
                if replaced is not None:
                    return replaced
        return None

    def _divisions(self, region: "_Region", devices: int) -> list[tuple[int, Division]]:
        """Axes of the scores with the tiles along each, the best first.

        An axis along which scores may be spread over devices is divided on each of them.
        """
        bytes_each = region.largest_bytes // devices
        wanted, most = bytes_each / self.tile_bytes, bytes_each // self.least_bytes
        found = []
        for axis, size in enumerate(region.scores.shape):
            division = nearest(size, devices, wanted, most)
            if division is not None:
                sums = any(None in x.inputs for x in _cuts_along(region.product, axis, division))
                found.append((sums, abs(math.log(division.parts / wanted)), axis, division))
        return [(axis, division) for _, _, axis, division in sorted(found, key=lambda x: x[:3])]


def _cuts_along(equation: Equation, axis: int, division: Division) -> Iterator[Any]:
    return (cut for cut in cuts_of(equation.eqn, division) if cut.outputs == (axis,))


def _makes_large(program: Program, equation: Equation) -> bool:
    """Whether an equation is a product whose result is clearly larger than its operands."""
    if equation.primitive != "dot_general":
        return False
    (result,) = equation.outputs
    read = sum(map(program.nbytes, {*equation.reads}))
    is_plain = not compat.is_placed(program.avals[result])
    return is_plain and program.nbytes(result) >= _WORTH * read


@dataclasses.dataclass(frozen=True)
class _Region:
    """Equations that may run in tiles.

    Attributes:
        program: the program, unchanged.
        positions: of the equations; the product that computes the scores comes first.
        active: values through which the derivative passes.
        in_loop: whether it is the body of a loop, in which the tiles are not planned.
    """

    program: Program
    positions: tuple[int, ...]
    active: frozenset[int]
    in_loop: bool

    @staticmethod
    def of(program: Program, position: int, active: frozenset[int], in_loop: bool) -> "_Region":
        """From a product to all products that depend on it and have small results."""
        (scores,) = program.equations[position].outputs
        scores_bytes = program.nbytes(scores)
        reached, ends, between = {scores}, [], []
        for p in range(position + 1, len(program.equations)):
            e = program.equations[p]
            if reached.isdisjoint(e.reads):
                continue
            made_bytes = sum(map(program.nbytes, e.outputs))
            if e.primitive in PRODUCTS and _WORTH * made_bytes <= scores_bytes:
                ends.append(p)
            else:
                between.append(p)
                reached.update(e.outputs)
        needed = {i for p in ends for i in program.equations[p].reads}
        for p in reversed(between):
            if not needed.isdisjoint(program.equations[p].outputs):
                ends.append(p)
                needed.update(program.equations[p].reads)
        return _Region(program, (position, *sorted(ends)), active, in_loop)

    @property
    def product(self) -> Equation:
        """The product that computes the scores."""
        return self.program.equations[self.positions[0]]

    @property
    def scores(self) -> Any:
        """The abstract value of the scores."""
        return self.program.avals[self.product.outputs[0]]

    @property
    def equations(self) -> list[Equation]:
        """The equations, in order."""
        return [self.program.equations[p] for p in self.positions]

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest array that is computed."""
        return max(self.program.nbytes(i) for e in self.equations for i in e.outputs)

    def tiles(self, axis: int, division: Division) -> Tiles | None:
        """How the region runs in tiles along an axis of the scores; None if it cannot, or need not.

        Operands that follow from fewer bytes are computed in each tile: masks, repeated keys. So is
        another product as large as the scores, of which each tile computes its part.
        """
        writer = {i: e for e in self.program.equations for i in e.outputs}

        def takes_in(equation: Equation, axis: int | None) -> bool:
            if equation.primitive == "dot_general":
                return axis is not None and _makes_large(self.program, equation)
            return _is_moved(self.program, equation) or _is_made(self.program, writer, equation)

        slicer = Slicer(self.program, division, takes_in, lambda equation, cut: not cut.is_sum)
        if not slicer.start_with(self.positions[0], axis):
            return None
        slicer.follow(self.positions[1:])
        exits = self._exits()
        if not slicer.positions.issuperset(self.positions) or not exits <= slicer.axes.keys():
            return None
        sliced = slicer.sliced()
        tiles = Tiles(
            sliced,
            division,
            tuple((i, slicer.axes[i]) for i in sorted(exits)),
            tuple(n for n, (i, d) in enumerate(sliced.operands) if d is None and i in self.active),
            is_planned=not self.in_loop,
        )
        own = {i for i in tiles.operands if i not in self.program.given}
        handed = sum(map(self.program.nbytes, own | exits))
        return tiles if _WORTH * handed <= self.largest_bytes else None

    def _exits(self) -> set[int]:
        """The values that are computed here and read elsewhere."""
        inside = {id(e) for e in self.equations}
        read = {i for i in self.program.outputs if isinstance(i, int)}
        read.update(i for e in self.program.equations if id(e) not in inside for i in e.reads)
        return read.intersection(i for e in self.equations for i in e.outputs)

    def replaced(self, tiles: Tiles) -> Program | None:
        """The program with tiles at the last equation; None if results are read before it."""
        program, end = self.program, self.positions[-1]
        own = {*self.positions}
        rest = [(p, e) for p, e in enumerate(program.equations) if p not in own]
        before, behind = [e for p, e in rest if p < end], [e for p, e in rest if p > end]
        computed = {i for e in self.equations for i in e.outputs}
        if dependents(before, computed) != computed:
            return None
        avals, exits = list(program.avals), [i for i, _ in tiles.exits]
        made = listed(tiles.run, tiles.operands, program.equations[end], avals, exits)
        name = f"in {tiles.division.parts} tiles"
        loop = (dataclasses.replace(e, apart=name) if _is_loop(e) else e for e in made)
        equations = without_dead_code([*before, *loop, *behind], program.outputs)
        again = {id(e) for e, _ in tiles.sliced.steps if kind_of(e) is Kind.SOLID}
        if not again.isdisjoint(map(id, equations)):
            return None
        return dataclasses.replace(
            program, avals=tuple(avals), equations=equations, keeps_other=True
        )


def _is_loop(equation: Equation) -> bool:
    return equation.primitive == "scan"


def _is_moved(program: Program, equation: Equation) -> bool:
    """Whether a result is all of an operand in another layout."""
    sizes = [*map(program.nbytes, equation.reads)]
    return kind_of(equation) is Kind.VIEW and sizes == [program.nbytes(equation.outputs[0])]


def _is_made(program: Program, writer: Mapping[int, Equation], equation: Equation) -> bool:
    """Whether a result is computed, in the fusion that reads it, from fewer bytes than its own."""
    if not _is_cheap(equation):
        return False
    most, read, queue, seen = program.nbytes(equation.outputs[0]), 0, [*equation.reads], set()
    while queue and read < most:
        i = queue.pop()
        if i in seen:
            continue
        seen.add(i)
        e = writer.get(i)
        if e is not None and _is_cheap(e):
            queue += e.reads
        else:
            read += program.nbytes(i)
    return read < most


def _is_cheap(equation: Equation) -> bool:
    is_fused = kind_of(equation) in (Kind.VIEW, Kind.FUSED)
    return is_fused and not is_random(equation) and not compat.has_effects(equation.eqn)
