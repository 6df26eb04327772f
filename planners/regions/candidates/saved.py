"""Names of the values that regions save."""

from collections.abc import Iterable

from ...graph import Graph
from ...plan import Region
from ..effects.candidate import Candidate


def names(graph: Graph, values: Iterable[int]) -> tuple[str, ...]:
    """Names of values."""
    return tuple(graph.values[i].name for i in values)


def unique(some: Iterable[str]) -> tuple[str, ...]:
    """Names in their order, each once."""
    return tuple(dict.fromkeys(some))


def once(graph: Graph, first: int, last: int) -> tuple[str, ...]:
    """Names of what stages `first` to `last` must save wherever they are run again."""
    ops = (op for stage in graph.stages[first : last + 1] for op in stage.forward)
    values = [i for op in ops if not op.recomputable for i in op.outputs]
    return names(graph, (i for i in values if graph.values[i].savable))


def inside(graph: Graph, region: Region) -> tuple[str, ...]:
    """Names of what a stage by itself would save, in a larger region.

    What the stage hands on is in memory then only if it is saved, so that codes take fewer bytes.
    """
    stage = graph.stages[region.first]
    saved = {graph.index[name] for name in region.saved}
    ops = [op for op in (*stage.forward, *stage.backward) if not op.optional]
    handed_on = saved & graph.shared
    handed_on = handed_on.difference(*(op.inputs for op in ops))
    if not handed_on:
        return region.saved
    optional = {i for op in stage.forward if op.optional for i in op.outputs}
    found = saved - handed_on
    for op in stage.backward:
        if op.implementation_by(saved) != op.implementation_by(found):
            instead = (codes for codes in map(op.codes, op.alternatives) if codes <= optional)
            found |= next(instead, frozenset())
    return names(graph, sorted(found))


def saved_by(graph: Graph, x: Candidate) -> tuple[str, ...]:
    """Names of what a stage saves in a larger region, also if it is left alone by itself."""
    if not x.region.alone:
        return inside(graph, x.region)
    return names(graph, (i for i in sorted(x.retained) if graph.values[i].savable))


def passed(graph: Graph) -> list[tuple[int, int, float]]:
    """Savable values that stages leave to later ones: the value, its bytes, its op's seconds.

    Between regions they are in memory in any case.
    """
    shared, values = graph.shared, graph.values
    return [
        (i, values[i].waiting_bytes, op.seconds)
        for stage in graph.stages
        for op in stage.forward
        for i in op.outputs
        if i in shared and values[i].savable
    ]
