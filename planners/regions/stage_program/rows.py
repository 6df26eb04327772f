"""What saving some values of a stage makes run again: rows of its integer program.

The variables are in `program`, the indices in `needs`.
"""

import itertools as it
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import scipy.sparse as sp

from ...graph import Implementation, Op
from ...solver.sparse import matrix
from .needs import Needs

_Terms = dict[int, float]  # column of the variables -> coefficient


def optional_writers(forward: Sequence[Op]) -> dict[int, Op]:
    """Value -> the optional op that writes it, if one does."""
    return {i: op for op in forward if op.optional for i in op.outputs}


def of_codes(forward: Sequence[Op], stage: Needs, figure: Callable[[Op], float]) -> list[float]:
    """For each value its part of a figure of the optional op that writes it, or 0.

    What an optional op writes is saved as a whole.
    """
    writer = optional_writers(forward)
    return [
        figure(writer[i]) / len(writer[i].outputs) if i in writer else 0.0 for i in stage.values
    ]


def dataflow(forward: Sequence[Op], stage: Needs) -> list[tuple[sp.csr_array, np.ndarray]]:
    """Rows `matrix @ x >= right`, by family.

    The families are about the backward (`_backward_rows`), inputs of reruns, and outside inputs of
    reruns.
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
        *_backward_rows(takes, save, available, optional_writers(forward).keys()),
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
    """Families of rows about the backward.

    What it reads in each implementation is available; codes of implementations that are taken are
    saved; implementations that are open are taken; each op takes one.

    Arguments:
        takes: the backward ops, each with its further implementations and their columns.
        save: value -> its column.
        available: value -> the columns by which it is in memory.
        optional: what optional ops write. It is saved for an implementation that reads it; other
            codes may be saved for another purpose.
    """
    reads, codes, opened = dict[Any, tuple[_Terms, float]](), [], []
    for op, implementations in takes:
        for i in (i for i in op.inputs if i in available):
            avoiding = {
                column: 1.0
                for column, implementation in implementations
                if i not in implementation.inputs
            }
            reads[i, tuple(avoiding)] = available[i] | avoiding, 1.0
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
