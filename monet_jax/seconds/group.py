"""A group of equations that a compiler runs as one op, with what it reads and writes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..ir.costs import Work, work_of
from ..ir.program import Equation, aval_nbytes, parameters_of


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
        """Bytes where every input is read and every output written once."""
        return sum(aval_nbytes(self.avals[i]) for i in {*self.inputs, *self.outputs})

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
