"""Live bytes over a whole step: its traced program, op by op, as a compiler fuses it.

The ops run in the order of the trace, but for what reads gradients: the optimizer's update of a
parameter runs once its gradient is there, as in XLA's schedules that save memory. Where an update
needs all gradients (clipping by their global norm), these wait. A loop or a branch is one op, with
what its body has live at the body's peak.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...analyzer.fusion import Fusion, Fusions
from ...compiler.backend import Backend
from ...ir import compat
from ...ir.primitives import is_in_place
from ...ir.program import Equation, Program, flatten

#: What a value is for that is neither an argument nor a result.
SAVED, GRADIENT, TEMPORARY = "saved values", "gradients", "temporaries"
#: Parts of a step: passes of a gradient, both of them in one loop, and all that is in none.
FORWARD, BACKWARD, BOTH, OUTSIDE = "forward", "backward", "forward and backward", "outside"


@dataclasses.dataclass(frozen=True)
class Span:
    """A value that is live from one op to another, both included.

    Attributes:
        value: its number in the program.
        kind: what it is for.
        start, stop: the ops.
        nbytes: its bytes.
    """

    value: int
    kind: str
    start: int
    stop: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Liveness:
    """What is live in a program, its inputs and results left out.

    Attributes:
        program: the program.
        ops: in the order in which they are taken to run.
        parts: the part of the step that each op belongs to.
        spans: the values.
        inside: for each op, what the body of a loop has live: kind -> bytes.
    """

    program: Program
    ops: tuple[Fusion, ...]
    parts: tuple[str, ...]
    spans: tuple[Span, ...]
    inside: tuple[Mapping[str, int], ...]

    def bytes_of(self, kind: str) -> np.ndarray:
        """Bytes of one kind at each op: int64, shape [ops]."""
        change = np.zeros(len(self.ops) + 1, np.int64)
        for span in self.spans:
            if span.kind == kind:
                change[span.start] += span.nbytes
                change[span.stop + 1] -= span.nbytes
        return np.cumsum(change)[:-1] + [x.get(kind, 0) for x in self.inside]

    def at_peak(self) -> tuple[int, dict[str, int]]:
        """The op with the most live bytes, and these by kind."""
        kinds = {kind: self.bytes_of(kind) for kind in (SAVED, GRADIENT, TEMPORARY)}
        peak = int(np.sum([*kinds.values()], axis=0).argmax()) if self.ops else 0
        return peak, {kind: int(x[peak]) if self.ops else 0 for kind, x in kinds.items()}


def liveness(jaxpr: Any, backend: Backend) -> Liveness:
    """What is live at each op of a closed jaxpr, on all devices together."""
    program = flatten(jaxpr, inline_checkpoints=True, inline_mapped=True)
    fusions = Fusions(program, backend)
    ops, parts = _ordered([(op, part_of(op.equation)) for op in fusions.all()])
    outside = {fusions.root(i) for i in program.outputs if isinstance(i, int)} | program.given
    spans = _spans(program, ops, _kinds(ops, parts), outside)
    inside = tuple(_inside(op, backend) for op in ops)
    return Liveness(program, ops, parts, tuple(spans), inside)


def _spans(
    program: Program, ops: Sequence[Fusion], kinds: Mapping[int, str], outside: set[int]
) -> Iterator[Span]:
    """The values that ops write; one that is overwritten ends before the op that does so."""
    last = {i: n for n, op in enumerate(ops) for i in op.inputs}
    stops = {i: max(n, last.get(i, n)) for n, op in enumerate(ops) for i in op.outputs}
    for n, op in enumerate(ops):
        size = sum(program.nbytes(i) for i in op.outputs if i not in outside)
        if is_in_place(op.equation) and size:
            ending = (i for i in op.inputs if stops.get(i) == n and i not in outside)
            reused = next((i for i in ending if program.nbytes(i) >= size), None)
            if reused is not None:
                stops[reused] = n - 1
    for n, op in enumerate(ops):
        for i in op.outputs:
            if i not in outside and stops[i] >= n:
                nbytes = program.nbytes(i) * compat.parts(program.avals[i])
                yield Span(i, kinds.get(i, TEMPORARY), n, stops[i], nbytes)


def _kinds(ops: Sequence[Fusion], parts: Sequence[str]) -> dict[int, str]:
    """Value -> what it is for, of those that are more than temporaries."""
    found = {}
    written = {i: part for op, part in zip(ops, parts, strict=True) for i in op.outputs}
    for op, part in zip(ops, parts, strict=True):
        for i in op.inputs:
            if written.get(i) == FORWARD and part in (BACKWARD, BOTH):
                found[i] = SAVED
            if written.get(i) in (BACKWARD, BOTH) and part == OUTSIDE:
                found[i] = GRADIENT
    return found


def _ordered(
    ops: Sequence[tuple[Fusion, str]],
) -> tuple[tuple[Fusion, ...], tuple[str, ...]]:
    """The ops and their parts, those outside of gradients right behind what they read."""
    ready: dict[int, int] = {}
    places = []
    for n, (op, part) in enumerate(ops):
        place = n
        if part == OUTSIDE:
            place = max((ready[i] for i in op.inputs if i in ready), default=-1)
        ready.update(dict.fromkeys(op.outputs, place))
        places.append((place, n))
    order = [ops[n] for _, n in sorted(places)]
    return tuple(op for op, _ in order), tuple(part for _, part in order)


def part_of(equation: Equation) -> str:
    """The part of the step that an equation belongs to, by the names that JAX gives equations."""
    found = {_part(equation.name_stack), *_parts_inside(equation.eqn)} - {OUTSIDE}
    return BOTH if len(found) > 1 else next(iter(found), OUTSIDE)


def _part(name_stack: Any) -> str:
    text = str(name_stack)
    return BACKWARD if "transpose(" in text else FORWARD if "jvp(" in text else OUTSIDE


def _parts_inside(eqn: Any) -> set[str]:
    inner = [e for jaxpr in compat.subjaxprs(eqn) for e in jaxpr.jaxpr.eqns]
    found = {_part(e.source_info.name_stack) for e in inner}
    return found.union(*map(_parts_inside, inner))


def _inside(op: Fusion, backend: Backend) -> Mapping[str, int]:
    """What a loop's body, or the largest branch, has live at its peak."""
    bodies = (liveness(x, backend).at_peak()[1] for x in compat.subjaxprs(op.equation.eqn))
    most = max(bodies, key=lambda live: sum(live.values()), default={})
    return most
