"""Runs an update in a loop over rows of its arrays, a few of which are on the device at once.

The equations of the update run on slices along the first axis (`operators/tiling/rules`). Arrays on
the host are carried by the loop, where each slice is fetched, updated and written back.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from ...ir.memories import on_device, on_host
from ...ir.program import Program, positions_of
from ...operators.tiling.division import Division
from ...operators.tiling.slicer import Sliced, Slicer

#: In bytes: what a slice of an array takes at most. A copy of 4 MiB takes 0.08 ms at 55 GB/s, ten
#: times what it takes to start one. In the case of `states.py`, half of it freed no more bytes on
#: an H100, and double of it took 8 MiB more.
SLICE = 2**22


@dataclasses.dataclass(frozen=True)
class RowUpdate:
    """An update that runs on slices.

    Attributes:
        parts: how many slices there are.
        sliced: its equations.
        places: result, by its value number -> the operand in whose memory it is written.
    """

    parts: int
    sliced: Sliced
    places: Mapping[int, int]

    @property
    def operands(self) -> set[int]:
        """What it reads, by value number."""
        return {i for i, _ in self.sliced.operands}

    def run(self, env: Mapping[int, Any], stored: Collection[int]) -> dict[int, Any]:
        """The results, by value number; those in the memory of what is stored are on the host.

        Arguments:
            env: the operands.
            stored: those of them that live on the host.
        """
        results = [*self.places]
        fixed = [i for i, _ in self.sliced.operands if i not in self.places.values()]

        def trip(n: Any, carried: Sequence[Any]) -> list[Any]:
            arrays = dict(zip(self.places.values(), carried, strict=True))
            arrays |= {i: env[i] for i in fixed}
            slices = [self._slice(n, arrays[i], i, d, stored) for i, d in self.sliced.operands]
            found = self.sliced.run(slices)
            pairs = zip(results, self.places.values(), carried, strict=True)
            return [self._written(n, array, found[r, 0], i in stored) for r, i, array in pairs]

        carried = [env[i] for i in self.places.values()]
        return dict(zip(results, jax.lax.fori_loop(0, self.parts, trip, carried), strict=True))

    def _slice(
        self, n: Any, array: Any, value: int, axis: int | None, stored: Collection[int]
    ) -> Any:
        if axis is None:
            return array
        rows = array.shape[axis] // self.parts
        part = jax.lax.dynamic_slice_in_dim(
            array, n * rows, rows, axis, allow_negative_indices=False
        )
        return on_device(part) if value in stored else part

    def _written(self, n: Any, array: Any, part: Any, is_stored: bool) -> Any:
        part = on_host(part) if is_stored else part
        start = n * part.shape[0]
        return jax.lax.dynamic_update_slice_in_dim(
            array, part, start, 0, allow_negative_indices=False
        )


def row_update(
    program: Program, own: Collection[int], stored: Mapping[int, int], results: Sequence[int]
) -> RowUpdate | None:
    """An update on slices of its arrays; None where it cannot be sliced, or need not be.

    Arguments:
        program: the step's.
        own: the equations of the update.
        stored: a value on the host -> the result that takes its place.
        results: all results of the update, by value number.
    """
    parts = _parts([program.avals[i] for i in stored])
    if parts < 2:
        return None
    writers = positions_of(program.equations)

    def takes_in(equation: Any, axis: int | None) -> bool:
        return axis is not None and writers[equation.outputs[0]] in own

    slicer = Slicer(program, Division(parts), takes_in)
    for value in stored:
        slicer.start(value, 0)
    slicer.follow(sorted(own))
    if any(slicer.axes.get(result) != 0 for result in results):
        return None
    sliced = slicer.sliced()
    places = _places(program, sliced, stored, results)
    return None if places is None else RowUpdate(parts, sliced, places)


def _parts(avals: Sequence[Any]) -> int:
    """The fewest slices that are small enough; a row each where none are; 1 for different shapes.

    The rows of a stack of layers are the layers, and may be larger.
    """
    rows = {aval.shape[0] for aval in avals}
    most = max(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals)
    if len(rows) != 1 or most <= SLICE:
        return 1
    (count,) = rows
    divisors = (n for n in range(2, count + 1) if count % n == 0)
    return next((n for n in divisors if most <= n * SLICE), count)


def _places(
    program: Program, sliced: Sliced, stored: Mapping[int, int], results: Sequence[int]
) -> dict[int, int] | None:
    """Result -> an operand of its shape and type, an argument where one is left; None if none is.

    A row is read before it is written, so that any operand will do.
    """
    found = {result: value for value, result in stored.items()}
    left = [i for i, axis in sliced.operands if axis == 0 and i not in stored]
    left.sort(key=lambda i: i not in program.inputs)
    for result in results:
        if result not in found:
            aval = program.avals[result]
            same = (i for i in left if program.avals[i].shape == aval.shape)
            place = next((i for i in same if program.avals[i].dtype == aval.dtype), None)
            if place is None:
                return None
            left.remove(place)
            found[result] = place
    return found
