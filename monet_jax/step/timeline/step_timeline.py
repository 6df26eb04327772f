"""The memory of a whole step over time, as a frozen record: what is live, and when most is.

Parameters are the arguments that a gradient reads and that the step also reads outside of it, or
replaces. The optimizer's state is what only the rest of the step reads. Other arguments are the
batch and frozen parameters.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ...compiler.backend import Backend
from ...compiler.budget import format_bytes
from ...ir import compat
from ...ir.program import device_nbytes
from .liveness import GRADIENT, OUTSIDE, SAVED, TEMPORARY, Liveness, liveness

PARAMETERS, STATE, OTHERS, RESULTS = "parameters", "optimizer state", "other arguments", "results"
#: Kinds of live bytes, from the bottom of a chart to its top.
KINDS = (PARAMETERS, STATE, OTHERS, RESULTS, SAVED, GRADIENT, TEMPORARY)
#: Samples of a timeline, and values that are named at its peak, at most.
MAX_SAMPLES, LARGEST = 300, 8


@dataclasses.dataclass(frozen=True)
class Moment:
    """An op of a step.

    Attributes:
        op: its position among all ops.
        part: "forward", "backward", "forward and backward" (a loop over both) or "outside".
        primitive: of the op.
        source: `file:line` of the user's code; "" where it is not known.
    """

    op: int
    part: str
    primitive: str
    source: str


@dataclasses.dataclass(frozen=True)
class LiveValue:
    """A value that is live at the peak.

    Attributes:
        kind: of `KINDS`.
        nbytes: its bytes.
        array: its type and shape.
        primitive: of the op that writes it.
        source: `file:line` of the user's code; "" where it is not known.
    """

    kind: str
    nbytes: int
    array: str
    primitive: str
    source: str


@dataclasses.dataclass(frozen=True)
class StepTimeline:
    """Live bytes over a whole step on one device, by the model.

    Attributes:
        ops: how many ops the step has.
        moments: some of them, in order.
        live: kind -> bytes at each moment.
        peak: the position among the moments of the one with the most bytes.
        largest: the largest values then, arguments and results left out.
    """

    ops: int
    moments: tuple[Moment, ...]
    live: Mapping[str, tuple[int, ...]]
    peak: int
    largest: tuple[LiveValue, ...]

    @property
    def total_bytes(self) -> tuple[int, ...]:
        """Live bytes at each moment."""
        return tuple(sum(at) for at in zip(*self.live.values(), strict=True))

    @property
    def at_peak(self) -> dict[str, int]:
        """Kind -> bytes at the peak."""
        return {kind: nbytes[self.peak] for kind, nbytes in self.live.items()}

    def __str__(self) -> str:
        return _described(self)


def step_timeline(
    traced: jax.stages.Traced, backend: Backend, result_bytes: int, devices: int
) -> StepTimeline | None:
    """The timeline of a traced step; None where it has no op.

    Arguments:
        traced: the step, as planned.
        backend: the compiler.
        result_bytes: bytes of the results that lie in no donated argument, on one device.
        devices: over how many devices the step is sharded; temporaries are divided by it.
    """
    found = liveness(traced.jaxpr, backend)
    if not found.ops:
        return None
    kinds = {kind: found.bytes_of(kind) // devices for kind in (SAVED, GRADIENT, TEMPORARY)}
    total = np.sum([*kinds.values()], axis=0)
    parts = np.array_split(np.arange(len(total)), min(MAX_SAMPLES, len(total)))
    chosen = [int(part[total[part].argmax()]) for part in parts]
    fixed = {**_argument_bytes(traced, found), RESULTS: result_bytes}
    peak = int(total[chosen].argmax())
    return StepTimeline(
        len(total),
        tuple(_moment(found, n) for n in chosen),
        {kind: (nbytes,) * len(chosen) for kind, nbytes in fixed.items()}
        | {kind: tuple(x[chosen].tolist()) for kind, x in kinds.items()},
        peak,
        tuple(_largest(found, chosen[peak], devices)),
    )


def timeline_from_json(data: Any) -> StepTimeline:
    """The timeline from what `dataclasses.asdict` made of it.

    Raises:
        TypeError, KeyError: a field is missing or unknown.
    """
    rows = {
        "moments": tuple(Moment(**x) for x in data["moments"]),
        "live": {kind: tuple(x) for kind, x in data["live"].items()},
        "largest": tuple(LiveValue(**x) for x in data["largest"]),
    }
    return StepTimeline(**{**data, **rows})


def _argument_bytes(traced: jax.stages.Traced, found: Liveness) -> dict[str, int]:
    """Kind -> bytes of the arguments that the step reads, on one device; not of the host's."""
    inside, outside = set[int](), set[int]()
    for op, part in zip(found.ops, found.parts, strict=True):
        (outside if part == OUTSIDE else inside).update(op.inputs)
    returned = {i for i in found.program.outputs if isinstance(i, int)}
    sizes: dict[str, int] = dict.fromkeys((PARAMETERS, STATE, OTHERS), 0)
    leaves = zip(found.program.inputs, jax.tree.leaves(traced.args_info), strict=True)
    for i, info in leaves:
        if compat.is_on_host(found.program.avals[i]):
            continue
        if i in inside:
            kind = PARAMETERS if i in outside or info.donated else OTHERS
        elif i in outside or i in returned:
            kind = STATE
        else:
            continue
        sizes[kind] += device_nbytes(getattr(info, "_aval", info))
    return sizes


def _moment(found: Liveness, n: int) -> Moment:
    equation = found.ops[n].equation
    return Moment(n, found.parts[n], equation.primitive, compat.source_of(equation.eqn))


def _largest(found: Liveness, n: int, devices: int) -> Iterator[LiveValue]:
    """The largest values that are live at an op."""
    writer = {i: op.equation for op in found.ops for i in op.outputs}
    live = [span for span in found.spans if span.start <= n <= span.stop]
    for span in sorted(live, key=lambda span: -span.nbytes)[:LARGEST]:
        equation, aval = writer[span.value], found.program.avals[span.value]
        where = equation.primitive, compat.source_of(equation.eqn)
        yield LiveValue(span.kind, span.nbytes // devices, aval.str_short(), *where)


def _described(timeline: StepTimeline) -> str:
    """The peak as text: the moment, bytes by kind, and the largest values."""
    from ...report.tables import plain_table, render  # rich is imported only where a text is wanted

    moment, total = timeline.moments[timeline.peak], max(timeline.total_bytes)
    where = f" at {moment.source}" if moment.source else ""
    head = (
        f"Over the step, by the model, most is live at op {moment.op + 1} of {timeline.ops} "
        f"({moment.part}, `{moment.primitive}`{where}): {format_bytes(total)}."
    )
    table = plain_table("Kind", "At the peak", "Share", "At most", right=("At the peak", "Share"))
    for kind, nbytes in timeline.at_peak.items():
        most = max(timeline.live[kind])
        if most:
            share = f"{nbytes / total:.1%}" if total else ""
            table.add_row(kind, format_bytes(nbytes), share, format_bytes(most))
    values = plain_table("Largest then", "Bytes", "Array", "Op", "Line", right=("Bytes",))
    for x in timeline.largest:
        row = x.kind, format_bytes(x.nbytes), x.array, x.primitive, x.source
        values.add_row(*row)
    return "\n".join([head, "", render(table), "", render(values)])
