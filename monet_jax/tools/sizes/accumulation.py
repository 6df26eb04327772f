"""Gradient accumulation: the micro-batch with which a step for a whole batch takes least seconds.

A larger micro-batch needs fewer accumulation steps, each of which reads all parameters and adds up
all gradients; but it may have to recompute more. A planned step is taken not to be faster than the
same step as written, so pairs are tried by the seconds of these until no other can be the best.
"""

import bisect
import dataclasses
import functools

from ...compiler.budget import format_bytes
from ...planning.failures import InfeasibleBudget
from ...planning.progress import progress
from ...step.step_plan import StepPlan
from .accumulation_result import AccumulatedFit, AccumulatedSize
from .probes import StepProbe
from .sized import Sized

#: The keyword by which the number of accumulation steps is handed to the user's function.
STEPS = "accumulation_steps"


def accumulated(sized: Sized, total: int, unit: int, limit: int) -> AccumulatedFit:
    """The pair of least seconds, of those that fit as planned.

    Arguments:
        sized: the step, by its micro-batch and its accumulation steps.
        total: the size of all micro-batches together.
        unit: micro-batches are multiples of it.
        limit: the largest micro-batch.

    Raises:
        ValueError: no micro-batch divides the whole batch.
        InfeasibleBudget: not even the smallest micro-batch fits.
    """
    sizes = _sizes(total, unit, limit)
    with progress() as say:
        search = _Search(sized, total)
        say("tracing")
        # Of two sizes the smaller one needs less.
        fits = sizes[: bisect.bisect(sizes, False, key=lambda size: not search.fits(size))]
        if not fits:
            raise _nothing_fits(search, sizes[0])
        for size in sorted(fits, key=lambda n: (search.probe(n).plain_seconds, -n)):
            say(f"planning {total // size} x {size}")
            search.consider(size)
    best, plan = search.best
    pairs = tuple(search.pair(size, size in fits) for size in reversed(sizes))
    return AccumulatedFit(
        sized.keywords[0],
        total,
        search.pair(best, True),
        pairs,
        plan,
        sized.budget_bytes,
        sized.target.name,
    )


@dataclasses.dataclass
class _Search:
    """The pairs of one batch.

    Attributes:
        sized: the step.
        total: the size of all micro-batches together.
        least: micro-batch -> the least bytes that were found.
        made: micro-batch -> its plan, and the seconds of the step as planned.
    """

    sized: Sized
    total: int
    least: dict[int, int] = dataclasses.field(default_factory=dict)
    made: dict[int, tuple[StepPlan, float]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.probe = functools.cache(self._probe)

    @property
    def best(self) -> tuple[int, StepPlan]:
        """The micro-batch of least seconds, and its plan."""
        size = min(self.made, key=lambda n: (self.made[n][1], -n))
        return size, self.made[size][0]

    def fits(self, size: int) -> bool:
        """Whether a micro-batch fits as planned."""
        probe, budget = self.probe(size), self.sized.budget_bytes
        small = probe.small_bytes()
        self.least[size] = small if small <= budget else probe.least_bytes(budget)
        return self.least[size] <= budget

    def consider(self, size: int) -> None:
        """Plan a micro-batch that fits, unless another one is faster than it is as written."""
        probe = self.probe(size)
        if self.made and probe.plain_seconds >= self.made[self.best[0]][1]:
            return
        plan = probe.plan(self.sized.budget_bytes)
        self.made[size] = plan, probe.seconds(plan)

    def pair(self, size: int, fits: bool) -> AccumulatedSize:
        """What is known of a micro-batch."""
        probe, (plan, seconds) = self.probe(size), self.made.get(size, (None, None))
        planned_bytes = plan.compiled_bytes if plan else self.least.get(size)
        plain_bytes = None if planned_bytes is None else probe.plain_bytes
        sizes = size, self.total // size
        return AccumulatedSize(
            *sizes, plain_bytes, planned_bytes, probe.plain_seconds, seconds, fits
        )

    def _probe(self, size: int) -> StepProbe:
        return self.sized.step_probe(size, self.total // size)


def _sizes(total: int, unit: int, limit: int) -> list[int]:
    """The micro-batches that divide a whole batch, the smallest first."""
    if isinstance(total, bool) or not isinstance(total, int) or total < 1:
        raise ValueError(f"`accumulate` must be the size of the whole batch; got {total!r}.")
    found = [n for n in range(unit, min(total, limit) + 1, unit) if total % n == 0]
    if not found:
        raise ValueError(
            f"No multiple of {unit} up to {limit} divides `accumulate`, which is {total}: change "
            "`step`, `limit` or the batch."
        )
    return found


def _nothing_fits(search: _Search, size: int) -> InfeasibleBudget:
    least = search.least[size]
    return InfeasibleBudget(
        f"No plan fits in {format_bytes(search.sized.budget_bytes)} with micro-batches of {size}; "
        f"the smallest one found takes {format_bytes(least)}. Raise `budget` to {least:_} bytes.",
        least,
    )
