"""A row of a benchmark of models: one program and its costs."""

import dataclasses
import json
from typing import Any

from .. import results as _results

#: Raised when the stored fields change their meaning.
FORMAT = 1

#: An int of bytes or FLOPs or a float, or None; `kind` and `status` of a row say which have it.
Amount = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One program of one model on one target. What does not apply or is not known is None.

    Attributes:
      model: its name in the zoo.
      target: what it was compiled for.
      program: "plain", "loss: dots", "blocks: nothing", "ours @ 80 %", ...
      kind: "plain", "baseline", "ours", "xla" for the plain program under XLA's own
        rematerialization, or "error" where a whole model failed.
      dtype: what the model computes in; files from before it was stored are of float32.
      budget: why ours has its budget: "baseline", "temps", "minimum", "below", "free".
      baseline: the baseline whose bytes are the budget.
      status: "ok", "infeasible" or "error".
      message: of the error.
      budget_bytes: the total that ours or XLA's may take.
      total_bytes: argument + output + temp - alias as compiled, XLA's rematerialization off, except
        in rows of the kind "xla".
      temp_bytes: the temporaries of it.
      flops: dots and convolutions of the traced value-and-gradient; XLA adds its own unseen.
      seconds: the step's by a roofline of the target.
      flops_ratio, seconds_ratio: the same over plain's.
      measured_seconds: the step's median on this device.
      measured_ratio, measured_low, measured_high: the median ratio to plain's seconds, turn by
        turn, and its interval of 95 %.
      estimated_seconds: by the compiler's estimates of the final program, summed.
      estimated_share: FLOPs of the instructions that it estimates, over `flops`; the plain
        program's for rows of the kind "xla".
      planning_seconds: compilations included; what an earlier row compiled is not compiled again.
      compilations: plans compiled for this row.
      overhead: the planner's seconds beyond saving everything, as a fraction.
      gap: the planner's.
      predicted_temp_bytes: by the model and the programs that place it.
      prediction_error: of that, as a fraction of `temp_bytes`; None for a plan that the model
        was placed by.
      used: `total_bytes` over `budget_bytes`.
      next_faster_bytes: the compiled total of the next faster plan that was compiled.
      minimum_budget: what the infeasible budget should have been.
    """

    model: str
    target: str
    program: str
    kind: str
    dtype: str = "float32"
    budget: str | None = None
    baseline: str | None = None
    status: str = "ok"
    message: str = ""
    budget_bytes: Amount = None
    total_bytes: Amount = None
    temp_bytes: Amount = None
    flops: Amount = None
    seconds: Amount = None
    flops_ratio: Amount = None
    seconds_ratio: Amount = None
    measured_seconds: Amount = None
    measured_ratio: Amount = None
    measured_low: Amount = None
    measured_high: Amount = None
    estimated_seconds: Amount = None
    estimated_share: Amount = None
    planning_seconds: Amount = None
    compilations: Amount = None
    overhead: Amount = None
    gap: Amount = None
    predicted_temp_bytes: Amount = None
    prediction_error: Amount = None
    used: Amount = None
    next_faster_bytes: Amount = None
    minimum_budget: Amount = None

    @property
    def is_kept(self) -> bool:
        """Whether the program was compiled and keeps its budget."""
        return self.status == "ok" and self.total_bytes <= self.budget_bytes

    @property
    def cell(self) -> tuple[str, str, str]:
        """The model, the target and the dtype."""
        return self.model, self.target, self.dtype

    @property
    def cell_name(self) -> str:
        """The cell in words, as in "gpt2 gpu:h100 bfloat16"."""
        return " ".join(self.cell)


Results = _results.Results[Row]


def from_json(text: str) -> Results:
    """The results that `to_json` wrote; the claims are checked again from the rows.

    Raises:
      ValueError: the text is something else.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'need a JSON object with "format": {FORMAT}; run the bench again')
    try:
        return Results(tuple(Row(**row) for row in data["rows"]), data["context"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the rows have other fields ({error}); run the bench again") from error
