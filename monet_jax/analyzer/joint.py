"""One stage's forward and backward as the ops that XLA will run and the values it will keep.

The stage's value and pulled-back gradient are traced together, with a `checkpoint_name` on every
primal value, so that each residual is known by the primal value that produces it. What the trace
fuses away is no value (see `ir/primitives`); what remains becomes ops:

    forward    an equation that writes a primal value
    backward   an equation that depends on a cotangent, or prepares something only for one that does

A backward op that reads something through a tap alone (see `operators`) has a way for each form in
which that can be kept, and what encodes it is an optional op of the forward.

The result, a `Joint`, names values by local numbers, so that isomorphic stages can share it.
"""

import dataclasses
import itertools as it
import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

import jax

from ..compiler.backend import Backend
from ..compiler.workspace import copied_operand, workspace_bytes
from ..ir import compat
from ..ir.costs import Roofline, Work
from ..ir.primitives import PRODUCTS, Kind, kind_of, must_run_once
from ..ir.program import Equation, Program, dependents, flatten, run
from ..ir.stage import Stage, abstract
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
from .fusion import Fusion, Fusions

#: Primitives that XLA runs in place on their first operand.
_UPDATES = ("scatter", "dynamic_update_slice")
_PREFIX = "monet_jax.trace:"
#: Taps of one op that are decided one by one; more are decided together.
_MOST_HOOKS = 3


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
        narrowed: inputs that it reads as bfloat16, if they are float32.
        copied: an input that it reads in another layout, if any.
        workspace_bytes: bytes that it needs only while it runs.
        reused_bytes: bytes of its outputs that XLA writes over an input which nothing reads later.
        implementations: further ways to run it, by what a plan saves.
        optional: whether it runs only where its outputs are saved.
        source: `file:line` of the user's code that it comes from; "" where that is not known.
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
    narrowed: tuple[int, ...] = ()
    copied: int | None = None
    workspace_bytes: int = 0
    reused_bytes: int = 0
    implementations: tuple["LocalImplementation", ...] = ()
    optional: bool = False
    source: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LocalImplementation:
    """A way in which a backward op may run.

    Attributes:
        inputs: what it reads, codes included.
        seconds: no less than those of the op, so that plans are compared with saving everything,
            and no code is kept for the sake of speed.
        flops: as those of the op.
        more_bytes: of workspace, for what it decodes or sums up.
    """

    inputs: tuple[int, ...]
    seconds: float
    flops: int
    more_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Joint:
    """A stage's value and gradient as ops.

    Attributes:
        program: the flat joint program.
        ops: forward ops in order, then backward ops in order.
        primal: joint value -> primal value of the stage that it is.
        inputs: joint value for each input of the stage.
        outputs: joint value (or None) for each output of the stage.
        cotangents: joint value for each differentiated output of the stage.
        gradients: joint value (or None) for each differentiated input of the stage.
    """

    program: Program
    ops: tuple[LocalOp, ...]
    primal: dict[int, int]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    cotangents: tuple[int, ...]
    gradients: tuple[int | None, ...]


def joint_of(
    program: Program,
    stage: Stage,
    roofline: Roofline,
    backend: Backend,
    pinned: Collection[int] = frozenset(),
) -> Joint:
    """Trace a stage's value and gradient and find its ops; `pinned` values are never fused."""
    joint = flatten(_trace(program, stage))
    return _Reader(joint, stage, roofline, backend, pinned).read()


def _trace(program: Program, stage: Stage) -> Any:
    """The jaxpr of `(inputs, cotangents) -> (outputs, gradients)`, primal values named."""
    names = {
        i: f"{_PREFIX}{i}"
        for e in stage.equations
        for i in e.outputs
        if hasattr(program.avals[i], "dtype") and not compat.is_key(program.avals[i])
    }
    places = {i: n for n, i in enumerate(stage.inputs)}

    def forward(differentiated, inputs):
        env = {i: inputs[places[i]] for i in stage.inputs} | dict(program.constants)
        env |= dict(zip(stage.differentiated_inputs, differentiated, strict=True))
        run(stage.equations, env, names)
        outputs = {i: env[i] for i in stage.outputs}
        return [outputs[i] for i in stage.differentiated_outputs], list(outputs.values())

    def joint(inputs, cotangents):
        differentiated = [inputs[places[i]] for i in stage.differentiated_inputs]
        _, pull, outputs = jax.vjp(lambda d: forward(d, inputs), differentiated, has_aux=True)
        return outputs, pull(cotangents)[0]

    with jax.debug_key_reuse(False):  # a part may use some of the keys that it hands on
        return jax.make_jaxpr(joint)(
            abstract(program, stage.inputs), abstract(program, stage.differentiated_outputs)
        )


class _Reader:
    """Reads a joint program into ops; the attributes are its tables, filled in this order."""

    def __init__(
        self,
        joint: Program,
        stage: Stage,
        roofline: Roofline,
        backend: Backend,
        pinned: Collection[int],
    ):
        self.joint, self.stage, self.roofline, self.backend = joint, stage, roofline, backend
        named = [(i, e.outputs[0]) for e in joint.equations for i in _named(e)]
        self.tapped = {j: i for e in joint.equations for i in _named(e) for j in e.reads}
        kept = [value for i, value in named if i in pinned]
        self.fusions = Fusions(joint, backend.fuses_into_products, kept)
        self.cotangents = joint.inputs[len(stage.inputs) :]
        self.backward = dependents(joint.equations, self.cotangents)
        self.primal = self._primal(named)

    def read(self) -> Joint:
        ops = self._ops()
        outputs = [self.fusions.root(i) if isinstance(i, int) else None for i in self.joint.outputs]
        split = len(self.stage.outputs)
        given = self.joint.inputs[: len(self.stage.inputs)]
        return Joint(
            self.joint,
            _with_reuse(ops, self.joint, {*outputs, *given}),
            self.primal,
            given,
            tuple(outputs[:split]),
            self.cotangents,
            tuple(outputs[split:]),
        )

    def _primal(self, named: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Joint value -> primal value, by the names given while tracing."""
        primal: dict[int, int] = {}
        for i, value in named:
            if self.fusions.root(value) not in self.backward:
                primal.setdefault(self.fusions.root(value), i)
        return primal

    def _ops(self) -> tuple[LocalOp, ...]:
        fusions = list(self.fusions.all())
        made = _with_what_forward_ops_need([self._op(fusion) for fusion in fusions])
        if any(map(is_hook, self.joint.equations)):
            made = self._with_encoders(made, fusions)
        made = self._with_copies(made)
        forward = [op for op in made if op.forward]
        later = [op for op in made if not op.forward]
        pulled = [op for op in later if self.backward.intersection(op.outputs)]
        return tuple(forward + _each_after_its_inputs(pulled, later))

    def _with_copies(self, ops: Sequence[LocalOp]) -> list[LocalOp]:
        """The ops; an op of its own copies what gradients of kernels read of the forward pass.

        XLA:CPU runs the copy as soon as it can, so that it is the copy which waits for the
        backward, beside its original where that is needed too. In a region that runs again, the
        copy runs again as well; it costs nothing more, since the forward then makes none.
        """
        sources = {id(op): self._copied(op) for op in ops}
        copies = {i: self._new(i) for i in dict.fromkeys(sources.values()) if i is not None}
        ready = {i for op in ops for i in op.outputs}
        found = [_copy(i, j) for i, j in copies.items() if i not in ready]
        for op in ops:
            source = sources[id(op)]
            if source is not None:
                op = _reading(op, {source: copies[source]})
                workspace = op.workspace_bytes - self.joint.nbytes(source)
                op = dataclasses.replace(op, workspace_bytes=workspace)
            found.append(op)
            found += [_copy(i, copies[i]) for i in op.outputs if i in copies]
        return found

    def _with_encoders(self, ops: Sequence[LocalOp], fusions: Sequence[Fusion]) -> list[LocalOp]:
        """The ops of fusions, the backward ones in all their ways, and what encodes for them."""
        found = []
        for op, fusion in zip(ops, fusions, strict=True):
            if not op.forward and op.outputs:
                op = dataclasses.replace(
                    op, implementations=tuple(self._implementations(fusion, op.seconds))
                )
            found.append(op)
        read = {
            i
            for op in found
            for implementation in op.implementations
            for i in implementation.inputs
        }
        for tapped in filter(is_hook, self.joint.equations):
            found = _placed(self._encoders(tapped, read), found)
        return found

    def _implementations(
        self, fusion: Fusion, least_seconds: float
    ) -> Iterator[LocalImplementation]:
        """The ways of an op beside its own, the best ones last."""
        equation, fusions = fusion.equation, self.fusions
        _, hooks = fusions.reads_past(equation)
        if not hooks:
            return
        fewest, _ = fusions.reads_past(equation, hooks)
        # What the op reads in any case may be there without being saved.
        read = set(fusion.inputs)
        representations = {}
        for i, tapped in hooks.items():
            # Taps beside which everything is read anyway are of no use.
            if fusions.reads_past(equation, hooks.keys() - {i})[0] > fewest:
                representations[i] = [
                    x for x in self._representations(tapped) if x.codes[0] not in read
                ]
        representations = {i: some for i, some in representations.items() if some}
        seen = [read]
        for chosen in _choices(representations):
            known = {i: x for i, x in zip(representations, chosen, strict=True) if x is not None}
            inputs = fusions.reads_past(equation, known)[0]
            for representation in known.values():
                inputs |= {*representation.codes, *representation.others}
            # Where no more is spared than in another way, this one is of no use.
            if any(inputs.issuperset(other) for other in seen):
                continue
            seen.append(inputs)
            moved = sum(self.joint.nbytes(i) for i in {*inputs, *fusion.outputs})
            work, more_bytes = self._work_by(fusion, known)
            seconds = max(self.roofline.seconds(work, moved), least_seconds)
            yield LocalImplementation(tuple(sorted(inputs)), seconds, work.flops, more_bytes)

    def _work_by(self, fusion: Fusion, known: Mapping[int, "_Representation"]) -> tuple[Work, int]:
        """The work of an op by forms of some taps, and the bytes of workspace that they take."""
        work, nbytes = fusion.work, 0
        for i, representation in known.items():
            if representation.direct is not None:
                work = dataclasses.replace(work, flops=representation.direct.flops)
                nbytes += representation.direct.workspace_bytes
            elif kind_of(fusion.equation) is Kind.SOLID:
                nbytes += self.joint.nbytes(i)
        return work, nbytes

    def _representations(self, tapped: Equation) -> list["_Representation"]:
        """The forms of a tap that a plan can use: what is read for them is kept in this stage."""
        found = []
        for representation, values in representations_of(tapped):
            roots = tuple(self.fusions.root(i) for i in values)
            kept = all(i in self.primal and self.fusions.is_kept(i) for i in roots[:1])
            if roots and (kept or not isinstance(representation, Derived)):
                others, _ = self.fusions.kept_behind(others_of(representation, tapped))
                codec, direct = (
                    getattr(representation, "codec", None),
                    getattr(representation, "direct", None),
                )
                found.append(_Representation(codec, roots, tuple(others), direct and direct.by))
        return found

    def _encoders(self, tapped: Equation, read: Set[int]) -> list[LocalOp]:
        """The ops that write the codes of what passes a tap, and marks, those that some op reads.

        Marks are written for nothing.
        """
        written = [
            (representation, values)
            for representation, values in representations_of(tapped)
            if not isinstance(representation, Decoded) and not read.isdisjoint(values[-1:])
        ]
        if not written:
            return []
        self.primal |= self._primal_codes(tapped)
        inputs = tuple(sorted(self.fusions.reads_past(tapped)[0]))
        work = Work(instructions=math.prod(self.joint.avals[tapped.outputs[0]].shape))

        def encoder(representation: Derived | Stored, values: tuple[int, ...]) -> LocalOp:
            if isinstance(representation, Derived):
                return _encoder((), values[-1:], 0.0)
            moved = sum(map(self.joint.nbytes, (*inputs, *values)))
            return _encoder(inputs, values, self.roofline.seconds(work, moved))

        return list(it.starmap(encoder, written))

    def _primal_codes(self, tapped: Equation) -> dict[int, int]:
        """Code in the joint program -> code in the stage."""
        named = next(self.tapped[i] for i in tapped.outputs if i in self.tapped)
        (original,) = (e for e in self.stage.equations if named in e.outputs)
        return dict(zip(tapped.outputs[1:], original.outputs[1:], strict=True))

    def _copied(self, op: LocalOp) -> int | None:
        """The value of the forward pass that a backward op reads through a copy."""
        if op.forward or op.copied is None:
            return None
        source = self.fusions.root(op.copied)
        return source if source in op.inputs and source not in self.backward else None

    def _new(self, like: int) -> int:
        """A new value, as large as another one."""
        avals = (*self.joint.avals, self.joint.avals[like])
        self.joint = dataclasses.replace(self.joint, avals=avals)
        return len(avals) - 1

    def _op(self, fusion: Fusion) -> LocalOp:
        equation, outputs = fusion.equation, fusion.outputs
        has_effects = bool(equation.eqn.effects)
        is_primal = has_effects or any(i in self.primal for i in outputs)
        scratch = self.backend.needs_scratch
        return LocalOp(
            equation.primitive,
            fusion.inputs,
            outputs,
            fusion.seconds(self.joint, self.roofline),
            fusion.work.flops,
            is_primal and not self.backward.intersection(outputs),
            not any(must_run_once(e) for e in (equation, *fusion.fused)),
            has_effects,
            kind_of(equation) is Kind.FUSED or equation.primitive.startswith(_UPDATES),
            self._narrowed(equation),
            copied_operand(equation) if scratch else None,
            workspace_bytes(equation) if scratch else 0,
            source=compat.source_of(equation.eqn),
        )

    def _narrowed(self, equation: Equation) -> tuple[int, ...]:
        """The operands of a product; not what its fusion computes them from."""
        if self.backend.narrows_operands and _is_default_product(equation):
            return tuple(self.fusions.root(i) for i in equation.reads)
        return ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Representation:
    """In which form a residual may be read.

    Attributes:
        codec: by which it is decoded, if by any.
        codes: what a plan saves for it.
        others: what is read beside.
        direct: how the code is read as it is, if it is not decoded.
    """

    codec: Codec | None
    codes: tuple[int, ...]
    others: tuple[int, ...]
    direct: Windows | None


def _choices(
    representations: Mapping[int, Sequence[_Representation]],
) -> Iterator[tuple[_Representation | None, ...]]:
    """For each tap one of its forms or none, the best choices last.

    At most one lossy codec at a time for operands, and one for slopes, and then for every tap that
    knows it.
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
    """The form by a lossy codec of these names; if there is none, the first exact one."""
    exact = [x for x in representations[:1] if not _is_lossy(x)]
    named = [x for x in representations if x.codec is not None and x.codec.name in names]
    return next(iter((*named, *exact)), None)


def _is_lossy(representation: _Representation) -> bool:
    return representation.codec is not None and representation.codec.kind.is_lossy


def _named(equation: Equation) -> Iterator[int]:
    """The primal value that an equation names, if any."""
    name = compat.checkpoint_name_of(equation.eqn)
    if name.startswith(_PREFIX):
        yield int(name[len(_PREFIX) :])


def _is_default_product(equation: Equation) -> bool:
    if equation.primitive not in PRODUCTS:
        return False
    asked = equation.eqn.params["precision"]
    asked = asked if isinstance(asked, tuple) else (asked,)
    return all(x in (None, jax.lax.Precision.DEFAULT) for x in asked)


def _copy(source: int, copy: int) -> LocalOp:
    return LocalOp("copy", (source,), (copy,), 0.0, 0, forward=True, recomputable=True)


def _encoder(inputs: tuple[int, ...], code: tuple[int, ...], seconds: float) -> LocalOp:
    return LocalOp(
        "encode", inputs, code, seconds, 0, forward=True, recomputable=True, optional=True
    )


def _placed(new: Sequence[LocalOp], ops: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops, new ones behind the last that writes something they read."""
    wanted = {i for op in new for i in op.inputs}
    places = [n + 1 for n, op in enumerate(ops) if wanted.intersection(op.outputs)]
    n = max(places, default=0)
    return [*ops[:n], *new, *ops[n:]]


def _reading(op: LocalOp, instead: Mapping[int, int]) -> LocalOp:
    """The op, some values of what it reads replaced by others."""

    def replaced(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(instead.get(i, i) for i in values)

    implementations = tuple(
        dataclasses.replace(implementation, inputs=replaced(implementation.inputs))
        for implementation in op.implementations
    )
    return dataclasses.replace(op, inputs=replaced(op.inputs), implementations=implementations)


def _with_reuse(
    ops: Sequence[LocalOp], joint: Program, kept: set[int | None]
) -> tuple[LocalOp, ...]:
    """The ops; backward ones that XLA writes over an input say how many bytes that spares.

    Elementwise results may lie where an input of their size lay that nothing reads later.
    """
    last = {i: n for n, op in enumerate(ops) for i in op.inputs}
    found = []
    for n, op in enumerate(ops):
        wanted = sum(joint.nbytes(i) for i in op.outputs)
        dying = (i for i in op.inputs if last[i] == n and i not in kept)
        reuse = op.in_place and not op.forward and any(joint.nbytes(i) >= wanted for i in dying)
        found.append(dataclasses.replace(op, reused_bytes=wanted if reuse else 0))
    return tuple(found)


def _with_what_forward_ops_need(ops: Sequence[LocalOp]) -> list[LocalOp]:
    """Marks as forward what forward ops read: inside a user's `checkpoint`, values have no name."""
    read: set[int] = set()
    found = []
    for op in reversed(ops):
        if op.forward or read.intersection(op.outputs):
            op = dataclasses.replace(op, forward=True)
            read.update(op.inputs)
        found.append(op)
    return found[::-1]


def _each_after_its_inputs(ops: Sequence[LocalOp], known: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops in order, each preceded by those of the known ops that only it waits for."""
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
