"""Parses the words of a command line, and turns errors into exit codes."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..tools.arguments import arguments_of

#: Exit codes: an error; the budget is infeasible.
FAILED, INFEASIBLE = 1, 2

Function = Annotated[str, typer.Argument(help="`module:function`, differentiated.")]
MakeArgs = Annotated[
    str,
    typer.Option(
        "--args", help="`module:function` that returns a tuple of arguments, or (args, kwargs)."
    ),
]
Budget = Annotated[
    str, typer.Option(help='"12GiB", bytes, a share of the unplanned bytes as in 60%, or "auto".')
]
TargetName = Annotated[
    str | None, typer.Option(help='"cpu", "gpu:h100", "tpu:v5e", ...; default: this device.')
]
Argnums = Annotated[str, typer.Option(help='As in "0" or "0,2".')]
Reserved = Annotated[
    str, typer.Option(help='For other things: bytes, "2GiB", or `module:optimizer` for its state.')
]
Operators = Annotated[
    str,
    typer.Option(
        help='"exact"; "lossy"; "none", so that forward mode works everywhere; or some names.'
    ),
]
Checkpoints = Annotated[
    str, typer.Option(help='"keep" jax.checkpoint regions, or "plan" through them.')
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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


def load_arguments(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments that a function, named `module:function`, returns."""
    return arguments_of(load_object(name)())


def positions(text: str) -> tuple[int, ...]:
    """Positions from a command line: "0,2" is (0, 2)."""
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise ValueError(
            f'`--argnums` must be positions, as in "0" or "0,2"; got {text!r}'
        ) from None


def reserved_bytes(text: str) -> int:
    """Bytes from a command line; no share, and nothing that depends on a target."""
    from ..compiler.budget import parse_budget  # the package imports JAX

    if text == "0":
        return 0
    parsed = parse_budget_option(text)
    if isinstance(parsed, float) or parsed == "auto":
        raise ValueError(f'`--reserved` must be bytes or an amount such as "2GiB"; got {text!r}')
    return parse_budget(parsed, unplanned_bytes=lambda: 0, target_memory=lambda: 0)


def operators_of(text: str) -> str | list[str]:
    """Residual operators: "exact", "lossy", "none", or names with commas between them."""
    from ..operators import SELECTIONS  # the package imports JAX

    return text if text in SELECTIONS else text.split(",")


def reserved_for(text: str) -> Any:
    """Bytes, or the optimizer that `module:optimizer` names, whose state counts."""
    return load_object(text) if ":" in text else reserved_bytes(text)


@contextlib.contextmanager
def exit_codes(failed: int = FAILED) -> Iterator[None]:
    """Turns the errors that a user can act on into a message and an exit code.

    Args:
      failed: the code of all errors but an infeasible budget, whose code is 2.
    """
    try:
        yield
    except (ValueError, TypeError, ImportError, AttributeError, OSError, RuntimeError) as error:
        minimum = getattr(error, "minimum_budget", None)  # only InfeasibleBudget has it
        print(f"error: {error}", file=sys.stderr)
        if minimum is not None:
            print(f"minimum budget: {minimum}", file=sys.stderr)
        raise typer.Exit(failed if minimum is None else INFEASIBLE) from error
