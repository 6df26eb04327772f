"""The errors of planning: those that are raised, and faults, after which the function runs as is.

Errors about the user's arguments, budget or target are raised. After any other error of planning
the user's own function runs, so that no call is worse than plain JAX. A warning says so once and
asks for a report. Where `MONET_JAX_STRICT` is set, as in the tests, the error is raised instead.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator

import jax

from planners.regions.planner import BadPlanner

from ..compiler.budget import format_bytes
from ..compiler.target_table import Target
from ..compiler.targets import TargetUnavailable, resolve_target
from ..ir import compat

#: Set to anything but "" or "0", this environment variable makes faults of ours errors.
STRICT = "MONET_JAX_STRICT"


class PlanningWarning(UserWarning):
    """A function runs as it is, or on less than full knowledge; the message says why."""

    __module__ = "monet_jax"


class InfeasibleBudget(ValueError):
    """No plan brings the compiled program within the budget.

    Where arguments and results alone exceed the budget, no plan was looked for: then the first
    reading of `minimum_budget` plans and compiles to find it.
    """

    __module__ = "monet_jax"

    def __init__(self, message: str, minimum_budget: int | Callable[[], int]):
        super().__init__(message)
        self._minimum_budget = minimum_budget

    @property
    def minimum_budget(self) -> int:
        """Bytes; planning with it succeeds."""
        if callable(self._minimum_budget):
            self._minimum_budget = self._minimum_budget()
        return self._minimum_budget

    def with_hint(self, hint: str) -> "InfeasibleBudget":
        """The error with another sentence, if there is one."""
        return InfeasibleBudget(f"{self} {hint}", self._minimum_budget) if hint else self

    def __reduce__(self):
        return InfeasibleBudget, (str(self), self.minimum_budget)


class BadArgument(ValueError):
    """An argument that is found to be wrong only while planning."""

    __module__ = "monet_jax"


#: Errors that the user can act on. All others that planning raises are faults of ours.
STATEMENTS = (InfeasibleBudget, TargetUnavailable, BadArgument, BadPlanner, MemoryError)


@contextlib.contextmanager
def statements() -> Iterator[None]:
    """A `ValueError` here is about the user's arguments."""
    try:
        yield
    except ValueError as error:
        raise BadArgument(str(error)) from error


def is_strict() -> bool:
    """Whether faults of ours are errors."""
    return os.environ.get(STRICT, "") not in ("", "0")


def warn(message: str) -> None:
    """Warn, at the user's line that called."""
    warnings.warn(message, PlanningWarning, skip_file_prefixes=compat.INTERNAL)


def target_to_verify(jax_version: str, target: str) -> Target | None:
    """What a stored plan is to be compiled for again; None if it is of this version and device.

    Arguments:
        jax_version, target: those that it was made under.
    """
    here = resolve_target(None)
    found = resolve_target(target) if here.name == "cpu" else here
    return None if (jax_version, target) == (jax.__version__, found.name) else found


def warn_if_outgrown(
    made: str, limit_bytes: int, target: Target, taken_bytes: Callable[[], int]
) -> None:
    """Warn where a stored plan cannot be verified for a target, or takes too much there.

    Arguments:
        made: the plan and where it was made, in words.
        limit_bytes: what it may take.
        target: what it is compiled for again.
        taken_bytes: compiles the program as planned; the bytes that it takes.
    """
    try:
        taken = taken_bytes()
    except (TargetUnavailable, NotImplementedError, RuntimeError) as error:
        warn(f"{made} could not be verified here: {error}")
        return
    if taken > limit_bytes:
        warn(
            f"{made} takes {format_bytes(taken)} as compiled here for {target.name}, more than the "
            f"{format_bytes(limit_bytes)} it was made for. Plan again."
        )


def report(name: str, error: Exception) -> None:
    """Warn that planning a function has failed by a fault of ours.

    Raises:
        Exception: `error`, where such faults are errors.
    """
    if is_strict():
        raise error
    if "which was not functionalized" in str(error):  # by JAX, of a `checkify.check`
        warn(
            f"No plan was made for `{name}`: it has checks of `checkify`. It runs as it is. "
            "Functionalize them inside of what is planned: plan a function that calls "
            "`checkify.checkify(fun)` and returns the error beside the loss."
        )
        return
    warn(
        f"No plan was made for `{name}` ({type(error).__name__}: {error}); it runs as it is, "
        "whatever memory it takes. This is a fault of monet_jax: please report it, with the "
        f"traceback that {STRICT}=1 gives."
    )
