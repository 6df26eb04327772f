"""The programs of a sweep, and the costs of each."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from ..analyzer.step_costs import StepCosts
from ..planning.failures import InfeasibleBudget
from .baselines import Costs


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """A program of the step.

    Attributes:
        program: "plain", "jax.checkpoint: dots", ..., or "planned".
        kind: "plain", "baseline" or "planned".
        budget_bytes: of a planned one; None for others.
        total_bytes: as compiled, XLA's own rematerialization off; None where it failed.
        temp_bytes: the temporaries of it.
        seconds: of a step, by a roofline of the target.
        flops: of products and convolutions, of a step.
        error: why it failed; "" where it did not.
    """

    program: str
    kind: str
    budget_bytes: int | None = None
    total_bytes: int | None = None
    temp_bytes: int | None = None
    seconds: float | None = None
    flops: int | None = None
    error: str = ""


def of_kind(points: Sequence[SweepPoint], kind: str) -> tuple[SweepPoint, ...]:
    """The programs of one kind that did not fail."""
    return tuple(p for p in points if p.kind == kind and not p.error)


def point_of(program: str, kind: str, costs: Costs) -> SweepPoint:
    """A program whose costs are known."""
    sizes = costs.bytes.total_bytes, costs.bytes.temp_bytes
    return SweepPoint(program, kind, None, *sizes, costs.work.seconds, costs.work.flops)


def baseline_point(name: str, costs: Callable[[], Costs]) -> SweepPoint:
    """A baseline, whose costs are found by compiling it."""
    try:
        return point_of(name, "baseline", costs())
    except Exception as error:  # one baseline that fails must not end the comparison
        return SweepPoint(name, "baseline", error=f"{type(error).__name__}: {error}")


def planned_points(
    ends: tuple[int, int],
    points: int,
    fixed_bytes: int,
    planned: Callable[[int], tuple[int, StepCosts]],
    say: Callable[[str], None],
) -> tuple[SweepPoint, ...]:
    """Plans for budgets at equal distances, the largest first.

    Arguments:
        ends: the smallest budget and the largest.
        points: how many budgets.
        fixed_bytes: bytes of arguments and results.
        planned: budget -> bytes of the plan as compiled, and its costs.
        say: shows the progress.
    """
    least, most = ends
    made = []
    for n, budget in enumerate(np.linspace(most, least, points).astype(int).tolist()):
        say(f"planning for budget {n + 1} of {points}")
        try:
            nbytes, work = planned(budget)
        except InfeasibleBudget as error:  # the search for the smallest found it, this one did not
            made.append(SweepPoint("planned", "planned", budget, error=str(error)))
            continue
        costs = nbytes, nbytes - fixed_bytes, work.seconds, work.flops
        made.append(SweepPoint("planned", "planned", budget, *costs))
    return _never_slower_for_more(made)


def _never_slower_for_more(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """The points, the largest budget first: what keeps a smaller budget keeps a larger one."""
    found: list[SweepPoint] = []
    best, seconds = None, math.inf
    for point in reversed(points):
        if point.seconds is not None and point.seconds <= seconds:
            best, seconds = point, point.seconds
        if best is not None:
            point = dataclasses.replace(best, budget_bytes=point.budget_bytes)
        found.append(point)
    return tuple(reversed(found))
