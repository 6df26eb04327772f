"""Local search over sequences of ops: where does an op run again, and may first runs change places?

Simulated annealing as in FastSA (Imanishi et al.): an op is put in once more, taken out, or moved,
and the sequence is judged by its seconds and a price on the bytes that it has above the budget.
Beside FastSA's moves there is one that takes a recomputation out and puts another in at once. Where
FastSA charges for the peak, here is charged for the excess of all places; the price rises while
there is any and falls while there is none, so that the search goes back and forth across the
budget. It works in rounds, each four times as long as the one before and from the best sequence so
far, so that there is an early answer and a late one.

Any op that may run again may do so anywhere after its first run, as often as it pays. Nothing is
proven about what is found: the bound is that each op runs at least once. Ops run in the first of
their ways, and those that need not run do not.
"""

import dataclasses
import math
import random
import time
from collections.abc import Sequence as SequenceOf

from ..errors import InfeasibleBudget, InvalidPlan
from ..graph import Graph
from .steps import Schedule, certified_steps, cost_of, runs_of, with_frees
from .timeline import Timeline

_FIRST_ROUND, _GROWTH = 2000, 4  # moves of the first round, and how many times longer the next is
_HOT, _COLD = 1.0, 0.02  # temperatures between which a round cools, in seconds of a mean op
_WARM = 0.2  # in place of `_HOT` where a schedule is only improved, so that most of it stays
_LARGER_PENALTY, _SMALLER_PENALTY = (
    1.05,
    0.99,
)  # a byte above the budget, each 32 moves while some is or none is


@dataclasses.dataclass(frozen=True)
class Sequence:
    """The planner: the fastest sequence within a budget that it comes upon.

    Attributes:
        time_limit: in seconds; used up, unless nothing runs twice before.
        may_reorder: whether first runs may change places; else they stay in the graph's order.
        seed: of the random choices.
        moves: changes to try, at most; None leaves only the time limit. With the limit out of
            reach, the same number finds the same sequence on any machine.
    """

    time_limit: float = 60.0
    may_reorder: bool = False
    seed: int = 0
    moves: int | None = None

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        `bound_seconds` is the sum of the seconds of all ops: each runs once or more in any
        schedule whatever.

        Raises:
            InfeasibleBudget: nothing found fits. That is no proof; `minimum_bytes` is the least
                peak that the search came upon.
        """
        order = [o for o, op in enumerate(graph.ops) if not op.optional]
        search = _Search(graph, order, budget_bytes, self)
        search.run(_HOT)
        if search.best is None:
            raise InfeasibleBudget(
                f"Found no sequence of ops within {budget_bytes:,} bytes; the least peak found is "
                f"{search.least_peak:,} bytes. Raise the budget or `time_limit`.",
                minimum_bytes=search.least_peak,
            )
        steps = with_frees(graph, search.best)
        return certified_steps(graph, steps, bound_seconds=graph.least_seconds, planner="Sequence")


def improved(
    graph: Graph,
    schedule: Schedule,
    budget_bytes: int,
    *,
    time_limit: float = 10.0,
    seed: int = 0,
    moves: int | None = None,
) -> Schedule:
    """A schedule made faster where the search finds how; else the schedule itself.

    First runs keep their order. What comes back keeps the budget and never takes longer than the
    schedule. Its `bound_seconds` is still the schedule's, about the space that that one was about.
    One in which an op runs in another way than its first comes back as it is.

    Raises:
        InvalidPlan: the schedule does not run, or takes more than the budget.
    """
    cost = cost_of(graph, schedule.steps)
    if cost.peak_bytes > budget_bytes:
        raise InvalidPlan(
            f"A schedule to improve takes {cost.peak_bytes:,} bytes, over its budget of "
            f"{budget_bytes:,}. Plan for that budget first."
        )
    ran = runs_of(schedule)
    if any(run.implementation or graph.ops[run.op].optional for run in ran):
        return schedule
    options = Sequence(time_limit=time_limit, seed=seed, moves=moves)
    search = _Search(graph, [run.op for run in ran], budget_bytes, options)
    search.run(_WARM)
    assert search.best is not None  # the schedule itself fits
    steps = with_frees(graph, search.best)
    bound = schedule.bound_seconds
    found = certified_steps(graph, steps, bound_seconds=bound, planner=schedule.planner)
    return found if found.seconds < cost.seconds else schedule


class _Search:
    """A sequence that is being changed, and the best one seen."""

    def __init__(self, graph: Graph, order: SequenceOf[int], budget_bytes: int, options: Sequence):
        self.started = time.perf_counter()
        self.options = options
        self.random = random.Random(options.seed)
        self.line = Timeline(graph, order, budget_bytes)
        self.writer = {i: o for o, op in enumerate(graph.ops) for i in op.outputs}
        self.ops = sorted(set(order))
        again = [o for o in self.ops if graph.may_rerun(o)]
        self.values = [i for o in again for i in graph.ops[o].outputs]
        self.fastest = graph.seconds
        self.mean = graph.seconds / max(len(graph.ops), 1) or 1.0
        self.best: list[int] | None = None
        self.best_seconds = math.inf
        self.least_peak = self.line.peak_bytes()
        self.undo: list[tuple] = []  # what takes the last move back: functions and their arguments
        self.moves = 0
        self.excess = self.line.excess()
        # The price on a byte above the budget at a place: what is there costs as much as the step,
        # or where nothing is, a thousandth of the budget costs a mean op.
        byte = 1e3 * self.mean / max(budget_bytes, 1)
        self.multiplier = len(graph.ops) * self.mean / self.excess if self.excess else byte
        self._see()

    def run(self, hot: float) -> None:
        """Rounds, until time or moves are used up or nothing is left to save."""
        if not self.values and not self.options.may_reorder:
            return
        self._prune()
        length = _FIRST_ROUND
        while not self._is_over():
            self._round(self._fitted(length), hot)
            length *= _GROWTH

    def _spent(self) -> float:
        return time.perf_counter() - self.started

    def _is_over(self) -> bool:
        options = self.options
        out_of_moves = options.moves is not None and self.moves >= options.moves
        is_best = self.best_seconds <= self.fastest * (1 + 1e-12)
        return out_of_moves or is_best or self._spent() >= options.time_limit

    def _fitted(self, length: int) -> int:
        """A round's moves: all that are left, where the round after it would find too few."""
        left = math.inf if self.options.moves is None else self.options.moves - self.moves
        if self.moves:
            pace = self.moves / self._spent()
            left = min(left, pace * (self.options.time_limit - self._spent()))
        return max(1, int(left)) if left < length * (1 + _GROWTH / 2) else length

    def _round(self, length: int, hot: float) -> None:
        self._restart(self.best or self.line.order())
        began, first = self._spent(), self.moves
        left = max(self.options.time_limit - began, 1e-9)
        respread = max(3000, 3 * len(self.line.cost))
        while not self._is_over():
            done = max((self.moves - first) / length, (self._spent() - began) / left)
            if done >= 1:
                break
            temperature = self.mean * hot * (_COLD / hot) ** done
            for _ in range(32):
                self._step(temperature)
            self.multiplier *= _LARGER_PENALTY if self.excess else _SMALLER_PENALTY
            if (self.moves - first) % respread < 32:
                self._restart(self.line.order())
        self._prune()

    def _restart(self, order: SequenceOf[int]) -> None:
        self.line.reset(order)
        self.excess = self.line.excess()

    def _see(self) -> None:
        """Notes the sequence if it is the best, or while nothing fits, its peak."""
        if self.best is None:
            self.least_peak = min(self.least_peak, self.line.peak_bytes())
        if not self.excess and self.line.seconds < self.best_seconds * (1 - 1e-12):
            self.best, self.best_seconds = self.line.order(), self.line.seconds

    def _prune(self) -> None:
        """Takes out of the best sequence what need not run again, the longest first."""
        if self.best is None:
            return
        self._restart(self.best)
        line = self.line
        for place in sorted(line.again, key=lambda place: (-line.cost[line.ops[place]], place)):
            op = line.remove(place)
            if line.excess():
                line.insert(op, place)
        self.excess = 0
        self._see()

    def _step(self, temperature: float) -> None:
        """Tries one move; keeps it where it pays, and by chance where it costs little."""
        self.moves += 1
        before = self.line.seconds + self.multiplier * self.excess
        if not self._propose():
            self._take_back()
            return
        excess = self.line.excess()
        worse = self.line.seconds + self.multiplier * excess - before
        if worse > 0 and self.random.random() >= math.exp(-worse / max(temperature, 1e-300)):
            self._take_back()
            return
        self.undo.clear()
        self.excess = excess
        if not excess or self.best is None:
            self._see()

    def _take_back(self) -> None:
        while self.undo:
            function, *arguments = self.undo.pop()
            function(*arguments)

    def _propose(self) -> bool:
        """Makes a move of a kind taken by chance; whether there was one."""
        chance = self.random.random
        if self.options.may_reorder and (not self.values or chance() < 0.4):
            return self._shift()
        x = chance()
        if not self.line.again or x < (0.6 if self.excess else 0.35):
            return self._recompute(self.excess > 0)
        place = self._any(self.line.again)
        if chance() < 0.6:
            return self._replace(place)
        if x < 0.8:
            self._remove(place)
            return True
        return self._move(place)

    def _replace(self, place: int) -> bool:
        """Takes out a recomputation and puts in one or two others, where memory is short then."""
        self._remove(place)
        is_made = self._recompute(self.line.excess() > 0)
        if is_made and self.line.excess() > 0:
            self._recompute(True)
        return is_made

    def _insert(self, op: int, place: int) -> None:
        self.line.insert(op, place)
        self.undo.append((self.line.remove, place))

    def _remove(self, place: int) -> None:
        op = self.line.remove(place)
        self.undo.append((self.line.insert, op, place))

    def _any(self, items: SequenceOf[int]) -> int:
        return items[int(self.random.random() * len(items))]

    def _away(self, place: int) -> int:
        """A place before or after another; near ones are more likely."""
        far = int(math.exp(5 * self.random.random()))
        return place + (far if self.random.random() < 0.5 else -far)

    def _shift(self) -> bool:
        """Moves a first run to another place in its room."""
        line, op = self.line, self._any(self.ops)
        after, before = line.room(op)
        old = line.first[op]
        if self.random.random() < 0.5:
            new = after + 1 + int(self.random.random() * (before - after - 1))
        else:
            new = self._away(old)
        if not after < new < before or line.ops[new] >= 0:
            return False
        line.shift(op, new)
        self.undo.append((line.shift, op, old))
        return True

    def _move(self, place: int) -> bool:
        """Moves a recomputation."""
        op, new = self.line.ops[place], self._away(place)
        if not self.line.first[op] < new < len(self.line.ops) or self.line.ops[new] >= 0:
            return False
        self._remove(place)
        self._insert(op, new)
        return True

    def _recompute(self, where_full: bool) -> bool:
        """Lets a value leave memory over some place, and has it computed again for its next read.

        Arguments:
            where_full: take a place where memory is above the budget, as there is one.
        """
        place = self._full_place() if where_full else self._any(range(len(self.line.ops)))
        for _ in range(100):
            value = self._any(self.values)
            if self.line.reads[value] and self.line.writes[value][0] < place:
                last, following = self.line.gap(value, place)
                if last < place < following:
                    return self._run_before(self.writer[value], following)
        return False

    def _full_place(self) -> int:
        over = self.line.over
        for _ in range(30):
            place = int(self.random.random() * len(over))
            if over[place] > 0:
                return place
        return int(over.argmax())

    def _run_before(self, op: int, place: int) -> bool:
        """Runs an op again at the last free place before another; what it reads waits for it."""
        line = self.line
        place -= 1
        while place > line.first[op] and line.ops[place] >= 0:
            place -= 1
        if place <= line.first[op]:
            return False
        self._insert(op, place)
        return True
