"""The spaces of plans that a search tries in order, from the smallest to the whole."""

import dataclasses
from collections.abc import Callable
from typing import Any

from planners.graph import Graph, Op

from ..compiled_plans import CompiledPlans
from .proposals import Proposals

#: Proposals of one space, by each model of the compiler.
Models = tuple[Proposals, ...]


def spaces_of(compiled_plans: CompiledPlans, planner: Any) -> tuple[Models, ...]:
    """The spaces of a function's plans, each by its models.

    First are plans in which derivatives read what JAX has them read; then plans with codes as well,
    the exact codes before the lossy ones. The first space is searched much sooner, and a budget
    that one of its plans keeps for free needs no other. Each space contains those before it, so no
    plan is slower for the choice. (Where errors are limited, plans without lossy codes have a
    search of their own.)
    """
    graph = compiled_plans.graph
    graphs = [_with_alternatives(graph, lambda codes: False)]
    if compiled_plans.bound is None:
        lossy = compiled_plans.lossy_codes
        graphs.append(_with_alternatives(graph, lambda codes: codes.isdisjoint(lossy)))
    graphs.append(graph)
    distinct = [x for n, x in enumerate(graphs) if x not in graphs[:n]]
    return tuple(_models_of(x, compiled_plans, planner) for x in distinct)


def _models_of(graph: Graph, compiled_plans: CompiledPlans, planner: Any) -> Models:
    """Proposals by the model of the compiler, then by a model in which nothing is recomputed late.

    Where several stages that save little are run again as one, a compiler may hold more than
    recomputing late would: the second model has fewer of them. In plans by the first model, no
    iteration of a loop runs by itself: plans that take a few percent more time then take the
    predicted bytes.
    """
    found = (Proposals(compiled_plans, planner, graph),)
    if graph.recomputes_late:
        other = dataclasses.replace(graph, recomputes_late=False, uniform_blocks=False)
        found += (Proposals(compiled_plans, planner, other),)
    return found


def _with_alternatives(graph: Graph, is_open: Callable[[frozenset[int]], bool]) -> Graph:
    """A graph whose backward ops have fewer implementations besides JAX's own.

    Arguments:
        graph: with all implementations.
        is_open: whether an implementation that reads some codes stays.
    """

    def restricted(op: Op) -> Op:
        open_ones = (x for x in op.alternatives if is_open(op.codes(x)))
        return dataclasses.replace(op, alternatives=tuple(open_ones))

    stages = tuple(
        dataclasses.replace(stage, backward=tuple(map(restricted, stage.backward)))
        for stage in graph.stages
    )
    return dataclasses.replace(graph, stages=stages)
