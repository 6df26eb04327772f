"""The part of a stage that saving and recomputation are about.

| index | means |
|---|---|
| `v` | a value that the stage's forward writes and that its backward may need |
| `o` | a forward op of the stage that may run again |
| `u` | a value of an earlier stage that not every option needs |
"""

import dataclasses
import functools
from collections.abc import Container

from ...graph import Graph, Op


@dataclasses.dataclass(frozen=True)
class Needs:
    """The part of a stage that saving and recomputation are about.

    Attributes:
        values: `v`, ascending; indices of the graph.
        ops: `o`, ascending; positions in the stage's forward.
        outside: `u`, ascending; indices of the graph.
        backward: the ops of the stage's backward.
    """

    values: tuple[int, ...]
    ops: tuple[int, ...]
    outside: tuple[int, ...]
    backward: tuple[Op, ...]

    @functools.cached_property
    def choices(self) -> tuple[Op, ...]:
        """The backward ops that have several implementations."""
        return tuple(op for op in self.backward if op.alternatives)

    def read(self, saved: Container[int]) -> set[int]:
        """The values that the backward itself reads, if some are saved."""
        chosen = (op.implementations[op.implementation_by(saved)] for op in self.backward)
        return {i for implementation in chosen for i in implementation.inputs} & {*self.values}


def needs(graph: Graph, s: int) -> Needs:
    """Everything that the backward of stage `s` may need of its forward."""
    forward, backward = graph.stages[s].forward, graph.stages[s].backward
    writer = {i: o for o, op in enumerate(forward) for i in op.outputs}
    always = {i for op in backward for i in op.always_reads}
    direct = {i for op in backward for i in op.may_read}
    values = direct & set(writer)
    outside = {i for i in direct - always - set(writer) if i in graph.forward_writer}
    pending = list(values)
    while pending:
        op = forward[writer[pending.pop()]]
        inputs = set(op.inputs) if op.recomputable and not op.optional else set()
        outside |= inputs - set(writer) - always
        new = (inputs & set(writer)) - values
        values |= new
        pending += new
    # What is optional is of use only where it is saved, so that it does not run again.
    again = {writer[i] for i in values}
    ops = {o for o in again if forward[o].recomputable and not forward[o].optional}
    return Needs(tuple(sorted(values)), tuple(sorted(ops)), tuple(sorted(outside)), backward)
