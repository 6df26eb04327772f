"""Bisection on modelled temporaries: each compiled plan corrects the model for the next one.

The planner works in model bytes; only the compiler knows the real ones. What the compiler says of a
plan moves the next modelled limit: down where the program is too large, up where memory is left
unused and time could be won.
"""

import dataclasses

from ..compiled_plans import CompiledPlans
from .proposals import Proposals
from .repair import try_without_change

#: A plan that uses this share of its limit is not worth another compilation.
GOOD_USE = 0.97
#: Compilations of plans in one bisection, at most; the unplanned program and the calibration plan
#: come before.
MAX_COMPILATIONS = 6
#: Steps of one bisection, at most; a step that meets a plan again compiles nothing.
MAX_STEPS = 14
#: A bisection ends when this share of the limit is all that is undecided.
ENOUGH = 0.01


@dataclasses.dataclass
class _Interval:
    """Modelled temporaries between which the bisection looks.

    Attributes:
        low: plans of these fit, or there are none.
        high: plans of these do not fit; None as long as there were none such.
    """

    low: int = 0
    high: int | None = None

    def is_within(self, nbytes: float) -> bool:
        """Whether no more than so many bytes are undecided."""
        return self.high is not None and self.high - self.low < nbytes

    def next_target(self, guess: int, is_new: bool) -> int:
        """Where the compiler's answer points, or else the middle of the undecided part.

        Arguments:
            guess: where the answer points.
            is_new: whether a plan was compiled for it: one that was known points there again.
        """
        if self.high is None:
            return guess if is_new else guess + guess // 10
        is_inside = self.low < guess < self.high
        return guess if is_new and is_inside else (self.low + self.high) // 2


def compile_proposals(compiled_plans: CompiledPlans, proposals: Proposals, limit: int) -> None:
    """Compile plans by one model until the fastest that fits is among them.

    Arguments:
        compiled_plans: of the function.
        proposals: by the model.
        limit: bytes for temporaries.
    """
    interval, base_seconds = _Interval(), compiled_plans.graph.seconds
    target, compiled = compiled_plans.modelled_for(limit), 0
    for _ in range(MAX_STEPS):
        decisions = proposals.within(target)
        if decisions is None:
            hoped_for = hoped_for_bytes(compiled_plans, limit)
            if interval.high is None and hoped_for > target:
                interval.low, target = target, hoped_for
            elif interval.high is not None and interval.high - target >= ENOUGH * limit:
                interval.low, target = target, (target + interval.high) // 2
            else:
                break
            continue
        is_new = decisions not in compiled_plans
        if is_new and compiled == max_compilations(compiled_plans):
            break
        compiled += is_new
        used = compiled_plans.temp_bytes(compiled_plans.of(decisions))
        modelled = proposals.modelled(decisions.regions)
        if used <= limit:
            interval.low = max(interval.low, target, modelled)
            if used >= GOOD_USE * limit or decisions.seconds <= base_seconds:
                break
        else:
            interval.high = min(target, modelled, interval.high or target)
        target = interval.next_target(limit - (used - modelled), is_new)
        if interval.is_within(ENOUGH * limit):
            break
    try_without_change(compiled_plans, limit)


def max_compilations(compiled_plans: CompiledPlans) -> int:
    """How many plans one bisection may compile."""
    return MAX_COMPILATIONS if compiled_plans.verify else 1


def hoped_for_bytes(compiled_plans: CompiledPlans, limit: int) -> int:
    """Modelled temporaries of plans that fit, if they take as much less as some plan does.

    0 where nothing fits: then small plans are needed.
    """
    fits = compiled_plans.fastest_within(limit) is not None
    return compiled_plans.modelled_for(limit - least_excess_bytes(compiled_plans)) if fits else 0


def least_excess_bytes(compiled_plans: CompiledPlans) -> int:
    """The least of compiled minus predicted temporaries, over the compiled plans.

    It is negative where some plan takes less than predicted: so may others.
    """
    return min(compiled_plans.temp_bytes(x) - x.predicted_temp_bytes for x in compiled_plans)
