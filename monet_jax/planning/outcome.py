"""The outcome of a search: the stored plan's record, or the error that says why there is none."""

import dataclasses
import itertools as it
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

import planners
from planners.plan import Region
from planners.regions.simple_plans import moving_inputs

from ..candidates.judge import CompiledPlan
from ..candidates.movable import with_host
from ..compiler.budget import format_bytes
from ..compiler.host import HostOptions
from ..ir.fingerprint import describe_inputs
from ..ir.program import has_checkpoints
from ..operators import only_by_name
from ..plans.record import CompiledRow, PlanRecord, SourceRow
from ..plans.tables import describe_values, fixed_rows, loop_rows, stage_rows, value_rows
from ..plans.timeline import Timeline, timeline_of
from ..search.search import Found
from ..tracing.trace import with_operators
from ..tracing.traced import Traced
from .failures import InfeasibleBudget
from .judge import TracedJudge, TracedPlans

#: What the host would bring is said where it is less than this share of the minimum.
CLEARLY_LESS = 0.97


@dataclasses.dataclass(frozen=True)
class Effort:
    """What a search was given and what it took.

    Attributes:
        budget_bytes: the budget.
        reserved_bytes: the part of it for other things.
        seconds: wall time.
        compilations: programs that it compiled.
        programs: the compiled plans of each of the function's programs.
    """

    budget_bytes: int
    reserved_bytes: int
    seconds: float
    compilations: int
    programs: Sequence[TracedPlans]


def record_of(plans: TracedPlans, found: Found, effort: Effort) -> PlanRecord:
    """The record of a plan.

    Arguments:
        plans: of the function as it was traced.
        found: the plan, of the program that it was made for.
        effort: of the search.
    """
    best = found.plan
    decisions = best.decisions if best else None
    judge = found.plans.judge
    # Nested scans change the loops of the function as it is traced, and nothing else.
    original = found.plans if judge.chunks is None else plans
    as_it_is = planners.save_all(plans.judge.plain.graph).seconds
    compiled = tuple(_compiled_rows(effort.programs, found.step_seconds, as_it_is))
    before = _timeline(original, planners.save_all(original.graph).regions)
    return PlanRecord(
        decisions=decisions,
        budget_bytes=effort.budget_bytes,
        reserved_bytes=effort.reserved_bytes,
        planning_seconds=effort.seconds,
        compilations=effort.compilations,
        values=value_rows(judge.staged, found.plans.graph, decisions),
        stages=stage_rows(found.plans.graph, decisions),
        loops=loop_rows(judge.staged) if decisions else (),
        compiled=compiled,
        cut_short=found.cut_short,
        next_faster=_next_faster(found),
        chunks=judge.chunks,
        base_seconds=as_it_is,
        before=before if decisions else None,
        fingerprint=judge.fingerprint,
        after=_timeline(found.plans, decisions.regions) if decisions else before,
        **_of_program(original),
        **_bytes_of(original, best),
    )


def _compiled_rows(
    programs: Sequence[TracedPlans], step_seconds: Mapping[Any, float], as_it_is: float
) -> Iterator[CompiledRow]:
    """What was compiled: the function as it is, of so many seconds, then plans of each program."""
    first = programs[0]
    unplanned, fixed = first.unplanned, first.fixed_bytes
    total, own = unplanned.total_bytes, (unplanned.compile_seconds, step_seconds.get(None))
    yield CompiledRow("the function as it is", as_it_is, total, total, *own)
    for plans in programs:
        for plan in plans.compiled():
            figures = plan.figures
            yield CompiledRow(
                f"a plan of {plan.program}",
                plan.decisions.seconds,
                fixed + plan.predicted_temp_bytes,
                figures and figures.total_bytes,
                figures and figures.compile_seconds,
                step_seconds.get(plan.key),
            )


def _of_program(compiled_plans: TracedPlans) -> dict[str, Any]:
    """The fields of a record that describe the function and its unplanned step."""
    judge, graph = compiled_plans.judge, compiled_plans.graph
    traced = judge.traced
    return {
        "inputs": describe_inputs(traced.program),
        "equations": len(traced.program.equations),
        "target": judge.target.name,
        "jax_version": jax.__version__,
        "sources": tuple(it.starmap(SourceRow, sorted(judge.inverse.seconds_by_source.items()))),
        "base_flops": planners.save_all(graph).flops,
        "devices": judge.devices,
        "operators": traced.terms.operators,
        "checkpoints": traced.terms.checkpoints,
    }


def _bytes_of(compiled_plans: TracedPlans, best: CompiledPlan | None) -> dict[str, Any]:
    """The fields of a record that are bytes, and the compiler that gave them."""
    unplanned, fixed_bytes = compiled_plans.unplanned, compiled_plans.fixed_bytes
    is_part = compiled_plans.judge.results is not None  # of a step, which has other arguments
    figures = best.figures if best else unplanned
    predicted = best.predicted_temp_bytes if best else unplanned.temp_bytes
    return {
        "compiler": (figures or unplanned).compiler,
        "predicted_bytes": fixed_bytes + predicted,
        "compiled_bytes": figures.total_bytes if figures else None,
        "unplanned_bytes": unplanned.total_bytes,
        "fixed_bytes": fixed_bytes,
        "fixed": () if is_part else fixed_rows(compiled_plans.judge.traced, fixed_bytes),
    }


def _timeline(compiled_plans: TracedPlans, regions: Sequence[Region]) -> Timeline | None:
    return timeline_of(compiled_plans.graph, compiled_plans.judge.inverse.source_of, regions)


def _next_faster(found: Found) -> tuple[float, int] | None:
    """Seconds and bytes of the next faster compiled plan, which broke the budget.

    Plans that the clock has seen kept it, and were slower than the model said.
    """
    if found.plan is None:
        return None
    plans, seconds = found.plans, found.plan.decisions.seconds
    faster = (
        (x.decisions.seconds, plans.fixed_bytes + plans.temp_bytes(x))
        for x in plans
        if x.figures is not None
        and x.decisions.seconds < seconds
        and x.key not in found.step_seconds
    )
    return max(faster, default=None)


def no_plan_fits(
    found: Found, limit: int, outside: int, as_traced: TracedJudge
) -> InfeasibleBudget:
    """The error for a budget that no plan keeps.

    Arguments:
        found: the smallest plan that was found.
        limit: bytes that the budget leaves for temporaries.
        outside: bytes of the budget for all else.
        as_traced: of the function with the operators that it may use.
    """
    assert found.plan is not None
    plans, judge = found.plans, found.plans.judge
    minimum = outside + plans.temp_bytes(found.plan)
    peak = planners.replay(plans.graph, found.plan.decisions).peak_values
    named = [name for name in peak if name in judge.staged.values][:4]
    message = (
        f"No plan fits in {format_bytes(outside + limit)}; the smallest one found takes "
        f"{format_bytes(minimum)} as compiled for {judge.target.name}, of which "
        f"{format_bytes(plans.fixed_bytes)} are arguments and results. At its peak these values "
        f"are live: {describe_values(judge.staged, named)}. Raise `budget` to {minimum:_} bytes, "
        "or reduce the batch."
    )
    if found.cut_short:
        message += f" The search was cut short: {found.cut_short}."
    if _keeps_checkpoints(judge.traced):
        message += (
            " Regions of your own `jax.checkpoint` stayed whole; with "
            '`checkpoints="plan"` it may take less.'
        )
    if others := _unused_operators(as_traced):
        message += f" With {others} in a list of `operators`, it may take less."
    hosted = _least_with_host(plans)
    if hosted is not None and outside + hosted < CLEARLY_LESS * minimum:
        message += f' With `host="activations"` about {format_bytes(outside + hosted)} may do.'
    return InfeasibleBudget(message, minimum)


def _least_with_host(plans: TracedPlans) -> int | None:
    """Temporaries, by the model, where all inputs of stages wait in the host's memory.

    None where that is planned for already, or cannot be.
    """
    judge = plans.judge
    may_move = judge.host is None and judge.traced.spread == 1 and judge.bound is None
    if not may_move or judge.traced.derivative.forward_mode or not plans.is_calibrated:
        return None
    try:
        host = HostOptions.of("activations").on(judge.target)
    except ValueError:  # the target has no such memory, or its link is not known
        return None
    graph = with_host(plans.graph, judge.staged, host)
    regions = moving_inputs(graph)
    modelled = plans.model.modelled(regions, graph)
    return plans.model.scale.compiled_for(modelled)


def cut_short(why: str, unplanned_bytes: Callable[[], int]) -> InfeasibleBudget:
    """The error for a search that was cut short before any plan was compiled."""
    return InfeasibleBudget(
        f"The search was cut short before a plan was compiled: {why}. Raise the cap: a search "
        "compiles the function as it is, a plan that calibrates its model, and then plans.",
        unplanned_bytes,
    )


def _keeps_checkpoints(traced: Traced) -> bool:
    """Whether regions of the user's own `jax.checkpoint` stay whole."""
    return not traced.program.inlines_checkpoints and has_checkpoints(traced.recorded.jaxpr)


def _unused_operators(judge: TracedJudge) -> list[str]:
    """Operators that the options leave out, and with which the function could take less.

    None where the options name no operator, which keeps forward mode.
    """
    traced, used = judge.traced, judge.traced.terms.operators

    def applies(name: str) -> bool:
        other = with_operators(traced, judge.target.name, (*used, name))
        return other.fingerprint != traced.fingerprint

    return [x for x in only_by_name() if x not in used and applies(x)] if used else []
