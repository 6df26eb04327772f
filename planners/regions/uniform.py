"""Plans that compile well, among those that are equal by the model."""

import dataclasses
import math
from collections.abc import Callable

from ..graph import Graph
from ..plan import Plan, Region
from ..runs import error_of
from .iterations import rolled, with_uniform_blocks
from .simple_plans import certified, left_alone, saving_all

Regions = tuple[Region, ...]

#: Plans whose seconds differ by less than this share take the same time.
SAME_TIME = 0.001


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
    saved by name (147 MiB of a GPT-2's logits and weights on a GPU). Where stages are recomputed
    together, the backward of the last one waits for that.

    Arguments:
        graph: the model.
        decisions: a plan.
        modelled: regions of a plan -> its modelled temporaries.
    """
    found = decisions = with_uniform_iterations(graph, decisions)

    def consider(regions: Regions) -> None:
        nonlocal found
        if regions == found.regions or uniform_regions(graph, regions) != regions:
            return
        other = with_regions(graph, decisions, regions)
        takes_more = modelled(regions) > modelled(found.regions)
        if not takes_more and math.isclose(other.seconds, decisions.seconds, rel_tol=SAME_TIME):
            found = other

    ordered = rolled(graph, decisions.regions)
    consider(ordered)
    consider((*ordered[:-1], left_alone(graph, ordered[-1])))
    for n, region in enumerate(found.regions):
        consider((*found.regions[:n], _waiting(graph, region), *found.regions[n + 1 :]))
    return found


def _waiting(graph: Graph, region: Region) -> Region:
    """A region; the last of several stages has a checkpoint of its own, which saves all.

    Its backward can begin with what needs the cotangent only, the gradient of a convolution's
    operand say, before anything is recomputed. A compiler that does so holds both: 46 MiB of a
    U-Net's 351 on a CPU, 31 of 224 on an H100. A checkpoint's cotangents wait for its residuals.
    Iterations of a loop stay as they are, for they are to be alike.
    """
    is_one = region.first == region.last or region.alone
    if is_one or region.offloaded or region.first in graph.looped:
        return region
    stages = (Region(s, s) for s in range(region.first, region.last + 1))
    *others, last = region.inner or (left_alone(graph, x) for x in stages)
    last = saving_all(graph, last) if last.alone else last
    return dataclasses.replace(region, inner=(*others, last))
