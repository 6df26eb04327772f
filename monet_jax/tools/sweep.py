"""Plans over a range of budgets, beside `jax.checkpoint` placed by hand: bytes against seconds.

All programs go through the same compiler, the same counter of FLOPs and the same roofline.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ..analyzer.step_costs import StepCosts
from ..compiler.targets import compiler_version, resolve_target
from ..planning.failures import InfeasibleBudget
from ..planning.judge import TracedPlans, compiled_plans_of
from ..planning.mistakes import refuse
from ..planning.options import PlanOptions
from ..planning.plan_search import PlanSearch
from ..planning.progress import progress
from ..step.jit import PlannedStep
from ..step.questions import StepNow, step_options
from ..tracing.marked import name_of
from ..tracing.traced import Traced
from ..transformer.apply import as_planned
from .baselines import POLICIES, Costs, costs_of, round_the_loss, work_of_step
from .sweep_points import SweepPoint, baseline_point, planned_points, point_of
from .sweep_result import Sweep
from .sweep_step import points_of_step


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
    that was found to work. The baselines are one `jax.checkpoint` around the whole function, under
    its usual policies, and those that are given.

    Of a step that `monet_jax.jit` made, all bytes and seconds are those of the whole step, and the
    first baselines have one `jax.checkpoint` around each marked part.

    Arguments:
        fun: the function; or a step that `monet_jax.jit` made, whose own options, its budget left
            out, say what is planned.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s. Nothing is run.
        kwargs: its keyword arguments.
        target: what to compile for, as in `remat`.
        points: how many budgets, 2 or more.
        baselines: name -> another function, or step, of the same arguments: the model with
            `jax.checkpoint` around each block, say. A step is jitted as `fun` is.
        argnums, static_argnums, static_argnames, operators, checkpoints, time_limit: as in `remat`,
            and not for steps.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        TargetUnavailable: the target's compiler is not installed.
    """
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(f"`points` must be 2 or more; got {points!r}.")
    options = PlanOptions(
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=operators,
        checkpoints=checkpoints,
        time_limit=time_limit,
    )
    resolved = resolve_target(target)
    if isinstance(fun, PlannedStep):
        options = step_options(fun, None, options)
        resolved = resolve_target(options.target)
        now = StepNow.of(fun, args, kwargs or {}, options.target)
        make_points = functools.partial(points_of_step, now, baselines or {}, points)
    else:
        by_hand = {f"jax.checkpoint: {p}": round_the_loss(fun, p) for p in POLICIES}
        by_hand |= dict(baselines or {})

        def traced(fun: Callable[..., Any]) -> Traced:
            return options.traced(fun, args, kwargs)

        make_points = functools.partial(_points, fun, by_hand, traced, options, points)
    with progress() as say:
        found = tuple(make_points(say))
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
    compiled_plans = compiled_plans_of(plain, target, options.pinned, cap=options.cap(announce=say))
    yield _plain(compiled_plans)
    for name, baseline in baselines.items():
        say(f"compiling {name}")
        yield baseline_point(name, lambda baseline=baseline: costs_of(traced(baseline), target))
    yield from _planned(compiled_plans, options.region_planner, points, say)


def _plain(compiled_plans: TracedPlans) -> SweepPoint:
    work = work_of_step(
        compiled_plans.judge.traced, compiled_plans.judge.traced.flat, compiled_plans.judge.target
    )
    return point_of("plain", "plain", Costs(compiled_plans.unplanned, work))


def _planned(
    compiled_plans: TracedPlans,
    planner: Any,
    points: int,
    say: Callable[[str], None],
) -> Iterator[SweepPoint]:
    """Plans from the unplanned bytes down to the smallest budget that works."""
    plan_search = PlanSearch(compiled_plans, planner)
    most = compiled_plans.unplanned.total_bytes

    def say_for_all(text: str) -> None:
        """Say what the compilations from here on are for, and with each of them."""
        say(text)
        compiled_plans.cap.announce = lambda more: say(f"{text}; {more}")

    say_for_all("looking for the smallest budget")
    least = _least(plan_search, compiled_plans.fixed_bytes + 1)

    def planned(budget: int) -> tuple[int, StepCosts]:
        plan = plan_search.plan(lambda _: budget)
        traced, function = as_planned(compiled_plans.judge.traced, plan)
        assert plan.compiled_bytes is not None  # `CompiledPlans` verifies every plan
        return plan.compiled_bytes, work_of_step(traced, function, compiled_plans.judge.target)

    yield from planned_points(
        (least, most), points, compiled_plans.fixed_bytes, planned, say_for_all
    )


def _least(plan_search: PlanSearch, impossible: int) -> int:
    """The smallest budget that was found to work."""
    try:
        plan = plan_search.plan(lambda _: impossible)
    except InfeasibleBudget as error:
        return error.minimum_budget
    return plan.compiled_bytes or impossible  # nothing but arguments and results
