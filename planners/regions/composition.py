"""Which candidates make up the fastest plan within a budget: an integer program.

Exactly one chosen candidate covers each stage. While the backward stands at stage `t`, in memory
are the covering candidate's own bytes, what the regions before it retained, and *shared* values,
which ops of more than one stage read: each counts once, however many regions wait for it.

| index | means |
|---|---|
| `c` | a candidate; `choose[c]` is 1 where the plan has it |
| `t` | a stage; the backward reaches `t` after every later stage |
| `i` | a shared value, written by stage `p` |
| `m` | a moment of stage `t`, forward or backward: one row of the memory constraint |

The variables stand side by side in one vector: `choose` (0 or 1); `earlier[t]`, bytes of values
that are not shared and that regions before `t` retained; and for shared values with several
readers `kept[i, t]` (0 to 1): a region that is before `t`, or whose backward ends its reads of `i`
at or before `t`, needs `i` from the first forward. Bytes are divided by a scale and seconds by the
step's, so that coefficients are of order one.

Of a choice one branch runs. Each branch begins with what is `earlier` than the choice; behind it
`waits[c]` comes on top, which is no less than what any branch leaves behind.
"""

import bisect
import collections
import dataclasses
import functools
import itertools as it
import math
from collections.abc import Iterable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from ..graph import Choice, Graph
from ..plan import Region
from ..solver.highs import Outcome, solve
from ..solver.sparse import matrix
from .effects import Candidate, Sample
from .iterations import neighbours

# Ties: of plans equally fast take fewer FLOPs, and then fewer retained bytes.
_FLOPS_WEIGHT, _BYTES_WEIGHT = 1e-6, 1e-7
_BARRIERS = _FLOPS_WEIGHT + _BYTES_WEIGHT
#: Times the error that a plan may have: what candidates with more are taken to have.
_TOO_MUCH = 2.0

_Terms = dict[int, float]  # column of the variables -> coefficient


@dataclasses.dataclass(frozen=True, slots=True)
class Relaxation:
    """What the linear relaxation proves, in seconds of recomputation.

    Attributes:
        infeasible: no plan keeps the budget.
        bound: no plan takes less.
        least_seconds: for each candidate, no plan that has it takes less.
    """

    infeasible: bool
    bound: float
    least_seconds: np.ndarray


class Composition:
    """The integer program over one set of candidates, compiled once for every budget."""

    def __init__(self, graph: Graph, candidates: Sequence[Candidate]):
        self._candidates = tuple(candidates)
        self._seconds = graph.seconds or 1.0
        self._rows = rows = _Rows(graph, self._candidates)
        self._error = None  # of each candidate, over what a plan may have
        if math.isfinite(graph.most_error):
            errors = np.array([c.error for c in candidates])
            # What is too much by itself need not be known any better.
            limit = np.maximum(graph.most_error, errors / _TOO_MUCH)
            self._error = np.divide(errors, limit, out=np.zeros_like(errors), where=errors > 0)
        memory, constants = rows.memory()
        self._memory = matrix(memory, rows.width), np.array(constants)
        self._budget, peak = cp.Parameter(), cp.Variable()
        self._choose = choose = cp.Variable(len(candidates), boolean=True)
        plan, in_memory = self._constraints(choose)
        cost = np.array([c.seconds for c in candidates]) / self._seconds
        cost += _barriers(self._candidates, rows)
        self._fastest = cp.Problem(cp.Minimize(cost @ choose), [*plan, in_memory <= self._budget])
        self._smallest = cp.Problem(
            cp.Minimize(peak + _BARRIERS * (cost @ choose)), [*plan, in_memory <= peak]
        )
        share = cp.Variable(len(candidates))
        plan, in_memory = self._constraints(share)
        self._unused = share >= 0
        self._relaxed = cp.Problem(
            cp.Minimize(cost @ share), [*plan, in_memory <= self._budget, self._unused]
        )

    def _constraints(self, choose: cp.Variable) -> tuple[list[Any], Any]:
        """What makes a choice a plan, and the bytes in memory at each moment."""
        rows, n = self._rows, len(self._candidates)
        x = cp.hstack([choose, cp.Variable(rows.width - n, nonneg=True)])
        cover = matrix([dict.fromkeys(some, 1.0) for some in rows.covering], n)
        constraints = [cover @ choose == 1, matrix(rows.earlier(), rows.width) @ x == 0]
        if rows.kept_rows:
            constraints.append(matrix(rows.kept_rows, rows.width) @ x >= 0)
        if rows.invariant_values:
            constraints.append(matrix(rows.invariant_values, n) @ choose <= 0)
        if self._error is not None:
            constraints.append(self._error @ choose <= 1)
        memory, constants = self._memory
        return constraints, memory @ x + constants

    def fastest(self, budget_bytes: int, *, time_limit: float, gap: float) -> Outcome:
        """Solves for the least seconds within a budget.

        Arguments:
            budget_bytes: may not be exceeded.
            time_limit: in seconds.
            gap: stop within this share of the step's seconds of the bound.

        Returns:
            The outcome; its bound is in seconds of recomputation. `regions` has the plan.
        """
        self._limit(budget_bytes)
        outcome = solve(self._fastest, time_limit=time_limit, absolute_gap=gap)
        return dataclasses.replace(outcome, bound=self._in_seconds(outcome.bound))

    def relaxed(self, budget_bytes: int, *, time_limit: float) -> Relaxation:
        """Solves with fractions of candidates for the least seconds within a budget."""
        self._limit(budget_bytes)
        outcome = solve(self._relaxed, time_limit=time_limit, absolute_gap=0.0)
        if not outcome.found:
            nothing = np.zeros(len(self._candidates))
            return Relaxation(outcome.infeasible, 0.0, nothing)
        bound = self._in_seconds(outcome.bound)
        reduced_cost = np.asarray(self._unused.dual_value, dtype=float) * self._seconds
        return Relaxation(False, bound, bound + reduced_cost)

    def smallest(self, *, time_limit: float) -> Outcome:
        """Solves for the least peak; the outcome's bound is in bytes."""
        outcome = solve(self._smallest, time_limit=time_limit, absolute_gap=1e-7)
        return dataclasses.replace(outcome, bound=outcome.bound * self._rows.scale)

    def _limit(self, budget_bytes: int) -> None:
        # A quarter of a byte, so that rounding does not rule out a plan that just fits.
        self._budget.value = (budget_bytes + 0.25) / self._rows.scale

    def _in_seconds(self, objective: float) -> float:
        """A bound on seconds of recomputation from one on the objective."""
        return max(objective - _BARRIERS, 0.0) * self._seconds

    def regions(self) -> tuple[Region, ...]:
        """The plan that the last solve found."""
        chosen = np.flatnonzero(np.asarray(self._choose.value) > 0.5)
        found = [self._candidates[c].region for c in chosen]
        return tuple(sorted(found, key=lambda region: region.first))


class _Rows:
    """The rows of the program, as terms over its columns."""

    def __init__(self, graph: Graph, candidates: Sequence[Candidate]):
        self._graph, self._candidates = graph, candidates
        self._n, self._last = len(candidates), len(graph.stages) - 1
        self._forward_ops = graph.ops[: graph.forward_count]
        self._last_forward_read = _last_forward_reads(graph)
        self._shared = graph.shared
        self.covering: list[list[int]] = [[] for _ in graph.stages]
        for c, candidate in enumerate(candidates):
            for t in range(candidate.region.first, candidate.region.last + 1):
                self.covering[t].append(c)
        self.scale = float(max([1, *(m.nbytes for x in candidates for s in x.samples for m in s)]))
        self.width = self._n + len(graph.stages)
        self.own_bytes = [
            self._bytes(x.retained - x.aliased - self._shared) + x.alone_bytes for x in candidates
        ]
        self._readers = _holders(x.reads for x in candidates)
        self._readers_at: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for i, readers in self._readers.items():
            for c in readers:
                self._readers_at[i, candidates[c].reads[i]].append(c)
        self._producers = _holders(x.retained & self._shared for x in candidates)
        self._idle: dict[int, tuple[list[int], list[int]]] = {}  # ends, sums of bytes before
        self.kept_rows: list[_Terms] = []
        self._homes = _homes(graph)
        self._kept = {i: self._keep(i) for i in sorted(self._shared)}
        outermost = {home[0] for home in graph.branch_of if home is not None}
        self._choices = sorted(outermost, key=lambda choice: choice.first)
        self._waits = {choice: self.width + k for k, choice in enumerate(self._choices)}
        self.width += len(self._choices)
        for choice in self._choices:
            for first, stop in choice.branches:
                self.kept_rows.append(self._waiting(choice, first, stop))

    @functools.cached_property
    def invariant_values(self) -> list[_Terms]:
        """`choose[c] - choices of the same in the iterations next to it`, as `... <= 0`."""
        number = {x.region: c for c, x in enumerate(self._candidates)}
        rows = []
        for c, x in enumerate(self._candidates):
            if others := neighbours(self._graph, x.region):
                rows.append({c: 1.0} | {number[y]: -1.0 for y in others if y in number})
        return rows

    def earlier(self) -> list[_Terms]:
        """`earlier[t] == earlier[t-1] + what candidates that end at t-1 retain`, as `... == 0`."""
        rows: list[_Terms] = [{self._n: 1.0}]
        before = {first: choice for choice in self._choices for first in choice.firsts[1:]}
        behind = {choice.stop: choice for choice in self._choices}
        for t in range(1, self._last + 1):
            if t in before:
                row = {self._n + before[t].first: -1.0}
            elif t in behind:
                row = {self._n + behind[t].first: -1.0, self._waits[behind[t]]: -1.0}
            else:
                row = {self._n + t - 1: -1.0} | self._left_at(t - 1, -1.0)
            rows.append({self._n + t: 1.0} | row)
        return rows

    def _left_at(self, t: int, sign: float) -> _Terms:
        """Bytes that candidates which end at stage `t` leave behind."""
        ending = [c for c in self.covering[t] if self._candidates[c].region.last == t]
        return {c: sign * self.own_bytes[c] / self.scale for c in ending}

    def _waiting(self, choice: Choice, first: int, stop: int) -> _Terms:
        """`waits[choice] - what a branch of it leaves behind`."""
        row = {self._waits[choice]: 1.0, self._n + choice.first: 1.0}
        _add(row, {self._n + stop - 1: 1.0} | self._left_at(stop - 1, 1.0), -1.0)
        for i, home in self._homes.items():
            if home == (first, stop) and i in self._kept:
                _add(row, self._kept_at(i, stop), -self._bytes([i]) / self.scale)
        return row

    def _is_counted(self, i: int, t: int) -> bool:
        """Whether a shared value is counted by itself at stage `t`; see `waits` if not."""
        first, stop = self._homes.get(i, (0, self._last + 1))
        return first <= t < stop

    def memory(self) -> tuple[list[_Terms], list[float]]:
        """Bytes in memory at each moment: terms, and constants."""
        rows, constants = [], []
        peaks = _forward_peaks(self._graph, self._last_forward_read)
        for t, some in enumerate(self.covering):
            for time, nbytes in peaks[t]:
                rows.append(self._forward(t, time))
                constants.append(nbytes / self.scale)
            for m in range(max(len(self._samples(c, t)) for c in some)):
                rows.append(self._backward(t, m))
                constants.append(0.0)
        return rows, constants

    def _forward(self, t: int, time: int) -> _Terms:
        """What is in memory at forward op `time` for the backward only."""
        row = {self._n + t: 1.0}
        for c in self.covering[t]:
            own = self._idle_bytes(c, time) + self._candidates[c].alone_bytes
            row[c] = (own + self._encoding_bytes(c, time)) / self.scale
        for i in self._kept:
            if self._last_forward_read[i] < time and self._is_counted(i, t):
                _add(row, self._kept_at(i, self._last + 1), self._bytes([i]) / self.scale)
        return row

    def _idle_bytes(self, c: int, time: int) -> int:
        """Bytes that candidate `c` retains and the forward does not read from op `time` on."""
        if c not in self._idle:
            x = self._candidates[c]
            own = x.retained - x.aliased - self._shared
            values = self._graph.values
            ends = sorted((self._last_forward_read[i], values[i].waiting_bytes) for i in own)
            sums = it.accumulate((nbytes for _, nbytes in ends), initial=0)
            self._idle[c] = [end for end, _ in ends], list(sums)
        ends, sums = self._idle[c]
        return sums[bisect.bisect_left(ends, time)]

    def _encoding_bytes(self, c: int, time: int) -> int:
        """What candidate `c` holds at forward op `time` for that op alone, if it is optional."""
        op, retained = self._forward_ops[time], self._candidates[c].retained
        if not op.optional or retained.isdisjoint(op.outputs):
            return 0
        read = (i for i in op.inputs if self._last_forward_read[i] < time and i not in retained)
        return sum(self._graph.values[i].nbytes for i in read) + op.workspace_bytes

    def _backward(self, t: int, m: int) -> _Terms:
        """What is in memory at moment `m` of the backward of stage `t`."""
        row = {self._n + t: 1.0}
        for c in self.covering[t]:
            row[c] = self._sample(c, t, m).nbytes / self.scale
        for i in self._kept:
            if self._is_counted(i, t):
                _add(row, self._kept_during(i, t, m), self._bytes([i]) / self.scale)
        return row

    def _kept_during(self, i: int, t: int, m: int) -> _Terms:
        """Whether `i` is in memory at moment `m`, while the covering candidate may drop it."""
        readers = self._readers_at.get((i, t), ())
        if not readers:
            return self._kept_at(i, t)
        still = [c for c in readers if i in self._sample(c, t, m).reads]
        if len(still) == len(readers):
            return self._kept_at(i, t)
        ended = [c for c in self._producers[i] if self._candidates[c].region.last == t - 1]
        return self._either(self._kept_at(i, t - 1), [ended, still])

    def _keep(self, i: int) -> list[tuple[int, _Terms]]:
        """Pairs of a stage and the terms of `kept[i, t]` from that stage on."""
        read, ended = collections.defaultdict(list), collections.defaultdict(list)
        for c in self._readers[i]:
            read[self._candidates[c].reads[i]].append(c)
        for c in self._producers[i]:
            ended[self._candidates[c].region.last + 1].append(c)
        found: list[tuple[int, _Terms]] = []
        for t in sorted({*read, *ended}):
            before = found[-1][1] if found else {}
            found.append((t, self._either(before, [read[t], ended[t]])))
        return found

    def _kept_at(self, i: int, t: int) -> _Terms:
        place = bisect.bisect_right(self._kept[i], t, key=lambda pair: pair[0])
        return self._kept[i][place - 1][1] if place else {}

    def _either(self, terms: _Terms, groups: Sequence[Sequence[int]]) -> _Terms:
        """Terms that are 1 where `terms` are, or where a candidate of the groups is chosen."""
        groups = [group for group in groups if group]
        columns = [c for c in terms] + [c for group in groups for c in group]
        if not groups or self._exclusive(columns):
            return terms | dict.fromkeys(columns, 1.0)
        either = self.width
        self.width += 1
        for part in (terms, *(dict.fromkeys(group, 1.0) for group in groups)):
            self.kept_rows.append({either: 1.0} | {c: -x for c, x in part.items()})
        return {either: 1.0}

    def _exclusive(self, columns: Sequence[int]) -> bool:
        """Whether the columns are candidates of which a plan has one at most."""
        if max(columns) >= self._n:
            return False
        regions = [self._candidates[c].region for c in columns]
        return max(x.first for x in regions) <= min(x.last for x in regions)

    def _samples(self, c: int, t: int) -> tuple[Sample, ...]:
        return self._candidates[c].samples[t - self._candidates[c].region.first]

    def _sample(self, c: int, t: int, m: int) -> Sample:
        samples = self._samples(c, t)
        return samples[min(m, len(samples) - 1)]

    def _bytes(self, values: Iterable[int]) -> int:
        return sum(self._graph.values[i].waiting_bytes for i in values)


def _homes(graph: Graph) -> dict[int, tuple[int, int]]:
    """For shared values of one branch of a choice the stages of that branch."""
    if not graph.choices:
        return {}
    stages: dict[int, set[int]] = {i: {graph.forward_writer[i][0]} for i in graph.shared}
    for s, stage in enumerate(graph.stages):
        for op in stage.forward + stage.backward:
            for i in op.may_read & stages.keys():
                stages[i].add(s)
    homes = ((i, graph.branch_of_all(some)) for i, some in stages.items())
    return {i: home[0].branches[home[1]] for i, home in homes if home is not None}


def _holders(sets: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """Value -> the places of the sets that have it."""
    found = collections.defaultdict(list)
    for c, some in enumerate(sets):
        for i in some:
            found[i].append(c)
    return found


def _add(row: _Terms, terms: _Terms, factor: float) -> None:
    for column, x in terms.items():
        row[column] = row.get(column, 0.0) + factor * x


def _barriers(candidates: Sequence[Candidate], rows: _Rows) -> np.ndarray:
    """Weights that sum to less than `_FLOPS_WEIGHT + _BYTES_WEIGHT` over any plan."""
    found = np.zeros(len(candidates))
    flops = np.array([float(c.flops) for c in candidates])
    nbytes = np.array([float(x) for x in rows.own_bytes])
    for weight, amounts in ((_FLOPS_WEIGHT, flops), (_BYTES_WEIGHT, nbytes)):
        most = sum(amounts[some].max() for some in rows.covering)
        found += weight * amounts / (most or 1.0)
    return found


def _last_forward_reads(graph: Graph) -> dict[int, int]:
    """Forward value -> the last forward op of the step that reads or writes it.

    Optional ops do not count. What they write, if they run, does nothing but wait.
    """
    ops = graph.ops[: graph.forward_count]
    found = {i: time - 1 for time, op in enumerate(ops) if op.optional for i in op.outputs}
    must = ((time, op) for time, op in enumerate(ops) if not op.optional)
    return found | {i: time for time, op in must for i in op.inputs + op.outputs}


def _forward_peaks(graph: Graph, last: dict[int, int]) -> list[list[tuple[int, int]]]:
    """For each stage the forward ops that may set its peak, with what the forward itself holds.

    What waits for the backward only grows during the forward, so of two ops the earlier one
    matters only where the forward itself holds more.
    """
    ops = [(s, op) for s, stage in enumerate(graph.stages) for op in stage.forward]
    change = [0] * (len(ops) + 1)
    for time, (_, op) in enumerate(ops):
        for i in () if op.optional else op.outputs:
            change[time] += graph.values[i].nbytes
            change[last[i] + 1] -= graph.values[i].nbytes
    workspace = [0 if op.optional else op.workspace_bytes for _, op in ops]
    live = np.cumsum(change[:-1]) + np.array(workspace, np.int64)
    found: list[list[tuple[int, int]]] = [[] for _ in graph.stages]
    highest = -1
    for time in range(len(ops) - 1, -1, -1):
        s = ops[time][0]
        if not found[s]:
            highest = -1
        # What an optional op holds for itself is not among them.
        if live[time] > highest or ops[time][1].optional:
            found[s].append((time, int(live[time])))
        highest = max(highest, int(live[time]))
    return found
