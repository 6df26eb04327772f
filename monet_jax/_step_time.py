"""Times steps on this process's device: as the function is, and as a plan says, in turns."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .compiler.targets import default_device
from .planning.step import step_on
from .plans.record import PlanRecord
from .report.figures import format_seconds
from .seconds.clock import Ratio, Timing, in_turns, ratio
from .seconds.running import made_up
from .tracing.modules import Given, on_arrays
from .tracing.trace import trace
from .tracing.traced import Terms
from .transformer.apply import as_planned


@dataclasses.dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step, read from a clock.

    Attributes:
        plain: of the value and gradient of the function as it is.
        planned: of the same as planned.
        device: what they ran on.
    """

    plain: Timing
    planned: Timing
    device: str

    @property
    def ratio(self) -> Ratio:
        """Planned over plain, turn by turn."""
        return ratio(self.planned, self.plain)

    def __str__(self) -> str:
        found = self.ratio
        beyond = "slower" if found.is_slower else "faster" if found.is_faster else "no slower"
        return (
            f"By the clock on {self.device}: {format_seconds(self.planned.seconds)} a step as "
            f"planned, {format_seconds(self.plain.seconds)} as it is, medians of "
            f"{len(self.plain.runs)} turns; {found} of the plain step: {beyond} beyond the "
            "interval of 95 %."
        )


def step_seconds(
    plan: PlanRecord,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    given: Given,
    turns: int,
) -> StepSeconds:
    """Times a function's value and gradient, as it is and as planned.

    Raises:
        PlanMismatch: the plan was made for another function or other arguments.
        ValueError: too few turns.
    """
    if turns < 2:
        raise ValueError(f"`turns` must be 2 or more, as the first is not counted; got {turns!r}.")
    pure, call = on_arrays(fun, args, kwargs, given)
    shapes = jax.ShapeDtypeStruct
    leaves = [made_up(x) if isinstance(x, shapes) else x for x in call.leaves]
    terms = Terms(plan.operators, plan.checkpoints)
    traced = trace(pure, call, terms, plan.target, plan.devices)
    pairs = (traced, traced.flat), as_planned(traced, plan)
    runs = [step_on(some, function, lambda: leaves) for some, function in pairs]
    plain, timing = in_turns(runs, turns)
    return StepSeconds(plain, timing, default_device().device_kind)
