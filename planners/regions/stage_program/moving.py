"""Which values of a stage may move to the host's memory, and which of their seconds are hidden.

Copies go out while the forward of the stage behind runs, and come back while its backward does.
"""

import dataclasses

import cvxpy as cp
import numpy as np

from ...graph import Graph
from ...transfers import hiding_seconds
from .needs import Needs


@dataclasses.dataclass(frozen=True)
class Moving:
    """The moves that a stage program may decide on.

    Attributes:
        may_move: for each value of the stage whether it may move.
        ways: out and back, the seconds of each value's copy, and those that hide copies.
    """

    may_move: np.ndarray
    ways: tuple[tuple[np.ndarray, float], ...]


class Moves:
    """The variables and rows of a stage program about moves.

    Attributes:
        move: 1 for each value that waits on the host.
        waits: shares of `unit_seconds` in which the device waits for copies, out and back.
        rows: about both.
    """

    def __init__(self, moving: Moving, unit_seconds: float):
        self.move = cp.Variable(len(moving.may_move), boolean=True)
        self.waits = cp.Variable(len(moving.ways), nonneg=True)
        self.rows = [self.move <= moving.may_move.astype(float)]
        for n, (seconds, hidden) in enumerate(moving.ways):
            self.rows.append(self.waits[n] >= (seconds @ self.move - hidden) / unit_seconds)

    @property
    def chosen(self) -> np.ndarray:
        """For each value, whether the last solve moved it."""
        return np.asarray(self.move.value) > 0.5

    @property
    def waiting(self) -> float:
        """The sum of `waits` in the last solve."""
        return float(np.asarray(self.waits.value).sum())


def moving_of(graph: Graph, s: int, stage: Needs) -> Moving | None:
    """The moves of stage `s`; None where nothing may move."""
    may = np.array([may_move(graph, s, i) for i in stage.values], dtype=bool)
    if graph.link is None or not may.any():
        return None
    sizes = np.where(may, [graph.values[i].waiting_bytes for i in stage.values], 0)
    seconds = hiding_seconds(graph, s)
    bandwidths = graph.link.out_bytes_per_second, graph.link.back_bytes_per_second
    return Moving(may, tuple((sizes / x, y) for x, y in zip(bandwidths, seconds, strict=True)))


def may_move(graph: Graph, s: int, value: int) -> bool:
    """Whether a value of stage `s` may move, for the backward of that stage."""
    is_own = value in graph.forward_writer and graph.forward_writer[value][0] == s
    return is_own and graph.values[value].reader == s
