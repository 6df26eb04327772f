"""What analysis and emission share: where each part of a planning graph came from."""

import collections
import dataclasses
import functools

from ._program import Equation, Program
from ._stages import Differentiation, Stage, split


@dataclasses.dataclass(frozen=True)
class Origins:
    """Where the parts of a planning graph came from.

    Attributes:
        program: the flat program.
        stages: its stages, as the graph's.
        values: name of a graph value -> the program's value, for values of the forward pass.
        output_bytes: name of a graph value that the step returns -> its bytes, where temporaries
            may lie in its memory. In the graph such values are free: they are no temporaries.
    """

    program: Program
    stages: tuple[Stage, ...]
    values: dict[str, int]
    output_bytes: dict[str, int]

    @functools.cached_property
    def writer(self) -> dict[int, Equation]:
        """Value of the program -> the equation that writes it."""
        return {i: e for stage in self.stages for e in stage.equations for i in e.outputs}

    @functools.cached_property
    def shared(self) -> frozenset[int]:
        """Values that several stages read."""
        counts = collections.Counter(i for stage in self.stages for i in stage.inputs)
        return frozenset(i for i, count in counts.items() if count > 1)


def value_name(value: int) -> str:
    """The name that plans give to a value of a program."""
    return f"v{value}"


def origins_of(program: Program, derivative: Differentiation) -> Origins:
    """What emission needs to know of a program for which there is a plan already.

    Stages depend on nothing but the program and its derivative, so that no analysis is repeated.
    """
    stages = split(program, derivative)
    written = (i for stage in stages for e in stage.equations for i in e.outputs)
    return Origins(program, stages, {value_name(i): i for i in written}, {})
