"""What is the largest batch, or the longest sequence, that fits a budget: planned, and as written?

Compiled bytes are all but linear in such a size, so that two programs say where to look; what was
found is then shown by its own compiled bytes, and by those of the next size up.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import planners

from .._plan import Plan
from ..analyzer.pins import make_pins
from ..compiler.budget import parse_budget
from ..compiler.targets import Target, resolve_target, usable_bytes
from ..plans.record import PlanRecord
from ..search.compiled_plans import CompiledPlans
from ..search.mistakes import refuse
from ..search.progress import progress
from ..search.reserved import Optimizer, check_reserved, reserved_bytes
from ..search.search import InfeasibleBudget, PlanSearch
from ..tracing.marked import name_of
from ..tracing.modules import on_arrays
from ..tracing.trace import trace_for
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
    reserved: int | Optimizer = 0,
    step: int = 1,
    limit: int = 1 << 20,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    time_limit: float = 10.0,
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
    resolved = resolve_target(target)
    _check_sizes(step, limit)
    _check_axis(make_args, axis)
    check_reserved(reserved)
    total = _budget_bytes(budget, resolved)
    which: dict[str, Any] = {
        "argnums": argnums,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    terms: dict[str, Any] = {"operators": operators, "checkpoints": checkpoints}

    def arguments(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return arguments_of(make_args(**{axis: size}))

    def compiled_plans_of(size: int) -> CompiledPlans:
        traced = trace_for(resolved, fun, *arguments(size), **which, **terms)
        refuse(traced, name_of(fun))
        return CompiledPlans(traced, resolved, make_pins(None))

    params = on_arrays(fun, *arguments(step), tuple(which.values()))[1].params
    aside = _reserved_bytes(reserved, params, total)
    with progress() as say:
        planner = planners.Stages(time_limit=time_limit)
        probes = _Probes(compiled_plans_of, planner, total - aside, aside, say)
        planned, above = largest(probes.planned, probes.room, limit // step, step, {})
        if planned is None:
            raise _nothing_fits(axis, step, probes, total)
        known = {n: probes.plain(n) for n in sorted(probes.settlings)[:2]}
        plain, plain_above = largest(probes.plain, probes.room, limit // step, step, known)
        plan = probes.plan(planned)
    assert plan.compiled_bytes is not None  # these trials verify every plan
    return Fit(
        axis,
        FitSize(planned, plan.compiled_bytes),
        _size(above, probes.planned),
        _size(plain, probes.plain),
        _size(plain_above, probes.plain),
        Plan.of(plan),
        total,
        aside,
        resolved.name,
        limit // step * step,
    )


def _size(size: int | None, need: Callable[[int], int]) -> FitSize | None:
    return None if size is None else FitSize(size, need(size))


class _Probes:
    """What the step takes at each size that was looked at; every program is compiled once.

    Arguments:
        compiled_plans_of: size -> the trials of the step.
        planner: as in `PlanSearch`.
        room: bytes that the step may take.
        reserved: bytes of the budget beside that.
        say: is told what is being done.
    """

    def __init__(
        self,
        compiled_plans_of: Callable[[int], CompiledPlans],
        planner: Any,
        room: int,
        reserved: int,
        say: Callable[[str], None],
    ):
        self.compiled_plans_of, self.planner = compiled_plans_of, planner
        self.room, self.reserved, self.say = room, reserved, say
        self.settlings: dict[int, PlanSearch] = {}
        self._planned: dict[int, int] = {}

    def plain(self, size: int) -> int:
        """Compiled bytes of the step as it is written."""
        self.say(f"compiling at {size}")
        return self._plan_search(size).compiled_plans.unplanned.total_bytes

    def planned(self, size: int) -> int:
        """Compiled bytes of the smallest plan known, which is only searched for where none fits."""
        if size not in self._planned:
            self._planned[size] = self._least(size)
        return self._planned[size]

    def plan(self, size: int) -> PlanRecord:
        """The plan for a size that fits.

        Raises:
            InfeasibleBudget: it does not.
        """
        self.say(f"planning at {size}")
        return self._plan_search(size).plan(lambda _: self.room + self.reserved, self.reserved)

    def _plan_search(self, size: int) -> PlanSearch:
        if size not in self.settlings:
            self.settlings[size] = PlanSearch(self.compiled_plans_of(size), self.planner)
        return self.settlings[size]

    def _least(self, size: int) -> int:
        self.say(f"compiling at {size}")
        compiled_plans = self._plan_search(size).compiled_plans
        base = compiled_plans.of(compiled_plans.base)
        taken = compiled_plans.fixed_bytes + compiled_plans.temp_bytes(base)
        if taken <= self.room:  # then the search for the fastest plan is left for later
            return taken
        try:
            found = self.plan(size).compiled_bytes
        except InfeasibleBudget as error:
            return error.minimum_budget - self.reserved
        assert found is not None  # these trials verify every plan
        return min(
            found, compiled_plans.fixed_bytes + compiled_plans.temp_bytes(compiled_plans.smallest())
        )


def _check_sizes(step: int, limit: int) -> None:
    for name, value in (("step", step), ("limit", limit)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a number of 1 or more; got {value!r}.")
    if limit < step:
        raise ValueError(f"`limit` is {limit}, less than one `step` of {step}.")


def _budget_bytes(budget: int | str, target: Target) -> int:
    if isinstance(budget, float):
        raise ValueError(
            f"The budget {budget!r} is a share of what the step takes, which grows with the size; "
            'give bytes, an amount such as "12GiB", or "auto".'
        )
    return parse_budget(
        budget, unplanned_bytes=lambda: 0, target_memory=lambda: usable_bytes(target)
    )


def _reserved_bytes(reserved: int | Optimizer, params: Any, total: int) -> int:
    found = reserved_bytes(reserved, params)
    if found >= total:
        raise ValueError(
            f"`reserved` must be less than the budget of {total:,} bytes; got {found:,} bytes."
        )
    return found


def _check_axis(make_args: Callable[..., Any], axis: str) -> None:
    try:
        inspect.signature(make_args).bind(**{axis: 1})
    except TypeError as error:
        raise TypeError(
            f"The function that makes the arguments must take the size by the keyword `{axis}` "
            f"({error}); name another axis, or give it that parameter."
        ) from error


def _nothing_fits(axis: str, step: int, probes: _Probes, total: int) -> InfeasibleBudget:
    least = probes.planned(step) + probes.reserved
    return InfeasibleBudget(
        f"No plan fits in {total:,} bytes with `{axis}={step}`; the smallest one found takes "
        f"{least:,}, of which {probes.reserved:,} are reserved. Raise `budget` to that.",
        least,
    )
