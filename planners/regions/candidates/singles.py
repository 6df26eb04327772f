"""Candidates of single stages: left alone, or with each option of the stage program."""

from collections.abc import Sequence

from ...graph import Graph
from ...plan import Region
from ..effects.candidate import Candidate, Sample
from ..effects.walker import Walker
from ..simple_plans import minimal_region
from .saved import inside, names


def single(
    graph: Graph, walker: Walker, s: int, options: Sequence[tuple[int, ...]]
) -> list[Candidate]:
    """Candidates of stage `s` by itself, without those that are never better than another."""
    alone = Region(s, s, alone=True)
    regions = [Region(s, s, saved=names(graph, saved)) for saved in options]
    regions += [Region(s, s, saved=inside(graph, region)) for region in regions]
    regions = [*regions, minimal_region(graph, s)]
    if graph.stages[s].may_be_alone:
        regions = [alone] if _keeps_nothing(graph, walker, alone) else [*regions, alone]
    found: list[Candidate] = []
    for x in map(walker.allowed, dict.fromkeys(regions)):
        if x is not None and not any(_dominates(y, x) for y in found):
            found = [y for y in found if not _dominates(x, y)] + [x]
    return found


def needs_no_codes(graph: Graph, x: Candidate) -> bool:
    """Whether all backward ops of a single stage run in their first implementation."""
    saved = {graph.index[name] for name in x.region.saved}
    return not any(op.implementation_by(saved) for op in graph.stages[x.region.first].backward)


def _keeps_nothing(graph: Graph, walker: Walker, alone: Region) -> bool:
    """Whether a stage left alone keeps nothing, nor others for it what might be codes."""
    stage = graph.stages[alone.first]
    has_implementations = any(op.alternatives for op in stage.backward)
    return not (stage.alone_bytes or has_implementations or walker.candidate(alone).retained)


def _dominates(a: Candidate, b: Candidate) -> bool:
    """Whether `a` is at least as good as `b` whatever the rest of the plan."""
    return (
        a.seconds <= b.seconds
        and a.flops <= b.flops
        and a.error <= b.error
        and a.retained <= b.retained
        and a.retained - a.aliased <= b.retained - b.aliased
        and a.alone_bytes <= b.alone_bytes
        and a.reads.keys() <= b.reads.keys()
        and all(
            all(any(_below(m, other) for other in there) for m in here)
            for here, there in zip(a.samples, b.samples, strict=True)
        )
    )


def _below(a: Sample, b: Sample) -> bool:
    return a.nbytes <= b.nbytes and a.reads <= b.reads
