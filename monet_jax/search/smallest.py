"""The search for a program's smallest plan, where the models rank plans less well."""

import itertools as it
import math
from collections.abc import Sequence

import planners

from ..candidates.compiled_plans import CompiledPlans, least_excess_bytes
from ..candidates.small_plans import CLEARLY_LESS, small_plans
from ..candidates.spaces import Space, propose
from ..compiler.waiting import made_ahead, meanwhile

#: A plan may compile to this share of its predicted bytes.
MAY_BE_OFF = 0.75


def compile_small_plans(programs: Sequence[Sequence[Space]], limit: int) -> None:
    """Compile plans with few bytes, until one fits; then those that should take clearly less.

    The programs take turns. The compiler's schedule decides whether recomputing the first or the
    last stage costs memory or saves it, and whether the last is better left alone or saved by name:
    a GPT-2 under a scan took 429 MiB by name and 576 otherwise.

    Arguments:
        programs: the spaces of each; the last space has all plans of the program.
        limit: bytes for temporaries.

    Raises:
        CapReached: nothing more may be compiled.
    """
    whole = [spaces[-1] for spaces in programs]
    every = [space.plans for space in whole]
    small = (small_plans(space, limit) for space in whole)
    turns, ahead = made_ahead(it.zip_longest(*small))
    for turn in turns:
        for plans, decisions in zip(every, turn, strict=True):
            if decisions is not None and _may_be_smallest(plans, decisions, _least(every)):
                with meanwhile(ahead if plans.cap.compilations_left > 1 else ()):
                    plans.of(decisions)
            if plans.fastest_within(limit) is not None:
                return
    for space in whole:
        _descend(space)


def _descend(space: Space) -> None:
    """Compile plans that should take clearly less than the smallest, until one does not."""
    plans, least = space.plans, space.plans.smallest()
    while least is not None:
        aim = int(CLEARLY_LESS * plans.temp_bytes(least)) - least_excess_bytes(plans)
        found = propose([space], aim)
        if found is None or found.decisions in plans:
            return
        plans.of(found.decisions)
        least = None if plans.smallest() is least else plans.smallest()


def _least(every: Sequence[CompiledPlans]) -> float:
    """Temporaries of the smallest plan of all programs."""
    return min((plans.temp_bytes(x) for plans in every for x in plans), default=math.inf)


def _may_be_smallest(plans: CompiledPlans, decisions: planners.Plan, least: float) -> bool:
    """Whether a plan may be smaller than all that are known.

    The prediction rests on the calibration plan, of which the compiler may make less than of
    others.
    """
    predicted = plans.predicted_temp_bytes(decisions.regions) + least_excess_bytes(plans)
    return MAY_BE_OFF * predicted <= least
