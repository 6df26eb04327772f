"""Which values of a stage may move to the host's memory, and how long the device waits for copies.

Copies out go one after the other, each once its value is written: the device waits at the end of
the stage's forward for the last of them. So for each value that may be the first of an unbroken
series, the seconds of that series, less those from its writing to the end, are waited for. Copies
back begin with the backward of the stage behind.
"""

import dataclasses

import numpy as np

from ...graph import Graph
from .needs import Needs


@dataclasses.dataclass(frozen=True)
class Moving:
    """The moves that a stage program may decide on.

    Attributes:
        may_move: for each value of the stage whether it may move.
        ways: for each direction seconds of copies, a row for each wait and a column for each value,
            and the seconds that hide them.
    """

    may_move: np.ndarray
    ways: tuple[tuple[np.ndarray, np.ndarray], ...]


def nothing_moves(stage: Needs) -> Moving:
    """The moves where there are none."""
    return Moving(np.zeros(len(stage.values)), ())


def moving_of(graph: Graph, s: int, stage: Needs) -> Moving | None:
    """The moves of stage `s`; None where nothing may move."""
    may = np.array([may_move(graph, s, i) for i in stage.values], dtype=bool)
    if graph.link is None or not may.any():
        return None
    sizes = np.where(may, [graph.values[i].nbytes for i in stage.values], 0)
    out, hidden_out = sizes / graph.link.out_bytes_per_second, []
    ends = np.cumsum([op.seconds for op in graph.stages[s].forward if not op.optional])
    written, position = {}, 0
    for op in graph.stages[s].forward:
        position += not op.optional
        written |= dict.fromkeys(op.outputs, ends[position - 1] if position else 0.0)
    times = np.array([written[i] for i in stage.values])
    rows = [np.where(times >= times[v], out, 0.0) for v in np.flatnonzero(may)]
    hidden_out = [ends[-1] - times[v] for v in np.flatnonzero(may)]
    back = (sizes / graph.link.back_bytes_per_second)[None]
    hidden_back = np.array([hiding_seconds(graph, s)])
    return Moving(may, ((np.array(rows), np.array(hidden_out)), (back, hidden_back)))


def may_move(graph: Graph, s: int, value: int) -> bool:
    """Whether a value of stage `s` may move, for the backward of that stage."""
    is_own = value in graph.forward_writer and graph.forward_writer[value][0] == s
    return is_own and graph.values[value].movable and graph.reader(value) == s


def hiding_seconds(graph: Graph, s: int) -> float:
    """Seconds of the backward of the stage behind `s`, which hide copies that come back."""
    behind = graph.stages[s + 1 : s + 2]
    return sum(op.least_seconds for stage in behind for op in stage.backward)
