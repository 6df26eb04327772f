"""Plans with uniform iterations: no iteration of a loop runs by itself."""

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import certified

Regions = tuple[Region, ...]


def with_regions(graph: Graph, like: planners.Plan, regions: Regions) -> planners.Plan:
    """A plan of some regions, with the planner and the bound of another plan."""
    return certified(graph, regions, planner=like.planner, bound_seconds=like.bound_seconds)


def with_uniform_iterations(graph: Graph, decisions: planners.Plan) -> planners.Plan:
    """The plan; without singleton runs of iterations where the graph excludes them."""
    regions = uniform_regions(graph, decisions.regions)
    same = regions == decisions.regions
    return decisions if same else with_regions(graph, decisions, regions)


def uniform_regions(graph: Graph, regions: Regions) -> Regions:
    """The same for the regions of a plan.

    They stay as they are where the codes of another iteration would break the error limit.
    """
    if not graph.uniform_blocks or planners.with_uniform_blocks(graph, regions) == regions:
        return regions
    rolled = planners.rolled(graph, regions)
    for from_last in (False, True):
        found = planners.with_uniform_blocks(graph, rolled, from_last=from_last)
        if planners.error_of(graph, found) <= graph.most_error:
            return found
    return regions
