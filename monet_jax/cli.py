"""What can be done from a shell? `monet-jax demo`, `monet-jax plan`, `monet-jax bench`.

`bench` has two subjects: models of the zoo, and, by the word `planners`, the planners themselves.

Exit codes: 0, done; 2, the budget is infeasible (or the command line is wrong); 1, another error.
JAX is imported only by a command that needs it, so that `--help` answers at once.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

#: Exit codes.
FAILED, INFEASIBLE = 1, 2

app = typer.Typer(
    help="Fits JAX training into memory: a byte budget in, the fastest program that keeps it out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Budget = Annotated[
    str, typer.Option(help='"12GiB", bytes, a share of the unplanned bytes as in 0.5, or "auto".')
]
TargetName = Annotated[
    str | None, typer.Option(help='"cpu", "gpu:h100", "tpu:v5e", ...; default: this device.')
]


def main() -> None:
    """Runs the command line."""
    app()


@app.command()
def demo(
    budget: Budget = "0.45",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the digits.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Plain runs; 5 give a spread.")] = 1,
) -> None:
    """Train a residual network on handwritten digits, plain and planned, and compare."""
    with _exit_codes():
        _demo = _needing_extra("monet_jax._demo", "examples")
        settings = _demo.Settings(budget=parse_budget_option(budget), epochs=epochs, seeds=seeds)
        comparison = _demo.run_demo(settings, Console(stderr=True))
        print(_demo.describe(comparison))


@app.command()
def plan(
    function: Annotated[str, typer.Argument(help="`module:function`, differentiated.")],
    args: Annotated[
        str,
        typer.Option(
            help="`module:function` that returns a tuple of arguments, or (args, kwargs)."
        ),
    ],
    budget: Budget,
    target: TargetName = None,
    argnums: Annotated[str, typer.Option(help='As in "0" or "0,2".')] = "0",
    reserved: Annotated[
        str,
        typer.Option(help='For other things: bytes, "2GiB", or `module:optimizer` for its state.'),
    ] = "0",
    out: Annotated[Path | None, typer.Option(help="Save the plan here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Plan a function for a budget and print the report."""
    with _exit_codes():
        fun = load_object(function)
        positional, keywords = _arguments(load_object(args)())
        import monet_jax  # with JAX

        made = monet_jax.plan(
            fun,
            *positional,
            kwargs=keywords,
            budget=parse_budget_option(budget),
            target=target,
            argnums=_positions(argnums),
            reserved=_reserved(reserved),
        )
        if out is not None:
            made.save(out)
        print(made.to_json() if as_json else made)


@app.command()
def bench(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Of the zoo; default: all. Or the word `planners`."),
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help='Repeatable; default "cpu".')] = None,
    scale: Annotated[str, typer.Option(help='"full", "bench" or "tiny".')] = "bench",
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
    with _exit_codes():
        if "planners" not in (models or []):
            _require_unset(context, _OF_PLANNERS, "`bench planners`")
            _bench = _needing_extra("monet_jax.bench", "flax")
            request = _bench.make_request(models or [], target or ["cpu"], scale, budgets, measure)
        else:
            _require_unset(context, _OF_MODELS, "`bench MODEL...`")
            _bench = importlib.import_module("monet_jax.bench_planners")
            if models != ["planners"] or instances is None:
                raise ValueError(
                    "need `bench planners --instances DIR`, with no model beside `planners`"
                )
            request = _bench.make_request(
                instances, planners, time_limit, budgets, sweep, time_limits
            )
        results = _bench.run_bench(request, out, console)
        print(_bench.to_json(results) if as_json else _bench.describe(results))


_OF_MODELS = ("target", "scale", "measure")
_OF_PLANNERS = ("instances", "planners", "time_limit", "sweep", "time_limits")


def _require_unset(context: typer.Context, names: Sequence[str], subject: str) -> None:
    """Refuses options that were given and belong to another subject."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise ValueError(f"`--{option}` belongs to {subject}; leave it out here")


def load_object(name: str) -> Any:
    """The object that `module:attribute` names; modules in the current directory are found.

    Raises:
      ValueError: the name has another form.
      ImportError, AttributeError: there is no such module or attribute.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"need `module:function`, as in `train:loss`; got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def parse_budget_option(text: str) -> int | float | str:
    """A budget from a command line: digits are bytes, a number with a point is a share."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _positions(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise ValueError(
            f'`--argnums` must be positions, as in "0" or "0,2"; got {text!r}'
        ) from None


def _reserved(text: str) -> Any:
    """Bytes, or the optimizer that `module:optimizer` names."""
    from ._budget import parse_budget  # the package imports JAX

    if text == "0":
        return 0
    if ":" in text:
        return load_object(text)
    given = parse_budget_option(text)
    if isinstance(given, float) or given == "auto":
        raise ValueError(f'`--reserved` must be bytes, "2GiB" or `module:optimizer`; got {text!r}')
    return parse_budget(given, unplanned_bytes=lambda: 0, target_memory=lambda: 0)


def _arguments(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from what the user's function returned."""
    if not isinstance(made, tuple):
        raise TypeError(
            f"`--args` must name a function that returns a tuple of arguments, or (args, kwargs); "
            f"it returned {type(made).__name__}"
        )
    if len(made) == 2 and isinstance(made[0], tuple) and _is_keywords(made[1]):
        return made
    return made, {}


def _is_keywords(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _needing_extra(module: str, extra: str) -> Any:
    """A module of this package that needs packages which are not always installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("monet_jax"):
            raise
        raise ModuleNotFoundError(
            f'`{error.name}` is not installed; run: pip install "monet-jax[{extra}]"'
        ) from error


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    """Turns the errors that a user can act on into a message and an exit code."""
    try:
        yield
    except (ValueError, TypeError, ImportError, AttributeError, OSError, RuntimeError) as error:
        minimum = getattr(error, "minimum_budget", None)  # only InfeasibleBudget has it
        print(f"error: {error}", file=sys.stderr)
        if minimum is not None:
            print(f"minimum budget: {minimum}", file=sys.stderr)
        raise typer.Exit(FAILED if minimum is None else INFEASIBLE) from error
