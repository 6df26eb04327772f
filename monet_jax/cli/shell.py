"""The command line: `demo`, `plan`, `show`, `diff`, `check`, `fit`, `sweep`, `bench` and others.

`bench` has two subjects: models of the zoo, and, by the word `planners`, the planners themselves.

Exit codes: 0, done; 1, an error; 2, the command line is wrong; 3, the budget is infeasible.
Of `diff` and `check`: 0, nothing differs, or the plan holds; 1, the opposite; 2, an error.
No device is asked for, and no backend of JAX started, before a command needs it.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .._extras import needing_extra
from .._version import __version__
from . import commands, maintenance
from .errors import TRACEBACK, exit_codes
from .words import Budget, check_writable, parse_budget_option

app = typer.Typer(
    help="Give it a byte budget; you get the fastest JAX training step that stays within it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(__version__)
        raise typer.Exit


for _command in (
    commands.plan,
    commands.diff,
    commands.check,
    commands.fit,
    commands.sweep,
    maintenance.show,
    maintenance.env,
    maintenance.cache,
):
    app.command()(_command)


def main() -> None:
    """Runs the command line; `--traceback` may stand anywhere in it."""
    if "--traceback" in sys.argv:
        sys.argv.remove("--traceback")
        os.environ[TRACEBACK] = "1"
    app()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print it.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show all frames of errors; anywhere on the line.")
    ] = False,
) -> None:
    """Options of all commands; `main` takes `--traceback` out before."""
    del version, traceback


@app.command()
def demo(
    budget: Budget = "0.45",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the digits.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Plain runs; 5 give a spread.")] = 1,
) -> None:
    """Train a residual network on handwritten digits, plain and planned, and compare."""
    with exit_codes():
        _demo = needing_extra("monet_jax.cli.demo", "examples")
        settings = _demo.Settings(budget=parse_budget_option(budget), epochs=epochs, seeds=seeds)
        comparison = _demo.run_demo(settings, Console(stderr=True))
        print(_demo.describe(comparison))


@app.command()
def bench(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Of the zoo; default: all. Or the word `planners`."),
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help='Repeatable; default "cpu".')] = None,
    scale: Annotated[str, typer.Option(help='"full", "bench", "tiny" or "frontier".')] = "bench",
    dtype: Annotated[
        str | None,
        typer.Option(
            help='What models compute in: "float32" or "bfloat16"; default: bfloat16 on GPUs and '
            "TPUs, float32 on CPUs. Parameters and losses are float32."
        ),
    ] = None,
    budgets: Annotated[
        str,
        typer.Option(
            help="Of models: some of baselines, temps, minimum, free. Of planners: some of the "
            "published ones, as in 8,10. Or all."
        ),
    ] = "all",
    measure: Annotated[
        bool, typer.Option(help="Time the steps, where the target is here.")
    ] = False,
    instances: Annotated[
        Path | None, typer.Option(help="Published problems: a directory, a file or a pattern.")
    ] = None,
    planners: Annotated[str, typer.Option(help="Names with commas between them.")] = "gap",
    time_limit: Annotated[float, typer.Option(min=0.0, help="Seconds for each answer.")] = 60.0,
    sweep: Annotated[int, typer.Option(min=0, help="Also plan at so many budgets.")] = 0,
    time_limits: Annotated[str, typer.Option(help="Also plan under these, as in 0.1,1,10.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Keep the rows here as JSON; of planners, also .md.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, no tables.")] = False,
) -> None:
    """Compare plans with jax.checkpoint's baselines, or planners with published results.

    `bench MODEL... --target TARGET` compares as compiled, model by model. `bench planners
    --instances DIR` asks planners about published problems; it compiles nothing.
    """
    console = Console(stderr=True)
    with exit_codes():
        check_writable(out)
        if "planners" not in (models or []):
            _require_unset(context, _OF_PLANNERS, "`bench planners`")
            _bench = needing_extra("monet_jax.bench.models", "flax")
            request = _bench.make_request(
                models or [], target or ["cpu"], scale, budgets, measure, dtype
            )
        else:
            _require_unset(context, _OF_MODELS, "`bench MODEL...`")
            _bench = importlib.import_module("monet_jax.bench.planners")
            if models != ["planners"] or instances is None:
                raise ValueError(
                    "need `bench planners --instances DIR`, with no model beside `planners`"
                )
            request = _bench.make_request(
                instances, planners, time_limit, budgets, sweep, time_limits
            )
        results = _bench.run_bench(request, out, console)
        print(_bench.to_json(results) if as_json else _bench.describe(results))


_OF_MODELS = ("target", "scale", "dtype", "measure")
_OF_PLANNERS = ("instances", "planners", "time_limit", "sweep", "time_limits")


def _require_unset(context: typer.Context, names: Sequence[str], subject: str) -> None:
    """Refuses options that were given and belong to another subject."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise ValueError(f"`--{option}` belongs to {subject}; leave it out here")
