"""The smallest plans of a function at one size of its arguments, by what other sizes taught.

The plan that is the smallest at one size is mostly so at others. So it is looked for at one; at the
others its regions are compiled.
"""

import contextlib
import itertools as it
from collections.abc import Iterator

import planners
from planners.regions.simple_plans import certified

from ...candidates.cap import CapReached
from ...candidates.compiled_plans import CompiledPlans, calibrate_by, excess_bytes
from ...candidates.judge import CompiledPlan, Key
from ...candidates.programs import Programs, fastest_within
from ...search.bisection import compile_proposals
from ...search.smallest import compile_small_plans


def compile_within(programs: Programs, limit: int, knows_smallest: bool) -> None:
    """Compile plans that may keep a limit, as many as the cap allows.

    Arguments:
        programs: of the function.
        limit: bytes for temporaries.
        knows_smallest: whether the plan that is the smallest at another size is among those that
            were compiled; if not, small plans are compiled first, for other sizes to learn from.
    """

    def small() -> None:
        compile_small_plans(programs.spaces_of_each(), 0)

    def proposed() -> None:
        compile_proposals(programs.staying_spaces, limit)

    for compile_some in [proposed] if knows_smallest else [small, proposed]:
        if fastest_within(programs, limit) is None:
            programs.as_traced.cap.allow_again()
            programs.restart()
            with contextlib.suppress(CapReached):
                compile_some()


def begin_small(plans: CompiledPlans, like: Key | None) -> Iterator[None]:
    """Begin to compile the plan that is one at another size, or saves little, in one step."""
    if like is None:
        plans.judge.begin(plans.calibration_plan)
    elif like[0] == plans.judge.name and (decisions := _plan_of(plans, like)) is not None:
        plans.judge.begin(decisions)
    yield


def compile_like(programs: Programs, known: CompiledPlans, like: CompiledPlan) -> bool:
    """Compile the plan that is one at another size; False if it is none at this one.

    The model errs on it by as large a share as there: so it calibrates the model as well.

    Arguments:
        programs: of the function at this size.
        known: compiled plans at the other size.
        like: one of them.

    Raises:
        CapReached: nothing more may be compiled.
    """
    nested = (x.plans for x in programs.nested_spaces)  # made only where they are come to
    every = it.chain(programs.all_plans, nested)
    plans = next((x for x in every if x.judge.name == like.program), None)
    decisions = plans and _plan_of(plans, like.key)
    if plans is None or decisions is None:
        return False
    if decisions not in plans:
        made = plans.of_uncalibrated(decisions)
        if known.is_calibrated:
            share = excess_bytes(known, like) / max(1, known.temp_bytes(like))
            calibrate_by(plans, made, int(share * plans.temp_bytes(made)))
    return True


def _plan_of(plans: CompiledPlans, like: Key) -> planners.Plan | None:
    """The plan of the same regions; None where the program is cut into other stages."""
    graph = plans.judge.graph
    bound, planner = graph.seconds, "another size"
    with contextlib.suppress(planners.InvalidPlan):
        return certified(graph, like[1], planner=planner, bound_seconds=bound)
    return None
