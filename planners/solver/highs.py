"""Solves CVXPY problems with HiGHS, and says what its statuses mean.

The only place from where a solver runs, in a process of its own (`child`).

CVXPY 1.9 reports `user_limit`, an objective of 0 and variables of zeros where HiGHS stops without
an incumbent (cvxpy/cvxpy#3534), so HiGHS itself is read. A solve starts from nothing, or from a
point that the caller gives; CVXPY's own warm start, which is the last solution of the same problem,
is not used: with it HiGHS 1.15 called a solution for another budget optimal that is not (the tests
notice).
"""

import dataclasses
import time
import types
import warnings
from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from ..errors import InfeasibleBudget, SolverStopped
from .child import ask
from .deadline import Deadline
from .worker import Answer, Request

# So many coefficients CVXPY hands over in a second, and is not interrupted.
_RATE = 1e6
# HiGHS may take so many seconds more than it has before it is ended.
_GRACE = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What is known after a solve.

    Attributes:
        found: whether the variables of the problem hold a feasible point.
        proven: whether that point is within the requested gap of the bound.
        infeasible: whether it is proven that there is none.
        bound: no feasible point has a smaller objective; infinite where there is none.
        slack: the objective of that point less the bound.
    """

    found: bool = False
    proven: bool = False
    infeasible: bool = False
    bound: float = float("-inf")
    slack: float = float("inf")


def solve(
    problem: cp.Problem,
    *,
    time_limit: float,
    absolute_gap: float,
    start: Mapping[cp.Variable, np.ndarray] | None = None,
    enough: float | None = None,
) -> Outcome:
    """Minimizes a linear problem, mixed-integer or not.

    Arguments:
        problem: a minimization whose coefficients are of order one.
        time_limit: in seconds, with what CVXPY takes; nothing is found, or ruled out, where none
            are left, or too few to hand over the program.
        absolute_gap: stop where the objective is within this of its bound. A linear problem
            without integers is solved to the end.
        start: values of all variables, where a feasible point is known; HiGHS ignores what is not.
        enough: an objective at which to stop.

    Raises:
        SolverStopped: HiGHS failed for another reason than the time limit.
    """
    deadline = Deadline.after(time_limit)
    if time_limit <= _coefficients(problem) / _RATE:
        return Outcome()
    options = {"mip_abs_gap": absolute_gap, "mip_rel_gap": 0.0, "threads": 1}
    if enough is not None:
        options["objective_target"] = enough
    try:
        with warnings.catch_warnings():
            # "Solution may be inaccurate": the caller replays whatever comes back.
            warnings.simplefilter("ignore", UserWarning)
            if not _run(problem, options, start, deadline):
                return Outcome()
    except cp.SolverError as error:
        raise SolverStopped(f"HiGHS failed: {error}") from error
    except ValueError as error:
        # What CVXPY 1.9 makes of HiGHS' status "unknown", seen on infeasible linear problems.
        if "invalid solution" not in str(error):
            raise
        return Outcome()
    if problem.status in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE):
        return Outcome(infeasible=True, bound=float("inf"))
    info: Any = problem.solver_stats.extra_stats  # as `highspy.HighsInfo`
    objective: Any = problem.value
    bound = info.mip_dual_bound if problem.is_mixed_integer() else objective
    found = info.primal_solution_status == 2  # 0: none, 1: violates a constraint
    return Outcome(
        found=found,
        proven=problem.status == cp.OPTIMAL,
        bound=bound,
        slack=objective - bound if found else float("inf"),
    )


def require_found(
    outcome: Outcome, budget_bytes: int, *, whose: str, least_bytes: int, time_limit: float
) -> None:
    """Goes on only where a solve for the fastest schedule within a budget has found one.

    Arguments:
        whose: schedules they are, for the message.
        least_bytes: what any of them needs.
        time_limit: in seconds, that the solve had.

    Raises:
        InfeasibleBudget: there is none.
        SolverStopped: none was found in time.
    """
    if outcome.infeasible:
        raise InfeasibleBudget(
            f"No schedule of {whose} fits in {budget_bytes:,} bytes.",
            minimum_bytes=max(budget_bytes + 1, least_bytes),
        )
    if not outcome.found:
        raise SolverStopped(
            f"HiGHS found no schedule within {budget_bytes:,} bytes in {time_limit:g} s. "
            "Raise `time_limit` or the budget, or use a planner for large graphs."
        )


def _coefficients(problem: cp.Problem) -> int:
    """How many there are, about."""
    values = (constant.value for constant in problem.constants())
    return sum(value.nnz if sp.issparse(value) else np.size(value) for value in values)


def _run(
    problem: cp.Problem,
    options: dict[str, Any],
    start: Mapping[cp.Variable, np.ndarray] | None,
    deadline: Deadline,
) -> bool:
    """`Problem.solve`, from a start; whether HiGHS has answered."""
    data, chain, inverse = problem.get_problem_data(cp.HIGHS)
    assert chain is not None  # but for an interface that CVXPY has retired
    request = _request(data, options, start, deadline)
    answer = ask(request, deadline.left + _GRACE) if deadline.left > 0 else None
    if answer is not None:
        problem.unpack_results(_results(answer, data), chain, inverse)
    return answer is not None


def _request(
    data: dict[str, Any],
    options: dict[str, Any],
    start: Mapping[cp.Variable, np.ndarray] | None,
    deadline: Deadline,
) -> Request:
    """What CVXPY has made of a problem, as HiGHS wants it: first equations, then `<=`."""
    rows, right = data["A"].tocsc(), data["b"]
    least = right.copy()
    least[data["dims"].zero :] = -np.inf
    width = data["c"].size
    is_integer = np.zeros(width, np.int32)
    is_integer[data["bool_vars_idx"] + data["int_vars_idx"]] = 1
    lower, upper = data["lower_bounds"], data["upper_bounds"]
    lower = np.full(width, -np.inf) if lower is None else lower.copy()
    upper = np.full(width, np.inf) if upper is None else upper.copy()
    boolean = np.array(data["bool_vars_idx"], int)
    lower[boolean] = np.maximum(lower[boolean], 0.0)
    upper[boolean] = np.minimum(upper[boolean], 1.0)
    return {
        "cost": data["c"],
        "rows": (rows.indptr, rows.indices, rows.data),
        "row_bounds": (least, right),
        "column_bounds": (lower, upper),
        "is_integer": is_integer,
        "start": None if start is None else _point(data, start),
        "options": options,
        "until": time.time() + deadline.left,
    }


def _point(data: dict[str, Any], start: Mapping[cp.Variable, np.ndarray]) -> np.ndarray:
    """A start as a number for each column."""
    point = np.zeros(data["c"].size)
    columns = data["param_prob"].var_id_to_col
    for variable, value in start.items():
        if variable.id not in columns:  # no constraint and no objective looks at it
            continue
        first = columns[variable.id]
        point[first : first + variable.size] = value
    return point


def _results(answer: Answer, data: dict[str, Any]) -> dict[str, Any]:
    """An answer as CVXPY keeps it."""
    nothing = np.zeros(data["b"].size)
    multipliers = answer["multipliers"] if answer["multipliers"].size else nothing
    return {
        "model_status": answer["status"],
        "info": types.SimpleNamespace(**answer["info"]),
        "run_time": 0.0,
        "solution": types.SimpleNamespace(col_value=answer["x"], row_dual=multipliers),
        "dual_ray": (None, False, nothing),
    }
