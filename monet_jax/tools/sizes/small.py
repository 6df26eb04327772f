"""The smallest plans of a function at one size of its arguments, by what other sizes taught.

The plan that is the smallest at one size is mostly so at others. So it is looked for at one; at the
others its regions are compiled.
"""

import contextlib
import itertools as it

import planners
from planners.regions.simple_plans import certified

from ...candidates.cap import CapReached
from ...candidates.judge import Key
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
        compile_proposals([space for space in programs.spaces if not space.moves], limit)

    for compile_some in [proposed] if knows_smallest else [small, proposed]:
        if fastest_within(programs, limit) is None:
            programs.as_traced.cap.allow_again()
            programs.restart()
            with contextlib.suppress(CapReached):
                compile_some()


def compile_like(programs: Programs, like: Key) -> bool:
    """Compile the plan that is one at another size; False if it is none at this one.

    Raises:
        CapReached: nothing more may be compiled.
    """
    program, regions = like
    nested = (x.plans for x in programs.nested_spaces)  # made only where they are come to
    every = it.chain(programs.all_plans, nested)
    plans = next((x for x in every if x.judge.name == program), None)
    if plans is None:
        return False
    bound, planner = plans.graph.seconds, "another size"
    try:
        decisions = certified(plans.graph, regions, planner=planner, bound_seconds=bound)
    except planners.InvalidPlan:  # it is cut into other stages there
        return False
    if decisions not in plans:
        plans.of_uncalibrated(decisions)
    return True
