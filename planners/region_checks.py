"""Checks that regions make a plan of a graph: their stages, what they save, and what they move."""

from collections.abc import Sequence

from .errors import InvalidPlan
from .graph import Graph
from .plan import Region


def check_regions(graph: Graph, regions: Sequence[Region]) -> None:
    """Check the regions of a plan.

    Raises:
        InvalidPlan: they do not cover the stages, or save or move what they must not.
    """
    _check_cover(regions, 0, len(graph.stages) - 1)
    for region in regions:
        _check_region(graph, region)
        for inside in (x for inner in region.inner for x in inner.walk()):
            if inside.offloaded:
                raise InvalidPlan(f"{_name(inside)} lies in another one, and must move nothing.")


def _check_cover(regions: Sequence[Region], first: int, last: int) -> None:
    expected = first
    for region in regions:
        if region.first != expected or region.last < region.first:
            raise InvalidPlan(
                f"Regions must cover stages {first}-{last} once and in order; "
                f"got {region.first}-{region.last} where stage {expected} comes next."
            )
        expected = region.last + 1
    if expected != last + 1:
        raise InvalidPlan(
            f"Regions must cover stages {first}-{last} once and in order; "
            f"got none for stages {expected}-{last}."
            if expected <= last
            else f"Regions end at stage {expected - 1}, but the last stage is {last}."
        )


def _check_region(graph: Graph, region: Region) -> None:
    if region.alone and (region.saved or region.inner):
        raise InvalidPlan(
            f"Region {region.first}-{region.last} is alone and keeps everything; it must have "
            f"neither `saved` (got {region.saved!r}) nor inner regions (got {len(region.inner)})."
        )
    if len(set(graph.units[region.first : region.last + 1])) > 1:
        raise InvalidPlan(
            f"Region {region.first}-{region.last} crosses the ends of a loop, of an "
            "iteration, of a choice or of a branch."
        )
    for name in region.saved:
        _check_saved(graph, region, name)
    for name in region.offloaded:
        _check_moved(graph, region, name)
    if region.inner:
        _check_cover(region.inner, region.first, region.last)
    for inner in region.inner:
        _check_region(graph, inner)


def _check_saved(graph: Graph, region: Region, name: str) -> None:
    where = f"Region {region.first}-{region.last} saves `{name}`"
    if name not in graph.index:
        raise InvalidPlan(f"{where}, which the graph does not have. Was the plan made for it?")
    i = graph.index[name]
    if i not in graph.forward_writer:
        raise InvalidPlan(f"{where}, which no forward op writes.")
    s = graph.forward_writer[i][0]
    if not region.first <= s <= region.last:
        raise InvalidPlan(
            f"{where}, which stage {s} (`{graph.stages[s].name}`) writes: not the region's own."
        )
    if not graph.values[i].savable:
        raise InvalidPlan(f"{where} of stage {s} (`{graph.stages[s].name}`): it is not savable.")


def _check_moved(graph: Graph, region: Region, name: str) -> None:
    where = f"{_name(region)} moves `{name}`"
    if graph.link is None:
        raise InvalidPlan(f"{where} to the host's memory, and the graph has no link to it.")
    if region.alone or region.inner or name in region.saved:
        raise InvalidPlan(f"{where}: it must be a checkpoint that does not save it besides.")
    reader = graph.values[graph.index[name]].reader if name in graph.index else None
    if reader is None:
        raise InvalidPlan(f"{where}, which is no value of the graph that may be moved.")
    if not region.first <= reader <= region.last:
        raise InvalidPlan(f"{where}, which the backward of stage {reader} reads: not its own.")


def _name(region: Region) -> str:
    return f"Region {region.first}-{region.last}"
