"""What one stage may save: an integer program solved for fewer and fewer bytes.

The answers are a stage's *options*, fastest first. Which values to save decides which ops run
again: what the backward reads is saved or recomputed, and what a recomputed op reads likewise.

| index | means |
|---|---|
| `v` | a value that the stage's forward writes and that its backward may need |
| `o` | a forward op of the stage that may run again |
| `u` | a value of an earlier stage that not every answer needs |
| `w` | a way of a backward op, but its first |

Variables, all 0 or 1, side by side in one vector `x`: `save[v]`, `rerun[o]`, `hold[u]`, `take[w]`,
`lodge[v]`. A backward op that takes none of its ways runs in the first.
A saved value that is lodged waits in the memory of a result and takes none (`Graph.aliased`); by
Hall's theorem that can be done if of each size no more values are as large than results are. Bytes
and seconds enter the model divided by the stage's totals, so that coefficients are of order one.

Known limit: options differ in bytes and seconds; of two that agree in both, the one with the
smaller transient peak need not be the one that is found.
"""

import dataclasses
import functools
import itertools as it
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from ..graph import Graph, Implementation, Op
from ..solver.highs import solve
from ..solver.sparse import matrix

# Ties: of answers equally fast take fewer FLOPs, and then fewer bytes.
_FLOPS_WEIGHT, _BYTES_WEIGHT = 1e-3, 1e-4
# Solves for answers between those of a front, and what counts as no gain of cost.
_KNEES, _SAME = 4, 1e-6
# Values below this share of the stage's bytes are saved always: deciding costs more.
_NEGLIGIBLE = 1e-3
# So few savable values are not worth a solve.
_ENUMERATED = 4
# Limits of a stage's error for which there are options, beside none at all.
_ERRORS = 4
# Errors over the step's are taken to be at least and at most as large.
_LEAST_ERROR, _TOO_MUCH = 1e-3, 2.0


_Terms = dict[int, float]  # column of the variables -> coefficient


@dataclasses.dataclass(frozen=True)
class Needs:
    """The part of a stage that saving and recomputation are about.

    Attributes:
        values: `v`, ascending; indices of the graph.
        ops: `o`, ascending; positions in the stage's forward.
        outside: `u`, ascending; indices of the graph.
        backward: the ops of the stage's backward.
    """

    values: tuple[int, ...]
    ops: tuple[int, ...]
    outside: tuple[int, ...]
    backward: tuple[Op, ...]

    @functools.cached_property
    def choices(self) -> tuple[Op, ...]:
        """The backward ops that have several ways."""
        return tuple(op for op in self.backward if op.alternatives)

    def read(self, saved: Container[int]) -> set[int]:
        """Of the values those that the backward itself reads, if some are saved."""
        implementations = (op.implementations[op.implementation_by(saved)] for op in self.backward)
        return {
            i for implementation in implementations for i in implementation.inputs
        }.intersection(self.values)


def needs(graph: Graph, s: int) -> Needs:
    """Everything that the backward of stage `s` may need of its forward."""
    forward, backward = graph.stages[s].forward, graph.stages[s].backward
    writer = {i: o for o, op in enumerate(forward) for i in op.outputs}
    always = {i for op in backward for i in op.always_reads}
    direct = {i for op in backward for i in op.may_read}
    values = direct & set(writer)
    outside = {i for i in direct - always - set(writer) if i in graph.forward_writer}
    pending = list(values)
    while pending:
        op = forward[writer[pending.pop()]]
        inputs = set(op.inputs) if op.recomputable and not op.optional else set()
        outside |= inputs - set(writer) - always
        new = (inputs & set(writer)) - values
        values |= new
        pending += new
    # What is optional is of use only where it is saved, so that it does not run again.
    again = {writer[i] for i in values}
    ops = {o for o in again if forward[o].recomputable and not forward[o].optional}
    return Needs(tuple(sorted(values)), tuple(sorted(ops)), tuple(sorted(outside)), backward)


def options(
    graph: Graph, s: int, *, free: Set[int], count: int, deadline: float
) -> list[tuple[int, ...]]:
    """Sets of values that stage `s` may save.

    Arguments:
        graph: the step.
        s: the stage.
        free: values that are in memory anyway, for the backward of another stage.
        count: at most so many options for each way to count bytes, two or more; and a few between
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
    # What is lodged may find its place taken after all, so both fronts are options.
    found: dict[tuple[int, ...], None] = {}
    for aliasing in ((), results) if any(results) else ((),):
        if time.monotonic() < deadline:  # stating a program takes longer than a solve
            program = _Program(graph, s, stage, free, aliasing)
            found |= dict.fromkeys(_fronts(program, count, deadline))
    return list(found)


def options_by_multiplier(graph: Graph, s: int, *, count: int) -> list[tuple[int, ...]]:
    """Sets of values that stage `s` may save, found without a solve: dear ones, as many as fit.

    Values come by the seconds of the op that writes them, for a byte; what is saved of them, and
    serves the backward or a recomputation, takes more and more of the stage's bytes.

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


def _fronts(program: "_Program", count: int, deadline: float) -> Iterator[tuple[int, ...]]:
    """Answers of a program for several limits of the error, from the most to none.

    Which share of the step's error is the stage's only the composition decides.
    """
    worst = math.inf
    for limit in program.error_limits:
        if limit < worst:  # or the answers are those that are known
            proposals = _front(program, limit, count, deadline)
            proposals += _knees(program, limit, proposals, deadline)
            worst = max((x.error for x in proposals), default=worst)
            yield from (x.saved for x in proposals)


def _front(program: "_Program", most_error: float, count: int, deadline: float) -> list["_Answer"]:
    """Answers of a program, fastest first, for fewer and fewer bytes."""
    found: list[_Answer] = []
    limit: float = program.total_bytes
    step = max(program.total_bytes / (count - 1), 1.0)
    while limit >= 0 and len(found) < count:
        answer = program.fastest(limit, most_error, deadline - time.monotonic())
        if answer is None:
            answer = program.smallest(most_error, deadline - time.monotonic())
        if answer is None or answer.saved in (x.saved for x in found):
            break
        found.append(answer)
        # The next multiple of `step` below this answer; zero comes last.
        limit = math.floor((math.ceil(answer.retained_bytes / step) - 1) * step)
    return found


def _knees(
    program: "_Program", most_error: float, front: Sequence["_Answer"], deadline: float
) -> list["_Answer"]:
    """Answers between those of a front, that take less than the line between two of them.

    Where a little more is run again for nearly nothing, and then a product, limits that are evenly
    spaced miss the point before the product. Found as by Aneja and Nair (Management Science 1979):
    for the price of a byte at which two neighbours are as dear as each other, is something cheaper?
    """
    found: list[_Answer] = []
    pairs = [*it.pairwise(front)]
    for _ in range(_KNEES):
        pair = max(pairs, key=_between, default=None)
        if pair is None or _between(pair) <= 0:
            break
        pairs.remove(pair)
        a, b = pair
        multiplier = (b.cost - a.cost) / (a.retained_bytes - b.retained_bytes)
        answer = program.cheapest(multiplier, most_error, deadline - time.monotonic())
        if (
            answer is not None
            and answer.by_multiplier(multiplier) < a.by_multiplier(multiplier) - _SAME
        ):
            found.append(answer)
            pairs += (a, answer), (answer, b)
    return found


def _between(pair: tuple["_Answer", "_Answer"]) -> float:
    """What an answer between two of a front may gain: seconds times bytes."""
    a, b = pair
    return (b.cost - a.cost) * (a.retained_bytes - b.retained_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    saved: tuple[int, ...]
    retained_bytes: int
    cost: float  # seconds and FLOPs, over the stage's
    error: float  # over the step's

    def by_multiplier(self, multiplier: float) -> float:
        """Its cost where each byte has a price."""
        return self.cost + multiplier * self.retained_bytes


class _Program:
    """The integer program of one stage, compiled once and solved for many limits."""

    def __init__(
        self,
        graph: Graph,
        s: int,
        stage: Needs,
        free: Set[int],
        result_bytes: Sequence[int],
    ):
        forward = graph.stages[s].forward
        self._stage, self._forward = stage, forward
        n_save, n_rerun, n_hold = len(stage.values), len(stage.ops), len(stage.outside)
        n_take, n_aliased = sum(len(op.alternatives) for op in stage.choices), n_save
        nbytes = [0 if i in free else graph.values[i].nbytes for i in stage.values]
        sizes = np.array([graph.values[i].nbytes for i in stage.values])
        fixed = sizes < _NEGLIGIBLE * sizes.sum()
        savable = np.array([graph.values[i].savable for i in stage.values])
        self._error = functools.partial(_error, graph)
        self._errors = np.array(_of_codes(forward, stage, self._error))
        held = [0 if u in free else graph.values[u].nbytes for u in stage.outside]
        counted = np.where(fixed, 0, nbytes)
        self.total_bytes = int(counted.sum()) + sum(held)
        zeros = [0] * n_rerun, [0] * n_take
        self._nbytes = np.array([*counted, *zeros[0], *held, *zeros[1], *-counted], np.int64)
        self._x = x = cp.Variable(n_save + n_rerun + n_hold + n_take + n_aliased, boolean=True)
        self._limit, self._most_error = cp.Parameter(), cp.Parameter()
        self._multiplier = cp.Parameter(nonneg=True)

        is_own = np.array([i not in graph.shared for i in stage.values])
        may_alias = is_own & ~fixed
        optional = np.isin(stage.values, [*_optional_writers(forward)])
        lower = np.concatenate([fixed & savable & ~optional, np.zeros(x.size - n_save)])
        upper = np.concatenate([savable, np.ones(n_rerun + n_hold + n_take), may_alias])
        seconds, flops = _costs(forward, stage, n_after=n_aliased)
        large, places = _aliasing(result_bytes, sizes)
        self._costs = seconds + _FLOPS_WEIGHT * flops
        time_and_flops = self._costs @ x
        retained = (self._nbytes / max(self.total_bytes, 1)) @ x
        constraints = [
            lower <= x,
            x <= upper,
            *(rows @ x >= right for rows, right in _dataflow(forward, stage)),
            self._errors @ x[:n_save] <= self._most_error,
            x[:n_save] >= x[-n_aliased:],
            large @ x[-n_aliased:] <= places,
        ]
        self._fastest = cp.Problem(
            cp.Minimize(time_and_flops + _BYTES_WEIGHT * retained),
            [*constraints, retained <= self._limit],
        )
        self._cheapest = cp.Problem(
            cp.Minimize(time_and_flops + self._multiplier * retained), constraints
        )
        self._smallest = cp.Problem(
            cp.Minimize(retained + _BYTES_WEIGHT * time_and_flops), constraints
        )

    @property
    def error_limits(self) -> list[float]:
        """Of codes together, over the step's error: such that options differ, the most first."""
        errors = [x for x in map(self._error, self._forward) if x]
        if not errors:
            return [1.0]
        least, most = min(errors), min(sum(errors), 1.0)
        return [*np.geomspace(most, least, _ERRORS).tolist(), 0.0] if least <= most else [0.0]

    def fastest(self, limit_bytes: float, most_error: float, time_limit: float) -> _Answer | None:
        """The answer of fewest seconds that retains `limit_bytes` or less, if there is one."""
        self._limit.value = (limit_bytes + 0.5) / max(self.total_bytes, 1)
        return self._solve(self._fastest, most_error, time_limit)

    def cheapest(self, multiplier: float, most_error: float, time_limit: float) -> _Answer | None:
        """The answer of least cost where each byte that is retained has a price."""
        self._multiplier.value = multiplier * max(self.total_bytes, 1)
        return self._solve(self._cheapest, most_error, time_limit)

    def smallest(self, most_error: float, time_limit: float) -> _Answer | None:
        """The answer that retains fewest bytes, if there is one."""
        return self._solve(self._smallest, most_error, time_limit)

    def _solve(self, problem: cp.Problem, most_error: float, time_limit: float) -> _Answer | None:
        self._most_error.value = most_error
        outcome = solve(problem, time_limit=time_limit, absolute_gap=1e-7)
        if not outcome.found:
            return None
        x = np.asarray(self._x.value) > 0.5
        ops = np.array(self._stage.ops, dtype=int)[
            x[len(self._stage.values) :][: len(self._stage.ops)]
        ]
        is_saved = x[: len(self._stage.values)]
        saved = np.array(self._stage.values)[is_saved].tolist()
        used = self._stage.read(saved).union(*(self._forward[o].inputs for o in ops))
        saved = tuple(i for i in saved if i in used)
        error = float(self._errors[is_saved].sum())
        return _Answer(saved, int(self._nbytes[x].sum()), float(self._costs[x].sum()), error)


def _costs(forward: Sequence[Op], stage: Needs, n_after: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and FLOPs of each column, over those of all that may run again."""

    def column(cost: Callable[[Any], float]) -> np.ndarray:
        save = _of_codes(forward, stage, cost)
        rerun = [cost(forward[o]) for o in stage.ops]
        take = [
            cost(implementation) - cost(op)
            for op in stage.choices
            for implementation in op.alternatives
        ]
        columns = save, rerun, [0.0] * len(stage.outside), take, [0.0] * n_after
        return np.concatenate(columns) / (sum(rerun) + sum(save) or 1.0)

    return column(lambda x: x.seconds), column(lambda x: x.flops)


def _error(graph: Graph, op: Op) -> float:
    """The error of an op over the step's, as far as a solver can tell numbers apart."""
    if not op.error or not math.isfinite(graph.most_error):
        return 0.0
    share = op.error / graph.most_error if graph.most_error else math.inf
    return min(max(share, _LEAST_ERROR), _TOO_MUCH)


def _optional_writers(forward: Sequence[Op]) -> dict[int, Op]:
    """Value -> the optional op that writes it, if one does."""
    return {i: op for op in forward if op.optional for i in op.outputs}


def _of_codes(forward: Sequence[Op], stage: Needs, figure: Callable[[Op], float]) -> list[float]:
    """For each value its part of a figure of the optional op that writes it, if one does.

    What an optional op writes is saved as a whole.
    """
    writer = _optional_writers(forward)
    return [
        figure(writer[i]) / len(writer[i].outputs) if i in writer else 0.0 for i in stage.values
    ]


def _dataflow(forward: Sequence[Op], stage: Needs) -> list[tuple[sp.csr_array, np.ndarray]]:
    """Rows `matrix @ x >= right`, one family each: those of the backward; inputs of reruns; outside
    inputs of reruns.
    """
    save = {i: k for k, i in enumerate(stage.values)}
    rerun = {o: len(save) + k for k, o in enumerate(stage.ops)}
    hold = {u: len(save) + len(rerun) + k for k, u in enumerate(stage.outside)}
    writer = {i: rerun[o] for o in stage.ops for i in forward[o].outputs}
    columns = it.count(len(save) + len(rerun) + len(hold))
    takes = [
        (op, [(next(columns), implementation) for implementation in op.alternatives])
        for op in stage.backward
    ]
    available: dict[int, _Terms] = {u: {column: 1.0} for u, column in hold.items()}
    for i, column in save.items():
        available[i] = {column: 1.0} | ({writer[i]: 1.0} if i in writer else {})
    inputs = [(rerun[o], i) for o in stage.ops for i in forward[o].inputs]
    families = [
        *_backward_rows(takes, save, available, _optional_writers(forward).keys()),
        [(available[i] | {column: -1.0}, 0.0) for column, i in inputs if i in save],
        [({hold[u]: 1.0, column: -1.0}, 0.0) for column, u in inputs if u in hold],
    ]
    width = next(columns) + len(save)
    return [
        (matrix([row for row, _ in family], width), np.array([right for _, right in family]))
        for family in families
        if family
    ]


def _backward_rows(
    takes: Sequence[tuple[Op, list[tuple[int, Implementation]]]],
    save: Mapping[int, int],
    available: Mapping[int, _Terms],
    optional: Set[int],
) -> list[list[tuple[_Terms, float]]]:
    """What the backward reads, in whatever way; codes of the ways that are taken; ways that are
    open are taken; one way for each op.

    Arguments:
        takes: the backward ops, each with its further ways and their columns.
        save: value -> its column.
        available: value -> the columns by which it is in memory.
        optional: what optional ops write. It is saved for a way that reads it; other codes may be
            saved for something else.
    """
    reads, codes, opened = dict[Any, tuple[_Terms, float]](), [], []
    for op, implementations in takes:
        for i in (i for i in op.inputs if i in available):
            spared = {
                column: 1.0
                for column, implementation in implementations
                if i not in implementation.inputs
            }
            reads[i, tuple(spared)] = available[i] | spared, 1.0
        for i in {i for _, implementation in implementations for i in op.codes(implementation)}:
            using = {
                column: -1.0
                for column, implementation in implementations
                if i in implementation.inputs
            }
            terms = ({save[i]: 1.0} if i in save else {}) | using
            codes.append((terms, 0.0))
            opening = [
                implementation
                for _, implementation in implementations
                if i in implementation.inputs
            ]
            if i in optional or any(
                optional.isdisjoint(op.codes(implementation)) for implementation in opening
            ):
                opened.append(({column: -x for column, x in terms.items()}, 0.0))
    one = [
        ({column: -1.0 for column, _ in implementations}, -1.0)
        for _, implementations in takes
        if implementations
    ]
    return [list(reads.values()), codes, opened, one]


def _aliasing(result_bytes: Sequence[int], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each size which values are as large, and how many of the results that may lodge them."""
    results, least = np.array(result_bytes), np.unique(sizes)[:, None]
    return (sizes >= least).astype(float), (results >= least).sum(axis=1)
