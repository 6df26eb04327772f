"""The options of a stage: sets of values that it may save, fastest first.

Which values to save decides which ops run again: what the backward reads is saved or recomputed,
and what a recomputed op reads likewise.

Known limit: options differ in bytes and seconds; of two that agree in both, the one with the
smaller transient peak need not be the one that is found.
"""

import itertools as it
import math
import time
from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np

from ...graph import Graph, Op
from .moving import may_move, moving_of
from .needs import needs
from .program import Proposal, StageProgram

# Solves for proposals between those of a front, and the gain of cost that counts as none.
_KNEES, _SAME = 4, 1e-6
# So few savable values are not worth a solve.
_ENUMERATED = 4


def options(
    graph: Graph, s: int, *, free: Set[int], count: int, deadline: float
) -> list[tuple[int, ...]]:
    """Sets of values that stage `s` may save.

    Arguments:
        graph: the step.
        s: the stage.
        free: values that are in memory anyway, for the backward of another stage.
        count: at most so many options for each count of bytes, two or more; and a few between
            those that are far apart.
        deadline: stop at this reading of `time.monotonic`, in seconds.

    Returns:
        Indices of values, ascending, for each option. Of a stage with few savable values every
        subset, also those that do not do, and more than `count`. Empty where none is found in
        time, or the backward needs a value that can be neither saved nor recomputed.
    """
    stage = needs(graph, s)
    savable = [i for i in stage.values if graph.values[i].savable]
    if len(savable) <= _ENUMERATED:
        sizes = range(len(savable) + 1)
        return [some for size in sizes for some in it.combinations(savable, size)]
    results = graph.stages[s - 1].result_bytes if s else ()
    # An output buffer may turn out to be taken, so the fronts with and without reuse are options.
    found: dict[tuple[int, ...], None] = {}
    for aliasing in ((), results) if any(results) else ((),):
        if time.monotonic() < deadline:  # writing a program takes longer than a solve
            program = StageProgram(graph, s, stage, free, aliasing)
            found |= dict.fromkeys(_fronts(program, count, deadline))
    return list(found)


def moving_options(
    graph: Graph, s: int, *, free: Set[int], count: int, deadline: float
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Sets of values that stage `s` may save, and of these the ones that move to the host.

    Arguments:
        graph, s, free, count, deadline: as of `options`.

    Returns:
        Options that move something. Empty where nothing may move.
    """
    stage = needs(graph, s)
    moving = moving_of(graph, s, stage)
    if moving is None:
        return []
    savable = [i for i in stage.values if graph.values[i].savable]
    if len(savable) <= _ENUMERATED:
        movable = [i for i in savable if may_move(graph, s, i)]
        return [
            (saved, moved)
            for saved in options(graph, s, free=free, count=count, deadline=deadline)
            for size in range(1, len(movable) + 1)
            for moved in it.combinations(movable, size)
            if {*moved} <= {*saved}
        ]
    if time.monotonic() >= deadline:
        return []
    program = StageProgram(graph, s, stage, free, (), moving)
    found = (x for some in _proposals(program, count, deadline) for x in some)
    return list(dict.fromkeys((x.saved, x.moved) for x in found if x.moved))


def options_by_multiplier(graph: Graph, s: int, *, count: int) -> list[tuple[int, ...]]:
    """Sets of values that stage `s` may save, found without a solve.

    Values come by the seconds per byte of the op that writes them, the most first. Each set has a
    smaller share of the stage's bytes, and of these the values that the backward or a
    recomputation reads.

    Arguments:
        graph: the step.
        s: the stage.
        count: at most so many options.
    """
    stage = needs(graph, s)
    forward = graph.stages[s].forward
    writer = {i: forward[o] for o, op in enumerate(forward) for i in op.outputs}
    savable = [i for i in stage.values if graph.values[i].savable]
    savable.sort(key=lambda i: -writer[i].seconds / max(graph.values[i].nbytes, 1))
    sums = np.cumsum([graph.values[i].nbytes for i in savable])
    once = {i for i in savable if not writer[i].recomputable}
    found = []
    for share in np.linspace(1.0, 0.0, count):
        some = once.union(savable[: int((sums <= share * sums[-1:].sum()).sum())])
        found.append(tuple(sorted(_used(stage.read(some), writer, some))))
    return list(dict.fromkeys(found))


def _used(read: Set[int], writer: Mapping[int, Op], saved: Set[int]) -> set[int]:
    """Of the saved values those that the backward or a recomputation for it reads."""
    seen, pending = set(read), list(read)
    while pending:
        i = pending.pop()
        if i not in saved:
            new = {u for u in writer[i].inputs if u in writer} - seen
            seen |= new
            pending += new
    return seen & saved


def _fronts(program: StageProgram, count: int, deadline: float) -> Iterator[tuple[int, ...]]:
    """What the proposals of a program save."""
    for proposals in _proposals(program, count, deadline):
        yield from (x.saved for x in proposals)


def _proposals(program: StageProgram, count: int, deadline: float) -> Iterator[list[Proposal]]:
    """Proposals of a program for several limits of the error, from the most to none.

    Only the composition decides which share of the step's error the stage may have.
    """
    worst = math.inf
    for limit in program.error_limits:
        if limit < worst:  # or the proposals are known
            proposals = _front(program, limit, count, deadline)
            proposals += _knees(program, limit, proposals, deadline)
            worst = max((x.error for x in proposals), default=worst)
            yield proposals


def _front(program: StageProgram, most_error: float, count: int, deadline: float) -> list[Proposal]:
    """Proposals of a program, fastest first, for fewer and fewer bytes."""
    found: list[Proposal] = []
    limit: float = program.total_bytes
    step = max(program.total_bytes / (count - 1), 1.0)
    while limit >= 0 and len(found) < count:
        proposal = program.fastest(limit, most_error, deadline - time.monotonic())
        if proposal is None:
            proposal = program.smallest(most_error, deadline - time.monotonic())
        if proposal is None or _same(proposal) in map(_same, found):
            break
        found.append(proposal)
        # The next multiple of `step` below this proposal; zero comes last.
        limit = math.floor((math.ceil(proposal.retained_bytes / step) - 1) * step)
    return found


def _same(proposal: Proposal) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Equal for proposals that decide the same."""
    return proposal.saved, proposal.moved


def _knees(
    program: StageProgram, most_error: float, front: Sequence[Proposal], deadline: float
) -> list[Proposal]:
    """Proposals between two of a front that cost less than the line between these.

    Where a little more is run again for nearly nothing, and then a product, limits that are evenly
    spaced miss the point before the product. Aneja and Nair (Management Science 1979): minimize
    the cost for the multiplier on bytes at which two neighbours cost the same.
    """
    found: list[Proposal] = []
    pairs = [*it.pairwise(front)]
    for _ in range(_KNEES):
        pair = max(pairs, key=_between, default=None)
        if pair is None or _between(pair) <= 0:
            break
        pairs.remove(pair)
        a, b = pair
        multiplier = (b.cost - a.cost) / (a.retained_bytes - b.retained_bytes)
        proposal = program.cheapest(multiplier, most_error, deadline - time.monotonic())
        most = a.by_multiplier(multiplier) - _SAME
        if proposal is not None and proposal.by_multiplier(multiplier) < most:
            found.append(proposal)
            pairs += (a, proposal), (proposal, b)
    return found


def _between(pair: tuple[Proposal, Proposal]) -> float:
    """Seconds times bytes that a proposal between two of a front may gain."""
    a, b = pair
    return (b.cost - a.cost) * (a.retained_bytes - b.retained_bytes)
