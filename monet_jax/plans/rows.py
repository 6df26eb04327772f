"""The rows of a plan's tables: values, stages, compiled programs, and sources of seconds."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ValueRow:
    """A value of the forward pass in a report.

    Attributes:
        name: as pins name it.
        nbytes: its size in bytes.
        decision: "saved", "recomputed", "kept" (in a stage left alone) or "host" (it waits in the
            host's memory).
        operator: how it is stored: "exact", or by which codec.
        shape: of the array.
        dtype: of the array.
        primitive: of the equation that makes it.
        path: module path; "" where the model gives none.
        source: `file:line` of the user's code.
        stage: the stage that makes it.
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
class SourceRow:
    """The seconds of a step that come from one source.

    Attributes:
        source: "measured" or "roofline".
        seconds: of the step that recomputes nothing.
    """

    source: str
    seconds: float
