"""Implementations of backward ops, by the representations in which residuals are saved.

A backward op that reads something only through a residual hook (see `operators`) has one
implementation for each representation that a plan can save. An optional op of the forward writes
the compressed residual.
"""

import dataclasses
import itertools as it
import math
from collections.abc import Iterator, Mapping, Sequence, Set

from ..ir.costs import Work
from ..ir.primitives import Kind, kind_of
from ..ir.program import Equation
from ..operators import (
    Codec,
    Decoded,
    Derived,
    LocalDerivative,
    Stored,
    Windows,
    is_hook,
    others_of,
    representations_of,
)
from .fusion import Fusion
from .local_ops import LocalImplementation, LocalOp, placed
from .traced_stage import TracedStage

#: Residual hooks of one op that are decided one by one; more are decided together.
_MOST_HOOKS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class _Representation:
    """A representation in which an op may read a residual.

    Attributes:
        codec: what decodes it, if anything does.
        codes: the compressed residual, which a plan saves.
        others: what is read beside the compressed residual.
        direct: how the compressed residual is read without decoding, if it is.
    """

    codec: Codec | None
    codes: tuple[int, ...]
    others: tuple[int, ...]
    direct: Windows | None


def with_encoders(
    trace: TracedStage, ops: Sequence[LocalOp], fusions: Sequence[Fusion]
) -> list[LocalOp]:
    """The ops of fusions, backward ones with all implementations, and the encoders for them."""
    found = []
    for op, fusion in zip(ops, fusions, strict=True):
        if not op.forward and op.outputs:
            op = dataclasses.replace(op, implementations=tuple(_implementations(trace, fusion, op)))
        found.append(op)
    read = {
        i for op in found for implementation in op.implementations for i in implementation.inputs
    }
    for hook in filter(is_hook, trace.program.equations):
        found = placed(_encoders(trace, hook, read), found)
    return found


def _implementations(
    trace: TracedStage, fusion: Fusion, op: LocalOp
) -> Iterator[LocalImplementation]:
    """The implementations of an op beside its own, the best ones last."""
    equation, fusions = fusion.equation, trace.fusions
    _, hooks = fusions.reads_past(equation)
    if not hooks:
        return
    fewest, _ = fusions.reads_past(equation, hooks)
    # What the op reads in any case may be there without being saved.
    read = set(fusion.inputs)
    representations = {}
    for i, hook in hooks.items():
        # A hook spares nothing where the other hooks read the same.
        if fusions.reads_past(equation, hooks.keys() - {i})[0] > fewest:
            representations[i] = [
                x for x in _representations(trace, hook) if x.codes[0] not in read
            ]
    representations = {i: some for i, some in representations.items() if some}
    seen = [read]
    for chosen in _choices(representations):
        known = {i: x for i, x in zip(representations, chosen, strict=True) if x is not None}
        inputs = fusions.reads_past(equation, known)[0]
        for representation in known.values():
            inputs |= {*representation.codes, *representation.others}
        # An implementation that reads all that another one reads is of no use.
        if any(inputs.issuperset(other) for other in seen):
            continue
        seen.append(inputs)
        moved = sum(trace.program.nbytes(i) for i in {*inputs, *fusion.outputs})
        work, more_bytes = _work_by(trace, fusion, op, known)
        seconds = max(trace.prices.of_work(work, moved), op.seconds)
        yield LocalImplementation(tuple(sorted(inputs)), seconds, work.flops, more_bytes)


def _work_by(
    trace: TracedStage, fusion: Fusion, op: LocalOp, known: Mapping[int, _Representation]
) -> tuple[Work, int]:
    """The work of an op that reads some representations, and their bytes of workspace.

    What no fusion reads is decoded first; and so is what a reduction of rows reads, whose kernel
    decodes nothing.
    """
    work, nbytes = fusion.work, 0
    for i, representation in known.items():
        if representation.direct is not None:
            work = work.with_flops(representation.direct.flops)
            nbytes += representation.direct.workspace_bytes
        elif kind_of(fusion.equation) is Kind.SOLID or trace.fusions.root(i) in op.reduced:
            nbytes += trace.program.nbytes(i)
    return work, nbytes


def _representations(trace: TracedStage, hook: Equation) -> list[_Representation]:
    """The representations of a hook that a plan can use: this stage keeps what they read."""
    found = []
    for representation, values in representations_of(hook):
        roots = tuple(trace.fusions.root(i) for i in values)
        kept = all(i in trace.primal and trace.fusions.is_kept(i) for i in roots[:1])
        if roots and (kept or not isinstance(representation, Derived)):
            others, _ = trace.fusions.kept_behind(others_of(representation, hook))
            codec, direct = (
                getattr(representation, "codec", None),
                getattr(representation, "direct", None),
            )
            found.append(_Representation(codec, roots, tuple(others), direct and direct.by))
    return found


def _encoders(trace: TracedStage, hook: Equation, read: Set[int]) -> list[LocalOp]:
    """The ops that write a hook's compressed residuals and selectors, where some op reads them.

    A selector costs nothing to write.
    """
    written = [
        (representation, values)
        for representation, values in representations_of(hook)
        if not isinstance(representation, Decoded) and not read.isdisjoint(values[-1:])
    ]
    if not written:
        return []
    trace.primal |= _primal_codes(trace, hook)
    inputs = tuple(sorted(trace.fusions.reads_past(hook)[0]))
    work = Work(instructions=math.prod(trace.program.avals[hook.outputs[0]].shape))

    def encoder(representation: Derived | Stored, values: tuple[int, ...]) -> LocalOp:
        if isinstance(representation, Derived):
            return _encoder((), values[-1:], 0.0)
        moved = sum(map(trace.program.nbytes, (*inputs, *values)))
        return _encoder(inputs, values, trace.prices.of_work(work, moved))

    return list(it.starmap(encoder, written))


def _primal_codes(trace: TracedStage, hook: Equation) -> dict[int, int]:
    """Compressed residual in the joint program -> the same in the stage."""
    named = next(trace.hooked[i] for i in hook.outputs if i in trace.hooked)
    (original,) = (e for e in trace.stage.equations if named in e.outputs)
    return dict(zip(hook.outputs[1:], original.outputs[1:], strict=True))


def _choices(
    representations: Mapping[int, Sequence[_Representation]],
) -> Iterator[tuple[_Representation | None, ...]]:
    """For each hook one of its representations or none, the best choices last.

    A choice has at most one lossy codec for operands and one for local derivatives; every hook that
    knows the codec then uses it.
    """
    lossy: dict[bool, dict[str, None]] = {False: {}, True: {}}
    for representation in it.chain.from_iterable(representations.values()):
        if representation.codec is not None and representation.codec.kind.is_lossy:
            lossy[isinstance(representation.codec, LocalDerivative)][representation.codec.name] = (
                None
            )
    exact = [[x for x in some if not _is_lossy(x)] for some in representations.values()]
    if len(exact) <= _MOST_HOOKS:
        yield from it.product(*([None, *some] for some in exact))
    else:
        yield tuple(some[0] if some else None for some in exact)
    for names in it.product(*([None, *some] for some in lossy.values())):
        if any(names):
            yield tuple(_by_any(some, names) for some in representations.values())


def _by_any(
    representations: Sequence[_Representation], names: Sequence[str | None]
) -> _Representation | None:
    """The representation by a lossy codec of these names, or else the first exact one."""
    exact = [x for x in representations[:1] if not _is_lossy(x)]
    named = [x for x in representations if x.codec is not None and x.codec.name in names]
    return next(iter((*named, *exact)), None)


def _is_lossy(representation: _Representation) -> bool:
    return representation.codec is not None and representation.codec.kind.is_lossy


def _encoder(inputs: tuple[int, ...], codes: tuple[int, ...], seconds: float) -> LocalOp:
    return LocalOp(
        "encode", inputs, codes, seconds, 0, forward=True, recomputable=True, optional=True
    )
