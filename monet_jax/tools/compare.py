"""A plan beside programs that are placed by hand: bytes as compiled, seconds by one counter."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from .._plan import Plan
from ..compiler.targets import resolve_target
from ..planning.options import PlanOptions
from ..planning.progress import progress
from ..plans.record import BaselineRow
from ..step.questions import refuse_step
from ..step.step_plan import StepPlan
from ..tracing.traced import Traced
from ..transformer.apply import as_planned, as_traced_for, check_plan
from .baselines import POLICIES, Costs, costs_of, place_of, under_policy

#: The first rows: of the function as it is, and of the plan.
OWN = 2

#: A name, and what finds the costs.
type _Program = tuple[str, Callable[[], Costs]]


def compare(
    plan: Plan,
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    baselines: Mapping[str, Callable[..., Any]] | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Plan:
    """The plan, with policies of `jax.checkpoint` and other functions beside it.

    Each is compiled for the plan's target. The seconds of all, those of the plan and of the
    function as it is included, come from one counter and one roofline. The result is the same plan;
    its text, page and JSON show the comparison (`Plan.baselines`). Nothing is planned or run.

    Arguments:
        plan: made for the function.
        fun: the function.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.
        policies: name -> a policy of `jax.checkpoint_policies`. It is put around the body of each
            scan of the function that is in no other loop or branch, or, where there is none, around
            the whole function. None: nothing, dots, and dots without batch dimensions.
        baselines: name -> another function of the same arguments: the model with `jax.checkpoint`
            as you place it, say.
        argnums, static_argnums, static_argnames: as in `plan`.

    Raises:
        PlanMismatch: the plan was made for another function or other arguments.
        TypeError: it is the plan of a step, which `sweep` compares.
        TargetUnavailable: the compiler of the plan's target is not installed.
    """
    if isinstance(plan, StepPlan):
        raise TypeError("`compare` takes a function's plan, not a step's; use `monet_jax.sweep`.")
    refuse_step(fun, "compare")
    named = {"policies": POLICIES if policies is None else policies, "baselines": baselines or {}}
    _check_named(named)
    options = PlanOptions(
        budget=plan.budget_bytes,
        target=plan.target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        checkpoints=plan.checkpoints,
    )

    def traced(fun: Callable[..., Any], operators: Sequence[str] | str = "none") -> Traced:
        return dataclasses.replace(options, operators=operators).traced(fun, args, kwargs)

    planned = traced(fun, plan.operators)
    check_plan(as_traced_for(planned, plan), plan)
    programs = _programs(plan, planned, traced(fun), named["policies"])
    target = resolve_target(plan.target)
    programs += [
        (n, lambda x=x: costs_of(traced(x), target)) for n, x in named["baselines"].items()
    ]
    with progress() as say:
        return dataclasses.replace(plan, baselines=tuple(_rows(programs, say)))


def _check_named(named: Mapping[str, Any]) -> None:
    """Refuse what maps no names to functions, by the argument's name."""
    for argument, given in named.items():
        if not isinstance(given, Mapping) or not all(map(callable, given.values())):
            raise TypeError(f"`{argument}` must map names to functions; got {given!r}.")


def _programs(
    plan: Plan, planned: Traced, plain: Traced, policies: Mapping[str, Any]
) -> list[_Program]:
    """The function as it is, the plan, and the function under each policy."""
    target, place = resolve_target(plan.target), place_of(plain)
    rewritten, function = as_planned(planned, plan)
    return [
        ("the function as it is", partial(costs_of, plain, target)),
        ("the plan", partial(costs_of, rewritten, target, function)),
        *(
            (f"{name}, {place}", partial(costs_of, plain, target, under_policy(plain, policy)))
            for name, policy in policies.items()
        ),
    ]


def _rows(programs: Sequence[_Program], say: Callable[[str], None]) -> Iterator[BaselineRow]:
    """A row for each program; one that fails does not end the comparison, if it is a baseline."""
    for n, (name, costs) in enumerate(programs):
        say(f"compiling {name}")
        try:
            found = costs()
        except Exception as error:
            if n < OWN:
                raise
            yield BaselineRow(name, error=f"{type(error).__name__}: {error}")
            continue
        yield BaselineRow(name, found.bytes.total_bytes, found.work.seconds, found.work.flops)
