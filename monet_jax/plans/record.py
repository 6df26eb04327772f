"""A plan as a frozen record: the decisions for a function, their costs, and its JSON."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import planners.plan

from .rows import BaselineRow as BaselineRow
from .rows import CompiledRow as CompiledRow
from .rows import FixedRow as FixedRow
from .rows import LoopRow as LoopRow
from .rows import SourceRow as SourceRow
from .rows import StageRow as StageRow
from .rows import ValueRow as ValueRow
from .timeline import Timeline, timeline_from_json

#: Raised when the stored fields change, or values are named in another way. Plans of another format
#: are refused: they are made again in seconds to minutes, and apply to nothing else.
FORMAT = 12
_TIMELINES = ("before", "after")
_TABLES = {
    "values": ValueRow,
    "stages": StageRow,
    "loops": LoopRow,
    "compiled": CompiledRow,
    "sources": SourceRow,
    "baselines": BaselineRow,
    "fixed": FixedRow,
}


@dataclasses.dataclass(frozen=True)
class PlanRecord:
    """Which values a function's forward pass saves for its gradient, and the costs.

    All bytes are totals on one device: argument + output + temp - alias.

    Attributes:
        decisions: the planner's plan; None where the function runs as it is.
        fingerprint: of the traced function and the derivative planned for, and of its cut into the
            stages that the decisions are about (`StagedProgram.fingerprint`).
        inputs: the traced inputs as text, to explain a mismatch.
        equations: how many equations the trace has.
        target: what the program was compiled for.
        compiler: which compiler gave the figures.
        jax_version: the version that traced the function.
        budget_bytes: the limit on the program's bytes.
        reserved_bytes: the part of the budget for other things.
        predicted_bytes: by the model, before the plan was compiled.
        compiled_bytes: by the compiler; None if the plan was not compiled.
        unplanned_bytes: of the function as written, XLA's own rematerialization off.
        base_seconds: modelled time of the step as it is, when nothing is recomputed.
        base_flops: FLOPs of products and convolutions when nothing is recomputed.
        planning_seconds: wall time of planning, tracing and all compilations included; for a plan
            from the disk, the time when it was made.
        compilations: how many programs were compiled, the function as it is included.
        compiled: the programs that were compiled; in a sweep for earlier budgets, too.
        sources: where the seconds of ops come from.
        fixed: the parts of `fixed_bytes`; of a part of a step there are none.
        baselines: programs that `compare` has set beside it.
        cut_short: why the search was cut short, in words; "" where it was not.
        values: the values of the forward pass, largest first.
        stages: the stages in order.
        loops: the loops whose iterations are stages, in order.
        next_faster: modelled seconds and compiled bytes of the next faster plan that was compiled;
            it broke the budget. None where the plan fills the budget or recomputes nothing.
        devices: how many devices the arguments are sharded over; bytes are on one of them.
        operators: names of the residual operators that could be chosen.
        checkpoints: the option of `plan`.
        error: relative error of the gradient, as measured for `error_limit`; None if not measured.
        error_limit: the option `error` of `plan`; None if not given.
        chunks: lengths of nested scans: iterations in a chunk, for each outermost `scan` of the
            function that is in no branch; 0 where a loop has no chunks. Such a loop saves its
            carry between chunks only, and runs each chunk once more (two-level checkpointing, Chen
            et al., 2016, section 4.2). Loops inside others, and in branches, save only their
            carries when they run again. None where all loops run as they are.
        fixed_bytes: of arguments and results, which no plan changes.
        before: live bytes over the step, by the model, where nothing is recomputed; None where the
            function runs as it is.
        after: the same as planned.
        name: of the function; "" where it is not known.
        made: the day on which the plan was made, as in "2026-11-26".
        is_cached: whether the plan was read from the disk. It is not stored.
    """

    decisions: planners.plan.Plan | None
    fingerprint: str
    inputs: tuple[str, ...]
    equations: int
    target: str
    compiler: str
    jax_version: str
    budget_bytes: int
    reserved_bytes: int
    predicted_bytes: int
    compiled_bytes: int | None
    unplanned_bytes: int | None
    base_seconds: float
    base_flops: int
    planning_seconds: float
    compilations: int
    values: tuple[ValueRow, ...] = ()
    stages: tuple[StageRow, ...] = ()
    loops: tuple[LoopRow, ...] = ()
    compiled: tuple[CompiledRow, ...] = ()
    sources: tuple[SourceRow, ...] = ()
    baselines: tuple[BaselineRow, ...] = ()
    fixed: tuple[FixedRow, ...] = ()
    cut_short: str = ""
    next_faster: tuple[float, int] | None = None
    devices: int = 1
    operators: tuple[str, ...] = ()
    checkpoints: str = "keep"
    error: float | None = None
    error_limit: float | None = None
    chunks: tuple[int, ...] | None = None
    fixed_bytes: int | None = None
    before: Timeline | None = None
    after: Timeline | None = None
    name: str = ""
    made: str = ""
    is_cached: bool = dataclasses.field(default=False, compare=False)

    @property
    def seconds(self) -> float:
        """Modelled time of the step."""
        return self.decisions.seconds if self.decisions else self.base_seconds

    @property
    def bound_seconds(self) -> float:
        """No plan of the planner's space within the same model budget is faster."""
        return self.decisions.bound_seconds if self.decisions else self.base_seconds

    @property
    def overhead(self) -> float:
        """Seconds beyond those of the step as it is, as a fraction; negative where it is faster."""
        return self.overhead_of(self.seconds)

    def overhead_of(self, seconds: float) -> float:
        """Seconds of another plan beyond those of the step as it is, as a fraction."""
        return seconds / self.base_seconds - 1 if self.base_seconds else 0.0

    @property
    def gap(self) -> float:
        """`(seconds - bound_seconds) / seconds`."""
        return self.decisions.gap if self.decisions else 0.0

    @property
    def flops(self) -> int:
        """FLOPs of products and convolutions of the step."""
        return self.decisions.flops if self.decisions else self.base_flops

    def to_json(self) -> str:
        """The plan as JSON text."""
        stored = (f.name for f in dataclasses.fields(self) if f.compare)
        data: dict[str, Any] = {name: getattr(self, name) for name in stored}
        data["decisions"] = self.decisions and self.decisions.to_json()
        data |= {name: data[name] and data[name].to_json() for name in _TIMELINES}
        data |= {name: [vars(row) for row in data[name]] for name in _TABLES}
        return _to_lines({"format": FORMAT, **data})


class PlanMismatch(ValueError):
    """A plan was applied to a function or to arguments that it was not made for."""

    __module__ = "monet_jax"


def record_from_json(text: str) -> PlanRecord:
    """The record in JSON text that `PlanRecord.to_json` made.

    Raises:
        ValueError: the text is not JSON, or a field is missing, unknown or of the wrong type.
    """
    data = json.loads(text)
    version = data.pop("format", None) if isinstance(data, dict) else None
    if version != FORMAT:
        raise ValueError(f'need a JSON object with "format": {FORMAT}; make the plan again')
    decisions = data.pop("decisions", None)
    timelines = {name: data.pop(name, None) for name in _TIMELINES}
    fields = _checked(data, PlanRecord, skip=("decisions", "is_cached", *_TIMELINES))
    made = PlanRecord(
        decisions=None if decisions is None else planners.plan.plan_from_json(decisions),
        **{name: x and timeline_from_json(x) for name, x in timelines.items()},
        **fields
        | {
            "inputs": tuple(fields["inputs"]),
            "operators": tuple(fields["operators"]),
            "chunks": None if fields["chunks"] is None else tuple(fields["chunks"]),
            **{name: _rows(fields[name], cls) for name, cls in _TABLES.items()},
            "next_faster": fields["next_faster"] and tuple(fields["next_faster"]),
        },
    )
    _check_regions(made)
    return made


def _to_lines(data: Mapping[str, Any]) -> str:
    """JSON text of an object, compact but for a line for each field and each row of a table."""
    parts = []
    for name, value in data.items():
        text = json.dumps(value, separators=(",", ":"))
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            rows = (json.dumps(row, separators=(",", ":")) for row in value)
            text = "[\n  " + ",\n  ".join(rows) + "\n ]"
        parts.append(f' "{name}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _check_regions(plan: PlanRecord) -> None:
    """Check that the regions cover the stages in order and save values of the plan."""
    regions = plan.decisions.regions if plan.decisions else ()
    covered = [s for region in regions for s in range(region.first, region.last + 1)]
    if plan.decisions and covered != list(range(len(plan.stages))):
        raise ValueError(f"its regions cover the stages {covered} of {len(plan.stages)}")
    saved = {name for region in regions for inner in region.walk() for name in inner.kept}
    if unknown := saved - {row.name for row in plan.values}:
        raise ValueError(f"its regions save {sorted(unknown)}, which are no values of the plan")


def _rows(data: Any, cls: type) -> tuple[Any, ...]:
    """The rows of a table, from a list of objects."""
    checked = (_checked(row, cls) for row in data)
    return tuple(
        cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
        for fields in checked
    )


def _checked(data: Any, cls: type, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """`data`, if its keys are the fields of `cls` and its values are of the fields' types."""
    types = {f.name: _type_name(f.type) for f in dataclasses.fields(cls) if f.name not in skip}
    if not isinstance(data, Mapping) or set(data) != set(types):
        got = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise ValueError(f"a {cls.__name__} has the fields {sorted(types)}; got {got}")
    for name, kind in types.items():
        if not _is_of(data[name], kind):
            raise ValueError(f"`{name}` of a {cls.__name__} must be {kind}; got {data[name]!r}")
    return dict(data)


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _is_of(value: Any, kind: str) -> bool:
    if value is None:
        return "None" in kind
    if kind.startswith("tuple["):  # JSON has lists only
        kinds = kind[len("tuple[") : kind.index("]")].split(", ")
        if not isinstance(value, list):
            return False
        kinds = kinds[:1] * len(value) if kinds[-1] == "..." else kinds
        return len(kinds) == len(value) and all(map(_is_of, value, kinds))
    if kind.startswith("int"):
        return isinstance(value, int) and not isinstance(value, bool)
    if kind.startswith("float"):
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, Mapping if kind.endswith("Row") else str)
