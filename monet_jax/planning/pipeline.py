"""From a traced function and a request to a plan: read from the disk, received, or searched for.

A plan comes from the cache on the disk, from process 0 of a job, or from a search: analyze, plan,
emit, compile, correct, until the compiled program keeps the budget.
"""

import dataclasses
import datetime
import functools
import itertools
import logging
import time

from ..analyzer import pins as pins_module
from ..compiler.targets import Target, resolve_target
from ..plans import cache as cache_module
from ..plans import multihost
from ..plans.mismatch import mismatch
from ..plans.record import PlanMismatch, PlanRecord
from ..tracing.trace import without_operators
from ..tracing.traced import Traced
from ..transformer.apply import as_traced_for
from .error_limit import ErrorLimit, plan_within
from .failures import STATEMENTS, InfeasibleBudget, statements, warn
from .gradient_error import ErrorBound, Errors
from .judge import TracedPlans, compiled_plans_of
from .mistakes import refuse_budget
from .options import PlanRequest
from .plan_search import PlanSearch
from .progress import progress, say
from .target_mistakes import refuse_for_target, refuse_host

log = logging.getLogger("monet_jax")


def check_for(traced: Traced, request: PlanRequest, limit: ErrorLimit | None = None) -> None:
    """Check what can be checked of a request for a function before anything is compiled.

    Raises:
        ValueError: the target lacks a dtype, a mesh does not divide an array, a pin names nothing,
            or nothing is left of the budget.
        InfeasibleBudget: arguments and results alone exceed the budget.
    """
    target = resolve_target(request.options.target)
    refuse_for_target(traced, target)
    host = request.options.host_memory(target)
    refuse_host(traced, host, traced.devices, limit is not None)
    traced = _as_pinned(traced, request, target)
    with statements():
        request.options.kept_by(traced)  # a pin may name nothing
        is_share = request.options.is_share
        budget = None if is_share else request.budget_bytes(target, lambda: 0)
    if budget is not None:

        def minimum() -> int:
            try:
                _made(traced, request, target, limit)
            except InfeasibleBudget as error:
                return error.minimum_budget
            return budget

        refuse_budget(traced, budget, request.reserved_bytes, minimum)


def plan_traced(
    traced: Traced, request: PlanRequest, limit: ErrorLimit | None, started: float
) -> PlanRecord:
    """The plan of a traced function: from the disk, from process 0, or made now.

    Arguments:
        traced: the function.
        request: the options for its call.
        limit: of the gradient's error, if there is one.
        started: when planning began, by `time.perf_counter`.
    """
    with progress():
        check_for(traced, request, limit)
        make = functools.partial(_found_or_made, traced, request, limit, started)
        record = multihost.from_first_process(make, STATEMENTS)
    if not _is_for(record, traced):
        raise PlanMismatch(
            "Process 0 has planned another function than this process: every process of a job "
            "must trace the same functions in the same order."
        )
    return dataclasses.replace(record, name=request.name)


def _found_or_made(
    traced: Traced, request: PlanRequest, limit: ErrorLimit | None, started: float
) -> PlanRecord:
    target = resolve_target(request.options.target)
    traced = _as_pinned(traced, request, target)

    def timed(record: PlanRecord) -> PlanRecord:
        seconds, day = time.perf_counter() - started, datetime.date.today().isoformat()
        return dataclasses.replace(record, planning_seconds=seconds, made=day)

    if limit is not None or not _uses_disk(request):
        return timed(_made(traced, request, target, limit))
    found = _found(traced, request, target)
    if found is not None:
        return dataclasses.replace(found, is_cached=True)
    record = timed(_find_plan(traced, request, target))
    floor = 0 if _is_largest(record, request) else request.floor_bytes
    state = "cut short" if record.cut_short else "final"
    cache_module.write(_key(traced, request, target, floor, state), record)
    return record


def _as_pinned(traced: Traced, request: PlanRequest, target: Target) -> Traced:
    """The function as it is traced, or without operators where pins name values of that program."""
    pins = request.options.pinned
    if not pins or not traced.terms.operators:
        return traced
    plain = without_operators(traced, target.name)
    return plain if pins_module.name_values(plain.staged(), pins) else traced


def _uses_disk(request: PlanRequest) -> bool:
    options = request.options
    return options.cache and options.planner is None and cache_module.is_enabled()


def _found(traced: Traced, request: PlanRequest, target: Target) -> PlanRecord | None:
    """The plan in the cache."""
    # What takes more than the largest before it is the largest now, whatever came before.
    floors = dict.fromkeys((0, request.floor_bytes))
    for floor, state in itertools.product(floors, ("final", "cut short")):
        found = cache_module.read(_key(traced, request, target, floor, state))
        is_enough = found is not None and (floor or _is_largest(found, request))
        if found is not None and is_enough and _is_for(found, traced):
            return found
    return None


def _is_largest(plan: PlanRecord, request: PlanRequest) -> bool:
    """Whether a share of a budget is a share of the planned function's own bytes."""
    return request.floor_bytes == 0 or (plan.unplanned_bytes or 0) >= request.floor_bytes


def _is_for(plan: PlanRecord, traced: Traced) -> bool:
    """Whether a plan is for a function, or for the function without operators."""
    return not mismatch(as_traced_for(traced, plan), plan)


def _made(
    traced: Traced, request: PlanRequest, target: Target, limit: ErrorLimit | None
) -> PlanRecord:
    if limit is not None:
        return _find_plan_within(traced, request, target, limit)
    return _find_plan(traced, request, target)


def _find_plan_within(
    traced: Traced, request: PlanRequest, target: Target, limit: ErrorLimit
) -> PlanRecord:
    """The plan, searched for, whose gradient keeps a limit of the error."""
    plans = _compiled_plans(traced, request, target)
    errors = Errors(traced, limit.samples, plans.judge.graph)

    def made(bound: ErrorBound) -> PlanRecord:
        some = plans.of_program(plans.judge.other(bound=bound))
        return _planned(_plan_search(some, request), request)

    return plan_within(limit, errors, made)


def _find_plan(traced: Traced, request: PlanRequest, target: Target) -> PlanRecord:
    """The plan, searched for.

    Where the user interrupts the search, the best plan so far is kept for the next one; where no
    plan fits, the smallest is kept for a search with a budget of what it takes.

    Raises:
        KeyboardInterrupt: the user interrupts it.
        InfeasibleBudget: no plan fits.
    """
    plan_search = _plan_search(_compiled_plans(traced, request, target), request)
    if not _uses_disk(request):
        return _planned(plan_search, request)

    def key(request: PlanRequest) -> str:
        return _key(traced, request, target, request.floor_bytes, "begun")

    try:
        return _planned(plan_search, request, cache_module.read(key(request)))
    except KeyboardInterrupt:
        best = plan_search.best_so_far()
        if best is not None:
            cache_module.write(key(request), best)
        raise
    except InfeasibleBudget:
        smallest = plan_search.smallest()
        if smallest is not None:  # bytes have no floor, which a share may have
            enough = request.with_options(budget=smallest.budget_bytes)
            cache_module.write(key(dataclasses.replace(enough, floor_bytes=0)), smallest)
        raise


def _compiled_plans(traced: Traced, request: PlanRequest, target: Target) -> TracedPlans:
    """The plans of a request; what is compiled is said in the line of the call that plans."""
    options = request.options
    return compiled_plans_of(
        traced,
        target,
        options.pinned,
        cap=options.cap(announce=say),
        verify=bool(options.verify),
        costs=options.costs,
        host=options.host_memory(target),
    )


def _plan_search(plans: TracedPlans, request: PlanRequest) -> PlanSearch:
    options = request.options
    return PlanSearch(plans, options.region_planner, renews_cap=False, by_clock=options.by_clock)


def _planned(
    plan_search: PlanSearch, request: PlanRequest, known: PlanRecord | None = None
) -> PlanRecord:
    """The plan of a search.

    Arguments:
        plan_search: the search.
        request: what is asked for.
        known: a plan of a search before.
    """
    target = plan_search.compiled_plans.judge.target
    budget = functools.partial(request.budget_bytes, target)
    record = plan_search.plan(budget, request.reserved_bytes, known)
    log.info("planned in %.1f s, %d compilations", record.planning_seconds, record.compilations)
    if plan_search.stopped is not None:
        warn(f"A faster plan may exist: the planner was stopped ({plan_search.stopped}).")
    return record


def _key(traced: Traced, request: PlanRequest, target: Target, floor_bytes: int, state: str) -> str:
    """The name in the cache of a plan: a hash of all that it depends on.

    Arguments:
        traced, request, target: what the plan is for.
        floor_bytes: as in the request.
        state: "final"; "cut short", where it depends on the cap, so that one under a larger cap is
            searched for anew; or "begun", where another search begins with it.
    """
    options = request.options
    return cache_module.key_of(
        target,
        (
            traced.fingerprint,
            [str(getattr(aval, "sharding", None)) for aval in traced.avals],
            (options.budget, floor_bytes, request.reserved_bytes),
            (state, options.caps if state == "cut short" else None),
            options.kept_by(traced),
        ),
    )
