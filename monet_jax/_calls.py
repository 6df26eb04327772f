"""The plan of one call of a function, within options that are checked."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._plan import Plan
from .compiler.targets import resolve_target
from .planning.error_limit import limit_of, samples_of
from .planning.gradient_error import GRADED
from .planning.mistakes import refuse
from .planning.options import PlanOptions
from .planning.pipeline import plan_traced
from .planning.progress import progress
from .tracing.marked import name_of
from .tracing.modules import OnArrays, on_arrays
from .tracing.trace import trace_call


def within_error(operators: str | Sequence[str], error: float | None) -> str | Sequence[str]:
    """The operators of a selection: "lossy" names more of them where the error is limited."""
    return GRADED if error is not None and operators == "lossy" else operators


def plan_call(
    options: PlanOptions,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: float | None,
    sample: Sequence[Any] | None,
    on_arrays: Callable[..., OnArrays] = on_arrays,
) -> Plan:
    """The plan of a function for one call of it.

    Arguments:
        options: of the plan.
        fun, args, kwargs: the function, and the arguments to plan for.
        error, sample: as in `plan`.
        on_arrays: makes of a function and its arguments a function of arrays, and a call of it.
    """
    started = time.perf_counter()
    with progress():
        target = resolve_target(options.target)
        asked = args, kwargs, options.given
        traced, (pure, call) = trace_call(fun, *asked, options.terms, target, on_arrays)
        limit = None
        if error is not None:
            some = samples_of(args, sample)
            calls = [on_arrays(fun, given, kwargs, options.given)[1] for given in some]
            limit = limit_of(error, options.terms, call, calls)
        request = options.for_call(call, name_of(pure))
        refuse(traced, request.name)
        return Plan.of(plan_traced(traced, request, limit, started))
