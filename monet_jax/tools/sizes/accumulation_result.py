"""The micro-batch and the accumulation steps with the least seconds, as data, JSON and a table."""

import dataclasses
import json

from ...compiler.budget import format_bytes
from ...step.step_plan import StepPlan


@dataclasses.dataclass(frozen=True)
class AccumulatedSize:
    """A micro-batch and a number of accumulation steps.

    Attributes:
        size: of a micro-batch.
        steps: how many micro-batches' gradients are added up.
        plain_bytes: of the step as written, as compiled; None where it was not.
        total_bytes: of the step as planned; for a pair that does not fit, the least that was found;
            None where it was not compiled.
        plain_seconds: of the step as written, by a roofline of the target.
        seconds: of the step as planned; None where no plan was made.
        fits: whether it is known to keep the budget as planned.
    """

    size: int
    steps: int
    plain_bytes: int | None
    total_bytes: int | None
    plain_seconds: float
    seconds: float | None
    fits: bool


@dataclasses.dataclass(frozen=True)
class AccumulatedFit:
    """The pair of least seconds for a batch that is cut into micro-batches.

    Attributes:
        axis: the keyword of the micro-batch.
        total: the size of all micro-batches together.
        best: the pair.
        pairs: all that were considered, the largest micro-batch first.
        plan: for `best`.
        budget_bytes: the budget.
        target: what was compiled for.
    """

    axis: str
    total: int
    best: AccumulatedSize
    pairs: tuple[AccumulatedSize, ...]
    plan: StepPlan
    budget_bytes: int
    target: str

    @property
    def size(self) -> int:
        """The micro-batch of the best pair."""
        return self.best.size

    @property
    def steps(self) -> int:
        """The accumulation steps of the best pair."""
        return self.best.steps

    def to_json(self) -> str:
        """The answer as JSON text, with its plan."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        pairs = {"pairs": [dataclasses.asdict(x) for x in self.pairs]}
        best = {"best": dataclasses.asdict(self.best), "plan": json.loads(self.plan.to_json())}
        return json.dumps(fields | pairs | best, indent=1)

    def __str__(self) -> str:
        return _described(self)


def _described(found: AccumulatedFit) -> str:
    """The pairs as text."""
    from ...report.tables import plain_table, render  # rich is imported only where a text is wanted

    verdict = (
        f"In {format_bytes(found.budget_bytes)} on {found.target}, {found.axis} {found.total} "
        f"takes least seconds as {found.steps} x {found.size}. Overhead "
        f"{found.plan.overhead:.2%}."
    )
    columns = (found.axis, "Steps", "As written", "Planned", "Seconds")
    table = plain_table(*columns, right=columns)
    for pair in found.pairs:
        sizes = str(pair.size), str(pair.steps), _bytes(pair.plain_bytes)
        table.add_row(*sizes, _planned(pair), _seconds(pair, found.best))
    return "\n".join([verdict, "", render(table)])


def _planned(pair: AccumulatedSize) -> str:
    return _bytes(pair.total_bytes) if pair.fits else "does not fit"


def _seconds(pair: AccumulatedSize, best: AccumulatedSize) -> str:
    """Seconds beside those of the best pair."""
    least = best.seconds or 1.0
    if pair.seconds is None:
        return f"at least {pair.plain_seconds / least:.3f}x"
    return f"{pair.seconds / least:.3f}x"


def _bytes(nbytes: int | None) -> str:
    return "" if nbytes is None else format_bytes(nbytes)
