"""`remat`, `plan` and `apply`: the pipeline from a function and a budget to a planned function.

trace     the function, on abstract values             -> a flat program
settle    analyze, plan, emit, compile, correct        -> a plan that the compiled program keeps
emit      the program again, stage by stage            -> a function
"""

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import planners

from . import _cache, _compat, _hand_over, _multihost, _nesting, _pins, _trace
from ._backend import backend_of
from ._budget import format_bytes, parse_budget, validate_budget
from ._compile import compile_bytes
from ._errors import GRADED, Errors
from ._hand_over import Given, on_arrays
from ._limit import ErrorLimit, limit_of, samples_of, settled_within
from ._loops import lay_out
from ._pins import Pins, make_pins
from ._plan import FORMAT, Plan, PlanMismatch
from ._program import Rewrite
from ._reserved import Optimizer, check_reserved, reserved_bytes
from ._settle import InfeasibleBudget, Settling
from ._signature import Call, Options, make_options, take_apart
from ._targets import (
    Target,
    TargetUnavailable,
    compiler_version,
    resolve_target,
    usable_bytes,
)
from ._trace import Terms, Traced
from ._transform import as_planned
from ._trials import Trials, step_to_compile
from .operators import Context, rewriter, selected

log = logging.getLogger("monet_jax")

#: Errors that say what to change; but where the gradient itself fails, or planning for another
#: reason, the function runs as it is.
FATAL = (InfeasibleBudget, TargetUnavailable, ValueError, TypeError)


class PlanningWarning(UserWarning):
    """A function runs as it is, or on less than full knowledge; the message says why."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checked arguments of `remat` and `plan` that say what is wanted."""

    budget: int | float | str
    target: str | None
    reserved: int | Optimizer
    pins: Pins
    planner: Any
    time_limit: float
    verify: bool
    cache: bool
    terms: Terms

    def rewrite(self, call: Call) -> Rewrite:
        """By what the equations of a function are replaced, called like that."""
        return _trace.rewrite_for(self.terms, resolve_target(self.target).name, call)

    def for_call(self, call: Call) -> "Settings":
        """The same with the bytes to reserve: of an optimizer, those of the call's parameters."""
        return dataclasses.replace(self, reserved=reserved_bytes(self.reserved, call.params))


def remat(
    fun: Callable[..., Any] | None = None,
    *,
    budget: int | float | str,
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    reserved: int | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float = 10.0,
    verify: bool = True,
    cache: bool = True,
) -> Callable[..., Any]:
    """`fun`, such that the compiled value-and-gradient of it takes at most `budget` bytes.

    The result takes the same arguments and returns the same values. It is planned once for each
    signature of its inputs, when it is traced; called where no gradient can be taken, it runs
    `fun`. Derivatives are exact: they differ from those of `fun` by rounding. Where planned
    functions call each other, the outermost plan decides for all of them.

    Arguments:
        fun: the function, or None to use `remat(...)` as a decorator. It must be traceable by JAX.
        budget: an int is bytes; a str is an amount ("12GiB", "12GB"); a float in (0, 1] is a
            fraction of what the function takes unplanned; "auto" is the target's memory less a
            reserve. It covers argument + output + temp - alias of the compiled value and gradient.
        target: "cpu", "gpu:h100", "tpu:v5e", ...; None is the default device. Where no such device
            is attached, its compiler runs ahead of time, in another process.
        argnums: the arguments that the gradient is taken with respect to. Traced floats that `fun`
            closes over count as such.
        static_argnums, static_argnames: arguments that are not arrays, as in `jax.jit`. Leaves that
            are bool, str, None or no array at all are static wherever they stand.
        operators: how residuals may be kept: "exact", in every way that leaves gradients as they
            are (see `monet_jax.operators`); "lossy", also as 8 bits, with unbiased noise, from
            which no second derivative can be taken; "none", as JAX keeps them; or names. With
            "none" nothing in the plan has a derivative of its own, so that forward mode works
            everywhere; all iterations of a loop are alike then.
        checkpoints: "keep" or "plan": whether the `jax.checkpoint` regions in `fun` stay as they
            are, each run again as a whole, or the plan decides for the values in them as for all
            others. Then their policies are dropped, and what these name or offload is not saved for
            it: `pins` can name the same values.
        reserved: bytes of the budget for what lives outside; or an optimizer (an
            `optax.GradientTransformation`), for the bytes of its state for the arguments of
            `argnums`: on each device, where these are sharded. Its temporaries and what it updates
            out of place are not in it.
        pins: name -> "save" or "recompute", for values that you decide. A name is a
            `checkpoint_name` of yours, a module path, or a value's name in the report.
        planner: a `(planners.Graph, int) -> planners.Plan`; None is `planners.Stages`.
        time_limit: seconds for the solver, per plan.
        verify: compile the planned program, and correct the plan until it keeps the budget.
        cache: keep settled plans on disk.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        InfeasibleBudget: when traced: no plan fits the budget.
        TargetUnavailable: when traced: the target's compiler is not installed.
    """
    settings = make_settings(
        budget, target, operators, checkpoints, reserved, pins, planner, time_limit, verify, cache
    )
    if fun is None:
        return functools.partial(_decorate, settings, argnums, static_argnums, static_argnames)
    return _decorate(settings, argnums, static_argnums, static_argnames, fun)


def plan(
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    budget: int | float | str,
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    error: float | None = None,
    sample: Sequence[Any] | None = None,
    checkpoints: str = "keep",
    reserved: int | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float = 10.0,
    verify: bool = True,
    cache: bool = True,
) -> Plan:
    """The plan that `remat` would use for these arguments; nothing is allocated or run.

    But with an `error`, gradients of a sample are computed to measure what lossy codes do to them,
    one for each value that may be encoded; such a plan is not kept on the disk.

    Arguments:
        fun: the function.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s, with shardings where they matter.
        kwargs: its keyword arguments.
        error: with lossy operators: the relative error of the gradient that a plan may bring in,
            as in 0.02: the root mean square, over draws of the codes' noise, of the norm of what is
            wrong over the gradient's norm. "lossy" then means 8, 4 and 2 bits, value by value.
        sample: a tuple of arguments, of the shapes of `args`, on which errors are measured; `args`
            themselves if nothing is said. Or a list of such tuples: the error is that on the worst.
            Gradients get smaller as training goes on, and errors with them relatively larger: give
            a batch with parameters of the beginning, and one with those of later.

    The other arguments and the errors are those of `remat`.
    """
    operators = within_error(operators, error)
    settings = make_settings(
        budget, target, operators, checkpoints, reserved, pins, planner, time_limit, verify, cache
    )
    given = argnums, static_argnums, static_argnames
    pure, call = on_arrays(fun, args, kwargs or {}, given)
    if error is None:
        return plan_call(settings, pure, call)
    samples = [on_arrays(fun, x, kwargs or {}, given)[1] for x in samples_of(args, sample)]
    return plan_call(settings, pure, call, limit_of(error, settings.terms, call, samples))


def within_error(operators: str | Sequence[str], error: float | None) -> str | Sequence[str]:
    """The operators that a selection means where errors are limited, if they are."""
    return GRADED if error is not None and operators == "lossy" else operators


def apply(
    plan: Plan,
    fun: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[..., Any]:
    """`fun`, run as a plan says. Needs no solver.

    A plan made under another JAX version, or for another device than the one at hand, is compiled
    once more before it is trusted; a warning says so if it outgrew its budget.

    Raises:
        PlanMismatch: when called: the plan was made for another function or other arguments.
    """
    return _rematerialized(fun, Fixed(plan), (argnums, static_argnums, static_argnames))


def make_settings(
    budget, target, operators, checkpoints, reserved, pins, planner, time_limit, verify, cache
) -> Settings:
    """Checked settings, from the arguments of `remat` and `plan`.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        TargetUnavailable: there is no such target.
    """
    terms = Terms.of(operators, checkpoints)
    validate_budget(budget)
    check_reserved(reserved)
    if isinstance(time_limit, bool) or not isinstance(time_limit, int | float):
        raise TypeError(f"`time_limit` must be a number of seconds; got {time_limit!r}.")
    if not time_limit > 0:
        raise ValueError(f"`time_limit` must be a positive number of seconds; got {time_limit!r}.")
    if planner is not None and not callable(planner):
        raise TypeError(f"`planner` must be callable: (Graph, int) -> Plan; got {planner!r}.")
    if target is not None:
        resolve_target(target)
    pinned = make_pins(pins)
    return Settings(budget, target, reserved, pinned, planner, time_limit, verify, cache, terms)


def _decorate(settings, argnums, static_argnums, static_argnames, fun):
    return _rematerialized(fun, Planned(settings), (argnums, static_argnums, static_argnames))


def _rematerialized(fun: Callable[..., Any], source: "Source", given: Given) -> Any:
    of_flax = _hand_over.planned(fun, source, given)
    return _wrap(fun, make_options(fun, *given), source) if of_flax is None else of_flax


def _wrap(fun: Callable[..., Any], options: Options, source: "Source") -> "Rematerialized":
    wrapped = Rematerialized(fun, options, source)
    functools.update_wrapper(wrapped, fun, updated=())
    return wrapped


def runs_as_it_is() -> bool:
    """Whether a planned function has nothing to plan where it is called.

    That is where no gradient can be taken, and inside of another planned function, whose plan
    covers it.
    """
    return _nesting.is_inside() or _compat.no_gradient_is_taken()


def plan_call(
    settings: Settings, fun: Callable[..., Any], call: Call, limit: ErrorLimit | None = None
) -> Plan:
    """The plan of a function for one call of it."""
    settings = settings.for_call(call)
    traced = _trace.trace(fun, call, settings.rewrite(call), settings.terms)
    return _plan_traced(traced, settings, limit)


def run_planned(source: "Source", fun: Callable[..., Any], call: Call) -> Any:
    """What a function returns for a call, computed as it is planned."""
    traced = _trace.trace(fun, call, source.rewrite(call), source.terms)
    decided = source.plan_for(traced, call)
    if decided is not None and decided.decisions is not None:
        traced = _trace.as_traced_for(traced, decided)
        planned = as_planned(traced, decided)
        return traced.rebuild(planned(call.leaves, traced.constants))
    args, kwargs = call.rebuild(call.leaves)
    # Without decisions the function fits the budget as it is, which includes what is inside it.
    with _nesting.inside() if decided is not None else contextlib.nullcontext():
        return fun(*args, **kwargs)


class Rematerialized:
    """A function that runs as planned; made by `remat` and `Plan.apply`."""

    def __init__(self, fun: Callable[..., Any], options: Options, source: "Source"):
        self._fun, self._options, self._source = fun, options, source

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if runs_as_it_is():
            return self._fun(*args, **kwargs)
        given = self._options.given
        of_flax = _hand_over.planned_for(self._fun, self._source, given, args, kwargs)
        if of_flax is not None:
            return of_flax(*args, **kwargs)
        return run_planned(self._source, self._fun, take_apart(self._options, args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance is closed over, so that `argnums` counts the arguments."""
        if instance is None:
            return self
        bound = self._fun.__get__(instance, owner)
        return _rematerialized(bound, self._source, self._options.given)

    def __set_name__(self, owner: type, name: str) -> None:
        of_flax = _hand_over.planned_method(self, self._source, self._options.given, owner)
        if of_flax is not None:
            setattr(owner, name, of_flax)

    @property
    def source(self) -> "Source":
        """Where its plans come from."""
        return self._source

    def __reduce__(self):
        # A decorated function stands where its module's name leads; then the name is enough.
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", "") or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self and name else (_wrap, (self._fun, self._options, self._source))

    def __repr__(self) -> str:
        return f"<rematerialized {getattr(self, '__qualname__', self._fun)!s}>"


class Planned:
    """Plans for a function as signatures come, each once, whatever the number of threads."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._plans: dict[Any, Plan | None] = {}
        self._lock = threading.RLock()

    def __reduce__(self):
        return Planned, (self.settings,)

    def rewrite(self, call: Call) -> Rewrite:
        """By what the equations of a function are replaced, called like that."""
        return self.settings.rewrite(call)

    @property
    def terms(self) -> Terms:
        """What functions are planned as."""
        return self.settings.terms

    def plan_for(self, traced: Traced, call: Call) -> Plan | None:
        """The plan; None where the function must run as it is."""
        axes = _trace.outer_axes(traced, call)
        settings = self.settings.for_call(call)
        fingerprint = _trace.fingerprint(traced.program, traced.derivative)
        key = call.signature, axes, fingerprint, settings.reserved
        with self._lock:
            if key not in self._plans:
                if _trace.is_batched(traced, call):
                    _warn(
                        "The function is traced under `vmap`, which hides the size of its axis: "
                        "the plan is for one example. Put `remat` round the vmapped function "
                        "instead."
                    )
                self._plans[key] = _plan_or_warn(traced, settings, axes)
            return self._plans[key]


class Fixed:
    """One stored plan, in the place of those that are made as signatures come."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._trusted = plan.decisions is None
        self._lock = threading.RLock()

    def __reduce__(self):
        return Fixed, (self.plan,)

    def rewrite(self, call: Call) -> Rewrite:
        """By what the equations of a function are replaced: as when the plan was made."""
        del call
        context = Context(backend_of(self.plan.target), self.plan.devices > 1)
        return rewriter(selected(self.plan.operators), context)

    @property
    def terms(self) -> Terms:
        """What the function was planned as."""
        return Terms(self.plan.operators, self.plan.checkpoints)

    def plan_for(self, traced: Traced, call: Call) -> Plan:
        """The plan, once it is known to be for this function.

        Raises:
            PlanMismatch: it is not.
        """
        del call
        if _trace.fingerprint(traced.program, traced.derivative) != self.plan.fingerprint:
            then = self.plan.inputs, self.plan.equations
            what = _trace.difference(_trace.summary(traced.program), then)
            raise PlanMismatch(f"The plan was made for another function: {what}. Plan again.")
        with self._lock:
            if not self._trusted:
                self._verify_again(traced)
                self._trusted = True
        return self.plan

    def _verify_again(self, traced: Traced) -> None:
        here = resolve_target(None).name
        name = here if here != "cpu" else self.plan.target
        decisions = self.plan.decisions
        is_known = self.plan.jax_version == jax.__version__ and self.plan.target == name
        if decisions is None or is_known:
            return
        made = f"under JAX {self.plan.jax_version} for {self.plan.target}"
        if self.plan.devices > 1:
            _warn(
                f"A plan made {made} on {self.plan.devices} devices is not verified here: tracing "
                "hides how arrays are sharded. Plan again to be sure of its bytes."
            )
            return
        target = resolve_target(name)
        try:
            step = step_to_compile(traced, as_planned(traced, self.plan))
            taken = compile_bytes(*step, target=target).total_bytes
        except (TargetUnavailable, NotImplementedError, RuntimeError) as error:
            _warn(f"A plan made {made} could not be verified here: {error}")
            return
        room = self.plan.budget_bytes - self.plan.reserved_bytes
        if taken > room:
            _warn(
                f"A plan made {made} takes {format_bytes(taken)} as compiled here for "
                f"{target.name}, more than the {format_bytes(room)} it was made for. Plan again."
            )


#: Where plans come from.
Source = Planned | Fixed


def _plan_or_warn(traced: Traced, settings: Settings, axes: tuple[str, ...]) -> Plan | None:
    if axes:
        _warn(
            f"No plan was made: the function depends on the mapped axes {axes} of what it is "
            "called in, so it cannot be compiled alone; it runs as it is."
        )
        return None
    try:
        return _plan_traced(traced, settings)
    except FATAL as error:
        if _has_gradient(traced):
            raise
        _warn(f"No plan was made: JAX cannot trace the gradient ({error}). It runs as it is.")
        return None
    except (planners.PlanningError, RuntimeError, NameError) as e:
        _warn(f"No plan was made ({type(e).__name__}: {e}); the function runs as it is.")
        return None


def _has_gradient(traced: Traced) -> bool:
    """Whether JAX can trace the gradient of the function as it is."""
    step, arguments = step_to_compile(traced, traced.flat)
    try:
        jax.eval_shape(step, *arguments)
    except Exception:  # by a rule of the user's, whatever that raises
        return False
    return True


def _plan_traced(traced: Traced, settings: Settings, limit: ErrorLimit | None = None) -> Plan:
    """The settled plan of a traced function: from the disk, from process 0, or made now."""
    fingerprint = _trace.fingerprint(traced.program, traced.derivative)
    make = functools.partial(_found_or_made, traced, settings, fingerprint, limit)
    made = _multihost.from_first_process(make, FATAL)
    if not _is_for(made, traced, fingerprint):
        raise PlanMismatch(
            "Process 0 has planned another function than this process: every process of a job "
            "must trace the same functions in the same order."
        )
    return made


def _found_or_made(
    traced: Traced, settings: Settings, fingerprint: str, limit: ErrorLimit | None
) -> Plan:
    target = resolve_target(settings.target)
    if limit is not None:
        return _settle_within(traced, settings, target, limit)
    use_disk = settings.cache and settings.planner is None and _cache.is_enabled()
    if not use_disk:
        return _settle(traced, settings, target)
    key = _cache.key_of(_dependencies(traced, settings, target, fingerprint))
    found = _cache.read(key)
    if found is not None and _is_for(found, traced, fingerprint):
        return found
    made = _settle(traced, settings, target)
    _cache.write(key, made)
    return made


def _is_for(plan: Plan, traced: Traced, fingerprint: str) -> bool:
    """Whether a plan is for a function of some fingerprint, or for that without operators."""
    if plan.fingerprint == fingerprint:
        return True
    planned = _trace.as_traced_for(traced, plan)
    return plan.fingerprint == _trace.fingerprint(planned.program, planned.derivative)


def _settle_within(traced: Traced, settings: Settings, target: Target, limit: ErrorLimit) -> Plan:
    """The settled plan whose gradient is as right as a limit asks for."""
    trials = _trials(traced, settings, target)
    errors = Errors(traced, limit.samples, *trials.analyzed)
    return settled_within(limit, errors, lambda bound: _planned(trials.within(bound), settings))


def _trials(traced: Traced, settings: Settings, target: Target) -> Trials:
    return Trials(traced, target, settings.pins, settings.verify)


def _settle(traced: Traced, settings: Settings, target: Target) -> Plan:
    return _planned(_trials(traced, settings, target), settings)


def _planned(trials: Trials, settings: Settings) -> Plan:
    def budget(unplanned_bytes: Callable[[], int]) -> int:
        return parse_budget(
            settings.budget,
            unplanned_bytes=unplanned_bytes,
            target_memory=lambda: usable_bytes(trials.target),
        )

    planner = settings.planner or planners.Stages(time_limit=settings.time_limit)
    if not hasattr(planner, "prepare"):
        planner = functools.partial(_replayed, planner)
    settling = Settling(trials, planner)
    assert isinstance(settings.reserved, int)  # of one call
    made = settling.plan(budget, settings.reserved)
    log.info("planned in %.1f s, %d rounds", made.planning_seconds, made.rounds)
    if settling.stopped is not None:
        _warn(f"A faster plan may exist: the planner was stopped ({settling.stopped}).")
    return made


def _replayed(planner: Callable[[planners.Graph, int], Any], graph: planners.Graph, budget: int):
    """The answer of somebody's planner, which is not believed before it is replayed."""
    decisions = planner(graph, budget)
    if not isinstance(decisions, planners.Plan):
        raise TypeError(f"`planner` must return a `planners.Plan`; got {decisions!r}.")
    planners.replay(graph, decisions)
    return decisions


def _dependencies(
    traced: Traced, settings: Settings, target: Target, fingerprint: str
) -> tuple[Any, ...]:
    """All that a settled plan depends on."""
    from . import __version__

    program = traced.program
    if settings.pins:  # which may name what is inside loops
        program = lay_out(program, traced.derivative).program
    return (
        (__version__, FORMAT),
        jax.__version__,
        compiler_version(target),
        os.environ.get("XLA_FLAGS", ""),
        fingerprint,
        traced.terms,
        [str(getattr(aval, "sharding", None)) for aval in traced.avals],
        (settings.budget, settings.reserved, settings.time_limit, settings.verify),
        # What the pins mean here: names are no part of the fingerprint.
        sorted(_pins.find(program, settings.pins).items()),
        sorted(_pins.saved_by_name(program, settings.pins)),
        target.name,
        usable_bytes(target) if settings.budget == "auto" else None,
    )


def _warn(message: str) -> None:
    warnings.warn(message, PlanningWarning, skip_file_prefixes=_compat.INTERNAL)
