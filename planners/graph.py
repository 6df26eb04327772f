"""What a planner is given: the ops of one training step, cut into stages, as plain numbers.

A `Graph` is a step's value and gradient at the granularity at which a compiler keeps arrays in
memory. Its `Stage`s run forward in order and backward in reverse order; that is the unit whose
order the compiled program keeps, so a plan decides per stage what its forward leaves behind.

An `Op` is one or several equations that a compiler runs together (a product with the elementwise
work fused into it); a `Value` is an array that it materialises. Arguments of the step (parameters,
batch) are not values: they are live throughout, whatever the plan.
"""

import bisect
import dataclasses
import functools as ft
import itertools as it
import math
from collections.abc import Container, Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """An array in memory.

    Attributes:
        name: unique in its graph, and stable between runs: plans refer to it.
        nbytes: size in bytes.
        savable: whether a plan may save it. Gradients and values inside opaque ops are not.
        copies: how many of it wait from the forward for the backward: in a loop, where one
            iteration stands for several, one for each of them.
        kept_as: the value that is in memory in place of it, which is counted: what every iteration
            of a loop computes alike is kept once. It takes nothing itself.
    """

    name: str
    nbytes: int
    savable: bool = False
    copies: int = 1
    kept_as: int | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes that it takes from the first forward to its backward."""
        return self.nbytes * self.copies


@dataclasses.dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an op. Whatever the way, it writes the same values.

    Attributes:
        inputs, seconds, flops, workspace_bytes: as those of `Op`.
        overwrites: values of `inputs` in whose memory the outputs are written: they are gone
            once the op has run. Their bytes are taken off `workspace_bytes`.
        only_again: whether this way is open only where the op has run before (a batch norm whose
            statistics are known, say).
    """

    inputs: tuple[int, ...]
    seconds: float
    flops: int = 0
    workspace_bytes: int = 0
    overwrites: tuple[int, ...] = ()
    only_again: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """Equations that run together.

    Attributes:
        name: for people; need not be unique.
        inputs: indices of the values it reads. Arguments of the step are left out.
        outputs: indices of the values it writes.
        seconds: run time, first run or recomputation.
        flops: floating-point operations of its products and convolutions.
        workspace_bytes: bytes that it needs only while it runs, beside its inputs and outputs.
            Negative where an output is written over an input that nothing reads later.
        recomputable: False for an op that must run exactly once (an effect, an impure generator).
        alternatives: further ways to run it. A planner that knows of none uses the op's own
        figures.
            Those of a backward op read less of what its own figures read, and *codes* instead:
            values by which it knows enough (a packed mask, or what it can be computed from).
        optional: True for an op that need not run at all (it packs a mask that only one variant of
            a backward op reads, say). If it writes no bytes, that is a *mark*: plans save it to ask
            for a way whose other codes they may save for something else.
        error: of an optional op, what is wrong with the step's gradient if it runs: the expected
            square of the error's norm, over the gradient's. Errors of several ops add up.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float
    flops: int = 0
    workspace_bytes: int = 0
    recomputable: bool = True
    alternatives: tuple[Implementation, ...] = ()
    optional: bool = False
    error: float = 0.0

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """All ways to run it; the first has the op's own figures."""
        return (
            Implementation(self.inputs, self.seconds, self.flops, self.workspace_bytes),
            *self.alternatives,
        )

    def in_implementation(self, implementation: int) -> "Op":
        """The op with the figures of one of its ways for its own."""
        if not implementation:
            return self
        x = self.alternatives[implementation - 1]
        return dataclasses.replace(
            self,
            inputs=x.inputs,
            seconds=x.seconds,
            flops=x.flops,
            workspace_bytes=x.workspace_bytes,
        )

    def implementation_by(self, saved: Container[int]) -> int:
        """The way in which a backward op runs by what a plan saves: the last that it allows.

        A way is open if it reads codes, and all of them are saved.
        """
        for implementation in range(len(self.alternatives), 0, -1):
            codes = self.codes(self.alternatives[implementation - 1])
            if codes and all(i in saved for i in codes):
                return implementation
        return 0

    def codes(self, implementation: Implementation) -> frozenset[int]:
        """What it reads in one of its ways beyond its own inputs."""
        return frozenset(implementation.inputs).difference(self.inputs)

    @property
    def may_read(self) -> frozenset[int]:
        """Values that it reads in one way or another."""
        return frozenset(
            i for implementation in self.implementations for i in implementation.inputs
        )

    @property
    def always_reads(self) -> frozenset[int]:
        """Values that it reads whatever the way."""
        return frozenset.intersection(
            *(frozenset(implementation.inputs) for implementation in self.implementations)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A run of ops whose recomputation the compiled program keeps together.

    Attributes:
        name: for people: where the stage stands in the program.
        forward: ops of the forward pass, in order.
        backward: ops of the backward pass, in order. They read values of this stage's forward,
            values of earlier stages' forwards, and gradients; nothing of later stages' forwards.
        key: equal for stages that are isomorphic value by value and cost by cost, so that
            a planner may solve one of them; `None` where nothing is known.
        alone_bytes: bytes, beside its values, that are in memory from the start of its forward to
            the end of its backward where a plan leaves it alone: a compiler that need not keep
            a stage's recomputation together may keep more of its forward than it has to.
        may_be_alone: whether a plan may leave it alone, keeping also what is not savable. Planners
            do so even if not where its backward needs what can be neither saved nor run again.
        result_bytes: sizes of the results of the step that its backward writes (its parameters'
            gradients). They are no values; until they are written, their memory may hold others.
    """

    name: str
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    key: str | None = None
    alone_bytes: int = 0
    may_be_alone: bool = True
    result_bytes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """Stages that are the iterations of a loop.

    Attributes:
        first: its first stage.
        length: stages of one iteration.
        trips: how many iterations there are; each may stand for several (`Value.copies`).
    """

    first: int
    length: int
    trips: int

    @property
    def stop(self) -> int:
        """The first stage behind it."""
        return self.first + self.length * self.trips


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Stages that are the branches of a choice, of which one runs, forward and backward.

    They stand one after the other. What waits for the backward takes the memory of the branch for
    which most waits.

    Attributes:
        firsts: the first stage of each branch.
        stop: the first stage behind the last branch.
    """

    firsts: tuple[int, ...]
    stop: int

    @property
    def first(self) -> int:
        """Its first stage."""
        return self.firsts[0]

    @property
    def branches(self) -> tuple[tuple[int, int], ...]:
        """The first stage of each branch, and the first one behind it."""
        return tuple(it.pairwise((*self.firsts, self.stop)))


@dataclasses.dataclass(frozen=True)
class Graph:
    """A training step: values, and the stages whose ops produce and read them.

    Attributes:
        values: every array, indexed by the ops.
        stages: in forward order.
        recomputes_late: whether a compiler runs an op again just before what reads it, in regions
            of several stages too; else all of a region's recomputation comes first there.
        loops: in order. A region lies in one iteration, or outside of all loops.
        choices: a region lies in one branch, or outside of all choices. Where choices are in
            branches, as much waits in all branches of the inner ones together.
        uniform_blocks: whether plans are sought in which no iteration runs by itself
        (`rolling.with_uniform_blocks`). most_error: the errors of a plan's ops may add up to this
        (`error_of`).

    Raises:
        ValueError: an index is out of range, loops overlap, a choice is empty, a value is written
            twice, an op reads a value that no earlier op writes, or a backward op one that a later
            stage's forward writes, a name occurs twice, or a size or time is negative.
    """

    values: tuple[Value, ...]
    stages: tuple[Stage, ...]
    recomputes_late: bool = False
    loops: tuple[Loop, ...] = ()
    choices: tuple[Choice, ...] = ()
    uniform_blocks: bool = False
    most_error: float = math.inf

    def __post_init__(self):
        _check_values(self)
        _check_loops(self)
        _check_dataflow(self)
        _check_backward(self)

    @ft.cached_property
    def index(self) -> dict[str, int]:
        """Value name -> its index."""
        return {value.name: i for i, value in enumerate(self.values)}

    @ft.cached_property
    def units(self) -> tuple[int, ...]:
        """For each stage the first one of those that a region may have beside it.

        They are of one iteration, of one branch, or outside of all loops and choices.
        """
        return tuple(first for first, stop in self.spans for _ in range(first, stop))

    @ft.cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where each iteration, branch, and run of stages outside of both begins and ends."""
        ends = {0, len(self.stages)}
        for loop in self.loops:
            ends.update(range(loop.first, loop.stop + 1, loop.length))
        for choice in self.choices:
            ends.update((*choice.firsts, choice.stop))
        return tuple(it.pairwise(sorted(ends)))

    @ft.cached_property
    def branch_of(self) -> tuple[tuple[Choice, int] | None, ...]:
        """For each stage its choice, the outermost one, and which of its branches it is in."""
        found: list[tuple[Choice, int] | None] = [None] * len(self.stages)
        for choice in sorted(self.choices, key=lambda x: x.first - x.stop):
            if found[choice.first] is None:
                for b, (first, stop) in enumerate(choice.branches):
                    found[first:stop] = [(choice, b)] * (stop - first)
        return tuple(found)

    def branch_of_all(self, stages: Iterable[int]) -> tuple[Choice, int] | None:
        """The branch that some stages are in, all of them; None where there is none."""
        branches = {self.branch_of[s] for s in stages}
        return branches.pop() if len(branches) == 1 else None

    @ft.cached_property
    def looped(self) -> frozenset[int]:
        """The stages that are in loops."""
        return frozenset(s for loop in self.loops for s in range(loop.first, loop.stop))

    @ft.cached_property
    def ops(self) -> tuple[Op, ...]:
        """Every op, in the order of its first run."""
        return tuple(getattr(self.stages[s], phase)[o] for phase, s, o in self.op_numbers)

    @ft.cached_property
    def implementations(self) -> tuple[tuple[Implementation, ...], ...]:
        """For each op of `ops` all ways to run it; made once, since replay asks at every step."""
        return tuple(op.implementations for op in self.ops)

    @ft.cached_property
    def op_numbers(self) -> dict[tuple[str, int, int], int]:
        """Phase ("forward" or "backward"), stage and position there -> position in `ops`."""
        stages = list(enumerate(self.stages))
        forward = [("forward", s, o) for s, stage in stages for o in range(len(stage.forward))]
        backward = [
            ("backward", s, o) for s, stage in stages[::-1] for o in range(len(stage.backward))
        ]
        return {key: number for number, key in enumerate((*forward, *backward))}

    def may_rerun(self, number: int) -> bool:
        """Whether an op of `ops` may run more than once: it is recomputable, and of a forward."""
        return number < self.forward_count and self.ops[number].recomputable

    @ft.cached_property
    def forward_count(self) -> int:
        """How many of `ops` are of the forward pass."""
        return sum(len(stage.forward) for stage in self.stages)

    @ft.cached_property
    def forward_writer(self) -> dict[int, tuple[int, int]]:
        """Value -> the stage and position of the forward op that writes it; gradients have none."""
        return {
            i: (s, o)
            for s, stage in enumerate(self.stages)
            for o, op in enumerate(stage.forward)
            for i in op.outputs
        }

    @ft.cached_property
    def forward_writer_number(self) -> dict[int, int]:
        """Value -> the position in `ops` of the forward op that writes it; gradients have none."""
        forward = self.ops[: self.forward_count]
        return {i: o for o, op in enumerate(forward) for i in op.outputs}

    @ft.cached_property
    def shared(self) -> frozenset[int]:
        """Forward values that an op of another stage reads."""
        return frozenset(
            i
            for s, stage in enumerate(self.stages)
            for op in stage.forward + stage.backward
            for i in op.may_read
            if self.forward_writer.get(i, (s,))[0] != s
        )

    def kept(self, first: int, last: int) -> tuple[Value, ...]:
        """What stages `first` to `last` keep for their own backward if left alone.

        Values only; `Stage.alone_bytes` come on top.
        """
        stages = self.stages[first : last + 1]
        read = {i for stage in stages for op in stage.backward for i in op.inputs}
        written = (i for stage in stages for op in stage.forward for i in op.outputs)
        return tuple(self.values[i] for i in written if i in read)

    def kept_bytes(self, first: int, last: int) -> int:
        """Bytes of `kept` while it waits."""
        return sum(value.waiting_bytes for value in self.kept(first, last))

    def aliased(self, first: int, values: Iterable[int]) -> frozenset[int]:
        """Values of a region, waiting for its backward, that lie in the memory of results.

        A region that begins at stage `first` uses the results of the stage before it, which are
        written when the region's backward is over; where recomputation is late, each of its stages
        uses those of the stage before. Each result takes one value, the largest come first. Values
        that other stages read as well do not count: they may wait for longer.
        """
        waiting: dict[int, list[int]] = {}
        for i in set(values) - self.shared:
            s = self.forward_writer[i][0] if self.recomputes_late else first
            waiting.setdefault(s, []).append(i)
        return frozenset(
            i for s, some in waiting.items() if s for i in self._aliased_in(s - 1, some)
        )

    def _aliased_in(self, s: int, values: Sequence[int]) -> set[int]:
        """Those of some values that find a place in the results of stage `s`."""
        free = sorted(self.stages[s].result_bytes)
        sizes = {i: self.values[i].nbytes for i in values if self.values[i].copies == 1}
        found = set()
        for i in sorted(sizes, key=lambda i: (-sizes[i], i)):
            place = bisect.bisect_left(free, sizes[i])
            if place < len(free) and sizes[i]:
                del free[place]
                found.add(i)
        return found

    @ft.cached_property
    def seconds(self) -> float:
        """Run time of the step when nothing is recomputed and every op runs in its first way."""
        return sum(op.seconds for op in self.ops if not op.optional)

    @ft.cached_property
    def least_seconds(self) -> float:
        """Run time when nothing is recomputed and every op runs in its fastest way.

        No schedule takes less: each of these ops runs at least once.
        """
        return sum(
            min(
                implementation.seconds
                for implementation in op.implementations
                if not implementation.only_again
            )
            for op in self.ops
            if not op.optional
        )


def _check_values(graph: Graph) -> None:
    names = [value.name for value in graph.values]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"Value names must be unique; {twice[:3]} occur more than once.")
    for value in graph.values:
        if value.nbytes < 0 or value.copies < 1:
            raise ValueError(
                f"Value `{value.name}` has {value.nbytes} bytes in {value.copies} copies; need 0 "
                "or more in at least one."
            )


def _check_loops(graph: Graph) -> None:
    start = 0
    for loop in graph.loops:
        if not (start <= loop.first and loop.length > 0 and loop.trips > 0):
            raise ValueError(f"{loop} overlaps another loop or is empty.")
        start = loop.stop
    for choice in graph.choices:
        ends = 0, *choice.firsts, choice.stop, len(graph.stages)
        if not choice.firsts or list(ends) != sorted(ends) or choice.stop == choice.first:
            raise ValueError(f"{choice} is empty, out of order, or ends behind the last stage.")
    if start > len(graph.stages):
        raise ValueError(f"{graph.loops[-1]} ends behind the last of {len(graph.stages)} stages.")


def _check_dataflow(graph: Graph) -> None:
    for stage in graph.stages:
        if stage.alone_bytes < 0:
            raise ValueError(f"Stage `{stage.name}` has a negative `alone_bytes`.")
    written: set[int] = set()
    for op in graph.ops:
        for implementation in op.implementations:
            _check_implementation(graph, op, implementation, written)
        for i in op.outputs:
            if not 0 <= i < len(graph.values) or i in written:
                raise ValueError(f"Op `{op.name}` writes value {i}: unknown or written before.")
            written.add(i)


def _check_implementation(
    graph: Graph, op: Op, implementation: Implementation, written: set[int]
) -> None:
    if not (implementation.seconds >= 0 and implementation.flops >= 0):
        raise ValueError(f"Op `{op.name}` has a negative time or FLOP count.")
    if implementation.workspace_bytes < -sum(graph.values[i].nbytes for i in op.outputs):
        raise ValueError(f"Op `{op.name}` writes more over its inputs than it writes.")
    for i in implementation.inputs:
        if i not in written:
            raise ValueError(f"Op `{op.name}` reads value {i}, which no earlier op writes.")
    if not set(implementation.overwrites) <= set(implementation.inputs):
        raise ValueError(f"Op `{op.name}` writes over what it does not read.")


def _check_backward(graph: Graph) -> None:
    for s, stage in enumerate(graph.stages):
        for op in stage.backward:
            for i in op.may_read:
                home = graph.forward_writer.get(i, (s,))[0]
                if home > s:
                    raise ValueError(
                        f"Backward op `{op.name}` of stage {s} reads `{graph.values[i].name}`, "
                        f"which the forward of the later stage {home} writes. "
                        f"Move the op to stage {home}."
                    )
