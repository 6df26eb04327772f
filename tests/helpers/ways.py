"""Ways to plan without a compiler: each draws its regions over the stages by a rule."""

import networks
import pytest
from emission import savable

import planners
from monet_jax.planning import pipeline
from monet_jax.tracing.passes import partition
from planners.errors import InvalidPlan
from planners.plan import Plan, Region
from planners.replay import replay


def as_cut(graph: planners.Graph) -> tuple[Region, ...]:
    """The library's own stages, and nothing saved."""
    return planners.save_nothing(graph).regions


def by_equation(graph: planners.Graph) -> tuple[Region, ...]:
    """Every stage a region of its own; each second one saves what it can."""
    count = len(graph.stages)
    regions = [Region(n, n, tuple(savable(graph, n, n)) if n % 2 else ()) for n in range(count)]
    if runs(graph, regions):
        return tuple(regions)
    alone = [Region(n, n, alone=True) for n in range(count)]  # what has effects must be left so
    return tuple(
        region if runs(graph, [*alone[:n], region, *alone[n + 1 :]]) else alone[n]
        for n, region in enumerate(regions)
    )


def nested(graph: planners.Graph) -> tuple[Region, ...]:
    """All of it one region that saves nothing, and inside it one for each stage."""
    inner = by_equation(graph)
    whole = (Region(0, len(inner) - 1, inner=inner),)
    return whole if len(inner) > 1 and runs(graph, whole) else inner


def saving(graph: planners.Graph) -> tuple[Region, ...]:
    """All of it one region that saves what it can."""
    last = len(graph.stages) - 1
    whole = (Region(0, last, tuple(savable(graph, 0, last))),)
    return whole if runs(graph, whole) else by_equation(graph)


def runs(graph: planners.Graph, regions) -> bool:
    try:
        replay(graph, regions)
    except InvalidPlan:
        return False
    return True


WAYS = (as_cut, by_equation, nested, saving)


@pytest.fixture
def plans(request, monkeypatch):
    """The regions of the plans made so far, in the way that the test asks for."""
    way, made = request.param, []

    def decide(graph):
        made.append(way(graph))
        return Plan(made[-1], 0, 0.0, 0, 0.0, "test")

    def find_plan(traced, settings, target):
        return networks.made(traced, settings, target, decide)

    monkeypatch.setattr(pipeline, "_find_plan", find_plan)
    if way is not as_cut:
        monkeypatch.setattr(partition, "cut", lambda program, *_: cut_everywhere(program))
    return made


def cut_everywhere(program) -> tuple[int, ...]:
    return tuple(range(max(1, len(program.equations))))
