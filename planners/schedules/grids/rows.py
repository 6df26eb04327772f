"""What makes a point of a grid's program a schedule: constraints on its variables.

Each function is one family of constraints on the vector `x` of all variables. The indices and the
variables are in `space`.
"""

import itertools as it
from collections.abc import Iterator
from typing import Any

import cvxpy as cp

from ...solver.sparse import at_least, matrix, total
from .space import GridSpace


def constraints(space: GridSpace, x: cp.Variable) -> Iterator[Any]:
    """All families."""
    for family in (implementations, reads, sources, carries, inputs, overwritten):
        yield from family(space, x)


def implementations(space: GridSpace, x: cp.Variable) -> Iterator[Any]:
    """An op first runs in one of its implementations; an optional one in one at most."""
    columns = space.columns
    chosen = [o for o in range(len(space.graph.ops)) if space.is_chosen(o)]
    rows = {o: {columns.first[o, w]: 1.0 for w in space.first_implementations[o]} for o in chosen}
    must = [rows[o] for o in chosen if not space.graph.ops[o].optional]
    may = [rows[o] for o in chosen if space.graph.ops[o].optional]
    if must:
        yield matrix(must, columns.width) @ x == 1
    if may:
        yield matrix(may, columns.width) @ x <= 1


def reads(space: GridSpace, x: cp.Variable) -> Iterator[Any]:
    """What a backward op reads is held during its event."""
    always, rows = [], []
    for k, group in enumerate(space.groups):
        for b in group:
            for w, read in space.read(b):
                held = [space.columns.hold[i, k] for i in sorted(read)]
                if space.is_chosen(b):
                    rows += [{column: 1.0, space.columns.first[b, w]: -1.0} for column in held]
                else:
                    always += held
    if always:
        yield x[sorted(set(always))] == 1
    yield from at_least(x, rows)


def sources(space: GridSpace, x: cp.Variable) -> Iterator[Any]:
    """What is held or passed was carried, or its op has run again."""
    hold, passed = space.columns.hold, space.columns.passed
    rows = (
        total([*_available(space, i, k), (hold[i, k], -1.0), (passed[i, k], -1.0)]) for i, k in hold
    )
    yield from at_least(x, rows)


def _available(space: GridSpace, i: int, k: int) -> Iterator[tuple[int, float]]:
    yield space.columns.carry[i, k], 1.0
    o = space.writer[i]
    for w in space.again_implementations.get(o, ()):
        if (o, w, k) in space.columns.run:
            yield space.columns.run[o, w, k], 1.0


def carries(space: GridSpace, x: cp.Variable) -> Iterator[Any]:
    """What is carried into an event was held during the one before, or has run at all."""
    columns, rows = space.columns, []
    for i, events in space.events.items():
        for before, k in it.pairwise(events):
            rows.append({columns.hold[i, before]: 1.0, columns.carry[i, k]: -1.0})
        if space.forward[o := space.writer[i]].optional:
            ran = {columns.first[o, w]: 1.0 for w in space.first_implementations[o]}
            rows.append(ran | {columns.carry[i, events[0]]: -1.0})
    yield from at_least(x, rows)


def inputs(space: GridSpace, x: cp.Variable) -> Iterator[Any]:
    """What an op reads that runs again is held or passed."""
    hold, passed = space.columns.hold, space.columns.passed
    rows = (
        {hold[i, k]: 1.0, passed[i, k]: 1.0, column: -1.0}
        for (o, w, k), column in space.columns.run.items()
        for i in sorted(set(space.forward[o].implementations[w].inputs))
    )
    yield from at_least(x, rows)


def overwritten(space: GridSpace, x: cp.Variable) -> Iterator[Any]:
    """What an op has written over is neither carried nor held."""
    columns = space.columns
    rows = [
        {column: -1.0, columns.carry[i, space.events[i][0]]: -1.0}
        for (o, w), column in columns.first.items()
        for i in space.graph.implementations[o][w].overwrites
        if i in space.events
    ]
    rows += [
        {column: -1.0, columns.hold[i, k]: -1.0}
        for (o, w, k), column in columns.run.items()
        for i in space.forward[o].implementations[w].overwrites
    ]
    yield from at_least(x, rows, [-1.0] * len(rows))
