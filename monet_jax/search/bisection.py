"""Bisection on predicted bytes: each compiled plan corrects what the next one is proposed for.

The planner works in model bytes; only the compiler knows the real ones. What the compiler says of a
plan moves the aim, the predicted bytes of the next proposal: down where the program is too large,
up where memory is left unused and time could be won.
"""

import dataclasses
from collections.abc import Sequence

from ..candidates.compiled_plans import CompiledPlans
from ..candidates.spaces import Space, propose

#: A plan that uses this share of its limit is not worth another compilation.
GOOD_USE = 0.97
#: Steps of one bisection, at most; a step that meets a plan again compiles nothing.
MAX_STEPS = 14
#: A bisection ends when this share of the limit is all that is undecided.
ENOUGH = 0.01


@dataclasses.dataclass
class _Interval:
    """The aims that are left: proposals up to `low` fit or are none, those from `high` on do not.

    Attributes:
        low: in bytes.
        high: in bytes; None as long as everything fitted.
    """

    low: int = 0
    high: int | None = None

    def is_within(self, nbytes: float) -> bool:
        """Whether no more than so many bytes are undecided."""
        return self.high is not None and self.high - self.low < nbytes

    def next_aim(self, guess: int, is_new: bool) -> int:
        """Where the compiler's answer points, or else the middle of the undecided part.

        Arguments:
            guess: where the answer points.
            is_new: whether a plan was compiled for it: one that was known points there again.
        """
        if self.high is None:
            return guess if is_new else guess + guess // 10
        is_inside = self.low < guess < self.high
        return guess if is_new and is_inside else (self.low + self.high) // 2


def compile_proposals(spaces: Sequence[Space], limit: int) -> None:
    """Compile proposals of some spaces until the fastest that fits is among them.

    Arguments:
        spaces: of plans, in order.
        limit: bytes for temporaries.

    Raises:
        CapReached: nothing more may be compiled.
    """
    interval, aim = _Interval(), limit
    for _ in range(MAX_STEPS):
        found = propose(spaces, aim)
        if found is None:
            aim = _aim_where_there_is_none(spaces, interval, aim, limit)
            if aim is None:
                return
            continue
        plans = found.plans
        is_new = found.decisions not in plans
        compiled = plans.of(found.decisions)
        used = plans.temp_bytes(compiled)
        if compiled.has_failed:
            interval.high = min(found.predicted_bytes, interval.high or aim)
            aim = interval.next_aim(aim, is_new=False)
        elif used <= limit:
            interval.low = max(interval.low, aim)
            if used >= GOOD_USE * limit or found.is_free or not plans.verify:
                return
        else:
            interval.high = min(found.predicted_bytes, interval.high or aim)
        if not compiled.has_failed:
            aim = interval.next_aim(limit - (used - found.predicted_bytes), is_new)
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
