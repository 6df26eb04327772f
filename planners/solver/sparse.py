"""Rows of coefficients as a sparse matrix, and as constraints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp


def matrix(rows: Sequence[Mapping[int, float]], width: int) -> sp.csr_array:
    """The matrix of rows, each a mapping of columns to coefficients."""
    place = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    columns = [column for row in rows for column in row]
    data = [x for row in rows for x in row.values()]
    return sp.csr_array((data, (place, columns)), shape=(len(rows), width))


def at_least(
    x: cp.Variable, rows: Iterable[Mapping[int, float]], right: float | Sequence[float] = 0.0
) -> Iterator[Any]:
    """One family of constraints on `x`, if it has rows: each sums to its right side or more."""
    rows = list(rows)
    if rows:
        yield matrix(rows, x.size) @ x >= np.asarray(right)


def total(terms: Iterable[tuple[int, float]]) -> dict[int, float]:
    """One row of (column, coefficient) pairs, added up by column."""
    found: dict[int, float] = {}
    for column, coefficient in terms:
        found[column] = found.get(column, 0.0) + coefficient
    return found


def numbered(keys: Iterable[tuple[Any, ...]], *kinds: str) -> list[dict[Any, int]]:
    """Columns for variables, in the order of `keys`: for each kind, its indices -> the column.

    A key is a kind, then the indices of one of its variables.
    """
    found: dict[str, dict[Any, int]] = {kind: {} for kind in kinds}
    for column, (kind, *indices) in enumerate(keys):
        found[kind][tuple(indices)] = column
    return list(found.values())
