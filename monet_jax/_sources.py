"""The sources of a function's plans: made for each signature, or one stored plan."""

import abc
import dataclasses
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import jax

import planners

from .compiler.budget import format_bytes
from .compiler.compile import CompilerFailed, compile_bytes
from .compiler.targets import resolve_target
from .ir.program import aval_nbytes
from .planning.failures import (
    STATEMENTS,
    InfeasibleBudget,
    report,
    statements,
    target_to_verify,
    warn,
    warn_if_outgrown,
)
from .planning.mistakes import missing_gradient
from .planning.options import PlanOptions, PlanRequest
from .planning.pipeline import plan_traced
from .planning.step import step_to_compile
from .plans.multihost import FirstProcessFailed
from .plans.record import PlanMismatch, PlanRecord
from .tracing import trace
from .tracing.marked import Marked, Traces
from .tracing.traced import Terms, Traced
from .transformer.apply import as_planned, check_plan, outputs_as_planned


class Source(abc.ABC):
    """Where the plans of a function come from."""

    @property
    def plans_here(self) -> bool:
        """Whether there are plans where the caller stands; if not, the function is called."""
        return True

    @property
    def description(self) -> str:
        """What it plans for, in words."""
        return "within the budget of its step"

    @abc.abstractmethod
    def traced(self, marked: Marked) -> Traced:
        """The trace of a call that plans are made for."""

    @abc.abstractmethod
    def outputs(self, traced: Traced, marked: Marked) -> Sequence[Any] | None:
        """Flat outputs of a call, as planned; None where the function must be called as it is."""


class Planned(Source):
    """Plans of a function, made once for each signature, whatever the number of threads."""

    def __init__(self, options: PlanOptions):
        self.options = options
        self._plans: dict[Any, PlanRecord | None] = {}
        self._largest: dict[Hashable, _Largest] = {}  # by function
        self._traces = Traces()
        self._lock = threading.RLock()

    def __reduce__(self):
        return Planned, (self.options,)

    @property
    def description(self) -> str:
        """What it plans for, in words."""
        return f"budget={self.options.budget!r}"

    def traced(self, marked: Marked) -> Traced:
        """The trace of a call that plans are made for."""
        target = resolve_target(self.options.target).name
        return self._traces.traced(marked, self.options.terms, target)

    def outputs(self, traced: Traced, marked: Marked) -> Sequence[Any] | None:
        """Flat outputs as planned, or None; see `Source`."""
        record = self.plan_for(traced, marked)
        if record is None:
            return None
        try:
            return outputs_as_planned(traced, record, marked.call.leaves)
        except Exception:
            self._give_up(traced, marked)
            raise

    def plan_for(self, traced: Traced, marked: Marked) -> PlanRecord | None:
        """The plan; None where the function must run as it is."""
        axes = trace.outer_axes(traced, marked.call)
        with statements():
            request = self.options.for_call(marked.call, marked.name)
        key = self._key(traced, marked, axes, request)
        with self._lock:
            if key not in self._plans:
                _warn_of_transformations(traced, marked, axes)
                self._plans[key] = None if axes else self._made(traced, marked, request)
            return self._plans[key]

    def _give_up(self, traced: Traced, marked: Marked) -> None:
        """From now on the function runs as it is, called like that."""
        axes = trace.outer_axes(traced, marked.call)
        request = self.options.for_call(marked.call)
        self._plans[self._key(traced, marked, axes, request)] = None

    def _key(self, traced: Traced, marked: Marked, axes: tuple[str, ...], request: PlanRequest):
        signature, program = marked.call.signature, traced.program_hash
        return marked.function, signature, axes, program, request.reserved_bytes

    def _made(self, traced: Traced, marked: Marked, request: PlanRequest) -> PlanRecord | None:
        """The plan; None where there is none, which a warning says."""
        if not traced.derivative.outputs:
            return None  # JAX raises its own error
        mistake = missing_gradient(traced)
        if mistake is not None:
            warn(f"No plan was made for `{marked.name}`: {mistake}; it runs as it is.")
            return None
        try:
            return self._within_floor(traced, marked, request)
        except PlanMismatch:
            raise
        except Exception as error:
            _say_why_not(error, traced, request, marked.name)
            return None

    def _within_floor(self, traced: Traced, marked: Marked, request: PlanRequest) -> PlanRecord:
        """The plan; a budget that is a share is a share of the largest program so far."""
        largest = self._largest.get(marked.function)
        own = sum(map(aval_nbytes, traced.avals))
        if largest is not None and request.options.is_share:
            request = dataclasses.replace(request, floor_bytes=largest.unplanned_bytes)
        try:
            made = plan_traced(traced, request, None, marked.started)
        except InfeasibleBudget as error:
            if largest is None or own >= largest.argument_bytes:
                raise
            made = _smallest(traced, marked, request, error.minimum_budget)
        unplanned = made.unplanned_bytes or 0
        if largest is None or unplanned > largest.unplanned_bytes:
            self._largest[marked.function] = _Largest(unplanned, own)
        return made


@dataclasses.dataclass(frozen=True)
class _Largest:
    """Bytes of the largest program of a function, unplanned, and of its arguments alone."""

    unplanned_bytes: int
    argument_bytes: int


def _warn_of_transformations(traced: Traced, marked: Marked, axes: tuple[str, ...]) -> None:
    """Warn where the transformations around a call keep its program from being known."""
    if axes:
        warn(
            f"No plan was made: the function depends on the mapped axes {axes} of what it is "
            "called in, so it cannot be compiled alone; it runs as it is."
        )
    elif trace.is_batched(traced, marked.call):
        warn(
            "The function is traced under `vmap`, which hides the size of its axis: the plan is "
            "for one example. Put `remat` around the vmapped function instead."
        )


def _smallest(traced: Traced, marked: Marked, request: PlanRequest, least: int) -> PlanRecord:
    """The smallest plan for a smaller batch: no run must end for such a batch."""
    warn(
        f"No plan was found for a smaller batch of `{marked.name}` within its budget; it takes "
        f"{format_bytes(least)}, the least that was found."
    )
    return plan_traced(traced, request.with_options(budget=least), None, marked.started)


def _say_why_not(error: Exception, traced: Traced, request: PlanRequest, name: str) -> None:
    """Warn that there is no plan, because of an error.

    Raises:
        Exception: `error`, where it is about the user's arguments; or all are to be raised.
    """
    if not _has_gradient(traced):
        warn(f"No plan was made: JAX cannot trace the gradient ({error}). It runs as it is.")
    elif isinstance(error, (*STATEMENTS, FirstProcessFailed)):
        raise error
    elif _is_known_limit(error, request):
        warn(f"No plan was made ({type(error).__name__}: {error}); the function runs as it is.")
    else:
        report(name, error)


def _is_known_limit(error: Exception, request: PlanRequest) -> bool:
    """Whether an error is the compiler's or the user's own planner's, and no fault of ours."""
    has_planner = request.options.planner is not None
    is_planners = isinstance(error, planners.PlanningError) and has_planner
    return is_planners or isinstance(error, NotImplementedError | CompilerFailed)


def _has_gradient(traced: Traced) -> bool:
    """Whether JAX can trace the gradient of the function as it is."""
    step, arguments = step_to_compile(traced, traced.flat)
    try:
        jax.eval_shape(step, *arguments)
    except Exception:  # by a rule of the user's, whatever that raises
        return False
    return True


class Fixed(Source):
    """One stored plan for every signature."""

    def __init__(self, plan: PlanRecord):
        self.plan = plan
        self._trusted = plan.decisions is None
        self._traces = Traces()
        self._lock = threading.RLock()

    def __reduce__(self):
        return Fixed, (self.plan,)

    @property
    def description(self) -> str:
        """What it plans for, in words."""
        return f"by a plan for {format_bytes(self.plan.budget_bytes)}"

    def traced(self, marked: Marked) -> Traced:
        """The trace of a call, rewritten as when the plan was made."""
        plan = self.plan
        terms = Terms(plan.operators, plan.checkpoints)
        return self._traces.traced(marked, terms, plan.target, plan.devices)

    def outputs(self, traced: Traced, marked: Marked) -> Sequence[Any]:
        """Flat outputs as planned, once the plan is known to be for the function.

        Raises:
            PlanMismatch: it is not.
        """
        check_plan(traced, self.plan)
        with self._lock:
            if not self._trusted:
                self._verify_again(traced)
                self._trusted = True
        return outputs_as_planned(traced, self.plan, marked.call.leaves)

    def _verify_again(self, traced: Traced) -> None:
        """Warn where a plan of other versions or devices cannot be verified, or is too large."""
        target = target_to_verify(self.plan.jax_version, self.plan.target)
        if target is None:
            return
        made = f"A plan made under JAX {self.plan.jax_version} for {self.plan.target}"
        if self.plan.devices > 1:
            warn(
                f"{made} on {self.plan.devices} devices is not verified here: tracing hides how "
                "arrays are sharded. Plan again to be sure of its bytes."
            )
            return

        def taken_bytes() -> int:
            step = step_to_compile(*as_planned(traced, self.plan))
            return compile_bytes(*step, target=target).total_bytes

        limit = self.plan.budget_bytes - self.plan.reserved_bytes
        warn_if_outgrown(made, limit, target, taken_bytes)
