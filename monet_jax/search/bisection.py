"""Bisection on predicted bytes: each compiled plan corrects what the next one is proposed for.

The planner works in model bytes; only the compiler knows the real ones. What the compiler says of a
plan moves the aim, the predicted bytes of the next proposal: down where the program is too large,
up where memory is left unused and time could be won.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..candidates.compiled_plans import CompiledPlans
from ..candidates.spaces import Space, propose

#: A plan that uses this share of its limit is not worth another compilation.
GOOD_USE = 0.97
#: The share of its limit that a plan should use: in the middle of what is good.
GOAL = (1 + GOOD_USE) / 2
#: Steps of one bisection, at most; a step that meets a plan again compiles nothing.
MAX_STEPS = 14
#: A bisection ends when this share of the limit is all that is undecided.
ENOUGH = 0.01


@dataclasses.dataclass
class _Interval:
    """The aims that are left: proposals up to `low` fit or are none, those from `high` on do not.

    Attributes:
        goal: the bytes that the plan should take.
        low: in bytes.
        high: in bytes; None as long as everything fitted.
        below, above: predicted and compiled bytes of the nearest plans that fit, and do not.
    """

    goal: int
    low: int = 0
    high: int | None = None
    below: tuple[int, int] | None = None
    above: tuple[int, int] | None = None

    def is_within(self, nbytes: float) -> bool:
        """Whether no more than so many bytes are undecided."""
        return self.high is not None and self.high - self.low < nbytes

    def fits(self, aim: int, predicted: int, used: int) -> None:
        """A plan for an aim fits."""
        self.low, self.below = max(self.low, aim), (predicted, used)

    def breaks(self, aim: int, predicted: int, used: int | None) -> None:
        """A plan for an aim does not fit, or was not compiled."""
        self.high = min(predicted, self.high or aim)
        self.above = self.above if used is None else (predicted, used)

    def next_aim(self, is_new: bool) -> int:
        """Where the compiler's answers point, or else the middle of the undecided part.

        That is between a plan that fits and one that does not where both are known, else as far
        from the last as that is from the goal.

        Arguments:
            is_new: whether a plan was compiled: one that was known points there again.
        """
        guess = self._guess()
        if self.high is None:
            return guess if is_new else guess + guess // 10
        is_inside = self.low < guess < self.high
        return guess if is_new and is_inside else (self.low + self.high) // 2

    def _guess(self) -> int:
        if self.below and self.above and self.above[1] > self.below[1]:
            predicted, used = zip(self.below, self.above, strict=True)
            return int(np.interp(self.goal, used, predicted))
        predicted, used = self.below or self.above or (0, 0)
        return self.goal - (used - predicted)


def compile_proposals(spaces: Sequence[Space], limit: int) -> None:
    """Compile proposals of some spaces until the fastest that fits is among them.

    Arguments:
        spaces: of plans, in order.
        limit: bytes for temporaries.

    Raises:
        CapReached: nothing more may be compiled.
    """
    interval, aim = _Interval(int(GOAL * limit)), limit
    for _ in range(MAX_STEPS):
        found = propose(spaces, aim)
        if found is None:
            aim = _aim_where_there_is_none(spaces, interval, aim, limit)
            if aim is None:
                return
            continue
        plans, is_new = found.plans, found.decisions not in found.plans
        compiled = plans.of(found.decisions)
        used = None if compiled.has_failed else plans.temp_bytes(compiled)
        if used is None or used > limit:
            interval.breaks(aim, found.predicted_bytes, used)
        else:
            interval.fits(aim, found.predicted_bytes, used)
            if used >= GOOD_USE * limit or found.is_free or not plans.verify:
                return
        aim = interval.next_aim(is_new and used is not None)
        if interval.is_within(ENOUGH * limit):
            return


def _aim_where_there_is_none(
    spaces: Sequence[Space], interval: _Interval, aim: int, limit: int
) -> int | None:
    """The next aim where no plan is proposed for one; None where there is none."""
    interval.low = max(interval.low, aim)
    if interval.high is not None:
        middle = (aim + interval.high) // 2
        return middle if interval.high - aim >= ENOUGH * limit else None
    hoped_for = max(hoped_for_bytes(space.plans, limit) for space in spaces)
    return hoped_for if hoped_for > aim else None


def hoped_for_bytes(plans: CompiledPlans, limit: int) -> int:
    """Predicted temporaries of plans that fit, if they take as much less as some plan does.

    0 where nothing fits: then small plans are needed.
    """
    fits = plans.fastest_within(limit) is not None
    return limit - least_excess_bytes(plans) if fits else 0


def least_excess_bytes(plans: CompiledPlans) -> int:
    """The least of compiled minus predicted temporaries, over the compiled plans.

    It is negative where some plan takes less than predicted: so may others.
    """
    excess = (plans.temp_bytes(x) - x.predicted_temp_bytes for x in plans)
    return min(excess, default=0)
