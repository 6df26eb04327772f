"""Bisection on predicted bytes: each compiled plan corrects what the next one is proposed for.

The planner works in model bytes; only the compiler knows the real ones. What the compiler says of a
plan moves the aim, the predicted bytes of the next proposal: down where the program is too large,
up where memory is left unused and time could be won.
"""

import math
from collections.abc import Sequence

import numpy as np

from ..candidates.cap import Cap
from ..candidates.compiled_plans import CompiledPlans, least_excess_bytes, most_excess_bytes
from ..candidates.spaces import Proposal, Space, free_seconds_of, propose
from ..candidates.worth import WORTH

#: A plan that uses this share of its limit is not worth another compilation.
GOOD_USE = 0.97
#: The share of its limit that a plan should use. Plans are few, so that most take less than what
#: they are proposed for: aimed at the middle of what is good, U-Net's took a tenth too little.
GOAL = 0.9975
#: A plan that is off by this share of its limit says nothing of another program's plans.
FAR_OFF = 0.25
#: Steps of one bisection, at most; a step that meets a plan again compiles nothing.
MAX_STEPS = 14
#: A bisection ends when this share of the limit is all that is undecided.
ENOUGH = 0.01


def compile_proposals(spaces: Sequence[Space], limit: int, known_seconds: float = math.inf) -> bool:
    """Compile proposals until the fastest that fits is among them; whether there is one.

    Each program has a bisection of its own, since the model errs on each in its own way. So it does
    on plans of single stages and on those that recompute several stages together: where one of the
    latter misses its aim, the former have a bisection of their own. The fastest of all proposals is
    compiled. The last that may be, where none fits so far, is for less, by the most that one missed
    its aim by.

    Arguments:
        spaces: of plans, in order.
        limit: bytes for temporaries.
        known_seconds: of the fastest plan of other spaces that fits.

    Raises:
        CapReached: nothing more may be compiled.
    """
    programs = dict.fromkeys(space.plans for space in spaces)
    free = free_seconds_of(spaces)
    bisections = [_Bisection([x for x in spaces if x.plans is y], limit, free) for y in programs]
    for _ in range(MAX_STEPS):
        best = min(known_seconds, *(x.seconds for x in bisections))
        if best == math.inf and bisections[0].cap.compilations_left == 1:
            excess = max(most_excess_bytes(x) for x in programs)
            for bisection in bisections:
                bisection.aim_below(limit - excess)
        bisection, found = _fastest(bisections)
        if found is None:
            break
        if found.seconds >= (1 - WORTH) * best and found.decisions not in found.plans:
            bisection.is_done = True  # no plan that should fit is worth it beside one that does
        elif bisection.compile(found) and (found.is_free or not found.plans.verify):
            break
        for other in bisections:
            other.follow(bisection)
        bisections += bisection.of_single_stages(found, bisections)
    return any(x.seconds < math.inf for x in bisections)


def _fastest(bisections: Sequence["_Bisection"]) -> tuple["_Bisection", Proposal | None]:
    """The bisection with the fastest proposal, and that proposal.

    One that is free makes later ones needless, and so is one that cannot be faster.
    """
    best: tuple[_Bisection, Proposal | None] = bisections[0], None
    for bisection in bisections:
        known = best[1]
        if known is not None and (known.is_free or known.seconds <= bisection.least_seconds()):
            continue
        found = bisection.propose()
        if found is not None and (known is None or found.seconds < known.seconds):
            best = bisection, found
    return best


class _Bisection:
    """The aims that are left for one program: proposals up to `low` fit or there are none.

    Those for `high` and more do not fit.

    Arguments:
        spaces: of one program, in order.
        limit: bytes for temporaries.
        free_seconds: of a plan of any program that is free.
        is_of_single_stages: whether the spaces are.

    Attributes:
        seconds: of the fastest proposal that fits, infinite as long as there is none.
        is_done: whether no aim is left.
    """

    def __init__(
        self,
        spaces: Sequence[Space],
        limit: int,
        free_seconds: float,
        is_of_single_stages: bool = False,
    ):
        self._spaces, self._limit, self._aim = spaces, limit, limit
        self._free_seconds = free_seconds
        self._is_of_single_stages = is_of_single_stages
        self._low, self._high = 0, math.inf
        # Predicted and compiled bytes of the nearest plans that fit, and do not.
        self._below: tuple[int, int] | None = None
        self._above: tuple[int, int] | None = None
        self.is_done, self.seconds = False, math.inf
        self._has_compiled = self._has_singles = False

    def propose(self) -> Proposal | None:
        """The fastest plan for the aim, or for another one where there is none."""
        while not self.is_done:
            found = propose(self._spaces, self._aim, self._free_seconds)
            if found is not None:
                return found
            self._low, aim = max(self._low, self._aim), self._aim
            plans = self._spaces[0].plans
            hoped_for = hoped_for_bytes(plans, self._limit)
            self._aim = hoped_for if self._high == math.inf else int(aim + self._high) // 2
            self.is_done = self._aim <= aim or self._is_decided()
        return None

    def least_seconds(self) -> float:
        """A bound on the proposal for the aim, by those for larger ones."""
        return min(space.least_seconds(self._aim) for space in self._spaces)

    def compile(self, found: Proposal) -> bool:
        """Compile a proposal and correct the aim; whether it fits."""
        is_new = found.decisions not in found.plans
        compiled = found.plans.of(found.decisions)
        used = math.inf if compiled.has_failed else found.plans.temp_bytes(compiled)
        fits, self._has_compiled = used <= self._limit, True
        if fits:
            self._low, self._below = max(self._low, self._aim), (found.predicted_bytes, int(used))
            self.seconds = min(self.seconds, found.seconds)
            self.is_done = used >= GOOD_USE * self._limit
        else:
            self._high = min(found.predicted_bytes, self._high, self._aim)
            if used < math.inf:
                self._above = found.predicted_bytes, int(used)
        self._aim = self._next_aim(is_new and used < math.inf)
        self.is_done |= self._is_decided()
        return fits

    def follow(self, other: "_Bisection") -> None:
        """Take over what compiled plans of another program say, until this one has some."""
        is_of_kind = self._is_of_single_stages == other._is_of_single_stages
        if is_of_kind and not self._has_compiled and other._is_near and not other.is_done:
            self._aim, self._low, self._high = other._aim, other._low, other._high
            self._below, self._above = other._below, other._above

    def of_single_stages(
        self, last: Proposal, others: Sequence["_Bisection"]
    ) -> list["_Bisection"]:
        """A bisection of plans of single stages, if it is the first time that one is needed.

        Arguments:
            last: the proposal that was compiled last.
            others: the bisections so far.
        """
        if self.is_done or last.is_of_single_stages or self._has_singles:
            return []
        self._has_singles = True
        spaces = [x for x in (space.of_single_stages for space in self._spaces) if x is not None]
        if not spaces:
            return []
        found = _Bisection(spaces, self._limit, self._free_seconds, is_of_single_stages=True)
        for other in others:
            found.follow(other)
        return [found]

    @property
    def cap(self) -> Cap:
        """The cap on compilations."""
        return self._spaces[0].plans.cap

    def aim_below(self, nbytes: int) -> None:
        """Aim for fewer bytes."""
        self._aim = max(0, min(self._aim, nbytes))

    @property
    def _is_near(self) -> bool:
        """Whether plans were compiled, and some were about as large as predicted."""
        ends = (x for x in (self._below, self._above) if x is not None)
        return any(abs(used - predicted) < FAR_OFF * self._limit for predicted, used in ends)

    def _is_decided(self) -> bool:
        return self._high - self._low < ENOUGH * self._limit

    def _next_aim(self, is_new: bool) -> int:
        """Where the compiler's answers point, or else the middle of the undecided part.

        Arguments:
            is_new: whether a plan was compiled: one that was known points there again.
        """
        guess = self._guess()
        if self._high == math.inf:
            return guess if is_new else guess + guess // 10
        is_inside = self._low < guess < self._high
        return guess if is_new and is_inside else int(self._low + self._high) // 2

    def _guess(self) -> int:
        """Between a plan that fits and one that does not, where both are known.

        Else it is as far from the last plan as that is from the goal.
        """
        goal = int(GOAL * self._limit)
        if self._below and self._above and self._above[1] > self._below[1]:
            predicted, used = zip(self._below, self._above, strict=True)
            return int(np.interp(goal, used, predicted))
        predicted, used = self._below or self._above or (0, 0)
        return goal - (used - predicted)


def hoped_for_bytes(plans: CompiledPlans, limit: int) -> int:
    """Predicted temporaries of plans that fit, if they take as much less as some plan does.

    0 where nothing fits: then small plans are needed.
    """
    fits = plans.fastest_within(limit) is not None
    return limit - least_excess_bytes(plans) if fits else 0
