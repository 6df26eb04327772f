"""A group of equations that a compiler runs as one op, with what it reads and writes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..ir.costs import Work, work_of
from ..ir.program import Equation, aval_nbytes, parameters_of

#: Equations that read a part of their first operand.
_SLICING = {"dynamic_slice", "slice", "gather"}
#: Equations that write over a part of their first operand -> the place of what they write.
_UPDATE = {"dynamic_update_slice": 1, "scatter": 2, "scatter-add": 2}


@dataclasses.dataclass(frozen=True)
class Group:
    """The equations of one op.

    Attributes:
        equations: in execution order.
        inputs: value numbers that it reads from memory.
        outputs: value numbers that it writes to memory.
        avals: the abstract value of every value number.
    """

    equations: tuple[Equation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    avals: Sequence[Any] = dataclasses.field(repr=False)

    @property
    def work(self) -> Work:
        """The arithmetic of all equations."""
        return sum(map(work_of, self.equations), Work())

    @property
    def moved_bytes(self) -> int:
        """Bytes where every input is read and every output written once.

        Of an array that is only sliced, the slices are read; of one that is updated in place, the
        update is written.
        """
        read = sum(map(self._bytes_read, {*self.inputs} - {*self.outputs}))
        return read + sum(map(self._bytes_written, {*self.outputs}))

    def _bytes_read(self, value: int) -> int:
        parts = 0
        for equation in self.equations:
            for place, operand in enumerate(equation.inputs):
                if isinstance(operand, int) and operand == value:
                    parts += self._part_read(equation, place, value)
        return min(parts, aval_nbytes(self.avals[value]))

    def _part_read(self, equation: Equation, place: int, value: int) -> int:
        if reads_slice(equation, place):
            return aval_nbytes(self.avals[equation.outputs[0]])
        if place == 0 and self._updates(equation):
            return 0
        return aval_nbytes(self.avals[value])

    def _bytes_written(self, value: int) -> int:
        for equation in self.equations:
            if value in equation.outputs and self._updates(equation):
                update = equation.inputs[_UPDATE[equation.primitive]]
                return aval_nbytes(self.avals[update]) if isinstance(update, int) else 0
        return aval_nbytes(self.avals[value])

    def _updates(self, equation: Equation) -> bool:
        """Whether an equation writes over a part of an array that is in memory."""
        return equation.primitive in _UPDATE and equation.inputs[0] in self.inputs

    @property
    def text(self) -> str:
        """Equal for groups that differ in nothing but their value numbers."""
        numbers: dict[int, int] = {}

        def named(atoms: Sequence[Any]) -> list[str]:
            return [
                f"{numbers.setdefault(i, len(numbers))}:{self.avals[i].str_short()}"
                if isinstance(i, int)
                else f"literal:{getattr(i.aval, 'dtype', '')}"
                for i in atoms
            ]

        lines = []
        for e in self.equations:
            lines.append([e.primitive, *named(e.inputs), *named(e.outputs), parameters_of(e.eqn)])
        return repr([*lines, sorted(named(self.inputs)), named(self.outputs)])


def reads_slice(equation: Equation, place: int) -> bool:
    """Whether an equation reads only a part of that operand, as large as its result."""
    return place == 0 and equation.primitive in _SLICING
