"""Parses the words of a command line, and checks where its files are to be written."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..tools.arguments import arguments_of

Function = Annotated[
    str, typer.Argument(metavar="FUNCTION", help="`module:function`, differentiated; or a step.")
]
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
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", help="`name=save` or `name=recompute`, of a value, module or name; repeatable."
    ),
]
TimeLimit = Annotated[float | None, typer.Option(help="Seconds for the solver, per plan.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Seconds for all of planning.")]
Host = Annotated[
    str,
    typer.Option(
        help='What may live on the host: "never"; "activations", "states", "parameters", or some '
        'with commas between them; or "auto".'
    ),
]
HostBudget = Annotated[
    str | None,
    typer.Option(help='Of the host\'s memory: bytes or "64GiB"; default: what is pinned.'),
]
HostBandwidth = Annotated[
    str | None,
    typer.Option(help='Of the link, in bytes a second: "55e9", or out and back, "170e9,411e9".'),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor store plans.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load_object(name: str) -> Any:
    """The object that `module:attribute` names; modules in the current directory are found.

    Raises:
      ValueError: the name has another form, or there is nothing of that name.
      Exception: whatever the module itself raises.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"need `module:function`, as in `train:loss`; got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # of an import inside the module
            raise
        raise ValueError(
            f"there is no module {module!r} in `{os.getcwd()}` or among the installed ones"
        ) from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"the module `{module}` has no `{path}`")
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


def parse_pins(words: Sequence[str] | None) -> dict[str, str] | None:
    """Pins from a command line: "attention=save" is a decision for what has that name."""
    pins = {}
    for word in words or ():
        name, found, decision = word.rpartition("=")
        if not found or not name or decision not in ("save", "recompute"):
            raise ValueError(f"`--pin` must be `name=save` or `name=recompute`; got {word!r}")
        pins[name] = decision
    return pins or None


def check_writable(*paths: Path | None) -> None:
    """Check that files can be written, before anything takes long.

    Raises:
        ValueError: a path is a directory, or its directory is missing or cannot be written.
    """
    for path in filter(None, paths):
        folder = path.absolute().parent
        if path.is_dir():
            raise ValueError(f"`{path}` is a directory; name a file in it")
        if not folder.is_dir():
            raise ValueError(f"`{path}` cannot be written: there is no directory `{folder}`")
        if not os.access(folder, os.W_OK):
            raise ValueError(f"`{path}` cannot be written: no permission to write in `{folder}`")


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


def host_kinds(text: str) -> str | tuple[str, ...]:
    """The option `host` from a command line: a word, or some with commas between them."""
    return tuple(text.split(",")) if "," in text else text


def host_budget_of(text: str | None) -> int | str | None:
    """The option `host_budget` from a command line: digits are bytes."""
    return int(text) if text is not None and text.isdecimal() else text


def bandwidth_of(text: str | None) -> tuple[float, ...] | None:
    """The option `host_bandwidth` from a command line: one number for both ways, or two.

    Raises:
        ValueError: it is something else.
    """
    if text is None:
        return None
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if len(found) not in (1, 2):
        raise ValueError(
            '`--host-bandwidth` must be bytes a second, as in "55e9" or "170e9,411e9"; got '
            f"{text!r}"
        )
    return found if len(found) == 2 else found * 2


def reserved_bytes(text: str) -> int:
    """Bytes from a command line; no share, and nothing that depends on a target."""
    from ..compiler.budget import parse_bytes  # the package imports JAX

    if text == "0":
        return 0
    try:
        return parse_bytes(parse_budget_option(text))
    except ValueError:
        raise ValueError(
            f'`--reserved` must be bytes, an amount such as "2GiB", or `module:optimizer`; got '
            f"{text!r}"
        ) from None


def operators_of(text: str) -> str | list[str]:
    """Residual operators: "exact", "lossy", "none", or names with commas between them."""
    from ..operators import SELECTIONS  # the package imports JAX

    return text if text in SELECTIONS else text.split(",")


def reserved_for(text: str) -> Any:
    """Bytes, or the optimizer that `module:optimizer` names, whose state counts."""
    return load_object(text) if ":" in text else reserved_bytes(text)
