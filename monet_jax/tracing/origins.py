"""Where each part of a planning graph came from, for emission and for reports."""

import collections
import dataclasses
import functools
from collections.abc import Mapping

from ..ir import compat
from ..ir.program import Equation, Program
from ..ir.stage import Differentiation, Stage
from ..operators import AS_PLANNED, Encoding
from .branches import Choice, walk
from .layout import lay_out
from .loops import Loop


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
class Origins:
    """Where the parts of a planning graph came from.

    Attributes:
        program: the flat program, planned loops unrolled and planned branches listed.
        stages: its stages, as the graph's.
        values: name of a graph value -> the program's value, for values of the forward pass.
        output_bytes: name of a graph value that the step returns -> its bytes, where temporaries
            may lie in its memory. In the graph such values are free: they are no temporaries.
        loops: the planned loops.
        choices: the planned choices that are in no loop and in no branch.
        encoding: how lossy codecs encode and decode, while a plan is emitted.
        lines: name of a graph value that is not in `values` -> where it is from, if that is known.
        hoisted: while a loop's body is emitted, what of it is computed before the loop.
    """

    program: Program
    stages: tuple[Stage, ...]
    values: dict[str, int]
    output_bytes: dict[str, int]
    loops: tuple[Loop, ...] = ()
    choices: tuple[Choice, ...] = ()
    lines: Mapping[str, Line] = dataclasses.field(default_factory=dict)
    encoding: Encoding = AS_PLANNED
    hoisted: frozenset[int] = frozenset()

    @functools.cached_property
    def writer(self) -> dict[int, Equation]:
        """Value of the program -> the equation that writes it."""
        return {i: e for stage in self.stages for e in stage.equations for i in e.outputs}

    def source_of(self, name: str) -> str:
        """`file:line` of the user's code that a graph value belongs to, "" if it is not known."""
        if name in self.values:
            return compat.source_of(self.writer[self.values[name]].eqn)
        return self.lines[name].source_in_stage() if name in self.lines else ""

    @functools.cached_property
    def shared(self) -> frozenset[int]:
        """Values that several stages read."""
        counts = collections.Counter(i for stage in self.stages for i in stage.inputs)
        counts.update(i for x in (*self.loops, *walk(self.choices)) for i in x.equation.reads)
        return frozenset(i for i, count in counts.items() if count > 1)


def value_name(value: int) -> str:
    """The name that plans give to a value of a program."""
    return f"v{value}"


def value_number(name: str) -> int:
    """The value of a program that plans give a name."""
    return int(name[1:])


def origins_of(program: Program, derivative: Differentiation) -> Origins:
    """What emission needs to know of a program for which there is a plan already.

    Stages depend on nothing but the program and its derivative, so that no analysis is repeated.
    """
    layout = lay_out(program, derivative)
    return origins_to_emit(layout.program, layout.stages, layout.loops, layout.choices)


def origins_to_emit(
    program: Program,
    stages: tuple[Stage, ...],
    loops: tuple[Loop, ...] = (),
    choices: tuple[Choice, ...] = (),
) -> Origins:
    """What emission needs to know of a program in stages: a name for all that they write."""
    written = (i for stage in stages for e in stage.equations for i in e.outputs)
    return Origins(program, stages, {value_name(i): i for i in written}, {}, loops, choices)
