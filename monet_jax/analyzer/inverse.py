"""What leads from a planning graph back to the program, for reports."""

import dataclasses
from collections.abc import Mapping

from ..ir import compat
from ..ir.stage import Stage


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Where a value that the program does not name is from; a gradient, say.

    Attributes:
        template: the stage that was analyzed.
        stage: the stage that the value belongs to, isomorphic to it.
        source: `file:line` of the user's code in the template; "" where that is not known.
    """

    template: Stage
    stage: Stage
    source: str

    def source_in_stage(self) -> str:
        """`file:line` in the stage, of the equation that has this line in the template."""
        if self.template is not self.stage:
            for equation, own in zip(self.template.equations, self.stage.equations, strict=True):
                if compat.source_of(equation.eqn) == self.source:
                    return compat.source_of(own.eqn)
        return self.source


@dataclasses.dataclass(frozen=True)
class InverseData:
    """What a planning graph does not say of its values (CVXPY's idiom; `values` have names).

    Attributes:
        output_bytes: name of a graph value that the step returns -> its bytes, where temporaries
            may lie in its memory. In the graph such values are free: they are no temporaries.
        lines: name of a graph value that is no value of the staged program -> where it is from, if
            that is known.
        seconds_by_source: where seconds come from -> those of the step that recomputes nothing.
    """

    output_bytes: Mapping[str, int]
    lines: Mapping[str, Line]
    seconds_by_source: Mapping[str, float]

    def source_of(self, name: str) -> str:
        """`file:line` of the user's code that such a value belongs to, "" if it is not known."""
        return self.lines[name].source_in_stage() if name in self.lines else ""
