"""Regions that do what a schedule does, so that a planner of schedules can drive `remat`.

A schedule may run any op again at any time; an emitted program runs regions of stages again, each
just before its backward. So stages that run again before a later stage's backward become one region
with it. A region saves what the schedule has in memory when the region first runs again.
"""

import collections
import itertools as it
import math
from collections.abc import Iterable, Iterator, Sequence

from .errors import InvalidPlan, PlanningError
from .graph import Graph
from .plan import Plan, Region
from .regions.planner import FunctionPlanner
from .regions.simple_plans import certified, left_alone, saving_all
from .runs import runs
from .schedules.planner import SchedulePlanner
from .schedules.steps import Execute, Free, Schedule, Step, executions


class NotEmittable(PlanningError):
    """A schedule does what no regions of stages do."""

    __module__ = "planners"


class EmittedSchedules(FunctionPlanner):
    """A planner of schedules as a planner of regions.

    Raises:
        NotEmittable: its schedule does what no regions of stages do.
    """

    def __init__(self, planner: SchedulePlanner):
        def emitted(graph: Graph, budget_bytes: int) -> Plan:
            return plan_of(graph, planner(graph, budget_bytes))

        super().__init__(emitted, getattr(planner, "time_limit", math.inf))


def plan_of(graph: Graph, schedule: Schedule) -> Plan:
    """The plan whose regions run each op as often as a schedule does.

    Raises:
        NotEmittable: there is none.
    """
    regions = tuple(_regions(graph, schedule.steps))
    try:
        planner, bound = schedule.planner, schedule.bound_seconds
        plan = certified(graph, regions, planner=planner, bound_seconds=bound)
    except InvalidPlan as error:
        raise NotEmittable(f"The schedule of {schedule.planner} is no plan: {error}") from error
    theirs = collections.Counter(x.op for x in schedule.steps if isinstance(x, Execute))
    ours = collections.Counter(x.op for x in executions(graph, runs(graph, regions)))
    for o, op in enumerate(graph.ops):
        if ours[o] != theirs[o]:
            raise NotEmittable(
                f"The schedule of {schedule.planner} runs op `{op.name}` {theirs[o]} times, and "
                f"regions of stages that save the same values run it {ours[o]} times. Use a "
                "planner of regions, such as `planners.Stages`."
            )
    return plan


def _regions(graph: Graph, steps: Sequence[Step]) -> Iterator[Region]:
    """Regions that save what a schedule has in memory when they first run again."""
    again, backward = _positions(graph, steps)
    for first, last in _spans(len(graph.stages), again, backward):
        stages = range(first, last + 1)
        positions = [n for s in stages for n in again[s]]
        if not positions:
            yield from (left_alone(graph, saving_all(graph, Region(s, s))) for s in stages)
            continue
        start = min(*positions, *(backward[s] for s in stages))
        live = _live_before(it.islice(steps, int(start)), graph)
        own = (i for i in sorted(live) if first <= graph.forward_writer.get(i, (-1,))[0] <= last)
        saved = tuple(graph.values[i].name for i in own if graph.values[i].savable)
        yield Region(first, last, saved)


def _positions(
    graph: Graph, steps: Sequence[Step]
) -> tuple[dict[int, list[int]], dict[int, float]]:
    """For each stage where its forward runs again, and where its backward begins."""
    again, seen = collections.defaultdict(list), set[int]()
    backward = dict.fromkeys(range(len(graph.stages)), math.inf)
    keys = list(graph.op_numbers)
    for n, step in enumerate(steps):
        if isinstance(step, Free):
            continue
        phase, stage, _ = keys[step.op]
        if phase == "backward":
            backward[stage] = min(backward[stage], n)
        elif step.op in seen:
            again[stage].append(n)
        seen.add(step.op)
    return again, backward


def _spans(
    count: int, again: dict[int, list[int]], backward: dict[int, float]
) -> Iterator[tuple[int, int]]:
    """Stages that run again together: before the backward of the last of them."""
    s = 0
    while s < count:
        last, t = s, s
        while t <= last:
            reached = [u for u in range(t, count) if any(n < backward[u] for n in again[t])]
            last, t = max([last, *(u for u in reached if backward[u] < math.inf)]), t + 1
        yield s, last
        s = last + 1


def _live_before(steps: Iterable[Step], graph: Graph) -> set[int]:
    live: set[int] = set()
    for step in steps:
        if isinstance(step, Free):
            live.discard(step.value)
        else:
            live.update(graph.ops[step.op].outputs)
    return live
