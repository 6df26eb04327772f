"""The ops of a stage's joint program, and how they are ordered, copied and rewired."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set

from ..compiler.backend import Backend
from ..ir.arrays.row_reductions import REDUCTIONS
from ..ir.program import Program
from .traced_stage import TracedStage


@dataclasses.dataclass(frozen=True, slots=True)
class LocalOp:
    """An op of a joint program; values are numbers of the joint program.

    Attributes:
        primitive: the name of the equation that it is built round.
        inputs: materialised values and inputs of the joint program that its fusion reads.
        outputs: materialised values that it writes.
        seconds, flops: of the equation and everything fused into it.
        forward: whether it belongs to the forward pass.
        recomputable: whether it may run again.
        has_effects: whether it must run even if nothing reads its outputs.
        in_place: whether its output may be written over an input.
        carries: inputs that a loop begins with and writes its results over.
        narrowed: inputs that it reads as bfloat16, if they are float32.
        reduced: what reductions inside of it read, over which nothing is written.
        copied: an input that it reads in another layout, if any.
        workspace_bytes: bytes that it needs only while it runs.
        reused_bytes: bytes of its outputs that XLA writes over an input which nothing reads later.
        implementations: further implementations, by what a plan saves.
        optional: whether it runs only where its outputs are saved.
        source: `file:line` of the user's code that it comes from; "" where that is not known.
        priced_by: where its seconds come from; "" where it takes none.
        counter_bytes: of the counters that it draws random bits from, if a loop has them made.
        kept_again: that it keeps for a backward that follows at once, beside its outputs: bytes
            of each, and which of the backward ops reads it last.
    """

    primitive: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float
    flops: int
    forward: bool
    recomputable: bool
    has_effects: bool = False
    in_place: bool = False
    carries: tuple[int, ...] = ()
    narrowed: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()
    copied: int | None = None
    workspace_bytes: int = 0
    reused_bytes: int = 0
    implementations: tuple["LocalImplementation", ...] = ()
    optional: bool = False
    source: str = ""
    priced_by: str = ""
    counter_bytes: int = 0
    kept_again: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class LocalImplementation:
    """Another implementation of a backward op.

    Attributes:
        inputs: what it reads, compressed residuals included.
        seconds: at least the op's own, so that plans are compared with saving everything, and no
            compressed residual is saved for the sake of speed.
        flops: of the op and everything fused into it.
        more_bytes: of workspace, for what it decodes or adds up.
    """

    inputs: tuple[int, ...]
    seconds: float
    flops: int
    more_bytes: int = 0


def placed(new: Sequence[LocalOp], ops: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops, new ones behind the last that writes something they read."""
    read = {i for op in new for i in op.inputs}
    places = [n + 1 for n, op in enumerate(ops) if read.intersection(op.outputs)]
    n = max(places, default=0)
    return [*ops[:n], *new, *ops[n:]]


def reading(op: LocalOp, instead: Mapping[int, int]) -> LocalOp:
    """The op, some values of what it reads replaced by others."""

    def replaced(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(instead.get(i, i) for i in values)

    implementations = tuple(
        dataclasses.replace(implementation, inputs=replaced(implementation.inputs))
        for implementation in op.implementations
    )
    return dataclasses.replace(op, inputs=replaced(op.inputs), implementations=implementations)


def with_reuse(
    ops: Sequence[LocalOp], joint: Program, kept: set[int | None], backend: Backend
) -> tuple[LocalOp, ...]:
    """The ops; a backward one that XLA writes over an input has the bytes that are reused.

    An elementwise result may lie where an input of its size lay that nothing reads later, unless a
    reduction inside the op reads that. A loop writes what it carries over what it began with: of
    several carries, the largest is counted.
    """
    last = {i: n for n, op in enumerate(ops) for i in op.inputs}
    sums = [op for op in ops if backend.sums_what_it_writes and op.primitive in REDUCTIONS]
    summed = {i for op in sums for i in op.inputs}
    late_sums = [op for op in sums if not op.forward]
    writer = {i: op for op in ops for i in op.outputs}
    found = []
    for n, op in enumerate(ops):
        output_bytes = sum(joint.nbytes(i) for i in op.outputs)
        dying = [i for i in op.inputs if last[i] == n and i not in kept]
        in_place = op.in_place and not op.forward and summed.isdisjoint(op.outputs)
        over = set(dying) - op.reduced - _summed_beside(op, writer, late_sums) if in_place else ()
        reuse = any(joint.nbytes(i) >= output_bytes for i in over)
        carried_bytes = max((joint.nbytes(i) for i in op.carries if i in dying), default=0)
        reused_bytes = output_bytes if reuse else carried_bytes
        found.append(dataclasses.replace(op, reused_bytes=reused_bytes))
    return tuple(found)


def _summed_beside(op: LocalOp, writer: Mapping[int, LocalOp], sums: Sequence[LocalOp]) -> set[int]:
    """Inputs of an op that sums read for which it does not wait: XLA:GPU runs them in its kernel.

    The gradient of a bias is one: with that of the operand it reads the cotangent.
    """
    reading = [x for x in sums if not {*x.inputs}.isdisjoint(op.inputs)]
    if not reading:
        return set()
    awaited, pending = set[int](), [*op.inputs]
    while pending:
        i = pending.pop()
        if i not in awaited:
            awaited.add(i)
            pending += writer[i].inputs if i in writer else ()
    return {i for x in reading if awaited.isdisjoint(x.outputs) for i in x.inputs}


def with_what_forward_ops_need(ops: Sequence[LocalOp]) -> list[LocalOp]:
    """Sets as forward what forward ops read: inside a user's `checkpoint`, values have no name."""
    read: set[int] = set()
    found = []
    for op in reversed(ops):
        if op.forward or read.intersection(op.outputs):
            op = dataclasses.replace(op, forward=True)
            read.update(op.inputs)
        found.append(op)
    return found[::-1]


def with_kept_again(
    forward: Sequence[LocalOp], backward: Sequence[LocalOp], shared: Mapping[int, Mapping[int, int]]
) -> list[LocalOp]:
    """The forward ops, with what they keep for a backward; see `traced_stage.shared_inside`."""

    def inside(op: LocalOp) -> dict[int, int]:
        return {i: size for j in op.outputs for i, size in shared.get(j, {}).items()}

    last = {i: n for n, op in enumerate(backward) for i in inside(op)}
    found = []
    for op in forward:  # the first that computes a value keeps it
        kept = tuple((size, last.pop(i)) for i, size in inside(op).items() if i in last)
        found.append(dataclasses.replace(op, kept_again=kept))
    return found


def each_after_its_inputs(ops: Sequence[LocalOp], known: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops in order, each preceded by the known ops that only it waits for."""
    writer = {i: op for op in known for i in op.outputs}
    placed: set[int] = set()
    ordered: list[LocalOp] = []

    def place(op: LocalOp) -> None:
        if id(op) in placed:
            return
        placed.add(id(op))
        for i in op.inputs:
            if i in writer:
                place(writer[i])
        ordered.append(op)

    for op in ops:
        place(op)
    return ordered


def with_kernels_later(ops: Sequence[LocalOp], backward: Set[int]) -> list[LocalOp]:
    """The ops; the gradient of a kernel is behind that of the operand, which reads the same.

    It is that of a convolution whose operands are copied, or of a product that no op reads.

    Arguments:
        ops: backward, in order.
        backward: values that depend on a cotangent.
    """
    read = {i for op in ops for i in op.inputs}

    def is_of_kernel(op: LocalOp) -> bool:
        is_result = op.primitive == "dot_general" and read.isdisjoint(op.outputs)
        return is_result or op.copied is not None

    found = list(ops)
    for op in filter(is_of_kernel, ops):
        n = found.index(op)
        behind = (k for k in _behind(found, n, backward) if not is_of_kernel(found[k]))
        if (k := next(behind, None)) is not None:
            found.insert(k, found.pop(n))
    return found


def with_kernels_transposed(trace: TracedStage, ops: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops; a gradient of a convolution's kernel is brought into the layout of the result.

    cuDNN writes it in its own layout. The result is written behind the gradient of the operand,
    so that the copy of the kernel, which that reads, may lie where the result will be.
    """
    read = {i for op in ops for i in op.inputs}
    found = list(ops)
    for op in ops:
        if op.primitive != "conv_general_dilated" or not read.isdisjoint(op.outputs):
            continue
        n = found.index(op)
        written = tuple(trace.new(i) for i in op.outputs)
        found[n] = dataclasses.replace(op, outputs=written)
        k = next(_behind(found, n, trace.backward), n)
        found.insert(k + 1, LocalOp("transpose", written, op.outputs, 0.0, 0, False, True))
    return found


def _behind(ops: Sequence[LocalOp], n: int, backward: Set[int]) -> Iterator[int]:
    """Places behind the n-th op of those of its kind that read a cotangent which it reads."""
    cotangents = backward & {*ops[n].inputs}
    for k, other in enumerate(ops[n + 1 :], n + 1):
        if other.primitive == ops[n].primitive and not cotangents.isdisjoint(other.inputs):
            yield k


def with_copies(trace: TracedStage, ops: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops; a separate op copies each forward value that gradients of kernels read.

    XLA:CPU runs the copy as soon as it can, so that the copy waits for the
    backward, beside its original where that is needed too. In a region that runs again, the
    copy runs again as well; it costs nothing more, since the forward then makes none.
    """
    sources = [_copied(trace, op) for op in ops]
    copies = {i: trace.new(i) for i in dict.fromkeys(sources) if i is not None}
    ready = {i for op in ops for i in op.outputs}
    found = [_copy(i, j) for i, j in copies.items() if i not in ready]
    for op, source in zip(ops, sources, strict=True):
        if source is not None:
            op = reading(op, {source: copies[source]})
            workspace = op.workspace_bytes - trace.program.nbytes(source)
            op = dataclasses.replace(op, workspace_bytes=workspace)
        found.append(op)
        found += [_copy(i, copies[i]) for i in op.outputs if i in copies]
    return found


def _copied(trace: TracedStage, op: LocalOp) -> int | None:
    """The value of the forward pass that a backward op reads through a copy."""
    if op.forward or op.copied is None:
        return None
    source = trace.fusions.root(op.copied)
    return source if source in op.inputs and source not in trace.backward else None


def with_spread(trace: TracedStage, ops: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops; separate ones spread what a library's reductions read as arrays.

    XLA:CPU runs them as soon as it can, for the forward and the backward at once.
    """
    spread: dict[tuple[int, int], int] = {}
    found, new = [], []
    for op in ops:
        for i, like in (x for j in op.outputs for x in trace.fusions.spread.get(j, ())):
            key = i, trace.program.nbytes(like)
            if key not in spread and i not in trace.backward:
                spread[key] = trace.new(like)
                behind, _ = trace.fusions.kept_behind([i])
                array = (spread[key],)
                new.append(LocalOp("broadcast_in_dim", tuple(behind), array, 0.0, 0, True, True))
            if key in spread:
                op = dataclasses.replace(op, inputs=(*op.inputs, spread[key]))
        found.append(op)
    for op in new:
        found = placed([op], found)
    return found


def _copy(source: int, copy: int) -> LocalOp:
    return LocalOp("copy", (source,), (copy,), 0.0, 0, forward=True, recomputable=True)
