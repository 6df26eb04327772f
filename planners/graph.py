"""Planning graphs: the ops of one training step, cut into stages, as plain numbers.

A `Graph` is a step's value and gradient at the granularity at which a compiler keeps arrays in
memory. Its stages run forward in order and backward in reverse order. The compiled program keeps
this order, so a plan decides per stage which values its forward leaves behind.

Arguments of the step (parameters, batch) are no values: they are live throughout, whatever the
plan.
"""

import bisect
import dataclasses
import functools as ft
import itertools as it
import math
from collections.abc import Iterable, Iterator, Sequence

from .checks import check_backward, check_dataflow, check_loops, check_values
from .elements import FETCHED as FETCHED
from .elements import Chip as Chip
from .elements import Choice as Choice
from .elements import Implementation as Implementation
from .elements import Link as Link
from .elements import Loop as Loop
from .elements import Op as Op
from .elements import Stage as Stage
from .elements import Value as Value


@dataclasses.dataclass(frozen=True)
class Graph:
    """A training step: values, and the stages whose ops produce and read them.

    Attributes:
        values: every array, indexed by the ops.
        stages: in forward order.
        recomputes_late: whether ops run again just before what reads them, or at a region's start.
        loops: in order. A region lies in one iteration, or outside of all loops.
        choices: a region lies in one branch, or outside of all. Of choices in branches, as much
            waits in all branches of the inner ones together.
        uniform_blocks: whether no iteration differs from both neighbours (`with_uniform_blocks`).
        zeros_first: whether gradients of tables begin as zeros when the step starts.
        most_error: limit on the sum of the errors of a plan's ops (`error_of`).
        link: to the host's memory; None where nothing moves there.
        chip: where a compiler keeps temporaries outside of main memory, if it does.
        spared_seconds: by which first runs take less: there a compiler moves ops out of loops.

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
    zeros_first: bool = False
    most_error: float = math.inf
    link: Link | None = None
    chip: Chip | None = None
    spared_seconds: float = 0.0

    def __post_init__(self):
        check_values(self.values)
        check_loops(self.loops, self.choices, len(self.stages))
        check_dataflow(self.values, self.stages, self.ops)
        check_backward(self.values, self.stages, self.forward_writer)

    @ft.cached_property
    def index(self) -> dict[str, int]:
        """Value name -> its index."""
        return {value.name: i for i, value in enumerate(self.values)}

    @ft.cached_property
    def units(self) -> tuple[int, ...]:
        """For each stage the first stage of the iteration, branch or straight part it lies in.

        A region lies within one of these.
        """
        return tuple(first for first, stop in self.spans for _ in range(first, stop))

    @ft.cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where each iteration, branch, and run of stages outside of both begins and ends."""
        return tuple(it.pairwise(sorted(_ends(self))))

    @ft.cached_property
    def branch_of(self) -> tuple[tuple[Choice, int] | None, ...]:
        """For each stage its choice, the outermost one, and which of its branches it is in."""
        return tuple(_branches(self))

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
        """For each op of `ops` its implementations; made once, since replay reads them a lot."""
        return tuple(op.implementations for op in self.ops)

    @ft.cached_property
    def op_numbers(self) -> dict[tuple[str, int, int], int]:
        """Phase ("forward" or "backward"), stage and position there -> position in `ops`."""
        return {key: number for number, key in enumerate(_op_keys(self.stages))}

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
        forward = [(s, o) for phase, s, o in self.op_numbers if phase == "forward"]
        return {i: (s, o) for s, o in forward for i in self.stages[s].forward[o].outputs}

    @ft.cached_property
    def forward_writer_number(self) -> dict[int, int]:
        """Value -> the position in `ops` of the forward op that writes it; gradients have none."""
        return {i: o for o, op in enumerate(self.ops[: self.forward_count]) for i in op.outputs}

    @ft.cached_property
    def shared(self) -> frozenset[int]:
        """Forward values that an op of another stage reads."""
        return frozenset(_read_elsewhere(self))

    def kept(self, first: int, last: int) -> tuple[Value, ...]:
        """What stages `first` to `last` keep if left alone, beside their `Stage.alone_bytes`."""
        stages = self.stages[first : last + 1]
        read = {i for stage in stages for op in stage.backward for i in op.inputs}
        written = (i for stage in stages for op in stage.forward for i in op.outputs)
        return tuple(self.values[i] for i in written if i in read)

    def kept_bytes(self, first: int, last: int) -> int:
        """Bytes of `kept` while it waits."""
        return sum(value.waiting_bytes for value in self.kept(first, last))

    def aliased(self, first: int, values: Iterable[int]) -> frozenset[int]:
        """Values of a region, waiting for its backward, that reuse the output buffers of results.

        A region that begins at stage `first` reuses the buffers of the stage before it, whose
        results are written when the region's backward is over; where recomputation is late, each
        of its stages reuses those of the stage before. Each buffer takes one value, the largest
        come first. Values that other stages read as well do not count: they may wait for longer.
        """
        waiting: dict[int, list[int]] = {}
        for i in set(values) - self.shared:
            s = self.forward_writer[i][0] if self.recomputes_late else first
            waiting.setdefault(s, []).append(i)
        return frozenset(i for s, some in waiting.items() if s for i in _aliased(self, s - 1, some))

    @ft.cached_property
    def seconds(self) -> float:
        """Run time of all ops, each once and in its first implementation; saving is left out."""
        return sum(op.seconds for op in self.ops if not op.optional) - self.spared_seconds

    @ft.cached_property
    def least_seconds(self) -> float:
        """Run time of all ops, each once and in its fastest implementation: the least there is."""
        return sum(op.least_seconds for op in self.ops if not op.optional) - self.spared_seconds


def _op_keys(stages: Sequence[Stage]) -> list[tuple[str, int, int]]:
    """Phase, stage and position of every op, in the order of its first run."""
    numbered = list(enumerate(stages))
    return [
        *(("forward", s, o) for s, stage in numbered for o in range(len(stage.forward))),
        *(("backward", s, o) for s, stage in numbered[::-1] for o in range(len(stage.backward))),
    ]


def _ends(graph: Graph) -> set[int]:
    """Stages at which an iteration, a branch or a run of stages outside of both ends."""
    ends = {0, len(graph.stages)}
    for loop in graph.loops:
        ends.update(range(loop.first, loop.stop + 1, loop.length))
    for choice in graph.choices:
        ends.update((*choice.firsts, choice.stop))
    return ends


def _read_elsewhere(graph: Graph) -> Iterator[int]:
    """Forward values that an op of another stage reads."""
    for s, stage in enumerate(graph.stages):
        for op in stage.forward + stage.backward:
            yield from (i for i in op.may_read if graph.forward_writer.get(i, (s,))[0] != s)


def _branches(graph: Graph) -> list[tuple[Choice, int] | None]:
    """For each stage its outermost choice and branch; inner choices come after outer ones."""
    found: list[tuple[Choice, int] | None] = [None] * len(graph.stages)
    for choice in sorted(graph.choices, key=lambda x: x.first - x.stop):
        if found[choice.first] is None:
            for b, (first, stop) in enumerate(choice.branches):
                found[first:stop] = [(choice, b)] * (stop - first)
    return found


def _aliased(graph: Graph, s: int, values: Sequence[int]) -> set[int]:
    """Those of some values that find an output buffer among the results of stage `s`."""
    free = sorted(graph.stages[s].result_bytes)
    sizes = {i: graph.values[i].nbytes for i in values if graph.values[i].copies == 1}
    found = set()
    for i in sorted(sizes, key=lambda i: (-sizes[i], i)):
        place = bisect.bisect_left(free, sizes[i])
        if place < len(free) and sizes[i]:
            del free[place]
            found.add(i)
    return found
