"""The commands on plans: `plan`, `diff`, `check`, `fit` and `sweep`.

Each prints the result of the function of its name.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import FAILED, exit_codes
from .words import (
    Argnums,
    AsJson,
    Budget,
    Checkpoints,
    Function,
    Host,
    HostBandwidth,
    HostBudget,
    MakeArgs,
    MaxSeconds,
    NoCache,
    Operators,
    Pins,
    Reserved,
    TargetName,
    TimeLimit,
    bandwidth_of,
    check_writable,
    host_budget_of,
    host_kinds,
    load_arguments,
    load_object,
    operators_of,
    parse_budget_option,
    parse_pins,
    positions,
    reserved_for,
)

#: The exit code of an error where 1 means that something differs, as in `diff` itself.
TROUBLE = 2


def plan(
    function: Function,
    args: MakeArgs,
    budget: Budget,
    target: TargetName = None,
    argnums: Argnums = "0",
    operators: Operators = "exact",
    error: Annotated[
        float | None,
        typer.Option(help="With lossy operators: of the gradient, relative, as in 0.02."),
    ] = None,
    checkpoints: Checkpoints = "keep",
    reserved: Reserved = "0",
    pin: Pins = None,
    time_limit: TimeLimit = None,
    max_seconds: MaxSeconds = None,
    no_cache: NoCache = False,
    out: Annotated[Path | None, typer.Option(help="Save the plan here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report here, as a page.")] = None,
    costs: Annotated[
        str, typer.Option(help='Of seconds: "model", or "measured" on this device.')
    ] = "model",
    host: Host = "never",
    host_budget: HostBudget = None,
    host_bandwidth: HostBandwidth = None,
    time: Annotated[
        bool, typer.Option("--time", help="Run both steps here, in turns, and say their seconds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan a function for a budget and print the report."""
    with exit_codes():
        check_writable(out, html)
        pins = parse_pins(pin)
        fun = load_object(function)
        positional, keywords = load_arguments(args)
        import monet_jax

        made = monet_jax.plan(
            fun,
            *positional,
            kwargs=keywords,
            budget=parse_budget_option(budget),
            target=target,
            argnums=positions(argnums),
            operators=operators_of(operators),
            error=error,
            checkpoints=checkpoints,
            reserved=reserved_for(reserved),
            pins=pins,
            time_limit=time_limit,
            max_seconds=max_seconds,
            cache=not no_cache,
            costs=costs,
            host=host_kinds(host),
            host_budget=host_budget_of(host_budget),
            host_bandwidth=bandwidth_of(host_bandwidth),
        )
        if out is not None:
            made.save(out)
        if html is not None:
            made.to_html(html)
        print(made.to_json() if as_json else made)
        if time:
            timed = made.step_seconds(fun, *positional, kwargs=keywords, argnums=positions(argnums))
            print(timed, file=sys.stderr if as_json else sys.stdout)


def diff(
    before: Annotated[Path, typer.Argument(help="A stored plan.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """Say what differs between two plans; exit with 1 where something does."""
    with exit_codes(TROUBLE):
        import monet_jax

        found = monet_jax.diff(monet_jax.load_plan(before), monet_jax.load_plan(after))
        print(found.to_json() if as_json else found)
    raise typer.Exit(FAILED if found else 0)


def check(
    stored: Annotated[Path, typer.Argument(metavar="PLAN", help="A stored plan.")],
    function: Function,
    args: MakeArgs,
    budget: Annotated[str | None, typer.Option(help="Instead of the plan's.")] = None,
    argnums: Argnums = "0",
    as_json: AsJson = False,
) -> None:
    """Check that a plan still holds; exit with 1 where the program has changed or outgrown it."""
    with exit_codes(TROUBLE):
        fun = load_object(function)
        positional, keywords = load_arguments(args)
        import monet_jax

        found = monet_jax.check(
            monet_jax.load_plan(stored),
            fun,
            *positional,
            kwargs=keywords,
            budget=None if budget is None else parse_budget_option(budget),
            argnums=positions(argnums),
        )
        print(found.to_json() if as_json else found)
    raise typer.Exit(0 if found.holds else FAILED)


def fit(
    function: Function,
    args: Annotated[
        str,
        typer.Option(
            help="`module:function`; called with the size, as in batch=8, it returns a "
            "tuple of arguments, or (args, kwargs)."
        ),
    ],
    budget: Annotated[
        str | None, typer.Option(help='"12GiB", bytes, or "auto"; default: a step\'s own.')
    ] = None,
    axis: Annotated[str, typer.Option(help="The keyword that takes the size.")] = "batch",
    accumulate: Annotated[
        int | None,
        typer.Option(
            help="Of a step: the whole batch, to be cut into micro-batches; the arguments are "
            "called with `accumulation_steps`, too."
        ),
    ] = None,
    target: TargetName = None,
    argnums: Argnums = "0",
    operators: Operators = "exact",
    checkpoints: Checkpoints = "keep",
    reserved: Reserved = "0",
    step: Annotated[int, typer.Option(min=1, help="Sizes are multiples of it.")] = 1,
    limit: Annotated[int, typer.Option(min=1, help="The largest size to consider.")] = 1 << 20,
    out: Annotated[Path | None, typer.Option(help="Save the plan of that size here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest batch that fits a budget as planned, or the fastest micro-batch."""
    with exit_codes():
        check_writable(out)
        fun, make_args = load_object(function), load_object(args)
        import monet_jax

        parsed: Any = None if budget is None else parse_budget_option(budget)
        found = monet_jax.fit(
            fun,
            make_args,
            axis=axis,
            budget=parsed,
            accumulate=accumulate,
            target=target,
            operators=operators_of(operators),
            checkpoints=checkpoints,
            reserved=reserved_for(reserved),
            step=step,
            limit=limit,
            argnums=positions(argnums),
        )
        if out is not None:
            found.plan.save(out)
        print(found.to_json() if as_json else found)


def sweep(
    function: Function,
    args: MakeArgs,
    target: TargetName = None,
    points: Annotated[int, typer.Option(min=2, help="How many budgets.")] = 8,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="`name=module:function`, of the same arguments, to compare with; repeatable."
        ),
    ] = None,
    argnums: Argnums = "0",
    operators: Operators = "exact",
    checkpoints: Checkpoints = "keep",
    out: Annotated[
        Path | None, typer.Option(help="Keep it here: .json, .svg, .png or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a function for many budgets, and compare with jax.checkpoint placed by hand."""
    with exit_codes():
        check_writable(out)
        baselines = dict(_named(text) for text in baseline or ())
        fun = load_object(function)
        positional, keywords = load_arguments(args)
        import monet_jax

        from ..tools.sweep_result import check_path

        if out is not None:
            check_path(out)
        found = monet_jax.sweep(
            fun,
            *positional,
            kwargs=keywords,
            target=target,
            points=points,
            baselines=baselines,
            argnums=positions(argnums),
            operators=operators_of(operators),
            checkpoints=checkpoints,
        )
        if out is not None:
            found.save(out)
        print(found.to_json() if as_json else found)


def _named(text: str) -> tuple[str, Any]:
    """A name and an object, from `name=module:object`."""
    name, found, where = text.rpartition("=")
    if not found or not name:
        raise ValueError(f"`--baseline` must be `name=module:function`; got {text!r}")
    return name, load_object(where)
