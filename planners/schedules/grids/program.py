"""The integer program of one grid, and its points as schedules.

Which forward ops run again before which backward ops, and in which implementations: the fastest
such schedule within a budget, or the one of least peak. The space is in `space`, its constraints
are in `rows` and `memory`.
"""

import bisect
import functools as ft
from collections.abc import Iterator, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from ...graph import Graph
from ...solver.deadline import NEVER, Deadline
from ..steps import Execute, lifetimes
from . import memory, rows
from .space import GridSpace, beats, windows


class GapProgram:
    """The program of a grid; one vector `x` holds all 0-1 variables.

    Arguments:
        graph, groups, budget_bytes, reach, known, deadline: as in `GridSpace`.
        of_peak: whether to minimize the peak, as a share of the budget, instead of the seconds.

    Raises:
        SolverStopped: the deadline has passed.
    """

    def __init__(
        self,
        graph: Graph,
        groups: list[range],
        budget_bytes: int,
        reach: int | None = None,
        known: Sequence[Execute] = (),
        of_peak: bool = False,
        deadline: Deadline = NEVER,
    ):
        self.space = space = GridSpace(graph, groups, budget_bytes, reach, known, deadline)
        self.x = cp.Variable(space.columns.width, boolean=True)
        self.level = cp.Variable(max(sum(map(len, space.again)), 1))
        self.peak = cp.Variable() if of_peak else None
        forward, backward = memory.forward_memory(space), memory.backward_memory(space)
        # Whether the budget is too small for what no decision changes.
        self.is_hopeless = not of_peak and any(map(memory.is_hopeless, (forward, backward)))
        objective = _seconds(space) @ self.x if self.peak is None else self.peak
        constraints = [*rows.constraints(space, self.x), *self._memory(forward, backward)]
        self.problem = cp.Problem(cp.Minimize(objective), constraints)

    def _memory(self, forward: list, backward: list) -> Iterator[Any]:
        limit = 1.0 if self.peak is None else self.peak
        yield from memory.within(self.x, forward, limit)
        yield from memory.recomputation_memory(
            self.space, self.x, self.level, self._level_changes, limit
        )
        yield from memory.within(self.x, backward, limit)

    @ft.cached_property
    def _level_changes(self) -> Any:
        return memory.level_changes(self.space)

    def start(self, order: Sequence[Execute]) -> dict[cp.Variable, np.ndarray]:
        """The variables at a schedule that runs ops in an order.

        No point of the program where the schedule is not of its space.
        """
        x = _point(self.space, order)
        level, changes = [], self._level_changes @ x
        for ops in filter(None, self.space.again):
            change, changes = np.split(changes, [len(ops)])
            level.append(change.cumsum())
        point = {self.x: x}
        if level:
            point[self.level] = np.concatenate(level)
        if self.peak is not None:
            point[self.peak] = np.array(_most_bytes(self.space.graph) / self.space.scale)
        return point

    def order(self) -> list[Execute]:
        """The ops of the solution, in order."""
        x: Any = self.x.value
        return list(_order(self.space, x))

    def plain_order(self) -> list[Execute]:
        """The ops of a schedule without recomputation."""
        ops, open_ones = enumerate(self.space.graph.ops), self.space.first_implementations
        return [Execute(o, open_ones[o][0]) for o, op in ops if not op.optional]


def _seconds(space: GridSpace) -> np.ndarray:
    """Seconds of every variable, as shares of the step's."""
    unit = space.graph.seconds or 1.0
    found = np.zeros(space.columns.width)
    for (o, w, *_), column in (*space.columns.first.items(), *space.columns.run.items()):
        found[column] = space.graph.implementations[o][w].seconds / unit
    return found


def _most_bytes(graph: Graph) -> int:
    """Bytes that no schedule's peak exceeds."""
    every = (x for op in graph.ops for x in op.implementations)
    workspace = max(x.workspace_bytes for x in every)
    return sum(value.nbytes for value in graph.values) + max(workspace, 0)


def _point(space: GridSpace, order: Sequence[Execute]) -> np.ndarray:
    """The 0-1 variables at a schedule that runs ops in an order."""
    columns, x = space.columns, np.zeros(space.columns.width)
    starts, begins = windows(space.graph, space.groups, order)
    again = [n >= starts[0] and run.op < len(space.forward) for n, run in enumerate(order)]
    order = [_standing(space, run, is_again) for run, is_again in zip(order, again, strict=True)]
    for n, (run, is_again) in enumerate(zip(order, again, strict=True)):
        k = bisect.bisect_right(starts, n) - 1
        first = columns.first.get((run.op, run.implementation))
        column = columns.run.get((run.op, run.implementation, k)) if is_again else first
        if column is not None:
            x[column] = 1.0
        if is_again:
            read = space.graph.implementations[run.op][run.implementation].inputs
            x[[columns.passed[i, k] for i in read if (i, k) in columns.passed]] = 1.0
    for i, written, read in lifetimes(space.graph, order):
        for k in space.events.get(i, ()):
            if written < starts[k] <= read:
                x[columns.carry[i, k]] = 1.0
            if written < begins[k] <= read:
                x[columns.hold[i, k]], x[columns.passed[i, k]] = 1.0, 0.0
    return x


def _standing(space: GridSpace, run: Execute, is_again: bool) -> Execute:
    """The run, in an implementation that beats its own where that was left out."""
    again = space.again_implementations.get(run.op, [])
    open_ones = again if is_again else space.first_implementations[run.op]
    if run.implementation in open_ones:
        return run
    every = space.graph.implementations[run.op]
    better = (v for v in open_ones if beats(every, v, run.implementation))
    return Execute(run.op, next(better, run.implementation))


def _order(space: GridSpace, x: np.ndarray) -> Iterator[Execute]:
    """The ops of a point, in order."""
    for o in range(len(space.forward)):
        if (w := _first_implementation(space, x, o)) is not None:
            yield Execute(o, w)
    runs = {(o, k): w for (o, w, k), n in space.columns.run.items() if x[n] > 0.5}
    for k, group in enumerate(space.groups):
        yield from (Execute(o, runs[o, k]) for o in space.again[k] if (o, k) in runs)
        yield from (Execute(b, _first_implementation(space, x, b) or 0) for b in group)


def _first_implementation(space: GridSpace, x: np.ndarray, o: int) -> int | None:
    """How an op first runs; None if not at all."""
    open_ones = space.first_implementations[o]
    if not space.is_chosen(o):
        return open_ones[0]
    return next((w for w in open_ones if x[space.columns.first[o, w]] > 0.5), None)
