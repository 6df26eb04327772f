"""The plan of one call of a function, within options that are checked."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from ._plan import Plan
from .planning.error_limit import limit_of, samples_of
from .planning.gradient_error import GRADED
from .planning.mistakes import refuse
from .planning.options import PlanOptions
from .planning.pipeline import plan_traced
from .planning.progress import progress
from .tracing import trace
from .tracing.marked import name_of
from .tracing.modules import OnArrays


def within_error(operators: str | Sequence[str], error: float | None) -> str | Sequence[str]:
    """The operators of a selection: "lossy" names more of them where the error is limited."""
    return GRADED if error is not None and operators == "lossy" else operators


def plan_flat(
    options: PlanOptions,
    flat: Callable[[Sequence[Any]], OnArrays],
    args: Sequence[Any],
    error: float | None,
    sample: Sequence[Any] | None,
) -> Plan:
    """The plan of a function for one call of it.

    Arguments:
        options: of the plan.
        flat: arguments -> the function on arrays, and its call with these arguments.
        args: the arguments to plan for.
        error, sample: as in `plan`.
    """
    started = time.perf_counter()
    with progress():
        fun, call = flat(args)
        limit = None
        if error is not None:
            samples = [flat(some)[1] for some in samples_of(args, sample)]
            limit = limit_of(error, options.terms, call, samples)
        request = options.for_call(call)
        traced = trace.trace(fun, call, options.rewrite(call), options.terms)
        refuse(traced, name_of(fun))
        made = plan_traced(traced, request, limit, started)
        return Plan.of(dataclasses.replace(made, name=name_of(fun)))
