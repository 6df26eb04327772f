"""Plans that compile well: uniform iterations of loops, in order, and the last stage left alone."""

import math
from collections.abc import Callable

from ..graph import Graph
from ..plan import Plan, Region
from ..runs import error_of
from .iterations import rolled, with_uniform_blocks
from .simple_plans import certified, left_alone

Regions = tuple[Region, ...]


def with_regions(graph: Graph, like: Plan, regions: Regions) -> Plan:
    """A plan of some regions, with the planner and the bound of another plan."""
    return certified(graph, regions, planner=like.planner, bound_seconds=like.bound_seconds)


def with_uniform_iterations(graph: Graph, decisions: Plan) -> Plan:
    """The plan; without singleton runs of iterations where the graph excludes them."""
    regions = uniform_regions(graph, decisions.regions)
    same = regions == decisions.regions
    return decisions if same else with_regions(graph, decisions, regions)


def uniform_regions(graph: Graph, regions: Regions) -> Regions:
    """The same for the regions of a plan.

    They stay as they are where the codes of another iteration would break the error limit.
    """
    if not graph.uniform_blocks or with_uniform_blocks(graph, regions) == regions:
        return regions
    ordered = rolled(graph, regions)
    for from_last in (False, True):
        found = with_uniform_blocks(graph, ordered, from_last=from_last)
        if error_of(graph, found) <= graph.most_error:
            return found
    return regions


def tidied(graph: Graph, decisions: Plan, modelled: Callable[[Regions], int]) -> Plan:
    """The plan that compiles best among those that are equal by the model.

    Its iterations are in order, so that loops have few runs. The last stage, whose backward follows
    at once, is left alone instead of saving the same values by name: XLA may copy values that are
    saved by name (147 MiB of a GPT-2's logits and weights on a GPU).

    Arguments:
        graph: the model.
        decisions: a plan.
        modelled: regions of a plan -> its modelled temporaries.
    """
    decisions = with_uniform_iterations(graph, decisions)
    ordered = rolled(graph, decisions.regions)
    for regions in (ordered, (*ordered[:-1], left_alone(graph, ordered[-1]))):
        if regions == decisions.regions or uniform_regions(graph, regions) != regions:
            continue
        other = with_regions(graph, decisions, regions)
        takes_more = modelled(regions) > modelled(decisions.regions)
        if not takes_more and math.isclose(other.seconds, decisions.seconds):
            decisions = other
    return decisions
