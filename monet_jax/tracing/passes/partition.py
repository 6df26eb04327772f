"""Cuts a program into stages, between equations across which few bytes are live.

A stage is what the compiled program keeps in order, so its ends should be cheap to keep: between
the blocks of a network, between attention and feed-forward, between a convolution's output and the
next one. Such points are found from live bytes alone, without knowing any model.
"""

import collections
import dataclasses
import itertools as it
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ...ir import compat
from ...ir.costs import work_of
from ...ir.primitives import Kind, is_random, kind_of
from ...ir.program import Equation, Program
from ...ir.stage import Differentiation, Replaced, Stage, active_values
from . import branches, loops
from .draft import Draft, Place, Planned

#: How many times the bytes live at a cut must be exceeded on both sides of it.
PROMINENCE = 1.4
#: The same for a stage that holds more than `LARGE_SHARE` of the program, where any cut helps.
LARGE_PROMINENCE, LARGE_SHARE = 1.15, 0.15
#: Programs are not cut finer than this; more stages cost planning and compile time.
MAX_STAGES = 64
#: The least share of the program's products, in FLOPs or in bytes, that a stage holds.
MIN_SHARE = 0.01


@dataclasses.dataclass(frozen=True)
class _Profile:
    """What a cut is judged by. Values: arrays over values; equations: arrays over positions."""

    start: np.ndarray  # values: the equation that writes it
    stop: np.ndarray  # values: the last equation that reads it
    nbytes: np.ndarray  # values: bytes if it crosses a cut
    kept_bytes: np.ndarray  # values: bytes it takes inside a stage, 0 where it is fused away
    fused_bytes: np.ndarray  # equations: bytes live before it that are fused away
    flops_share: np.ndarray  # equations: share of all FLOPs before it
    bytes_share: np.ndarray  # equations: share of all materialised bytes before it
    solids: np.ndarray  # equations: how many before it are neither fused nor reductions
    reductions: np.ndarray  # equations: how many before it are reductions

    def canonical(self, candidates: np.ndarray, lo: int, hi: int) -> int:
        """The one of equally good candidates to take: central, and placed as in similar blocks.

        Between two products it stands before any reduction: a normalization is recomputed with what
        it feeds, at little cost. There it stands where what is live is in memory anyway, and else
        behind the elementwise work on the first one's result.
        """
        central = candidates[np.argmin(np.abs(2 * candidates - (lo + hi)))]
        run = candidates[self.solids[candidates] == self.solids[central]]
        run = run[self.reductions[run] == self.reductions[run].min()]
        return int(run[self.fused_bytes[run] == self.fused_bytes[run].min()].max())

    def shares(self, lo: int | np.ndarray, hi: int | np.ndarray) -> np.ndarray | float:
        """The greater of the two shares of the equations from `lo` up to `hi`."""
        flops = self.flops_share[hi] - self.flops_share[lo]
        return np.maximum(flops, self.bytes_share[hi] - self.bytes_share[lo])


def cut_into_stages(draft: Draft) -> None:
    """Cuts the program between equations across which few bytes are live.

    Loops and conditionals that are planned are pieces of their own.
    """
    program, derivative = draft.program, draft.derivative
    if draft.hoisted:
        inputs = derivative.inputs.union(draft.hoisted.differentiated_outputs)
        derivative = dataclasses.replace(derivative, inputs=inputs)
    draft.active = active_values(program, derivative)
    draft.avals, draft.given = list(program.avals), set(program.given)
    draft.keeps_other = program.keeps_other
    planned = {n: e for n, e in enumerate(program.equations) if _is_planned(draft, e)}
    written = {e.outputs for e in planned.values()}
    once = draft.place is not Place.BODY
    for stage in split(program, derivative, alone=planned, runs_once=once):
        is_planned = len(stage.equations) == 1 and stage.equations[0].outputs in written
        piece = Planned(stage.equations[0]) if is_planned else Replaced(stage)
        draft.pieces.append(piece)


def _is_planned(draft: Draft, equation: Equation) -> bool:
    """Whether what an equation runs inside has stages of its own."""
    is_loop = loops.may_be_planned(equation, draft.active)
    is_choice = branches.may_be_planned(equation, draft.active)
    return (is_loop and draft.place is Place.FUNCTION) or is_choice


def split(
    program: Program,
    derivative: Differentiation,
    alone: Collection[int],
    runs_once: bool,
) -> tuple[Stage, ...]:
    """The program as consecutive stages; `runs_once` is as in `cut`.

    The equations at the positions `alone` are one each; one that is to be apart begins a stage, to
    which the few equations that often follow a chunked loss, a division say, belong as well.
    """
    free = _free_values(program, {i for p in alone for i in program.equations[p].reads})
    ends = {p for position in alone for p in (position, position + 1)}
    ends.update(p for p, e in enumerate(program.equations) if e.apart)
    positions = sorted({*cut(program, free, runs_once), *ends, len(program.equations)})
    slices = [
        [i for i in range(lo, hi) if not _is_free(program.equations[i], free)]
        for lo, hi in it.pairwise(positions)
    ]
    return _make_stages(program, derivative, [s for s in slices if s] or [[]], free)


def _free_values(program: Program, handed_on: set[int]) -> frozenset[int]:
    """Values that stages compute anew rather than hand on: masks, tables, casts of parameters.

    They come from arguments and constants alone, by work that XLA fuses into its consumer, and are
    not among those that are to be `handed_on`.
    """
    free: set[int] = set()
    for equation in program.equations:
        elementwise = kind_of(equation) in (Kind.VIEW, Kind.FUSED)
        cheap = elementwise and not compat.has_effects(equation.eqn)
        keys = any(compat.is_key(program.avals[i]) for i in equation.outputs)
        fresh = not keys and not is_random(equation)
        known = all(i in program.given or i in free for i in equation.reads)
        if cheap and fresh and known and not handed_on.intersection(equation.outputs):
            free.update(equation.outputs)
    return frozenset(free)


def _is_free(equation: Equation, free: frozenset[int]) -> bool:
    return free.issuperset(equation.outputs) and bool(equation.outputs)


def _make_stages(program, derivative, slices: list[list[int]], free) -> tuple[Stage, ...]:
    producer = {i: p for p, e in enumerate(program.equations) for i in e.outputs}
    active = active_values(program, derivative)
    later = {i for i in program.outputs if isinstance(i, int)}
    stages = []
    for n, positions in reversed(list(enumerate(slices))):
        returned = later if n == len(slices) - 1 else set()
        positions = _with_free(program, producer, free, positions, returned)
        stage = _make_stage(program, active, positions, later)
        later = (later - free) | set(stage.inputs)  # the last stage returns the free outputs
        stages.append(stage)
    return tuple(reversed(stages))


def _with_free(program, producer, free, positions: list[int], returned: Iterable[int]) -> list[int]:
    """The positions, and the positions of the free values that they or `returned` need."""
    found = set(positions)
    queue = [i for p in positions for i in program.equations[p].reads] + list(returned)
    while queue:
        i = queue.pop()
        if i in free and producer[i] not in found:
            found.add(producer[i])
            queue += program.equations[producer[i]].reads
    return sorted(found)


def _make_stage(program, active, positions: list[int], later: set[int]) -> Stage:
    equations = tuple(program.equations[p] for p in positions)
    written = {i for e in equations for i in e.outputs}
    inputs = tuple(sorted({i for e in equations for i in e.reads} - written))
    outputs = tuple(sorted(written & later))
    return Stage(
        equations,
        inputs,
        outputs,
        tuple(i for i in inputs if i in active),
        tuple(i for i in outputs if i in active),
    )


def cut(program: Program, free: frozenset[int], runs_once: bool) -> tuple[int, ...]:
    """Positions of equations at which stages begin: 0 first, the equation count left out.

    Arguments:
        program: the program to cut.
        free: values that need not be kept between stages, since stages compute them anew.
        runs_once: whether the program is no loop's body. The stages of a body are the planner's
            once for each block of iterations, so it is cut less finely: fused values that live
            long are left out of the bytes inside it.
    """
    profile = _profile(program, free, runs_once)
    cuts = {0, *_forced_cuts(program)}
    queue = list(it.pairwise(sorted({*cuts, len(program.equations)})))
    while queue and len(cuts) < MAX_STAGES:
        lo, hi = queue.pop(0)
        position = _best_cut(profile, lo, hi)
        if position is not None:
            cuts.add(position)
            queue += [(lo, position), (position, hi)]
    return tuple(sorted(cuts))


def _forced_cuts(program: Program) -> set[int]:
    """Equations with effects stand alone: their stage must never run again."""
    effects = [i for i, e in enumerate(program.equations) if compat.has_effects(e.eqn)]
    return {p for i in effects for p in (i, i + 1) if p < len(program.equations)}


def _profile(program: Program, free: frozenset[int], runs_once: bool) -> _Profile:
    kinds = [kind_of(e) for e in program.equations]
    solids = [kind is Kind.SOLID for kind in kinds]
    before = np.cumsum([0, *solids])
    values, start, stop = _lifetimes(program, free)
    nbytes = np.array([program.nbytes(i) for i in values], dtype=np.int64)
    kept = _pooled_values(program) | _of_solids(program, solids)
    is_kept = np.array([i in kept for i in values], dtype=bool)
    # What lives across a solid equation is not fused away: a running sum, say.
    is_written = is_kept | (before[stop] > before[start + 1])
    pairs = zip(program.equations, solids, strict=True)
    written = [sum(map(program.nbytes, e.outputs)) if solid else 0 for e, solid in pairs]
    return _Profile(
        start,
        stop,
        nbytes,
        nbytes * (is_written if runs_once else is_kept),
        _coverage(start + 1, stop, nbytes * ~is_written, len(kinds) + 1),
        _cumulative_share([work_of(e).flops for e in program.equations]),
        _cumulative_share(written),
        before,
        np.cumsum([0, *(kind is Kind.REDUCTION for kind in kinds)]),
    )


def _lifetimes(program: Program, free: frozenset[int]) -> tuple[list[int], np.ndarray, np.ndarray]:
    """What is written and not free, and the equations that write it and read it last."""
    start, stop = dict[int, int](), dict[int, int]()
    for position, equation in enumerate(program.equations):
        start |= dict.fromkeys(equation.outputs, position)
        stop |= dict.fromkeys((*equation.reads, *equation.outputs), position)
    values = [i for i in start if i not in free]
    ends = ([some[i] for i in values] for some in (start, stop))
    first, last = (np.array(some, dtype=np.int64) for some in ends)
    return values, first, last


def _of_solids(program: Program, solids: Sequence[bool]) -> set[int]:
    """What equations read and write that are neither fused nor reductions."""
    some = it.compress(program.equations, solids)
    return {i for e in some for i in (*e.reads, *e.outputs)}


def _pooled_values(program: Program) -> set[int]:
    """What is read in windows: a padded value of which several equations take slices."""
    slices = collections.Counter(
        i for e in program.equations if e.primitive == "slice" for i in e.reads
    )
    pads = (e for e in program.equations if e.primitive == "pad")
    return {e.reads[0] for e in pads if slices[e.outputs[0]] > 1}


def _cumulative_share(amounts: list[int]) -> np.ndarray:
    total = np.cumsum([0, *amounts], dtype=np.float64)
    return total / max(total[-1], 1.0)


def _best_cut(profile: _Profile, lo: int, hi: int) -> int | None:
    """The best position strictly inside [lo, hi), or None where no point stands out.

    Values live throughout the interval are left out: no cut in it could drop them.
    """
    length = hi - lo
    if length < 2 or profile.shares(lo, hi) < 2 * MIN_SHARE:
        return None
    start, stop = profile.start, profile.stop
    inside = (start < hi) & (stop >= lo) & ~((start < lo) & (stop >= hi))
    start, stop = start[inside] - lo, stop[inside] - lo
    # during[i]: bytes in memory while equation lo + i runs; live[i]: crossing a cut before it.
    during = _coverage(start, stop, profile.kept_bytes[inside], length)
    live = _coverage(start + 1, stop, profile.nbytes[inside], length)[1:]
    left, right = np.maximum.accumulate(during), np.maximum.accumulate(during[::-1])[::-1]
    barrier = np.minimum(left[:-1], right[1:])
    inner = np.arange(lo + 1, hi)
    enough = np.minimum(profile.shares(lo, inner), profile.shares(inner, hi)) >= MIN_SHARE
    large = profile.shares(lo, hi) > LARGE_SHARE
    good = enough & (barrier >= (LARGE_PROMINENCE if large else PROMINENCE) * live)
    if not good.any():
        return None
    return profile.canonical(lo + 1 + np.flatnonzero(good & (live == live[good].min())), lo, hi)


def _coverage(first: np.ndarray, last: np.ndarray, nbytes: np.ndarray, length: int) -> np.ndarray:
    """Sum of `nbytes` over the intervals [first, last] that cover each of `length` positions."""
    delta = np.zeros(length + 1, dtype=np.int64)
    first, last = np.maximum(first, 0), np.minimum(last, length - 1)
    valid = first <= last
    np.add.at(delta, first[valid], nbytes[valid])
    np.add.at(delta, last[valid] + 1, -nbytes[valid])
    return np.cumsum(delta)[:length]
