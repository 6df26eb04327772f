"""What analysis and emission share: where each part of a planning graph came from."""

import dataclasses

from ._program import Program
from ._stages import Stage


@dataclasses.dataclass(frozen=True)
class Origins:
    """Where the parts of a planning graph came from.

    Attributes:
        program: the flat program.
        stages: its stages, as the graph's.
        values: name of a graph value -> the program's value, for values of the forward pass.
        output_bytes: name of a graph value that the step returns -> its bytes. In the graph such
            values are free: they are output, not temporaries.
    """

    program: Program
    stages: tuple[Stage, ...]
    values: dict[str, int]
    output_bytes: dict[str, int]
