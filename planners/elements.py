"""Values, ops, stages, loops and choices: the elements of a planning graph, as plain numbers.

An `Op` is one or several equations that a compiler runs together (a product with the elementwise
work fused into it); a `Value` is an array that it materialises. A `Stage` is a run of ops, forward
and backward, whose order a compiled program keeps.
"""

import dataclasses
import itertools as it
from collections.abc import Container

#: The implementation by which an op's results come back from the host's memory, where a plan moved
#: them: it reads nothing, and takes the device no time.
FETCHED = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """An array in memory.

    Attributes:
        name: unique in its graph, and stable between runs: plans refer to it.
        nbytes: size in bytes.
        savable: whether a plan may save it. Gradients and values inside opaque ops are not.
        copies: how many copies wait from the forward for the backward: in a loop, where one
            iteration stands for several, one for each of them.
        kept_as: the value that is in memory in its place, and is counted instead: loop-invariant
            values are kept once. It takes nothing itself.
        reader: the stage for whose backward a plan may move it to the host's memory, no other one
            reads it in its backward; None where it must not be moved.
        saving_seconds: what it takes, all copies together, to let it wait in the device's memory:
            what a loop saves is copied into a stack, and out of it.
    """

    name: str
    nbytes: int
    savable: bool = False
    copies: int = 1
    kept_as: int | None = None
    reader: int | None = None
    saving_seconds: float = 0.0

    @property
    def waiting_bytes(self) -> int:
        """Bytes in memory from the first forward to its backward."""
        return self.nbytes * self.copies


@dataclasses.dataclass(frozen=True, slots=True)
class Implementation:
    """An implementation of an op. All implementations of an op write the same values.

    Attributes:
        inputs, seconds, flops, workspace_bytes: as in `Op`.
        overwrites: values of `inputs` in whose memory the outputs are written: they are gone
            once the op has run. Their bytes are taken off `workspace_bytes`.
        only_again: whether it is open only where the op has run before (a batch norm whose
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
        alternatives: further implementations. A planner that knows of none uses the op's own
            figures. Alternatives of a backward op read less of its own inputs, and *codes*
            instead: compressed residuals that suffice (a packed mask, or what it can be computed
            from).
        optional: True for an op that need not run at all (it packs a mask that only one
            implementation of a backward op reads, say). If it writes no bytes, its output is a
            *selector*: plans save it to select an implementation whose other codes they may save
            for another purpose.
        error: of an optional op, the error of the step's gradient if it runs: the expected square
            of the error's norm, over the gradient's. Errors of several ops add up.
        counter_bytes: of the counters that it draws random bits from in a loop. They are made
            before the loop, once for all ops of all loops that read as many.
        kept_again: what a forward op keeps, beside its outputs, where it runs again right before
            the backward of its stage: bytes of each, and the position there of the op that reads
            it last.
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
    counter_bytes: int = 0
    kept_again: tuple[tuple[int, int], ...] = ()

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """Its implementations; the first has the op's own figures."""
        return (
            Implementation(self.inputs, self.seconds, self.flops, self.workspace_bytes),
            *self.alternatives,
        )

    def in_implementation(self, implementation: int) -> "Op":
        """The op with the figures of one of its implementations for its own."""
        if not implementation:
            return self
        if implementation == FETCHED:
            return dataclasses.replace(self, inputs=(), seconds=0.0, flops=0, workspace_bytes=0)
        x = self.alternatives[implementation - 1]
        return dataclasses.replace(
            self,
            inputs=x.inputs,
            seconds=x.seconds,
            flops=x.flops,
            workspace_bytes=x.workspace_bytes,
        )

    def implementation_by(self, saved: Container[int]) -> int:
        """The implementation of a backward op that a plan selects by what it saves.

        An implementation is open if it reads codes, and all of them are saved. The last open one
        is selected, or else the first of all.
        """
        for implementation in range(len(self.alternatives), 0, -1):
            codes = self.codes(self.alternatives[implementation - 1])
            if codes and all(i in saved for i in codes):
                return implementation
        return 0

    def codes(self, implementation: Implementation) -> frozenset[int]:
        """Values that an implementation reads beyond the op's own inputs."""
        return frozenset(implementation.inputs).difference(self.inputs)

    @property
    def may_read(self) -> frozenset[int]:
        """Values that some implementation reads."""
        return frozenset(
            i for implementation in self.implementations for i in implementation.inputs
        )

    @property
    def least_seconds(self) -> float:
        """Seconds of the fastest implementation that is open to the first run."""
        return min(x.seconds for x in self.implementations if not x.only_again)

    @property
    def always_reads(self) -> frozenset[int]:
        """Values that every implementation reads."""
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
        alone_seconds: what it takes to save these.
        may_be_alone: whether a plan may leave it alone, keeping also values that are not savable.
            Planners do so in any case where its backward needs a value that can be neither saved
            nor computed again.
        result_bytes: sizes of the results of the step that its backward writes (its parameters'
            gradients). They are no values; until they are written, values may reuse their
            buffers.
        sliced_bytes: of copies of slices that it reads where a loop takes operands in slices, from
            the start of its iteration's backward on.
    """

    name: str
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    key: str | None = None
    alone_bytes: int = 0
    alone_seconds: float = 0.0
    may_be_alone: bool = True
    result_bytes: tuple[int, ...] = ()
    sliced_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """Stages that are the iterations of a loop.

    Attributes:
        first: its first stage.
        length: stages of one iteration.
        trips: how many iterations there are; each may stand for several (`Value.copies`).
        zeros_first: whether a compiler makes the zeros that gradients of what all iterations read
            are added to when the step starts, where all iterations run one body.
    """

    first: int
    length: int
    trips: int
    zeros_first: bool = False

    @property
    def stop(self) -> int:
        """The first stage behind it."""
        return self.first + self.length * self.trips


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """The link between the device and the host's memory, and how much of that a plan may take.

    Attributes:
        out_bytes_per_second, back_bytes_per_second: to the host, and to the device. Both ways work
            at the same time, each for one copy at a time.
        host_bytes: that a plan may take.
        least_slots: of the stack in which an array of no loop waits there.
    """

    out_bytes_per_second: float
    back_bytes_per_second: float
    host_bytes: int
    least_slots: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """The memory on a device's chip, where arrays stay that are not live for long.

    Attributes:
        nbytes: of such arrays at a time.
        seconds: that an array may stay.
    """

    nbytes: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Stages that are the branches of a choice, of which one runs, forward and backward.

    The branches' stages stand one after the other. The branch for which most waits sets the bytes
    that wait for the backward.

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
