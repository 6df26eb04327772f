"""How a CVXPY problem is solved with HiGHS, and what its statuses mean.

The only `Problem.solve` in the repository. CVXPY 1.9 reports `user_limit`, an objective of 0 and
variables of zeros where HiGHS stops without an incumbent (cvxpy/cvxpy#3534), so HiGHS is asked.
Every solve starts cold: CVXPY 1.9.3 hands HiGHS 1.15 the last solution of the problem, and with it
HiGHS called an answer for another budget optimal that is not (the tests notice).
"""

import dataclasses
import warnings
from typing import Any

import cvxpy as cp

from .errors import SolverStopped


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What is known after a solve.

    Attributes:
        found: whether the variables of the problem hold a feasible point.
        infeasible: whether it is proven that there is none.
        bound: no feasible point has a smaller objective; infinite where there is none.
    """

    found: bool
    infeasible: bool
    bound: float


def solve(problem: cp.Problem, *, time_limit: float, absolute_gap: float) -> Outcome:
    """Minimizes a linear problem, mixed-integer or not.

    Arguments:
        problem: a minimization whose coefficients are of order one.
        time_limit: in seconds; nothing is found, or ruled out, where none are left.
        absolute_gap: stop where the objective is within this of its bound. A linear problem
            without integers is solved to the end.

    Raises:
        SolverStopped: HiGHS failed for another reason than the time limit.
    """
    if time_limit <= 0:
        return Outcome(found=False, infeasible=False, bound=float("-inf"))
    options = {
        "time_limit": max(time_limit, 0.01),
        "mip_abs_gap": absolute_gap,
        "mip_rel_gap": 0.0,
        "threads": 1,
    }
    try:
        with warnings.catch_warnings():
            # "Solution may be inaccurate": the caller replays whatever comes back.
            warnings.simplefilter("ignore", UserWarning)
            problem.solve(solver=cp.HIGHS, warm_start=False, **options)
    except cp.SolverError as error:
        raise SolverStopped(f"HiGHS failed: {error}") from error
    except ValueError as error:
        # What CVXPY 1.9 makes of HiGHS' status "unknown", seen on infeasible linear problems.
        if "invalid solution" not in str(error):
            raise
        return Outcome(found=False, infeasible=False, bound=float("-inf"))
    if problem.status in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE):
        return Outcome(found=False, infeasible=True, bound=float("inf"))
    info: Any = problem.solver_stats.extra_stats  # highspy.HighsInfo
    objective: Any = problem.value
    return Outcome(
        found=info.primal_solution_status == 2,  # 0: none, 1: violates a constraint
        infeasible=False,
        bound=info.mip_dual_bound if problem.is_mixed_integer() else objective,
    )
