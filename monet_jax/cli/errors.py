"""Turns errors into messages and exit codes, with the user's own frames where their code raised."""

import contextlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator

import typer

import monet_jax
import planners

#: Exit codes: an error; the command line is wrong (Click's own); the budget is infeasible.
FAILED, WRONG_USE, INFEASIBLE = 1, 2, 3
#: What the commands and the library raise about what they were given.
_STATED = (ValueError, TypeError, ImportError, AttributeError, OSError, RuntimeError)
#: Where our two packages are.
_OURS = tuple(os.path.dirname(str(x.__file__)) + os.sep for x in (monet_jax, planners))
#: Set by `--traceback`, anywhere on the command line.
TRACEBACK = "MONET_JAX_TRACEBACK"


@contextlib.contextmanager
def exit_codes(failed: int = FAILED) -> Iterator[None]:
    """Turns errors into a message and an exit code.

    An error of the user's code is shown with its frames in that code, as JAX shows it; one of ours
    that no message was written for has its whole traceback.

    Args:
      failed: the code of all errors but an infeasible budget.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (typer.Exit, KeyboardInterrupt):
        raise
    except Exception as error:
        frames = _frames_of_user(error)
        if os.environ.get(TRACEBACK) or not (frames or isinstance(error, _STATED)):
            traceback.print_exception(error)
            raise typer.Exit(failed) from error
        print("".join(frames), end="", file=sys.stderr)
        kind = f"{type(error).__name__}: " if frames else ""
        print(f"error: {kind}{error}", file=sys.stderr)
        if frames:
            print("`--traceback` shows all frames.", file=sys.stderr)
        minimum = getattr(error, "minimum_budget", None)  # only InfeasibleBudget has it
        if minimum is not None:
            print(f"minimum budget: {minimum}", file=sys.stderr)
        raise typer.Exit(failed if minimum is None else INFEASIBLE) from error


def _frames_of_user(error: Exception) -> list[str]:
    """The lines of the frames that are neither ours nor a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    return traceback.format_list([x for x in frames if _is_of_user(x.filename)])


def _is_of_user(file: str) -> bool:
    is_python = file.startswith(("<", sysconfig.get_path("stdlib")))
    return not (is_python or file.startswith(_OURS) or "-packages" in file)
