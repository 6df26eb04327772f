"""Runs HiGHS on plain arrays, in a process that can be ended.

`child` starts this file by its path. It reads requests from stdin, and writes answers to stdout:
one for each better point or bound, and one at the end. Where HiGHS does not mind its time limit,
the process is ended, and the best that it has reported counts. It imports highspy and NumPy
alone, since CVXPY takes seconds.
"""

import contextlib
import faulthandler
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any, TypedDict

import highspy
import numpy as np

# HiGHS is given so many seconds at least.
_LEAST_SECONDS = 0.01
# It ends itself so many seconds after its time, should its parent have died before.
_ORPHAN_SECONDS = 2.0
# HiGHS' word for a point that meets all constraints.
_FEASIBLE = 2


class Request(TypedDict):
    """A program: the least `cost @ x` with `rows @ x` and `x` within their bounds.

    Attributes:
        cost: a number for each column.
        rows: a sparse matrix by columns: where each begins, numbers of rows, coefficients.
        row_bounds: lower and upper ones.
        column_bounds: likewise.
        is_integer: 0 or 1 for each column.
        start: where to begin, or None.
        options: of HiGHS.
        until: when to stop, by the wall clock, which two processes share: seconds.
    """

    cost: np.ndarray
    rows: tuple[np.ndarray, np.ndarray, np.ndarray]
    row_bounds: tuple[np.ndarray, np.ndarray]
    column_bounds: tuple[np.ndarray, np.ndarray]
    is_integer: np.ndarray
    start: np.ndarray | None
    options: dict[str, Any]
    until: float


class Answer(TypedDict):
    """What HiGHS says.

    Attributes:
        status: the name of a `highspy.HighsModelStatus`.
        info: the fields of a `highspy.HighsInfo`.
        x: a number for each column.
        multipliers: a number for each row, of a program without integers; else empty.
    """

    status: str
    info: dict[str, float]
    x: np.ndarray
    multipliers: np.ndarray


def minimize(request: Request, report: Callable[[Answer], None]) -> Answer:
    """Runs HiGHS.

    Arguments:
        report: is told of each better point and bound of an integer program, as if no other came.
    """
    solver = highspy.Highs()
    left = max(request["until"] - time.time(), _LEAST_SECONDS)
    options = {"log_to_console": False, **request["options"], "time_limit": left}
    for name, value in options.items():
        status = solver.setOptionValue(name, value)
        assert status == highspy.HighsStatus.kOk, name
    _hand_over(solver, request)
    _report_to(report, solver, request["cost"].size)
    solver.run()
    solution, status = solver.getSolution(), solver.getModelStatus().name
    multipliers = np.array(solution.row_dual if solution.dual_valid else ())
    x = np.array(solution.col_value)
    return {"status": status, "info": _info(solver), "x": x, "multipliers": multipliers}


def _hand_over(solver: highspy.Highs, request: Request) -> None:
    """Gives a program and its start to HiGHS."""
    by_columns, least = int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize)
    solver.passModel(
        request["cost"].size,
        request["row_bounds"][0].size,
        request["rows"][-1].size,
        by_columns,
        least,
        0.0,
        request["cost"],
        *request["column_bounds"],
        *request["row_bounds"],
        *request["rows"],
        request["is_integer"],
    )
    if request["start"] is not None:
        solution = highspy.HighsSolution()
        solution.col_value = request["start"].tolist()
        solver.setSolution(solution)


def _info(solver: highspy.Highs) -> dict[str, float]:
    info = solver.getInfo()
    return {name: getattr(info, name) for name in dir(info) if not name.startswith("_")}


def _report_to(report: Callable[[Answer], None], solver: highspy.Highs, width: int) -> None:
    """Has a report made of each better point, and of each better bound that HiGHS would log."""
    known: dict[str, float] = {"primal_solution_status": 0, "mip_dual_bound": float("-inf")}
    x = np.zeros(width)

    def tell(**news: float) -> None:
        known.update(news)
        info = _info(solver) | known
        report({"status": "kTimeLimit", "info": info, "x": x, "multipliers": np.empty(0)})

    def point(event: Any) -> None:
        nonlocal x
        x = np.array(event.data_out.mip_solution)  # a copy: HiGHS goes on
        objective = event.data_out.objective_function_value
        tell(primal_solution_status=_FEASIBLE, objective_function_value=objective)

    def bound(event: Any) -> None:
        if (found := event.data_out.mip_dual_bound) > known["mip_dual_bound"]:
            tell(mip_dual_bound=found)

    solver.cbMipImprovingSolution += point
    solver.cbMipLogging += bound


def main() -> None:
    """Answers requests until there are no more."""
    # HiGHS prints to standard output: keep the pipe for answers, send the rest to stderr.
    proposals = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(answer: Answer, is_last: bool = False) -> None:
        pickle.dump((answer, is_last), proposals)
        proposals.flush()

    with contextlib.suppress(EOFError):
        while True:
            request: Request = pickle.load(sys.stdin.buffer)
            left = max(request["until"] - time.time(), 0.0)
            # By a thread of its own that needs no lock of Python's, which HiGHS holds.
            faulthandler.dump_traceback_later(left + _ORPHAN_SECONDS, exit=True)
            send(minimize(request, send), is_last=True)
            faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
