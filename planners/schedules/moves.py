"""Random moves of a local search over sequences: recomputations put in, taken out, or moved."""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

from ..graph import Graph
from .timeline import SequenceTimeline


@dataclasses.dataclass
class Moves:
    """A sequence, and the moves that it may take.

    Attributes:
        line: the sequence.
        random: makes all choices.
        may_reorder: whether first runs may change places.
        ops: those of the sequence, ascending.
        values: what ops that may run again write.
        writer: value -> the op that writes it.
        undo: what takes the last move back: functions and their arguments, the last one first.
    """

    line: SequenceTimeline
    random: random.Random
    may_reorder: bool
    ops: Sequence[int]
    values: Sequence[int]
    writer: dict[int, int]
    undo: list[tuple[Callable, *tuple[int, ...]]] = dataclasses.field(default_factory=list)

    def any(self, items: Sequence[int]) -> int:
        """One of some items."""
        return items[int(self.random.random() * len(items))]

    def insert(self, op: int, place: int) -> None:
        """Runs an op again at a free place."""
        self.line.insert(op, place)
        self.undo.append((self.line.remove, place))

    def remove(self, place: int) -> None:
        """Takes out the recomputation at a place."""
        op = self.line.remove(place)
        self.undo.append((self.line.insert, op, place))

    def take_back(self) -> None:
        """Takes the last move back."""
        while self.undo:
            function, *arguments = self.undo.pop()
            function(*arguments)


def moves_of(
    graph: Graph, order: Sequence[int], budget_bytes: int, *, seed: int, may_reorder: bool
) -> Moves:
    """The moves of a sequence of ops."""
    ops = sorted(set(order))
    again = [o for o in ops if graph.may_rerun(o)]
    return Moves(
        line=SequenceTimeline(graph, order, budget_bytes),
        random=random.Random(seed),
        may_reorder=may_reorder,
        ops=ops,
        values=[i for o in again for i in graph.ops[o].outputs],
        writer={i: o for o, op in enumerate(graph.ops) for i in op.outputs},
    )


def propose(moves: Moves, is_full: bool) -> bool:
    """Makes a move of a kind taken by chance; whether there was one.

    Arguments:
        is_full: whether memory is above the budget somewhere.
    """
    chance, line = moves.random.random, moves.line
    if moves.may_reorder and (not moves.values or chance() < 0.4):
        return _shift(moves)
    x = chance()
    if not line.again or x < (0.6 if is_full else 0.35):
        return _recompute(moves, is_full)
    place = moves.any(line.again)
    if chance() < 0.6:
        return _replace(moves, place)
    if x < 0.8:
        moves.remove(place)
        return True
    return _move(moves, place)


def _replace(moves: Moves, place: int) -> bool:
    """Takes out a recomputation and puts in one or two others, where memory is short then."""
    moves.remove(place)
    is_made = _recompute(moves, moves.line.excess() > 0)
    if is_made and moves.line.excess() > 0:
        _recompute(moves, True)
    return is_made


def _away(moves: Moves, place: int) -> int:
    """A place before or after another; near ones are more likely."""
    far = int(math.exp(5 * moves.random.random()))
    return place + (far if moves.random.random() < 0.5 else -far)


def _shift(moves: Moves) -> bool:
    """Moves a first run to another place within its bounds."""
    line, op = moves.line, moves.any(moves.ops)
    after, before = line.bounds(op)
    old = line.first[op]
    if moves.random.random() < 0.5:
        new = after + 1 + int(moves.random.random() * (before - after - 1))
    else:
        new = _away(moves, old)
    if not after < new < before or line.ops[new] >= 0:
        return False
    line.shift(op, new)
    moves.undo.append((line.shift, op, old))
    return True


def _move(moves: Moves, place: int) -> bool:
    """Moves a recomputation."""
    line = moves.line
    op, new = line.ops[place], _away(moves, place)
    if not line.first[op] < new < len(line.ops) or line.ops[new] >= 0:
        return False
    moves.remove(place)
    moves.insert(op, new)
    return True


def _recompute(moves: Moves, where_full: bool) -> bool:
    """Lets a value leave memory over some place, and has it computed again for its next read.

    Arguments:
        where_full: take a place where memory is above the budget, as there is one.
    """
    line = moves.line
    place = _full_place(moves) if where_full else moves.any(range(len(line.ops)))
    for _ in range(100):
        value = moves.any(moves.values)
        if line.reads[value] and line.writes[value][0] < place:
            last, following = line.gap(value, place)
            if last < place < following:
                return _run_before(moves, moves.writer[value], following)
    return False


def _full_place(moves: Moves) -> int:
    over = moves.line.over
    for _ in range(30):
        place = int(moves.random.random() * len(over))
        if over[place] > 0:
            return place
    return int(over.argmax())


def _run_before(moves: Moves, op: int, place: int) -> bool:
    """Runs an op again at the last free place before another; what it reads waits for it."""
    line = moves.line
    place -= 1
    while place > line.first[op] and line.ops[place] >= 0:
        place -= 1
    if place <= line.first[op]:
        return False
    moves.insert(op, place)
    return True
