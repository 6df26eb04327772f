"""What every schedule satisfies: constraints on the variables of the relaxation.

Each function is one family of constraints on the vector `x` of all variables. The indices and the
variables are in `space`.
"""

import itertools as it
from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from ...solver.sparse import at_least, matrix, total
from .space import BoundSpace

_Row = dict[int, float]

#: A share of the budget that is no difference.
_TOLERANCE = 1e-9


def constraints(space: BoundSpace, x: cp.Variable) -> Iterator[Any]:
    """All families but `within`."""
    for family in (implementations, held, read_by_runs, read_by_samples, read_between):
        yield from family(space, x)


def implementations(space: BoundSpace, x: cp.Variable) -> Iterator[Any]:
    """A backward op runs in one of its implementations."""
    rows = [
        {space.columns.implementation[o, w]: 1.0 for w in range(len(op.implementations))}
        for o, op in enumerate(space.graph.ops)
        if space.is_chosen(o) and not op.optional
    ]
    if rows:
        yield matrix(rows, x.size) @ x == 1


def held(space: BoundSpace, x: cp.Variable) -> Iterator[Any]:
    """What is in memory during a sample was so during the one before, or has been written."""
    rows = (
        total([*_since(space, i, k), (column, -1.0)])
        for (i, k), column in space.deadline.during(space.columns.hold.items())
        if not _is_certain(space, i, k)
    )
    yield from at_least(x, rows)


def read_by_runs(space: BoundSpace, x: cp.Variable) -> Iterator[Any]:
    """What an op reads that has run was there, or has been written."""
    rows = (
        total([*_since(space, i, k), (column, -1.0)])
        for (o, k), column in space.deadline.during(space.columns.run.items())
        for i in sorted(space.forward[o].always_reads)
    )
    yield from at_least(x, rows)


def read_by_samples(space: BoundSpace, x: cp.Variable) -> Iterator[Any]:
    """What a sample reads is in memory while it runs."""
    rows, right = [], []
    for k, b in enumerate(space.deadline.during(space.samples)):
        for i, terms, least in _reads(space, b):
            rows.append(total([(space.columns.hold[i, k], 1.0), *terms]))
            right.append(least)
    yield from at_least(x, rows, right)


def read_between(space: BoundSpace, x: cp.Variable) -> Iterator[Any]:
    """What a backward op reads between samples was there, or has been written."""
    rows, right = [], []
    for k, ops in enumerate(space.between):
        for i, terms, least in it.chain.from_iterable(_reads(space, b) for b in ops):
            if not _is_certain(space, i, k):
                rows.append(total([*_since(space, i, k), *terms]))
                right.append(least)
    yield from at_least(x, rows, right)


def memory(space: BoundSpace) -> list[tuple[_Row, float]]:
    """While a sample runs: what is held and decided, and the share of the budget left for it."""
    found, gradients = [], _gradients(space)
    for k, b in enumerate(space.samples):
        row = {space.columns.hold[i, k]: space.share(i) for i in space.needed}
        workspaces = [x.workspace_bytes / space.scale for x in space.graph.implementations[b]]
        if space.is_chosen(b):
            row |= {space.columns.implementation[b, w]: x for w, x in enumerate(workspaces)}
            workspaces = [0.0]
        found.append((row, 1.0 - gradients[b] - workspaces[0]))
    return found


def is_hopeless(rows: list[tuple[_Row, float]]) -> bool:
    """Whether a row exceeds its share whatever is decided."""
    least = np.array([sum(x for x in row.values() if x < 0) for row, _ in rows])
    return bool((least > np.array([share for _, share in rows]) + _TOLERANCE).any())


def within(x: cp.Variable, rows: list[tuple[_Row, float]]) -> Iterator[Any]:
    """Each row keeps its share of the budget."""
    if rows:
        terms, shares = zip(*rows, strict=True)
        yield matrix(terms, x.size) @ x <= np.array(shares)


def _since(space: BoundSpace, i: int, k: int) -> Iterator[tuple[int, float]]:
    """Terms that say that a value is in memory at some time from sample `k - 1` to sample `k`."""
    columns, o = space.columns, space.writer[i]
    if k:
        yield columns.hold[i, k - 1], 1.0
        if (o, k) in columns.run:
            yield columns.run[o, k], 1.0
    else:  # only what is optional need not have run
        every = range(len(space.forward[o].implementations))
        yield from ((columns.implementation[o, w], 1.0) for w in every)


def _is_certain(space: BoundSpace, i: int, k: int) -> bool:
    """Whether a value is certainly in memory at some time before sample `k`."""
    return k == 0 and not space.forward[space.writer[i]].optional


def _reads(space: BoundSpace, b: int) -> Iterator[tuple[int, list[tuple[int, float]], float]]:
    """What a backward op may read: the value, and the terms or the number that say so."""
    op = space.graph.ops[b]
    always = op.always_reads
    for i in sorted(op.may_read & space.writer.keys()):
        if i in always:
            yield i, [], 1.0
        else:
            reading = [w for w, x in enumerate(op.implementations) if i in x.inputs]
            yield i, [(space.columns.implementation[b, w], -1.0) for w in reading], 0.0


def _gradients(space: BoundSpace) -> dict[int, float]:
    """Share of what backward ops wrote that is certainly in memory while each runs."""
    ops, first = space.graph.ops, len(space.forward)
    last = {i: b for b, op in enumerate(ops) for i in op.always_reads if not op.optional}
    found, live = {}, set()
    for b in range(first, len(ops)):
        found[b] = sum(map(space.share, live | set(ops[b].outputs)))
        live = {i for i in live | set(ops[b].outputs) if last.get(i, b) > b}
    return found
