"""From a traced function and what is wanted of it to a plan: from the disk, process 0, or made now.

settle    analyze, plan, emit, compile, correct        -> a plan that the compiled program keeps
"""

import dataclasses
import functools
import logging
import numbers
import os
import time
from collections.abc import Callable
from typing import Any

import jax

import planners

from .._version import __version__
from ..analyzer import pins as pins_module
from ..analyzer.pins import Pins
from ..compiler.budget import parse_budget
from ..compiler.targets import Target, compiler_version, resolve_target, usable_bytes
from ..ir.program import Rewrite
from ..plans import cache as cache_module
from ..plans import multihost
from ..plans.record import FORMAT, PlanMismatch, PlanRecord
from ..tracing import trace
from ..tracing.layout import lay_out
from ..tracing.signature import Call
from ..tracing.trace import Terms, Traced
from ..transformer.apply import as_traced_for
from .compiled_plans import CompiledPlans
from .error_limit import ErrorLimit, plan_within
from .failures import STATEMENTS, BadPlanner, statements, warn
from .gradient_error import Errors
from .mistakes import refuse_budget, refuse_reserved
from .reserved import Optimizer, reserved_bytes
from .search import InfeasibleBudget, PlanSearch

log = logging.getLogger("monet_jax")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checked arguments of `remat` and `plan` that say what is wanted.

    Attributes:
        floor_bytes: a share is of no less than this: what the largest program of the function takes
            as it is, of those that were planned before.
    """

    budget: int | float | str
    target: str | None
    reserved: int | Optimizer
    pins: Pins
    planner: Any
    time_limit: float
    verify: bool
    cache: bool
    terms: Terms
    floor_bytes: int = 0

    def rewrite(self, call: Call) -> Rewrite:
        """By what the equations of a function are replaced, called like that."""
        return trace.rewrite_for(self.terms, resolve_target(self.target).name, call)

    def for_call(self, call: Call) -> "Settings":
        """The same with the bytes to reserve: of an optimizer, those of the call's parameters."""
        return dataclasses.replace(self, reserved=reserved_bytes(self.reserved, call.params))

    def budget_bytes(self, target: Target, unplanned_bytes: Callable[[], int]) -> int:
        """The budget in bytes.

        Arguments:
            target: what is planned for.
            unplanned_bytes: called for a share: what the function takes as it is.
        """
        return parse_budget(
            self.budget,
            unplanned_bytes=lambda: max(unplanned_bytes(), self.floor_bytes),
            target_memory=lambda: usable_bytes(target),
        )

    def check_reserved(self) -> None:
        """Check that something is left of the budget, as far as both are known.

        Raises:
            ValueError: what is reserved takes all of it.
        """
        if self.is_share or self.budget == "auto" or not isinstance(self.reserved, int):
            return
        total = parse_budget(self.budget, unplanned_bytes=int, target_memory=int)
        refuse_reserved(total, self.reserved)

    @property
    def is_share(self) -> bool:
        """Whether the budget is a share of what the function takes."""
        return not isinstance(self.budget, str | numbers.Integral)


def check_for(traced: Traced, settings: Settings, limit: ErrorLimit | None = None) -> None:
    """Check what can be checked of the settings for a function before anything is compiled.

    Raises:
        ValueError: a pin names nothing, or nothing is left of the budget.
        InfeasibleBudget: arguments and results alone exceed the budget.
    """
    target = resolve_target(settings.target)
    with statements():
        _pins_in(traced, settings)
        budget = None if settings.is_share else settings.budget_bytes(target, lambda: 0)
    if budget is not None:
        assert isinstance(settings.reserved, int)  # of one call

        def minimum() -> int:
            try:
                _made(traced, settings, target, limit)
            except InfeasibleBudget as error:
                return error.minimum_budget
            return budget

        refuse_budget(traced, budget, settings.reserved, minimum)


def plan_traced(
    traced: Traced, settings: Settings, limit: ErrorLimit | None, started: float
) -> PlanRecord:
    """The plan of a traced function: from the disk, from process 0, or made now.

    Arguments:
        traced: the function.
        settings: what is wanted of it.
        limit: of the gradient's error, if there is one.
        started: when planning began, by `time.perf_counter`.
    """
    check_for(traced, settings, limit)
    fingerprint = trace.fingerprint(traced.program, traced.derivative)
    make = functools.partial(_found_or_made, traced, settings, fingerprint, limit, started)
    made = multihost.from_first_process(make, STATEMENTS)
    if not _is_for(made, traced, fingerprint):
        raise PlanMismatch(
            "Process 0 has planned another function than this process: every process of a job "
            "must trace the same functions in the same order."
        )
    return made


def _found_or_made(
    traced: Traced,
    settings: Settings,
    fingerprint: str,
    limit: ErrorLimit | None,
    started: float,
) -> PlanRecord:
    target = resolve_target(settings.target)

    def timed(made: PlanRecord) -> PlanRecord:
        return dataclasses.replace(made, planning_seconds=time.perf_counter() - started)

    use_disk = settings.cache and settings.planner is None and cache_module.is_enabled()
    if limit is not None or not use_disk:
        return timed(_made(traced, settings, target, limit))
    key = functools.partial(_key, traced, settings, target, fingerprint)
    # What takes more than the largest before it is the largest now, whatever came before.
    floors = dict.fromkeys((0, settings.floor_bytes))
    for floor in floors:
        found = cache_module.read(key(floor))
        is_enough = found is not None and (floor or _is_largest(found, settings))
        if found is not None and is_enough and _is_for(found, traced, fingerprint):
            return dataclasses.replace(found, is_cached=True)
    made = timed(_find_plan(traced, settings, target))
    cache_module.write(key(0 if _is_largest(made, settings) else settings.floor_bytes), made)
    return made


def _is_largest(plan: PlanRecord, settings: Settings) -> bool:
    """Whether a share is of what the planned function takes itself."""
    return settings.floor_bytes == 0 or (plan.unplanned_bytes or 0) >= settings.floor_bytes


def _is_for(plan: PlanRecord, traced: Traced, fingerprint: str) -> bool:
    """Whether a plan is for a function of some fingerprint, or for that without operators."""
    if plan.fingerprint == fingerprint:
        return True
    planned = as_traced_for(traced, plan)
    return plan.fingerprint == trace.fingerprint(planned.program, planned.derivative)


def _made(
    traced: Traced, settings: Settings, target: Target, limit: ErrorLimit | None
) -> PlanRecord:
    if limit is not None:
        return _find_plan_within(traced, settings, target, limit)
    return _find_plan(traced, settings, target)


def _find_plan_within(
    traced: Traced, settings: Settings, target: Target, limit: ErrorLimit
) -> PlanRecord:
    """The settled plan whose gradient is as right as a limit asks for."""
    compiled_plans = _compiled_plans(traced, settings, target)
    errors = Errors(traced, limit.samples, *compiled_plans.analyzed)
    return plan_within(
        limit, errors, lambda bound: _planned(compiled_plans.within(bound), settings)
    )


def _compiled_plans(traced: Traced, settings: Settings, target: Target) -> CompiledPlans:
    return CompiledPlans(traced, target, settings.pins, settings.verify)


def _find_plan(traced: Traced, settings: Settings, target: Target) -> PlanRecord:
    return _planned(_compiled_plans(traced, settings, target), settings)


def _planned(compiled_plans: CompiledPlans, settings: Settings) -> PlanRecord:
    planner = settings.planner or planners.Stages(time_limit=settings.time_limit)
    if not hasattr(planner, "prepare"):
        planner = functools.partial(_replayed, planner)
    plan_search = PlanSearch(compiled_plans, planner)
    assert isinstance(settings.reserved, int)  # of one call
    budget = functools.partial(settings.budget_bytes, compiled_plans.target)
    made = plan_search.plan(budget, settings.reserved)
    log.info("planned in %.1f s, %d rounds", made.planning_seconds, made.compilations)
    if plan_search.stopped is not None:
        warn(f"A faster plan may exist: the planner was stopped ({plan_search.stopped}).")
    return made


def _replayed(planner: Callable[[planners.Graph, int], Any], graph: planners.Graph, budget: int):
    """The answer of somebody's planner, which is not believed before it is replayed."""
    decisions = planner(graph, budget)
    if not isinstance(decisions, planners.Plan):
        raise BadPlanner(f"`planner` must return a `planners.Plan`; got {decisions!r}.")
    planners.replay(graph, decisions)
    return decisions


def _pins_in(traced: Traced, settings: Settings) -> tuple[list[Any], list[int]]:
    """What the pins mean in a function: names are no part of its fingerprint.

    Raises:
        ValueError: one names nothing.
    """
    program = traced.program
    if settings.pins:  # which may name what is inside loops
        program = lay_out(program, traced.derivative).program
    found = pins_module.find(program, settings.pins)
    return sorted(found.items()), sorted(pins_module.saved_by_name(program, settings.pins))


def _key(
    traced: Traced, settings: Settings, target: Target, fingerprint: str, floor_bytes: int
) -> str:
    """The name in the cache of a plan: a hash of all that it depends on."""
    return cache_module.key_of(
        (
            (__version__, FORMAT),
            jax.__version__,
            compiler_version(target),
            os.environ.get("XLA_FLAGS", ""),
            fingerprint,
            traced.terms,
            [str(getattr(aval, "sharding", None)) for aval in traced.avals],
            (settings.budget, floor_bytes, settings.reserved),
            (settings.time_limit, settings.verify),
            *_pins_in(traced, settings),
            target.name,
            usable_bytes(target) if settings.budget == "auto" else None,
        )
    )
