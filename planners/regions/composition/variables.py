"""The variables of a composition, and the rows that define which shared values wait.

| index | means |
|---|---|
| `c` | a candidate; `choose[c]` is 1 where the plan has it |
| `t` | a stage; the backward reaches `t` after every later stage |
| `i` | a shared value, written by stage `p` |
| `m` | a sample of stage `t`, forward or backward: one row of the memory constraint |

The variables stand side by side in one vector: `choose` (0 or 1); `earlier[t]`, bytes of values
that are not shared and that regions before `t` retained; `waits[c]` for each choice; and for shared
values with several readers `kept[i, t]` (0 to 1): a region that is before `t`, or whose backward
ends its reads of `i` at or before `t`, needs `i` from the first forward. Bytes are divided by a
scale, so that coefficients are of order one.

Of a choice one branch runs. Each branch begins with the bytes that are `earlier` than the choice;
behind it `waits[c]` comes on top, which is no less than any branch leaves behind.
"""

import bisect
import collections
from collections.abc import Iterable, Sequence

from ...graph import Graph
from ..effects.candidate import Candidate, Sample

Terms = dict[int, float]  # column of the variables -> coefficient


class Variables:
    """The variables over one set of candidates.

    Attributes:
        candidates: by `c`.
        count: how many there are; also the column of `earlier[0]`.
        last: the last stage.
        covering: for each stage the candidates that cover it.
        scale: bytes that count as 1.
        width: how many columns there are so far; `during` may add some.
        own_bytes: for each candidate, bytes that no other region can share.
        shared: values that ops of several stages read -> whether they are kept, see `kept_at`.
        definitions: rows that define `kept`, as `... >= 0`.
        choices: the outermost ones, in order.
        waits: choice -> the column of its `waits`.
        homes: shared value of one branch of a choice -> the stages of that branch.
    """

    def __init__(self, graph: Graph, candidates: Sequence[Candidate]):
        self.graph, self.candidates = graph, candidates
        self.count, self.last = len(candidates), len(graph.stages) - 1
        self.covering = _covering(graph, candidates)
        self.scale = float(max([1, *(m.nbytes for x in candidates for s in x.samples for m in s)]))
        self.width = self.count + len(graph.stages)
        self._in_flight = [(c, x) for c, x in self._numbered if x.in_flight]
        self.own_bytes = [self.bytes_of(self.own(c)) + x.alone_bytes for c, x in self._numbered]
        self._readers = _holders(x.reads for x in candidates)
        self._readers_at: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for i, readers in self._readers.items():
            for c in readers:
                self._readers_at[i, candidates[c].reads[i]].append(c)
        self._producers = _holders(x.retained & graph.shared for x in candidates)
        self.definitions: list[Terms] = []
        self.homes = _homes(graph)
        self.shared = {i: self._keep(i) for i in sorted(graph.shared)}
        outermost = {home[0] for home in graph.branch_of if home is not None}
        self.choices = sorted(outermost, key=lambda choice: choice.first)
        self.waits = {choice: self.width + k for k, choice in enumerate(self.choices)}
        self.width += len(self.choices)

    @property
    def _numbered(self) -> Iterable[tuple[int, Candidate]]:
        return enumerate(self.candidates)

    def own(self, c: int) -> frozenset[int]:
        """Values that a candidate retains, that no other region reads, and that take memory."""
        x = self.candidates[c]
        return x.retained - x.aliased - self.graph.shared

    def bytes_of(self, values: Iterable[int]) -> int:
        """Bytes of values while they wait."""
        return sum(self.graph.values[i].waiting_bytes for i in values)

    def is_counted(self, i: int, t: int) -> bool:
        """Whether a shared value is counted by itself at stage `t`; see `waits` if not."""
        first, stop = self.homes.get(i, (0, self.last + 1))
        return first <= t < stop

    def fetched_during(self, t: int) -> list[int]:
        """The candidates that end before stage `t`, and have bytes in flight in its backward."""
        return [c for c, x in self._in_flight if x.region.last < t <= x.fetched_before]

    def samples(self, c: int, t: int) -> tuple[Sample, ...]:
        """The samples of a candidate at stage `t`."""
        return self.candidates[c].samples[t - self.candidates[c].region.first]

    def sample(self, c: int, t: int, m: int) -> Sample:
        """The sample of a candidate that counts at sample `m` of stage `t`."""
        samples = self.samples(c, t)
        return samples[min(m, len(samples) - 1)]

    def kept_at(self, i: int, t: int) -> Terms:
        """The terms of `kept[i, t]`."""
        place = bisect.bisect_right(self.shared[i], t, key=lambda pair: pair[0])
        return self.shared[i][place - 1][1] if place else {}

    def kept_during(self, i: int, t: int, m: int) -> Terms:
        """Whether `i` is in memory at sample `m`, while the covering candidate may drop it."""
        readers = self._readers_at.get((i, t), ())
        if not readers:
            return self.kept_at(i, t)
        still = [c for c in readers if i in self.sample(c, t, m).reads]
        if len(still) == len(readers):
            return self.kept_at(i, t)
        ended = [c for c in self._producers[i] if self.candidates[c].region.last == t - 1]
        return self._either(self.kept_at(i, t - 1), [ended, still])

    def _keep(self, i: int) -> list[tuple[int, Terms]]:
        """Pairs of a stage and the terms of `kept[i, t]` from that stage on."""
        read, ended = collections.defaultdict(list), collections.defaultdict(list)
        for c in self._readers[i]:
            read[self.candidates[c].reads[i]].append(c)
        for c in self._producers[i]:
            ended[self.candidates[c].region.last + 1].append(c)
        found: list[tuple[int, Terms]] = []
        for t in sorted({*read, *ended}):
            before = found[-1][1] if found else {}
            found.append((t, self._either(before, [read[t], ended[t]])))
        return found

    def _either(self, terms: Terms, groups: Sequence[Sequence[int]]) -> Terms:
        """Terms that are 1 where `terms` are, or where a candidate of the groups is chosen."""
        groups = [group for group in groups if group]
        columns = [c for c in terms] + [c for group in groups for c in group]
        if not groups or self._exclusive(columns):
            return terms | dict.fromkeys(columns, 1.0)
        either = self.width
        self.width += 1
        for part in (terms, *(dict.fromkeys(group, 1.0) for group in groups)):
            self.definitions.append({either: 1.0} | {c: -x for c, x in part.items()})
        return {either: 1.0}

    def _exclusive(self, columns: Sequence[int]) -> bool:
        """Whether the columns are candidates of which a plan has one at most."""
        if max(columns) >= self.count:
            return False
        regions = [self.candidates[c].region for c in columns]
        return max(x.first for x in regions) <= min(x.last for x in regions)


def _covering(graph: Graph, candidates: Sequence[Candidate]) -> list[list[int]]:
    """For each stage the candidates that cover it."""
    found: list[list[int]] = [[] for _ in graph.stages]
    for c, candidate in enumerate(candidates):
        for t in range(candidate.region.first, candidate.region.last + 1):
            found[t].append(c)
    return found


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


def add(row: Terms, terms: Terms, factor: float) -> None:
    """Adds terms, times a factor, to a row."""
    for column, x in terms.items():
        row[column] = row.get(column, 0.0) + factor * x
