"""A row of a benchmark of planners: one answer beside one published result."""

import dataclasses

from .. import results as _results

#: Raised when the stored fields change their meaning.
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One answer beside one published result. What does not apply or is not known is None.

    Seconds of a schedule ("objective", "bound") are in the instance's unit, others in seconds.

    Attributes:
      instance: its published name, or its path where it could not be read.
      planner: by its name in `planners.registry`, or "" where the instance could not be read.
      purpose: why the planner was called: "published", "sweep", "limits" (of time), or "read".
      budget: as published: GiB in all, or a share of the peak without recomputation.
      budget_bytes: for values.
      time_limit: that the planner was given.
      status: "ok"; "infeasible" or "stopped", as the planner says; "refused", where replay refuses
        its schedule or it is over the budget; "error".
      message: of an answer that is not ok.
      objective: seconds of the schedule, by replay.
      peak_bytes: of the schedule, by replay.
      used: `peak_bytes` over `budget_bytes`.
      bound: proven by the planner.
      gap: `(objective - bound) / objective`.
      planning_seconds: by the clock, building the model included.
      baseline: whose published result it is beside.
      published: "solved", "infeasible", or "unknown", where the publication leaves it open.
      published_objective, published_bound, published_root, published_seconds: of that result;
        `published_root` is the relaxation at the root of its search.
      doubts: why it is not to be relied upon; empty for a clean one.
      ratio: `objective` over `published_objective`.
    """

    instance: str
    planner: str
    purpose: str
    budget: float | None = None
    budget_bytes: int | None = None
    time_limit: float | None = None
    status: str = "ok"
    message: str = ""
    objective: float | None = None
    peak_bytes: int | None = None
    used: float | None = None
    bound: float | None = None
    gap: float | None = None
    planning_seconds: float | None = None
    baseline: str | None = None
    published: str | None = None
    published_objective: float | None = None
    published_bound: float | None = None
    published_root: float | None = None
    published_seconds: float | None = None
    doubts: tuple[str, ...] = ()
    ratio: float | None = None

    @property
    def name(self) -> str:
        """The row in one phrase, for people."""
        if self.budget is not None:
            at = f" @ {self.budget:g}"
        else:
            at = "" if self.budget_bytes is None else f" @ {self.budget_bytes:,} B"
        limit = f" in {self.time_limit:g} s" if self.purpose == "limits" else ""
        baseline = f" against {self.baseline}" if self.baseline not in (None, "Gurobi") else ""
        return f"{self.instance}{at} {self.planner}{limit}{baseline}".rstrip()


Results = _results.Results[Row]
