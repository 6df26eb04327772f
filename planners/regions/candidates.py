"""Which regions a plan may be made of.

- Every stage alone, and with each option that `stage_program` finds for it.
- Over intervals of several stages: one checkpoint that saves nothing, or what a uniform price per
  byte chooses for each stage; and nested regions, which save nothing and whose inner regions are
  single stages with options chosen by price.
- One checkpoint of an iteration of a loop, or where what is recomputed comes late, of all stages;
  or of all but the first or the last. It saves what a price per byte chooses, of what one stage
  leaves to the next as well.

Outputs of ops that must run once are saved wherever they may be.

| index | means |
|---|---|
| `s` | a stage of the graph |
| `o` | an option of a stage: the values that it saves |
"""

import functools as ft
import itertools as it
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np

from ..errors import InvalidPlan
from ..graph import Graph
from ..plan import Region
from .effects.candidate import Candidate, Sample
from .effects.walker import Walker
from .iterations import neighbours
from .simple_plans import minimal_region
from .stage_program.options import options, options_by_multiplier

# Lengths of intervals, most useful first, as many as keep within the two numbers below.
_LENGTHS = (2, 4, 3, 8, 6, 12, 16, 5, 24)
_MOST_CANDIDATES = 4000
# Stages of distinct intervals: each is walked a few times.
_MOST_WALKED = 400
# Solves for all distinct stages together, beyond which each gets fewer options.
_MOST_SOLVES = 360
# Options of a stage for which there was no time to solve.
_BY_MULTIPLIER = 4
# Prices per byte of either kind for the stages of an interval, beside the least to be saved.
_MULTIPLIERS = 2
# Prices that differ by less are the same.
_LARGER_PENALTY = 1.01
# Shares of the step's error that each of them may have.
_ERRORS = (1 / 4, 1 / 16, 1 / 64)
# Stages have options in common if their codes' errors are the same to such a factor.
_INVARIANT = 8.0
# Prices for checkpoints of the whole step, and between which quantiles of the prices.
_WHOLE_MULTIPLIERS, _RANGE = 8, (0.1, 0.9)

_Option = tuple[int, ...]


class Candidates:
    """The candidates of one graph."""

    def __init__(self, graph: Graph, *, max_options: int, deadline: float):
        """Solves the stage programs.

        Arguments:
            graph: the step.
            max_options: of one stage.
            deadline: stop solving at this reading of `time.monotonic`, in seconds.
        """
        self._graph, self._deadline = graph, deadline
        self._walker = Walker(graph)
        self._free = _read_by_others(graph)
        # What others may read as codes is in memory for them, or it is not.
        self._frees = self._free, _read_by_others(graph, in_every_implementation=True)
        self._options = self._solve(max_options)
        self.singles = [self._single(s) for s in range(len(graph.stages))]
        for x in self._neighbours([x for some in self.singles for x in some]):
            self.singles[x.region.first].append(x)

    def _by_multiplier(self, singles: list[list[Candidate]], multiplier: float) -> list[Candidate]:
        """For each stage its candidate of least seconds plus `multiplier` per retained byte."""
        return [
            min(some, key=lambda x: x.seconds + multiplier * self._retained_bytes(x))
            for some in singles
        ]

    def _multipliers(self, singles: list[list[Candidate]]) -> list[float]:
        """Prices, in seconds per byte: spread over those between neighbours by bytes, and such that
        stages give up more and more of their bytes.

        Of the latter each lies between two at which stages change their minds: at one, equal stages
        would differ.
        """
        neighbours, steps = self._local_derivatives(singles), self._steps(singles)
        shares = np.linspace(0, 1, _MULTIPLIERS + 2)[1:-1]
        found = np.quantile(neighbours, shares).tolist() if neighbours else []
        if not steps:
            return found
        local_derivatives, nbytes = np.array(sorted(steps)).T
        given_up = nbytes.cumsum()
        for share in shares:
            below = local_derivatives[np.searchsorted(given_up, share * given_up[-1])]
            above = local_derivatives[local_derivatives > _LARGER_PENALTY * below]
            found.append(math.sqrt(below * above[0]) if above.size else _LARGER_PENALTY * below)
        return list(dict.fromkeys(found))

    @ft.cached_property
    def _spaces(self) -> list[list[list[Candidate]]]:
        """What each stage may do by itself: all of it, or as far as errors are small, and what
        needs no codes.
        """
        most = self._graph.most_error
        limits = [most * share for share in _ERRORS] if math.isfinite(most) else [most]
        kinds: list[Callable[[Candidate], bool]] = [
            *(lambda x, limit=limit: x.error <= limit for limit in limits),
            self._needs_no_codes,
        ]
        spaces = []
        for may in kinds:
            space = [list(filter(may, some)) for some in self.singles]
            if all(space) and space not in spaces:
                spaces.append(space)
        return spaces or [self.singles]

    def _needs_no_codes(self, x: Candidate) -> bool:
        """Whether all backward ops of a single stage run in their first way."""
        saved = {self._graph.index[name] for name in x.region.saved}
        return not any(
            op.implementation_by(saved) for op in self._graph.stages[x.region.first].backward
        )

    def _local_derivatives(self, singles: list[list[Candidate]]) -> list[float]:
        """Seconds that stages spare for each byte, between neighbours in the order of bytes."""
        local_derivatives = []
        for some in singles:
            front = sorted((self._retained_bytes(x), -x.seconds) for x in some)
            steps = np.diff(np.array(front), axis=0)
            local_derivatives += [
                gain / size for size, gain in steps.tolist() if size > 0 and gain > 0
            ]
        return local_derivatives

    def _steps(self, singles: list[list[Candidate]]) -> list[tuple[float, int]]:
        """The prices, in seconds per byte, at which stages change their minds, and the bytes."""
        fronts = ([(self._retained_bytes(x), x.seconds) for x in some] for some in singles)
        return [step for front in fronts for step in _steps(front)]

    def intervals(self, deadline: float) -> list[Candidate]:
        """Candidates over several stages; stops at this reading of `time.monotonic`."""
        tables = []
        for singles in self._spaces:
            tables.append([min(some, key=self._multiplier_of) for some in singles])
            tables += [
                self._by_multiplier(singles, multiplier)
                for multiplier in self._multipliers(singles)
            ]
        over = (
            dict.fromkeys(self._over([table[first : last + 1] for table in tables]))
            for first, last in self._spans()
        )
        found = []
        for regions in it.chain(over, ([region] for region in self._whole())):
            if time.monotonic() > deadline:
                break
            found += [x for x in map(self._candidate, regions) if x is not None]
        return found + self._neighbours(found)

    def _neighbours(self, some: Sequence[Candidate]) -> list[Candidate]:
        """What lets an iteration do as the one next to it, where that is asked for."""
        known = {x.region for x in some}
        regions = it.chain.from_iterable(neighbours(self._graph, x.region) for x in some)
        new = (self._candidate(region) for region in dict.fromkeys(regions) if region not in known)
        return [x for x in new if x is not None]

    def _spans(self) -> Iterator[tuple[int, int]]:
        """The first and last stages of the intervals that are tried."""
        n, count, walked = len(self._graph.stages), 0, set()
        work = 0
        for length in (x for x in _LENGTHS if x <= n):
            spans = [(first, first + length - 1) for first in range(n - length + 1)]
            spans = [span for span in spans if self._in_one_unit(*span)]
            new = {self._walker.interval(*span).shape for span in spans} - walked
            count += len(spans) * (4 * _MULTIPLIERS + 3)
            work += len(new) * length
            if length > 2 and (count > _MOST_CANDIDATES or work > _MOST_WALKED):
                return
            walked |= new
            yield from spans

    def _in_one_unit(self, first: int, last: int) -> bool:
        """Whether stages lie in one iteration, or all outside of loops."""
        return self._graph.units[first] == self._graph.units[last]

    def _over(self, tables: Sequence[Sequence[Candidate]]) -> Iterator[Region]:
        """Regions over the stages of `tables`, which each choose one candidate a stage."""
        for table in tables:
            inner = tuple(x.region for x in table)
            first, last = inner[0].first, inner[-1].last
            once = self._once(first, last)
            saved = it.chain(*(self._inside(region) for region in inner[:-1]), inner[-1].saved)
            yield Region(first, last, saved=_unique((*once, *saved)))
            yield Region(first, last, saved=_unique(once), inner=inner)
            if self._graph.stages[last].may_be_alone:
                end = Region(last, last, alone=True)
                yield Region(first, last, saved=_unique(once), inner=(*inner[:-1], end))

    def _whole(self) -> Iterator[Region]:
        """Checkpoints of a whole iteration of a loop; where they come late, of the whole step."""
        local_derivatives = [seconds / nbytes for _, nbytes, seconds in self._passed if nbytes]
        local_derivatives = [
            local_derivative
            for local_derivative in (*self._local_derivatives(self.singles), *local_derivatives)
            if local_derivative
        ]
        if not local_derivatives:
            return
        spans = [
            (a, b)
            for start, end in self._graph.spans
            if self._graph.recomputes_late or start in self._graph.looped
            for a in range(start, min(start + 2, end))
            for b in range(max(end - 2, start), end)
            if a < b
        ]
        least, most = np.quantile(local_derivatives, _RANGE).tolist()
        for multiplier in np.geomspace(least, most, _WHOLE_MULTIPLIERS).tolist():
            passed = [i for i, nbytes, seconds in self._passed if seconds > multiplier * nbytes]
            for singles in self._spaces:
                saved = [self._saved(x) for x in self._by_multiplier(singles, multiplier)]
                for first, last in spans:
                    inside = (i for i in passed if first <= self._graph.forward_writer[i][0] < last)
                    names = it.chain(*saved[first : last + 1], self._names(inside))
                    yield Region(first, last, saved=_unique((*self._once(first, last), *names)))

    def _saved(self, x: Candidate) -> tuple[str, ...]:
        """Names of what a stage saves in a larger region, also if it is left alone by itself."""
        if not x.region.alone:
            return self._inside(x.region)
        return self._names(i for i in sorted(x.retained) if self._graph.values[i].savable)

    def _inside(self, region: Region) -> tuple[str, ...]:
        """Names of what a stage by itself would save, in a larger region.

        What the stage hands on is in memory then only if it is saved, so that codes are cheaper.
        """
        stage, index = self._graph.stages[region.first], self._graph.index
        saved = {index[name] for name in region.saved}
        ops = [op for op in (*stage.forward, *stage.backward) if not op.optional]
        handed_on = saved & self._graph.shared
        handed_on = handed_on.difference(*(op.inputs for op in ops))
        if not handed_on:
            return region.saved
        optional = {i for op in stage.forward if op.optional for i in op.outputs}
        found = saved - handed_on
        for op in stage.backward:
            if op.implementation_by(saved) != op.implementation_by(found):
                instead = (codes for codes in map(op.codes, op.alternatives) if codes <= optional)
                found |= next(instead, frozenset())
        return self._names(sorted(found))

    @ft.cached_property
    def _passed(self) -> list[tuple[int, int, float]]:
        """What stages leave to later ones and may be saved: the value, its bytes, and the seconds
        of its op. Between regions it is in memory in any case.
        """
        shared, values = self._graph.shared, self._graph.values
        return [
            (i, values[i].waiting_bytes, op.seconds)
            for stage in self._graph.stages
            for op in stage.forward
            for i in op.outputs
            if i in shared and values[i].savable
        ]

    def _candidate(self, region: Region) -> Candidate | None:
        """A region with its effect; None where no plan may have it."""
        try:
            found = self._walker.candidate(region)
        except InvalidPlan:  # it would run again what must run once
            return None
        return found if found.error <= self._graph.most_error else None

    def _single(self, s: int) -> list[Candidate]:
        """What stage `s` may do by itself, without what is never better than something else."""
        alone = Region(s, s, alone=True)
        regions = [Region(s, s, saved=self._names(saved)) for saved in self._options[s]]
        regions += [Region(s, s, saved=self._inside(region)) for region in regions]
        regions = [*regions, minimal_region(self._graph, s)]
        if self._graph.stages[s].may_be_alone:
            regions = [alone] if self._keeps_nothing(alone) else [*regions, alone]
        found: list[Candidate] = []
        for x in map(self._candidate, dict.fromkeys(regions)):
            if x is not None and not any(_dominates(y, x) for y in found):
                found = [y for y in found if not _dominates(x, y)] + [x]
        return found

    def _keeps_nothing(self, alone: Region) -> bool:
        """Whether a stage left alone keeps nothing, nor others for it what might be codes."""
        stage = self._graph.stages[alone.first]
        has_implementations = any(op.alternatives for op in stage.backward)
        return not (
            stage.alone_bytes or has_implementations or self._walker.candidate(alone).retained
        )

    def _solve(self, max_options: int) -> list[list[_Option]]:
        """For each stage its options; isomorphic stages share a solve."""
        stages = [self._walker.interval(s, s) for s in range(len(self._graph.stages))]
        keys = [
            (
                x.shape,
                *(tuple(i in free for i in x.values[0]) for free in self._frees),
                self._magnitudes(s),
            )
            for s, x in enumerate(stages)
        ]
        count = max(min(max_options, _MOST_SOLVES // max(len(set(keys)), 1)), 3)
        solved: dict[Hashable, list[_Option]] = {}
        for s, (stage, key) in enumerate(zip(stages, keys, strict=True)):
            if key not in solved:
                frees = {free.intersection(stage.values[0]): free for free in self._frees}
                found = (
                    options(self._graph, s, free=free, count=count, deadline=self._deadline)
                    for free in frees.values()
                )
                some = list(dict.fromkeys(it.chain.from_iterable(found)))
                some = some or options_by_multiplier(self._graph, s, count=_BY_MULTIPLIER)
                number = {i: k for k, i in enumerate(stage.values[0])}
                solved[key] = [tuple(number[i] for i in o) for o in some]
        return [
            [tuple(stage.values[0][k] for k in o) for o in solved[key]]
            for stage, key in zip(stages, keys, strict=True)
        ]

    def _magnitudes(self, s: int) -> tuple[int, ...]:
        """How large the errors of a stage's codes are, roughly, where errors are limited."""
        ops = self._graph.stages[s].forward if math.isfinite(self._graph.most_error) else ()
        return tuple(round(math.log(op.error, _INVARIANT)) for op in ops if op.error)

    def _once(self, first: int, last: int) -> tuple[str, ...]:
        """Names of what stages `first` to `last` must save wherever they are run again."""
        ops = (op for stage in self._graph.stages[first : last + 1] for op in stage.forward)
        values = [i for op in ops if not op.recomputable for i in op.outputs]
        return self._names(i for i in values if self._graph.values[i].savable)

    def _names(self, values: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._graph.values[i].name for i in values)

    def _multiplier_of(self, candidate: Candidate) -> tuple[bool, int, float]:
        region = candidate.region
        return region.alone, self._retained_bytes(candidate), candidate.seconds

    def _retained_bytes(self, candidate: Candidate) -> int:
        waiting = candidate.retained - candidate.aliased - self._free
        return candidate.alone_bytes + sum(self._graph.values[i].waiting_bytes for i in waiting)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


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


def _read_by_others(graph: Graph, in_every_implementation: bool = False) -> frozenset[int]:
    """Forward values that the backward of another stage reads, whatever is recomputed there.

    Arguments:
        graph: the step.
        in_every_implementation: whether it does so in whatever way it runs, or in its own.
    """
    return frozenset(
        i
        for s, stage in enumerate(graph.stages)
        for op in stage.backward
        for i in (op.always_reads if in_every_implementation else op.inputs)
        if graph.forward_writer.get(i, (s,))[0] != s
    )


def _steps(points: Iterable[tuple[int, float]]) -> list[tuple[float, int]]:
    """Prices, in seconds per byte, at which the cheapest of some points is another one, and by how
    many bytes: the steps of the points' lower convex hull.

    Arguments:
        points: of each its bytes and seconds.
    """
    hull: list[tuple[int, float]] = []
    for point in sorted(points):
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _local_derivative(*hull[-2:]) <= _local_derivative(hull[-1], point):
            hull.pop()
        hull.append(point)
    return [(_local_derivative(a, b), b[0] - a[0]) for a, b in it.pairwise(hull)]


def _local_derivative(a: tuple[int, float], b: tuple[int, float]) -> float:
    """Seconds that are spared for each byte from one point to one of more bytes."""
    return (a[1] - b[1]) / (b[0] - a[0])
