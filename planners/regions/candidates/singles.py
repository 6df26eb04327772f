"""Candidates of single stages: left alone, or with each option of the stage program."""

import dataclasses
from collections.abc import Sequence

from ...graph import Graph
from ...plan import Region
from ..effects.candidate import Candidate, Sample
from ..effects.walker import Walker
from ..simple_plans import minimal_region, movable_inputs
from .saved import inside, names


def single(
    graph: Graph,
    walker: Walker,
    s: int,
    options: Sequence[tuple[int, ...]],
    moving: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (),
) -> list[Candidate]:
    """Candidates of stage `s` by itself, without those that are never better than another.

    Arguments:
        graph, walker: of the step.
        s: the stage.
        options: what it may save.
        moving: what it may save, and what of that may wait on the host.
    """
    alone = Region(s, s, alone=True)
    regions = [Region(s, s, saved=names(graph, saved)) for saved in options]
    regions += [Region(s, s, saved=inside(graph, region)) for region in regions]
    regions = [*regions, minimal_region(graph, s)]
    if graph.stages[s].may_be_alone:
        regions = [alone] if _keeps_nothing(graph, walker, alone) else [*regions, alone]
    if graph.link is not None:
        regions += _with_moves(graph, s, regions, moving)
    found: list[Candidate] = []
    for x in map(walker.allowed, dict.fromkeys(regions)):
        if x is not None and not any(_dominates(y, x) for y in found):
            found = [y for y in found if not _dominates(x, y)] + [x]
    return found


def _with_moves(
    graph: Graph,
    s: int,
    regions: Sequence[Region],
    moving: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> list[Region]:
    """Regions of stage `s` that move something: own values, its inputs, or both.

    They come back once they are needed, or while the backward of the stage behind runs.
    """
    inputs = names(graph, movable_inputs(graph, s))
    plain = [region for region in regions if not region.alone]
    moved = [
        Region(
            s,
            s,
            saved=names(graph, [i for i in saved if i not in some]),
            offloaded=names(graph, some),
        )
        for saved, some in moving
    ]
    both = [
        dataclasses.replace(region, offloaded=region.offloaded + inputs)
        for region in (*plain, *moved)
        if inputs
    ]
    is_last = s == len(graph.stages) - 1
    aheads = (0,) if is_last else (0, 1)
    return [dataclasses.replace(x, ahead=n) for x in (*moved, *both) for n in aheads]


def needs_no_codes(graph: Graph, x: Candidate) -> bool:
    """Whether all backward ops of a single stage run in their first implementation."""
    saved = {graph.index[name] for name in x.region.kept}
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
        and a.host_bytes <= b.host_bytes
        and a.in_flight <= b.in_flight
        and a.fetched_before <= b.fetched_before
        and a.reads.keys() <= b.reads.keys()
        and all(
            all(any(_below(m, other) for other in there) for m in here)
            for here, there in zip(a.samples, b.samples, strict=True)
        )
    )


def _below(a: Sample, b: Sample) -> bool:
    return a.nbytes <= b.nbytes and a.reads <= b.reads
