"""The largest batch, or longest sequence, with which a step fits a budget: planned, and as written.

Compiled bytes are nearly linear in such a size, so two programs say where to look. The size that is
found, and the next one up, are then confirmed by their own compiled bytes.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .._plan import Plan
from ..compiler.targets import Target, resolve_target
from ..planning.failures import InfeasibleBudget
from ..planning.judge import TracedPlans, compiled_plans_of
from ..planning.mistakes import refuse, refuse_reserved
from ..planning.options import PlanOptions
from ..planning.plan_search import PlanSearch
from ..planning.progress import progress
from ..planning.reserved import Optimizer, reserved_bytes
from ..plans.record import PlanRecord
from ..step.questions import refuse_step
from ..tracing.marked import name_of
from ..tracing.modules import on_arrays
from .arguments import arguments_of
from .fit_result import Fit, FitSize
from .largest import largest


def fit(
    fun: Callable[..., Any],
    make_args: Callable[..., Any],
    *,
    axis: str = "batch",
    budget: int | str,
    target: str | None = None,
    reserved: int | str | Optimizer = 0,
    step: int = 1,
    limit: int = 1 << 20,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    time_limit: float | None = None,
) -> Fit:
    """The largest size of an axis with which a planned step fits a budget.

    Sizes are taken to need more the larger they are: of larger ones only the next is looked at.

    Arguments:
        fun: the function.
        make_args: called with the size by keyword, `make_args(batch=8)` for the axis "batch"; it
            returns a tuple of arguments, or `(args, kwargs)`. `jax.ShapeDtypeStruct`s suffice:
            nothing is run.
        axis: the keyword.
        budget: bytes, an amount such as "12GiB", or "auto"; no share, for the step grows.
        target: what to compile for, as in `remat`.
        reserved: bytes of the budget for what lives outside; or an optimizer, for the bytes of its
            state, as in `remat`, with the smallest size.
        step: sizes are multiples of it.
        limit: the largest size to consider.
        argnums, static_argnums, static_argnames, operators, checkpoints, time_limit: as in `remat`.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        InfeasibleBudget: not even the smallest size fits.
        TargetUnavailable: the target's compiler is not installed.
    """
    refuse_step(fun, "fit")
    options = PlanOptions(
        budget=budget,
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=operators,
        checkpoints=checkpoints,
        reserved=reserved,
        time_limit=time_limit,
    )
    sized = _Step(fun, make_args, axis, options)
    _refuse_share(options)
    return _fitted(sized, step, limit)


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step whose arguments have a size.

    Attributes:
        fun: the function.
        make_args: makes its arguments from a size.
        axis: the keyword of the size.
        options: of its plans.
    """

    fun: Callable[..., Any]
    make_args: Callable[..., Any]
    axis: str
    options: PlanOptions

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.make_args).bind(**{self.axis: 1})
        except TypeError as error:
            raise TypeError(
                "The function that makes the arguments must take the size by the keyword "
                f"`{self.axis}` ({error}); name another axis, or give it that parameter."
            ) from error

    @functools.cached_property
    def target(self) -> Target:
        """The target to compile for."""
        return resolve_target(self.options.target)

    @functools.cached_property
    def budget_bytes(self) -> int:
        """The budget, `reserved` included."""
        return self.options.budget_bytes(self.target, lambda: 0)

    def reserved_bytes(self, size: int) -> int:
        """The bytes to reserve; for an optimizer, of its state with the parameters of a size."""
        flat = on_arrays(self.fun, *self._arguments(size), self.options.given)
        found = reserved_bytes(self.options.reserved, flat[1].params)
        refuse_reserved(self.budget_bytes, found)
        return found

    def compiled_plans(self, size: int) -> TracedPlans:
        """The plans of the step with a size, of which none is compiled yet."""
        traced = self.options.traced(self.fun, *self._arguments(size))
        refuse(traced, name_of(self.fun))
        return compiled_plans_of(traced, self.target, self.options.pinned, cap=self.options.cap())

    def _arguments(self, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return arguments_of(self.make_args(**{self.axis: size}))


def _fitted(step: _Step, unit: int, limit: int) -> Fit:
    """The largest size of a step, of the multiples of `unit` up to `limit`."""
    _check_sizes(unit, limit)
    reserved, count = step.reserved_bytes(unit), limit // unit
    with progress() as say:
        probes = _Probes(step, step.budget_bytes - reserved, reserved, say)
        planned, above = largest(probes.planned, probes.limit_bytes, count, unit, {})
        if planned is None:
            raise _nothing_fits(step, unit, probes)
        known = {n: probes.plain(n) for n in sorted(probes.searches)[:2]}
        plain, plain_above = largest(probes.plain, probes.limit_bytes, count, unit, known)
        plan = probes.plan(planned)
    assert plan.compiled_bytes is not None  # `CompiledPlans` verifies every plan
    return Fit(
        step.axis,
        FitSize(planned, plan.compiled_bytes),
        _size(above, probes.planned),
        _size(plain, probes.plain),
        _size(plain_above, probes.plain),
        Plan.of(plan),
        step.budget_bytes,
        reserved,
        step.target.name,
        count * unit,
    )


def _size(size: int | None, need: Callable[[int], int]) -> FitSize | None:
    return None if size is None else FitSize(size, need(size))


class _Probes:
    """The bytes of a step at each size that was tried; every program is compiled once.

    Arguments:
        step: the step.
        limit_bytes: bytes that it may take.
        reserved: bytes of the budget for other things.
        say: shows the progress.
    """

    def __init__(self, step: _Step, limit_bytes: int, reserved: int, say: Callable[[str], None]):
        self.step, self.limit_bytes, self.reserved, self.say = step, limit_bytes, reserved, say
        self.searches: dict[int, PlanSearch] = {}
        self._planner = step.options.region_planner
        self._planned: dict[int, int] = {}

    def plain(self, size: int) -> int:
        """Compiled bytes of the step as it is written."""
        self.say(f"compiling at {size}")
        return self._plan_search(size).compiled_plans.unplanned.total_bytes

    def planned(self, size: int) -> int:
        """Compiled bytes of the smallest known plan; it is searched for only where none fits."""
        if size not in self._planned:
            self._planned[size] = self._least(size)
        return self._planned[size]

    def plan(self, size: int) -> PlanRecord:
        """The plan for a size that fits.

        Raises:
            InfeasibleBudget: it does not fit.
        """
        self.say(f"planning at {size}")
        budget = self.limit_bytes + self.reserved
        return self._plan_search(size).plan(lambda _: budget, self.reserved)

    def _plan_search(self, size: int) -> PlanSearch:
        if size not in self.searches:
            self.searches[size] = PlanSearch(self.step.compiled_plans(size), self._planner)
        return self.searches[size]

    def _least(self, size: int) -> int:
        self.say(f"compiling at {size}")
        compiled_plans = self._plan_search(size).compiled_plans
        small = compiled_plans.of(compiled_plans.calibration_plan)
        taken = compiled_plans.fixed_bytes + compiled_plans.temp_bytes(small)
        if taken <= self.limit_bytes:  # the search for the fastest plan is left for later
            return taken
        try:
            found = self.plan(size).compiled_bytes
        except InfeasibleBudget as error:
            return error.minimum_budget - self.reserved
        assert found is not None  # `CompiledPlans` verifies every plan
        smallest = min(map(compiled_plans.temp_bytes, compiled_plans))
        return min(found, compiled_plans.fixed_bytes + smallest)


def _check_sizes(step: int, limit: int) -> None:
    for name, value in (("step", step), ("limit", limit)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a number of 1 or more; got {value!r}.")
    if limit < step:
        raise ValueError(f"`limit` is {limit}, less than one `step` of {step}.")


def _refuse_share(options: PlanOptions) -> None:
    if options.is_share:
        raise ValueError(
            f"The budget {options.budget!r} is a share of what the step takes, which grows with "
            'the size; give bytes, an amount such as "12GiB", or "auto".'
        )


def _nothing_fits(step: _Step, size: int, probes: _Probes) -> InfeasibleBudget:
    least = probes.planned(size) + probes.reserved
    return InfeasibleBudget(
        f"No plan fits in {step.budget_bytes:,} bytes with `{step.axis}={size}`; the smallest one "
        f"found takes {least:,}, of which {probes.reserved:,} are reserved. Raise `budget` to "
        f"{least:,}.",
        least,
    )
