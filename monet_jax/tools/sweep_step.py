"""The programs of a sweep over a whole step: all bytes and seconds are those of the step."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..analyzer.step_costs import StepCosts
from ..step.context import StepTrace
from ..step.questions import StepNow
from .baselines import POLICIES, Costs
from .sweep_points import SweepPoint, baseline_point, planned_points, point_of


def points_of_step(
    now: StepNow,
    baselines: Mapping[str, Callable[..., Any]],
    points: int,
    say: Callable[[str], None],
) -> Iterator[SweepPoint]:
    """The plain step, the baselines, and plans at falling budgets.

    Arguments:
        now: the step.
        baselines: name -> another step of the same arguments.
        points: how many budgets.
        say: shows the progress.
    """
    say("compiling the plain step")
    plain = now.search.unplanned()
    yield point_of("plain", "plain", Costs(plain, now.costs(None)))
    for name, policy in POLICIES.items() if now.step.marks.found else ():
        say(f"compiling jax.checkpoint: {name}")
        trace = now.under_checkpoint(policy)
        yield baseline_point(f"jax.checkpoint: {name}", functools.partial(_costs, now, trace))
    for name, other in baselines.items():
        say(f"compiling {name}")
        yield baseline_point(name, functools.partial(_costs, now.of_other(other), None))
    say("looking for the smallest budget")
    least = _least(now)

    def planned(budget: int) -> tuple[int, StepCosts]:
        plan = now.planned(budget)
        assert plan.compiled_bytes is not None  # the search verifies every plan
        return plan.compiled_bytes, now.costs(now.trace_of(plan))

    fixed = plain.total_bytes - plain.temp_bytes
    yield from planned_points((least, plain.total_bytes), points, fixed, planned, say)


def _costs(now: StepNow, trace: StepTrace | None) -> Costs:
    return Costs(now.compiled(trace), now.costs(trace))


def _least(now: StepNow) -> int:
    """The smallest budget that was found to work; where nothing is marked, the plain step's."""
    if not now.step.marks.found:
        return now.search.unplanned().total_bytes
    return min(now.search.unplanned().total_bytes, now.search.smallest_bytes())
