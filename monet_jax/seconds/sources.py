"""The options that say where seconds come from: a roofline or the clock."""

import jax

from ..compiler.targets import Target, resolve_target

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
