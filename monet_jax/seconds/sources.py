"""The source that prices the ops of a target: the clock, the compiler, or a roofline."""

import functools
import warnings
from collections.abc import Sequence

import jax

from ..compiler.estimates import Estimate
from ..compiler.options import estimates_seconds
from ..compiler.targets import Target, compiler_version, resolve_target
from ..ir import compat
from .attained import modelled, roofline_of
from .compiled import ByCompiler
from .prices import Prices

#: What seconds may come from, by the option `costs`: never from the clock, so that plans are the
#: same on every machine; or from the clock, where the target is this process's device.
COSTS = ("model", "measured")
#: The option `verify` under which compiled plans are run, and the fastest is taken.
BY_CLOCK = "time"


def check_costs(costs: object) -> None:
    """Check the option `costs`.

    Raises:
        ValueError: it is none of `COSTS`.
    """
    if costs not in COSTS:
        raise ValueError(f'`costs` must be "model" or "measured"; got {costs!r}.')


def check_verify(verify: object, target: str | None) -> None:
    """Check the option `verify`.

    Raises:
        ValueError: it is neither a truth value nor "time", or nothing can be timed on the target.
    """
    if not isinstance(verify, bool) and verify != BY_CLOCK:
        raise ValueError(f'`verify` must be True, False or "time"; got {verify!r}.')
    if verify != BY_CLOCK:
        return
    if target is not None and not resolve_target(target).attached:
        raise ValueError(
            f'`verify="time"` runs compiled plans, and {target} is not attached: need this '
            "process's own device. Leave `target` out, or `verify`."
        )
    if jax.process_count() > 1:
        raise ValueError(
            f'`verify="time"` runs compiled plans in one process; got a job of '
            f"{jax.process_count()}. Leave it out: compiled bytes are verified."
        )


def measures(target: Target, costs: str) -> bool:
    """Whether ops are timed: the target is one device that this process has."""
    return costs == "measured" and target.attached and jax.process_count() == 1


def prices_of(target: Target, estimates: Sequence[Estimate] | None) -> Prices:
    """What ops take on a target, by its compiler or by a roofline.

    Arguments:
        target: the target.
        estimates: the compiler's, of the unplanned program; None where it has not been compiled.
    """
    if estimates:
        return ByCompiler(estimates, roofline_of(target))
    if estimates is not None and estimates_seconds(target):
        _warn_of_format(compiler_version(target))
    return modelled(target)


@functools.cache
def _warn_of_format(version: str) -> None:
    """Warn, once for a version of a compiler, that its text cannot be read."""
    warnings.warn(
        f"The compiled text of {version} carries no estimate of seconds that monet_jax can read; "
        "a roofline is used. Bytes are not affected. JAX 0.12.0 is known to write estimates.",
        skip_file_prefixes=compat.INTERNAL,
    )
