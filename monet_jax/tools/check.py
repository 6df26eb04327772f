"""Checks that a stored plan still holds: the program is the one that was planned, and it fits."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from .._plan import Plan
from ..compiler.budget import format_bytes
from ..compiler.compile import compile_bytes
from ..compiler.options import options_of
from ..compiler.targets import Target, compiler_version, resolve_target
from ..planning.options import PlanOptions
from ..planning.step import step_to_compile
from ..plans.mismatch import mismatch
from ..step.questions import StepNow, refuse_options
from ..step.step_plan import StepPlan
from ..tracing.traced import Traced
from ..transformer.apply import as_planned


@dataclasses.dataclass(frozen=True)
class Check:
    """Whether a plan still holds.

    Attributes:
        problems: why the plan does not hold; none where it does.
        changes: other differences since the plan was made.
        planned_bytes: of the program then, as compiled.
        compiled_bytes: of the program now; None where it is another program.
        budget_bytes: the budget, `reserved_bytes` included.
        reserved_bytes: the part of it for other things.
        target: what was compiled for.
        compiler: which compiled it.
    """

    problems: tuple[str, ...]
    changes: tuple[str, ...]
    planned_bytes: int | None
    compiled_bytes: int | None
    budget_bytes: int
    reserved_bytes: int
    target: str
    compiler: str

    @property
    def holds(self) -> bool:
        """Whether the program matches the plan and fits."""
        return not self.problems

    def to_json(self) -> str:
        """The answer as JSON text."""
        return json.dumps({"holds": self.holds, **dataclasses.asdict(self)}, indent=1)

    def __str__(self) -> str:
        if self.holds:
            verdict = (
                f"The plan holds: {format_bytes(self.compiled_bytes or 0)} compiled for "
                f"{self.target}, within {_budget_text(self)} ({self.compiler})."
            )
        else:
            verdict = "\n".join(f"The plan does not hold: {problem}" for problem in self.problems)
        return "\n".join([verdict, *(f"Changed since: {change}" for change in self.changes)])


def check(
    plan: Plan | StepPlan,
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    budget: int | float | str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Check:
    """Whether a plan still holds for a function, as it is now, under the JAX that runs now.

    The function is traced and compared with the one that was planned; if it is the same, it is
    compiled as planned, for the plan's target, and its bytes are compared with the budget. Nothing
    is planned, allocated or run.

    Arguments:
        plan: made before.
        fun: the function; for a `StepPlan` the step that `monet_jax.jit` made, of which all else
            but the budget is taken.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.
        budget: what it may take, as in `remat`; None is the plan's budget.
        argnums, static_argnums, static_argnames: as in `plan`.

    Returns:
        A `Check`, whose `holds` is the answer and whose `problems` say why not.

    Raises:
        TargetUnavailable: the compiler of the plan's target is not installed.
    """
    options = PlanOptions(
        budget=plan.budget_bytes if budget is None else budget,
        target=plan.target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )
    if isinstance(plan, StepPlan):
        return _checked_step(plan, fun, (args, kwargs or {}), options)
    terms = {"operators": plan.operators, "checkpoints": plan.checkpoints}
    options = dataclasses.replace(options, **terms)
    return _checked(plan, options.traced(fun, args, kwargs), options)


def _checked_step(plan: StepPlan, step: Any, given: tuple[Any, Any], options: PlanOptions) -> Check:
    """Whether a step's plan still holds."""
    refuse_options(options, ("budget", "target"))
    now, target = StepNow.of(step, *given, plan.target), resolve_target(plan.target)
    allowed = options.budget_bytes(target, lambda: now.compiled_bytes(None))
    taken = functools.partial(now.compiled_bytes, plan)
    return _compared(plan, target, allowed, 0, now.mismatches(plan), taken)


def _checked(plan: Plan, traced: Traced, options: PlanOptions) -> Check:
    target = resolve_target(options.target)
    allowed = options.budget_bytes(target, lambda: _bytes_of(traced, None, target))
    taken = functools.partial(_bytes_of, traced, plan, target)
    mismatches = _mismatches(plan, traced)
    return _compared(plan, target, allowed, plan.reserved_bytes, mismatches, taken)


def _compared(
    plan: Plan | StepPlan,
    target: Target,
    allowed: int,
    reserved_bytes: int,
    mismatches: Iterable[str],
    compiled: Callable[[], int],
) -> Check:
    """A plan beside the program of today, which is compiled only if the plan is of it.

    Arguments:
        plan: made before.
        target: what to compile for.
        allowed: bytes that the program may take, with those that are reserved.
        reserved_bytes: the part for other things.
        mismatches: why the plan is not of the program, if so.
        compiled: compiles the program as planned; its bytes.
    """
    problems, taken = [*mismatches], None
    if not problems:
        taken = compiled()
        problems = [*_outgrown(plan.target, reserved_bytes, taken, allowed)]
    return Check(
        tuple(problems),
        tuple(_changes(plan, target, taken, allowed)),
        plan.compiled_bytes,
        taken,
        allowed,
        reserved_bytes,
        target.name,
        compiler_version(target),
    )


def _bytes_of(traced: Traced, plan: Plan | None, target: Target) -> int:
    """The compiled bytes of a function as planned, or as it is."""
    options = options_of(target, traced.program_hash)
    program = (traced, traced.flat) if plan is None else as_planned(traced, plan)
    step = step_to_compile(*program)
    return compile_bytes(*step, target=target, options=options).total_bytes


def _mismatches(plan: Plan, traced: Traced) -> Iterator[str]:
    """Why the plan is for another function."""
    devices = traced.devices
    if devices != plan.devices:
        yield (
            f"its arguments are sharded over {devices} devices, the plan's were over "
            f"{plan.devices}. Plan again, or give the arguments their shardings."
        )
    if what := mismatch(traced, plan):
        yield f"the plan was made for {what}. Plan again."


def _outgrown(target: str, reserved_bytes: int, taken: int, allowed: int) -> Iterator[str]:
    limit = allowed - reserved_bytes
    if taken <= limit:
        return
    reserved = f" less {format_bytes(reserved_bytes)} reserved" if reserved_bytes else ""
    yield (
        f"the program takes {format_bytes(taken)} ({taken:,} bytes) as compiled for {target}, "
        f"{taken - limit:,} bytes more than its budget of {format_bytes(allowed)}{reserved}. Plan "
        "again, or raise the budget."
    )


def _changes(
    plan: Plan | StepPlan, target: Target, taken: int | None, allowed: int
) -> Iterator[str]:
    """Differences since the plan was made, in words."""
    if allowed != plan.budget_bytes:
        tighter = "tighter" if allowed < plan.budget_bytes else "wider"
        yield f"the budget is {tighter}: {plan.budget_bytes:,} bytes then, {allowed:,} now"
    if plan.jax_version != jax.__version__:
        yield f"JAX {plan.jax_version} then, {jax.__version__} now"
    now = compiler_version(target)
    if not plan.compiler.startswith(now):
        yield f"the compiler: {plan.compiler} then, {now} now"
    if taken is not None and plan.compiled_bytes not in (None, taken):
        yield f"compiled bytes: {plan.compiled_bytes:,} then, {taken:,} now"


def _budget_text(check: Check) -> str:
    text = format_bytes(check.budget_bytes)
    reserved = check.reserved_bytes
    return f"{text} (of which {format_bytes(reserved)} reserved)" if reserved else text
