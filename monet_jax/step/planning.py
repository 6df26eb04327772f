"""From a call of a step to its plan: read from the disk, received, or searched for."""

import dataclasses
import functools
import logging
import time

import jax

from ..compiler.backend import backend_of
from ..compiler.budget import format_bytes
from ..compiler.targets import Target, resolve_target, usable_bytes
from ..ir.program import flatten, unchanged
from ..planning.failures import STATEMENTS, InfeasibleBudget
from ..planning.options import PlanOptions
from ..planning.progress import progress, say
from ..plans import cache, multihost
from ..plans.mismatch import mismatch
from ..plans.record import PlanMismatch
from ..tracing.trace import traced_as
from ..tracing.traced import Recorded, Terms
from ..transformer.apply import as_traced_for
from . import step_plan
from .call import StepCall
from .compiler import emission_of
from .context import Applying, Recording, Tracer
from .donation import donations_of
from .share import StepSearch, faster_plans
from .step_plan import StepPlan, step_plan_from_json
from .timeline.step_timeline import step_timeline
from .updates.decide import LaidOut, decision_of
from .updates.groups import updates_of
from .updates.hint import hint
from .updates.layout import HostLeaf
from .updates.leaves import movable_leaves

log = logging.getLogger("monet_jax")

#: What to do about a step in which nothing is marked.
WHAT_TO_MARK = (
    "Nothing in it is marked to be planned: take the gradient with `monet_jax.value_and_grad` or "
    "`monet_jax.grad`, or put `monet_jax.remat` (without a budget) around the loss that JAX "
    "differentiates."
)


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """A step whose marks were recorded.

    Attributes:
        call: the step.
        marks: its marks.
        fingerprint: a hash of its program.
        donated: for each leaf of the arguments, whether it is donated.
        result_bytes: bytes of each result that lies in no donated argument.
        updates: how many updates it has.
        movable: leaves of its state that can live on the host.
    """

    call: StepCall
    marks: Recording
    fingerprint: str
    donated: tuple[bool, ...]
    result_bytes: tuple[int, ...]
    updates: int
    movable: tuple[HostLeaf, ...]

    def mismatch(self, plan: StepPlan) -> str:
        """What a plan was made for, where that is not this step; else ""."""
        marks = self.marks.found
        if self.fingerprint != plan.fingerprint or not plan.plans.keys() <= marks.keys():
            return "another step, or for other arguments"
        if self.donated != plan.donated:
            return "a step that donates other arguments"
        found = (mismatch(as_traced_for(marks[k], own), own) for k, own in plan.plans.items())
        return next(filter(None, found), "")


def plan_step(call: StepCall, options: PlanOptions) -> StepPlan:
    """The plan of a step.

    Raises:
        InfeasibleBudget: no plan keeps the budget.
        Exception: whatever the step itself raises.
    """
    started = time.perf_counter()
    target = resolve_target(options.target)
    with progress():
        tracer = tracer_for(call, options, target)
        step = record_step(call, tracer)
        make = functools.partial(_found_or_made, step, options, target, started)
        made = multihost.made_by_first_process(make, step_plan_from_json, STATEMENTS)
        tracer.forget()
    if made.fingerprint != step.fingerprint:
        raise PlanMismatch(
            "Process 0 has planned another step than this process: every process of a job must "
            "trace the same steps in the same order."
        )
    log.info("%s", str(made).partition("\n")[0])
    return made


def applied(plan: StepPlan, call: StepCall, options: PlanOptions) -> Applying:
    """A trace of a step in which its marks run as a plan says."""
    emissions = {mark: emission_of(x) for mark, x in plan.plans.items()}
    tracer = tracer_for(call, options, resolve_target(options.target))
    return Applying(tracer, emissions, (*plan.marks,), plan.layout)


def tracer_for(call: StepCall, options: PlanOptions, target: Target) -> Tracer:
    """What traces the marks of a step."""
    return Tracer(options.terms, target.name, call.devices)


def record_step(call: StepCall, tracer: Tracer) -> RecordedStep:
    """Trace a step and record its marks."""
    marks = Recording(tracer)
    traced = call.traced(marks)
    infos = jax.tree.leaves(traced.args_info)
    jaxpr = traced.jaxpr
    recorded = Recorded(jaxpr, (), (), tuple(jaxpr.in_avals), list)
    program = traced_as(recorded, [False] * len(recorded.avals), unchanged, Terms(()))
    donated, results = tuple(x.donated for x in infos), donations_of(traced).result_bytes
    flat = flatten(jaxpr, inline_checkpoints=True)
    updates, movable = len(updates_of(flat)), movable_leaves(flat, traced, call.device_shapes)
    fingerprint = program.program_hash
    return RecordedStep(call, marks, fingerprint, donated, results, updates, movable)


def _found_or_made(
    step: RecordedStep, options: PlanOptions, target: Target, started: float
) -> StepPlan:
    uses_disk = options.cache and options.planner is None and cache.is_enabled()
    key = _key(step, options, target) if uses_disk else ""
    found = cache.read_as(step_plan_from_json, key) if uses_disk else None
    if found is not None and not step.mismatch(found):
        return dataclasses.replace(found, is_cached=True)
    made = _made(step, options, target)
    made = dataclasses.replace(made, planning_seconds=time.perf_counter() - started)
    if uses_disk:
        cache.write(key, made)
    return made


def _made(step: RecordedStep, options: PlanOptions, target: Target) -> StepPlan:
    """The plan, searched for."""
    search = search_of(step, options, target)
    say("compiling the step as it is")
    unplanned = search.unplanned()
    budget = options.budget_bytes(target, lambda: unplanned.total_bytes)
    return plan_within(budget, step, search)


def search_of(step: RecordedStep, options: PlanOptions, target: Target) -> StepSearch:
    """The search for plans of a step, in which nothing is compiled yet."""
    return StepSearch(step.call, step.marks, step.result_bytes, options, target)


def plan_within(budget_bytes: int, step: RecordedStep, search: StepSearch) -> StepPlan:
    """The plan of a step for some bytes.

    Raises:
        InfeasibleBudget: no plan keeps them.
    """
    started, unplanned = time.perf_counter(), search.unplanned()
    copies = None
    if unplanned.total_bytes <= budget_bytes:
        plans = faster_plans(search, budget_bytes)
        compiled = [unplanned.total_bytes, *(x.compiled_bytes for x in plans.values())]
        found = LaidOut(search, plans, compiled[-1])
    else:
        decision = decision_of(budget_bytes, search, step.updates, step.movable)
        try:
            found = decision.made(functools.partial(_refuse, budget_bytes))
        except InfeasibleBudget as error:
            memory = search.options.host_memory(search.target)
            raise error.with_hint(hint(step.movable, memory, search.target)) from None
        copies = decision.copies(found.search.layout) if found.search.layout.on_host else None
    emissions = {mark: emission_of(x) for mark, x in found.plans.items()}
    layout = found.search.layout
    trace = Applying(step.marks.tracer, emissions, (*step.marks.found,), layout)
    trace = trace if emissions or layout.changes_the_step else None
    devices, taken = step.marks.tracer.devices, unplanned.output_bytes - unplanned.alias_bytes
    backend = backend_of(search.target.name)
    timeline = step_timeline(step.call.traced(trace), backend, taken, devices)
    return StepPlan(
        budget_bytes=budget_bytes,
        unplanned=unplanned,
        compiled_bytes=found.compiled_bytes,
        plans=found.plans,
        layout=layout,
        copies=copies,
        marks=step.marks.names,
        operators=search.options.terms.operators,
        checkpoints=search.options.terms.checkpoints,
        fingerprint=step.fingerprint,
        donated=step.donated,
        devices=devices,
        jax_version=jax.__version__,
        compilations=len(search.compiled),
        planning_seconds=time.perf_counter() - started,
        timeline=timeline,
    )


def _refuse(budget_bytes: int, search: StepSearch) -> None:
    """Refuse a budget that no plan of marks can keep.

    Raises:
        InfeasibleBudget: arguments and results alone exceed it, or nothing is marked.
    """
    unplanned = search.unplanned()
    fixed = unplanned.total_bytes - unplanned.temp_bytes
    takes = f"The step takes {format_bytes(unplanned.total_bytes)} as compiled for "
    takes += f"{unplanned.target}, more than its budget of {format_bytes(budget_bytes)}."
    if not search.recorded.found:
        raise InfeasibleBudget(f"{takes} {_what_to_mark(search)}", unplanned.total_bytes)
    if fixed >= budget_bytes:
        raise InfeasibleBudget(
            f"{takes} Its arguments ({format_bytes(unplanned.argument_bytes)}) and results "
            f"({format_bytes(unplanned.output_bytes)}, of which "
            f"{format_bytes(unplanned.alias_bytes)} lie in donated arguments) alone take "
            f"{format_bytes(fixed)}, which no plan of its marks changes. Donate what the step "
            "replaces (`donate_argnums`), shard the state, or raise `budget`.",
            search.smallest_bytes,
        )


def _what_to_mark(search: StepSearch) -> str:
    """What to do about a step in which nothing is planned."""
    unplanned = search.recorded.unplanned.items()
    return " ".join(f"`{name}` is marked, but {why}." for name, why in unplanned) or WHAT_TO_MARK


def _key(step: RecordedStep, options: PlanOptions, target: Target) -> str:
    """The name in the cache of a plan: a hash of all that it depends on."""
    marks = step.marks.found
    return cache.key_of(
        target,
        (
            ("step", step_plan.FORMAT, step.fingerprint),
            sorted(x.fingerprint for x in marks.values()),
            [str(getattr(x, "sharding", None)) for x in jax.tree.leaves(step.call.args)],
            (step.donated, sorted((k, str(v)) for k, v in step.call.jit_options.items())),
            (options.budget, usable_bytes(target) if options.budget == "auto" else None),
            (options.caps, step.marks.tracer.devices, options.host_memory(target)),
            [options.kept_by(x) for x in marks.values()],
        ),
    )
