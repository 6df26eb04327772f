"""Plans over a range of budgets, beside `jax.checkpoint` placed by hand: bytes against seconds.

All programs go through the same compiler, the same counter of FLOPs and the same roofline.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..compiler.targets import Target, compiler_version, resolve_target
from ..planning.failures import InfeasibleBudget
from ..planning.judge import TracedPlans, compiled_plans_of
from ..planning.mistakes import refuse
from ..planning.options import PlanOptions
from ..planning.plan_search import PlanSearch
from ..planning.progress import progress
from ..step.questions import refuse_step
from ..tracing.marked import name_of
from ..tracing.trace import Traced
from ..transformer.apply import as_planned, as_traced_for
from .baselines import POLICIES, Costs, costs_of, round_the_loss, work_of_step
from .sweep_points import SweepPoint
from .sweep_result import Sweep


def sweep(
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    points: int = 8,
    baselines: Mapping[str, Callable[..., Any]] | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    time_limit: float | None = None,
) -> Sweep:
    """Plans of a function over a range of budgets, beside `jax.checkpoint` placed by hand.

    Budgets lie at equal distances from what the function takes unplanned down to the smallest one
    that was found to work. The baselines are one `jax.checkpoint` round the whole function, under
    its usual policies, and those that are given.

    Arguments:
        fun: the function.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s. Nothing is run.
        kwargs: its keyword arguments.
        target: what to compile for, as in `remat`.
        points: how many budgets, 2 or more.
        baselines: name -> another function of the same arguments: the model with `jax.checkpoint`
            round each block, say.
        argnums, static_argnums, static_argnames, operators, checkpoints, time_limit: as in `remat`.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        TargetUnavailable: the target's compiler is not installed.
    """
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(f"`points` must be 2 or more; got {points!r}.")
    refuse_step(fun, "sweep")
    options = PlanOptions(
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=operators,
        checkpoints=checkpoints,
        time_limit=time_limit,
    )
    by_hand = {f"jax.checkpoint: {p}": round_the_loss(fun, p) for p in POLICIES}

    def traced(fun: Callable[..., Any]) -> Traced:
        return options.traced(fun, args, kwargs)

    with progress() as say:
        made = _points(fun, by_hand | dict(baselines or {}), traced, options, points, say)
        found, resolved = tuple(made), resolve_target(target)
    return Sweep(found, resolved.name, compiler_version(resolved), jax.__version__)


def _points(
    fun: Callable[..., Any],
    baselines: Mapping[str, Callable[..., Any]],
    traced: Callable[[Callable[..., Any]], Traced],
    options: PlanOptions,
    points: int,
    say: Callable[[str], None],
) -> Iterator[SweepPoint]:
    """The plain program, the baselines, and plans at falling budgets."""
    target = resolve_target(options.target)
    say("compiling the plain program")
    plain = traced(fun)
    refuse(plain, name_of(fun))
    compiled_plans = compiled_plans_of(plain, target, options.pinned, cap=options.cap())
    yield _plain(compiled_plans)
    for name, baseline in baselines.items():
        say(f"compiling {name}")
        yield _baseline(name, functools.partial(traced, baseline), target)
    yield from _planned(compiled_plans, options.region_planner, points, say)


def _plain(compiled_plans: TracedPlans) -> SweepPoint:
    work = work_of_step(
        compiled_plans.judge.traced, compiled_plans.judge.traced.flat, compiled_plans.judge.target
    )
    return _point("plain", "plain", Costs(compiled_plans.unplanned, work))


def _baseline(name: str, traced: Callable[[], Traced], target: Target) -> SweepPoint:
    try:
        costs = costs_of(traced(), target)
    except Exception as error:  # one baseline that fails must not end the comparison
        return SweepPoint(name, "baseline", error=f"{type(error).__name__}: {error}")
    return _point(name, "baseline", costs)


def _point(program: str, kind: str, costs: Costs) -> SweepPoint:
    figures, work = costs.bytes, costs.work
    sizes = figures.total_bytes, figures.temp_bytes
    return SweepPoint(program, kind, None, *sizes, work.seconds, work.flops)


def _planned(
    compiled_plans: TracedPlans,
    planner: Any,
    points: int,
    say: Callable[[str], None],
) -> Iterator[SweepPoint]:
    """Plans from the unplanned bytes down to the smallest budget that works."""
    plan_search = PlanSearch(compiled_plans, planner)
    most = compiled_plans.unplanned.total_bytes
    say("looking for the smallest budget")
    least = _least(plan_search, compiled_plans.fixed_bytes + 1)
    for n, budget in enumerate(np.linspace(most, least, points).astype(int).tolist()):
        say(f"planning for budget {n + 1} of {points}")
        try:
            plan = plan_search.plan(lambda _, budget=budget: budget)
        except InfeasibleBudget as error:  # the search for the smallest found it, this one did not
            yield SweepPoint("planned", "planned", budget, error=str(error))
            continue
        traced = as_traced_for(compiled_plans.judge.traced, plan)
        function = as_planned(traced, plan) if plan.decisions else traced.flat
        work = work_of_step(traced, function, compiled_plans.judge.target)
        assert plan.compiled_bytes is not None  # `CompiledPlans` verifies every plan
        temp = plan.compiled_bytes - compiled_plans.fixed_bytes
        costs = (plan.compiled_bytes, temp, work.seconds, work.flops)
        yield SweepPoint("planned", "planned", budget, *costs)


def _least(plan_search: PlanSearch, impossible: int) -> int:
    """The smallest budget that was found to work."""
    try:
        plan = plan_search.plan(lambda _: impossible)
    except InfeasibleBudget as error:
        return error.minimum_budget
    return plan.compiled_bytes or impossible  # nothing but arguments and results
