"""Bytes in memory while each op of a grid's schedules runs.

A row has a coefficient for each variable and comes with the bytes that no decision changes, both as
shares of the budget. The indices and the variables are in `space`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from ...solver.sparse import matrix, total
from .space import GridSpace

_Row = dict[int, float]
_Rows = list[tuple[_Row, float]]

#: A share of the budget that is no difference.
_TOLERANCE = 1e-9


def is_hopeless(rows: _Rows) -> bool:
    """Whether a row exceeds the budget whatever is decided."""
    if not rows:
        return False
    # An implementation that writes over an input takes less than nothing.
    least = np.array([sum(x for x in row.values() if x < 0) for row, _ in rows])
    fixed = np.array([x for _, x in rows])
    return bool((least + fixed > 1.0 + _TOLERANCE).any())


def within(x: cp.Variable, rows: _Rows, limit: Any) -> Iterator[Any]:
    """One family of constraints: each row and its bytes keep the limit, a share of the budget."""
    if rows:
        terms, fixed = zip(*rows, strict=True)
        yield matrix(terms, x.size) @ x <= limit - np.array(fixed)


def forward_memory(space: GridSpace) -> _Rows:
    """While a forward op runs: what later ones read, and what waits for the first event."""
    found = []
    for o in space.deadline.during(range(len(space.forward))):
        written = [i for i, w in space.writer.items() if w <= o]
        waits = [i for i in written if space.last_reader[i] < o and i in space.events]
        terms = [(space.columns.carry[i, space.events[i][0]], space.share(i)) for i in waits]
        workspace, fixed = _workspace(space, o)
        for i in (i for i in written if space.last_reader[i] >= o):
            if space.forward[source := space.writer[i]].optional:
                open_ones = space.first_implementations[source]
                terms += [(space.columns.first[source, w], space.share(i)) for w in open_ones]
            else:
                fixed += space.share(i)
        found.append((total(terms + workspace), fixed))
    return found


def backward_memory(space: GridSpace) -> _Rows:
    """While a backward op runs: gradients, what this or a later op of the event may read, and
    what is held on.
    """
    found, gradients = [], _gradients(space)
    for k, group in enumerate(space.groups):
        last = {i: b for b in group for _, read in space.read(b) for i in read}
        for b in space.deadline.during(group):
            present = {}
            for i in space.values:
                is_done = last.get(i, b) < b or (i, k) not in space.columns.hold
                column = space.across(i, k + 1) if is_done else space.columns.hold[i, k]
                if column is not None:
                    present[column] = space.share(i)
            workspace, fixed = _workspace(space, b)
            found.append((present | dict(workspace), gradients[b][1] + fixed))
    return found


def recomputation_memory(
    space: GridSpace, x: cp.Variable, level: cp.Variable, changes: Any, limit: Any
) -> Iterator[Any]:
    """While a forward op runs again: gradients, what was carried, what has run again so far.

    `level[o, k]` is what is in memory when op `o` is reached. Written as a change from the op
    before, it takes a handful of coefficients where its sum takes one for each value.

    Arguments:
        changes: see `level_changes`.
        limit: share of the budget.
    """
    steps, runs, fixed = [], [], []
    gradients = _gradients(space)
    for k, group in enumerate(space.groups):
        for o in space.again[k]:
            n = len(steps)
            steps.append({n: 1.0} if o == space.again[k][0] else {n: 1.0, n - 1: -1.0})
            open_ones = space.again_implementations[o]
            runs.append({space.columns.run[o, w, k]: _own_share(space, o, w) for w in open_ones})
            fixed.append(gradients[group[0]][0])
    if steps:
        yield matrix(steps, len(steps)) @ level == changes @ x
        yield level + matrix(runs, x.size) @ x <= limit - np.array(fixed)


def level_changes(space: GridSpace) -> Any:
    """By how much what is in memory changes from one op that may run again to the next."""
    rows = []
    for k, again in enumerate(space.again):
        before: _Row = {}
        for o in space.deadline.during(again):
            present = _present(space, o, k)
            rows.append(_difference(present, before))
            before = present
    return matrix(rows, space.columns.width)


def _present(space: GridSpace, o: int, k: int) -> _Row:
    """What is in memory when op `o` is reached before event `k`, its own outputs apart."""
    found = {}
    for i in space.values:
        if space.writer[i] >= o or (i, k) not in space.columns.hold:
            column = space.across(i, k)
            if column is not None:
                found[column] = space.share(i)
            continue
        found[space.columns.hold[i, k]] = space.share(i)
        if space.last_reader[i] >= o:
            found[space.columns.passed[i, k]] = space.share(i)
    return found


def _difference(row: _Row, other: _Row) -> _Row:
    terms = [*row.items(), *((column, -x) for column, x in other.items())]
    return {column: x for column, x in total(terms).items() if x}


def _workspace(space: GridSpace, o: int) -> tuple[list[tuple[int, float]], float]:
    """Workspace of an op's first run: by decision, and in any case."""
    open_ones: Sequence[int] = space.first_implementations[o]
    shares = [space.graph.implementations[o][w].workspace_bytes / space.scale for w in open_ones]
    if not space.is_chosen(o):
        return [], shares[0]
    columns = [space.columns.first[o, w] for w in open_ones]
    return list(zip(columns, shares, strict=True)), 0.0


def _own_share(space: GridSpace, o: int, w: int) -> float:
    """Outputs and workspace of a run."""
    op = space.forward[o]
    workspace = op.implementations[w].workspace_bytes / space.scale
    return sum(map(space.share, op.outputs)) + workspace


def _gradients(space: GridSpace) -> dict[int, tuple[float, float]]:
    """Shares of what backward ops wrote: before each of them, and while it runs."""
    ops, first = space.graph.ops, space.graph.forward_count
    last = {i: b for b, op in enumerate(ops) for i in (*op.outputs, *op.may_read)}
    live: set[int] = set()
    found = {}
    for b in range(first, len(ops)):
        before = sum(map(space.share, live))
        live |= set(ops[b].outputs)
        found[b] = before, sum(map(space.share, live))
        live = {i for i in live if last[i] > b}
    return found
