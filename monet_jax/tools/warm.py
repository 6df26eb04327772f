"""Plans for several shapes ahead of time, so that a job finds them on the disk."""

from collections.abc import Callable, Iterable
from typing import Any

from .._api import plan
from ..planning.progress import progress
from .arguments import arguments_of


def warm(fun: Callable[..., Any], calls: Iterable[Any], **options: Any) -> list[Any]:
    """Plan a function or a step for several sets of arguments; a later call compiles no plan.

    Plans lie in the cache on the disk, for this process and for others with the same program, JAX
    and target. Nothing is run, and shapes (`jax.ShapeDtypeStruct`) will do for arrays.

        monet_jax.warm(step, [(params, state, batch_of(rows)) for rows in (128, 64)])

    Arguments:
        fun: a step of `monet_jax.jit`, a function of `monet_jax.remat`, or a function with the
            options of a plan.
        calls: the arguments of each call: a tuple of them, or `(args, kwargs)`. A budget that is a
            share is a share of the largest program so far: give the largest shapes first.
        **options: of `plan`, where `fun` has none of its own.

    Returns:
        The plans, in the order of the calls.

    Raises:
        TypeError, ValueError, InfeasibleBudget, TargetUnavailable: as `plan` does.
    """
    calls = [*calls]
    if wrong := [call for call in calls if not isinstance(call, tuple)]:
        raise TypeError(
            "each of `calls` must be a tuple of arguments, or (args, kwargs); got a "
            f"{type(wrong[0]).__name__}"
        )
    with progress():
        return [
            plan(fun, *args, kwargs=kwargs, **options) for args, kwargs in map(arguments_of, calls)
        ]
