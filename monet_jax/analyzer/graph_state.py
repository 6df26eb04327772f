"""A planning graph while it is put together: its values, and what they stand for.

A value that one stage hands to another is one value of the graph. What the program returns takes no
memory in the graph, since the compiler counts it as output.
"""

import dataclasses
import functools
from collections.abc import Iterable

import jax.numpy as jnp

from planners.graph import Op, Value

from ..compiler.backend import Backend
from ..ir.program import Program
from ..tracing.staged import StagedProgram
from .inverse import Line


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a stage stands in choices.

    Attributes:
        odds: of its branches, all of which are taken to be as likely.
        is_last: whether its branches are the last ones: results of the step, which all branches
            write, are counted there.
    """

    odds: float = 1.0
    is_last: bool = True


@dataclasses.dataclass
class GraphState:
    """The graph so far.

    Attributes:
        staged: the program that the graph is of.
        pinned: program value -> its pinned decision.
        cloned: program values that several stages compute, each for itself.
        backend: the compiler that is planned for.
        arguments: program values whose gradients are results of the step.
        returned: program values that the program returns.
        values: the graph's values.
        output_bytes: name of a graph value that the step returns -> its bytes.
        lines: name of a graph value that is not the program's -> where it is from.
        index: program value -> graph value.
        locals: for each stage, joint value -> graph value.
        gradients: program value -> graph value of its cotangent so far.
        narrow: float32 values that may be kept as bfloat16.
        wide: values that an op reads in their own dtype.
        effects: stage -> what its effects "write".
        pending: argument -> number of stages whose gradients are still to come.
        forwards, backwards: the ops of each stage.
        repeats: iterations that what is added stands for; 0 for what is hoisted.
        hoisted: graph value of what is hoisted out of the loop that is added.
        place: where the stage that is added stands in choices.
        active: stacked values that receive a cotangent.
        buffers: stacked value -> graph value of its cotangent.
        kept_as: graph value -> the program value that is kept in its place.
        seconds_by_source: where seconds come from -> those of ops that run in any case.
        spared_seconds: as in `Graph.spared_seconds`.
    """

    staged: StagedProgram
    pinned: dict[int, str]
    cloned: set[int]
    backend: Backend
    arguments: set[int]
    returned: set[int]
    values: list[Value] = dataclasses.field(default_factory=list)
    output_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    lines: dict[str, Line] = dataclasses.field(default_factory=dict)
    index: dict[int, int] = dataclasses.field(default_factory=dict)
    locals: list[dict[int, int]] = dataclasses.field(default_factory=list)
    gradients: dict[int, int] = dataclasses.field(default_factory=dict)
    narrow: set[int] = dataclasses.field(default_factory=set)
    wide: set[int] = dataclasses.field(default_factory=set)
    effects: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    pending: dict[int, int] = dataclasses.field(default_factory=dict)
    forwards: list[list[Op]] = dataclasses.field(default_factory=list)
    backwards: list[list[Op]] = dataclasses.field(default_factory=list)
    repeats: int = 1
    hoisted: int = 0
    place: Place = Place()
    active: set[int] = dataclasses.field(default_factory=set)
    buffers: dict[int, int] = dataclasses.field(default_factory=dict)
    kept_as: dict[int, int] = dataclasses.field(default_factory=dict)
    seconds_by_source: dict[str, float] = dataclasses.field(default_factory=dict)
    spared_seconds: float = 0.0

    @functools.cached_property
    def program(self) -> Program:
        """What the stages run, its values as the backend lays them out."""
        return dataclasses.replace(self.staged.program, tile=self.backend.tile)

    def new(self, nbytes: int, returned: bool = False, copies: int | None = None) -> int:
        """A value that has no name in the program."""
        copies = self.repeats if copies is None else copies
        return self.append(f"b{len(self.values)}", nbytes, returned, False, copies)

    def append(self, name: str, nbytes: int, returned: bool, savable: bool, copies: int) -> int:
        """A value; if the step returns it, it takes no memory in the graph."""
        if returned and self.backend.lends_results and self.place.is_last:
            self.output_bytes[name] = nbytes
        self.values.append(Value(name, 0 if returned else nbytes, savable, max(1, copies)))
        return len(self.values) - 1

    def named(self, i: int) -> int:
        """A value of the program; what several stages compute for themselves has no one name."""
        returned, kept_as = i in self.returned, self.staged.invariant_values.get(i, i)
        nbytes = self.program.nbytes(i) if kept_as == i and self.repeats else 0
        copies = 1 if i in self.staged.invariant_values else self.repeats
        if i in self.cloned:
            made = self.new(nbytes, returned, copies)
        else:
            name = self.staged.names[i]
            made = self.append(name, nbytes, returned, self._is_savable(i), copies)
        self.index[i] = made
        if kept_as != i:
            self.kept_as[made] = kept_as
        return made

    def _is_savable(self, i: int) -> bool:
        # `jax.checkpoint` rounds what it saves by `reduce_precision`, which refuses complex.
        is_complex = jnp.issubdtype(self.program.avals[i].dtype, jnp.complexfloating)
        is_kept = (
            self.pinned.get(i) != "recompute"
            and i not in self.staged.invariant_values
            and self.repeats > 0
        )
        return not is_complex and is_kept

    def fuse(self, i: int) -> None:
        """Take a value to be computed inside the fusion that reads it: it has no memory."""
        self.values[i] = dataclasses.replace(self.values[i], nbytes=0)

    def effect(self) -> int:
        """What an effect writes: nothing, which its stage's backward reads.

        It can be neither saved nor recomputed, so the only valid plan leaves its stage alone.
        """
        value = self.new(0)
        self.effects.setdefault(len(self.locals), []).append(value)
        return value

    def pin(self, primal: dict[int, int], j: int) -> str | None:
        """The pinned decision on a joint value, if there is one."""
        return self.pinned.get(primal[j]) if j in primal else None

    def total(self, values: Iterable[int]) -> int:
        """Bytes of some values."""
        return sum(self.values[i].nbytes for i in values)

    def results_of(self, ops: Iterable[Op]) -> tuple[int, ...]:
        """Sizes of the step's results that ops write."""
        names = (self.values[i].name for op in ops for i in op.outputs)
        return tuple(self.output_bytes[name] for name in names if name in self.output_bytes)

    def stored_values(self) -> list[Value]:
        """Every value, with the bytes that it is stored in."""
        narrow = self.narrow - self.wide if self.backend.narrows_operands else set()
        values = list(self.values)
        for i in narrow:
            values[i] = dataclasses.replace(values[i], nbytes=values[i].nbytes // 2)
        for i, kept_as in self.kept_as.items():
            values[i] = dataclasses.replace(values[i], kept_as=self.index[kept_as])
        return values


def added(state: GraphState, i: int, gradient: int, ops: list[Op]) -> int:
    """A gradient of value `i`, added by one more op to those that came before.

    The sum of an argument's lies in the step's result: from its first part on, or from the end.
    """
    if i not in state.gradients:
        return gradient
    before = state.gradients[i]
    if i in state.arguments and state.values[before].nbytes == 0:
        total = state.new(0)
    else:
        total = state.new(state.program.nbytes(i), i in state.arguments and state.pending[i] == 0)
    like = state.values[gradient].name
    if like in state.lines:
        state.lines[state.values[total].name] = state.lines[like]
    reused_bytes = state.values[total].nbytes  # the sum so far is written over
    terms = gradient, before
    ops.append(Op("add_any", terms, (total,), 0.0, workspace_bytes=-reused_bytes))
    return total
