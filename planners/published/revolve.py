"""Binomial checkpointing: the fewest runs of a chain of equal blocks, for so many checkpoints.

Revolve (Griewank and Walther, "Algorithm 799", ACM TOMS 26(1), 2000). With memory for `c`
checkpoints a chain of `l` equal blocks is reversed with t(l, c) = r l - C(c + r, r - 1) runs,
beside the `l` that a backward follows at once; `r` is the least number for which C(c + r, c) >= l.
The chain's input is one of the `c`. A run from it goes to the best block in between, whose input
becomes a checkpoint; the blocks behind are reversed with `c - 1` checkpoints, and then those before
with `c`.

The chain is cut at the forward pass's articulation points, or at all its ops (`blocks`). Its
blocks are not equal: the schedules are those for equal ones, and for each number of checkpoints
replay says what it takes. The number counts the chain's input, which is free where it consists of
arguments of the step.

Known limit: what a block's backward reads is in memory for one block at a time, so that most blocks
run at least twice even where memory is plenty. `Rotor` does without that.
"""

import dataclasses
import functools as ft
import math

from ..graph import Graph
from ..schedules.orders import fastest_within
from ..schedules.planner import SchedulePlanner
from ..schedules.steps import Schedule
from .blocks import ChainBlocks, Split, walk


@dataclasses.dataclass(frozen=True)
class Revolve(SchedulePlanner):
    """The planner: the number of checkpoints that is fastest by replay within a budget.

    Attributes:
        checkpoints: the only number to try, 1 or more; None tries all.
        linearized: make every op a block, even where there are articulation points.
    """

    checkpoints: int | None = None
    linearized: bool = False

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no number of checkpoints fits; `minimum_bytes` is the smallest peak.
        """
        blocks = ChainBlocks(graph, linearized=self.linearized)
        numbers = [self.checkpoints] if self.checkpoints else range(1, len(blocks) + 1)
        orders = (_order(blocks, number) for number in numbers)
        return fastest_within(graph, orders, budget_bytes, planner="Revolve")


def _order(blocks: ChainBlocks, checkpoints: int) -> list[int]:
    def decide(s: int, t: int, c: int) -> Split:
        return Split(s + _advance(t - s + 1, c), behind=c - 1, before=c)

    return blocks.order(walk(len(blocks), decide, checkpoints))


@ft.cache  # the same parts come up for every number of checkpoints
def _advance(blocks: int, checkpoints: int) -> int:
    """How many of two or more blocks to run before the next checkpoint; of the best, the most."""
    if checkpoints == 1:
        return blocks - 1
    return min(
        range(blocks - 1, 0, -1),
        key=lambda n: n + _runs(blocks - n, checkpoints - 1) + _runs(n, checkpoints),
    )


def _runs(blocks: int, checkpoints: int) -> int:
    """t(l, c): runs that reverse a chain of blocks, those left out that a backward follows."""
    r = 0
    while math.comb(checkpoints + r, r) < blocks:
        r += 1
    return r * blocks - (math.comb(checkpoints + r, r - 1) if r else 0)
