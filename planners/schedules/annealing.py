"""Simulated annealing of a sequence of ops, in rounds that cool down.

A sequence is judged by its seconds plus a multiplier times its excess: its bytes above the budget,
added up over all places. The multiplier rises while there is any excess and falls while there is
none, so that the search goes back and forth across the budget. Each round is four times as long as
the one before and starts from the best sequence so far, so that there is an early result and a late
one.
"""

import math
import time
from collections.abc import Sequence

from ..graph import Graph
from .moves import moves_of, propose

_FIRST_ROUND, _GROWTH = 2000, 4  # moves of the first round, and how many times longer the next is
_COLD = 0.02  # the temperature to which a round cools, in seconds of a mean op
# Factors on the multiplier, each 32 moves while some byte is above the budget, or none is.
_RAISE, _LOWER = 1.05, 0.99


class Annealing:
    """A sequence that is being changed, and the best one seen.

    Arguments:
        graph: the step.
        order: the sequence to start from: ops in the order of their runs.
        budget_bytes: limit on the peak.
        time_limit: in seconds.
        move_limit: of moves, or None.
        may_reorder: whether first runs may change places.
        seed: of the random choices.

    Attributes:
        best: the fastest sequence within the budget, if there is one.
        least_peak: the least peak seen before the first sequence within the budget.
    """

    def __init__(
        self,
        graph: Graph,
        order: Sequence[int],
        budget_bytes: int,
        *,
        time_limit: float,
        move_limit: int | None,
        may_reorder: bool,
        seed: int,
    ):
        self._started = time.perf_counter()
        self._time_limit, self._move_limit = time_limit, move_limit
        self._moves = moves_of(graph, order, budget_bytes, seed=seed, may_reorder=may_reorder)
        self._line = self._moves.line
        self._least_seconds = graph.seconds
        self._mean = graph.seconds / max(len(graph.ops), 1) or 1.0
        self.best: list[int] | None = None
        self._best_seconds = math.inf
        self.least_peak = self._line.peak_bytes()
        self._made = 0  # moves
        self._excess = self._line.excess()
        # In seconds per byte: all excess costs as much as the step, or where there is none, a
        # thousandth of the budget costs a mean op.
        byte = 1e3 * self._mean / max(budget_bytes, 1)
        step = len(graph.ops) * self._mean
        self._multiplier = step / self._excess if self._excess else byte
        self._see()

    def run(self, hot: float) -> None:
        """Rounds, until time or moves are used up or nothing is left to save.

        Arguments:
            hot: the temperature at which a round begins, in seconds of a mean op.
        """
        if not self._moves.values and not self._moves.may_reorder:
            return
        self._prune()
        length = _FIRST_ROUND
        while not self._is_over():
            self._round(self._fitted(length), hot)
            length *= _GROWTH

    def _spent(self) -> float:
        return time.perf_counter() - self._started

    def _is_over(self) -> bool:
        out_of_moves = self._move_limit is not None and self._made >= self._move_limit
        is_best = self._best_seconds <= self._least_seconds * (1 + 1e-12)
        return out_of_moves or is_best or self._spent() >= self._time_limit

    def _fitted(self, length: int) -> int:
        """A round's moves: all that are left, where the round after it would find too few."""
        left = math.inf if self._move_limit is None else self._move_limit - self._made
        if self._made:
            pace = self._made / self._spent()
            left = min(left, pace * (self._time_limit - self._spent()))
        return max(1, int(left)) if left < length * (1 + _GROWTH / 2) else length

    def _round(self, length: int, hot: float) -> None:
        self._restart(self.best or self._line.order())
        began, first = self._spent(), self._made
        left = max(self._time_limit - began, 1e-9)
        respread = max(3000, 3 * len(self._line.cost))
        while not self._is_over():
            done = max((self._made - first) / length, (self._spent() - began) / left)
            if done >= 1:
                break
            temperature = self._mean * hot * (_COLD / hot) ** done
            for _ in range(32):
                self._step(temperature)
            self._multiplier *= _RAISE if self._excess else _LOWER
            if (self._made - first) % respread < 32:
                self._restart(self._line.order())
        self._prune()

    def _restart(self, order: Sequence[int]) -> None:
        self._line.reset(order)
        self._excess = self._line.excess()

    def _see(self) -> None:
        """Notes the sequence if it is the best, or while nothing fits, its peak."""
        if self.best is None:
            self.least_peak = min(self.least_peak, self._line.peak_bytes())
        if not self._excess and self._line.seconds < self._best_seconds * (1 - 1e-12):
            self.best, self._best_seconds = self._line.order(), self._line.seconds

    def _prune(self) -> None:
        """Takes out of the best sequence what need not run again, the longest first."""
        if self.best is None:
            return
        self._restart(self.best)
        line = self._line
        for place in sorted(line.again, key=lambda place: (-line.cost[line.ops[place]], place)):
            op = line.remove(place)
            if line.excess():
                line.insert(op, place)
        self._excess = 0
        self._see()

    def _step(self, temperature: float) -> None:
        """Tries one move; keeps it where it pays, and by chance where it costs little."""
        self._made += 1
        before = self._line.seconds + self._multiplier * self._excess
        if not propose(self._moves, self._excess > 0):
            self._moves.take_back()
            return
        excess = self._line.excess()
        worse = self._line.seconds + self._multiplier * excess - before
        chance = self._moves.random.random
        if worse > 0 and chance() >= math.exp(-worse / max(temperature, 1e-300)):
            self._moves.take_back()
            return
        self._moves.undo.clear()
        self._excess = excess
        if not excess or self.best is None:
            self._see()
