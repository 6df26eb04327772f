"""The rows of a plan's tables: values, stages, loops, compiled programs, sources of seconds."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ValueRow:
    """A value of the forward pass in a report.

    Attributes:
        name: as pins name it.
        nbytes: its size in bytes.
        decision: "saved" (by name), "kept" (in a stage left alone), "passed" (the input of a later
            region, which keeps it), "host" (it waits in the host's memory), "recomputed", or
            "unread": the backward reads it nowhere.
        operator: how it is stored: "exact", or by which codec.
        shape: of the array.
        dtype: of the array.
        primitive: of the equation that makes it.
        path: module path; "" where the model gives none.
        source: `file:line` of the user's code.
        stage: the stage that makes it.
        place: among the values of its stage; equal values of equal stages have equal places.
        checkpoint_name: the user's own; "" where there is none.
        reader: the first stage for whose backward it waits as it was first written; None where it
            does not wait.
        recompute_seconds: of a step, what computing it again takes: more than now where it is
            saved, in what is taken now where it is recomputed, with all that it alone needs. None
            where its decision cannot be turned round.
    """

    name: str
    nbytes: int
    decision: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    primitive: str
    path: str
    source: str
    stage: int
    place: int = 0
    checkpoint_name: str = ""
    reader: int | None = None
    recompute_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class StageRow:
    """A stage in a report.

    Attributes:
        title: module path of its first equation.
        decision: "alone", "checkpoint", or "nested" inside a larger region.
        saved_bytes: bytes of the values that its forward saves by name.
        host_bytes: bytes of what waits in the host's memory for its backward.
        key: equal for isomorphic stages.
    """

    title: str
    decision: str
    saved_bytes: int
    host_bytes: int
    key: str


@dataclasses.dataclass(frozen=True)
class LoopRow:
    """A `scan` whose iterations are planned.

    Attributes:
        source: `file:line` of the user's code.
        first: its first stage.
        length: stages of one iteration.
        trips: iterations of each of its blocks; those of a block have one plan.
    """

    source: str
    first: int
    length: int
    trips: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class CompiledRow:
    """A program that planning compiled.

    Attributes:
        program: what it is.
        seconds: modelled time of the step.
        predicted_bytes: by the model, before it was compiled.
        compiled_bytes: by the compiler; None if it failed.
        compile_seconds: how long it took; None if the compiler failed.
        step_seconds: the step's by the clock; None where it was not run.
    """

    program: str
    seconds: float
    predicted_bytes: int
    compiled_bytes: int | None
    compile_seconds: float | None
    step_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class BaselineRow:
    """A program that a plan was compared with; the function as it is and the plan come first.

    Attributes:
        program: what it is.
        compiled_bytes: by the compiler; None if it failed.
        seconds: of a step, by a roofline and one counter for all rows.
        flops: of products and convolutions, of a step.
        error: why it failed; "" where it did not.
    """

    program: str
    compiled_bytes: int | None = None
    seconds: float | None = None
    flops: int | None = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class FixedRow:
    """A part of the bytes of arguments and results, which no plan changes.

    Attributes:
        what: in words.
        nbytes: on one device.
    """

    what: str
    nbytes: int


@dataclasses.dataclass(frozen=True)
class SourceRow:
    """The seconds of a step that come from one source.

    Attributes:
        source: "measured" or "roofline".
        seconds: of the step that recomputes nothing.
    """

    source: str
    seconds: float
