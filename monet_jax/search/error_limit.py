"""Which plan keeps a limit of the gradient's error?

What codes do one by one (`gradient_error`) adds up roughly. So a plan is made for a sum of it,
measured as a whole, and made anew where that is more than it may be, or much less.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..operators import selected
from ..plans.record import PlanRecord
from ..tracing.signature import Call, abstract_leaf
from ..tracing.trace import Terms
from .failures import InfeasibleBudget
from .gradient_error import ErrorBound, Errors

#: Of the error that is asked for what may be measured: on other data it is larger. On one sample,
#: which tells nothing of how it differs between batches and grows in training, and on several.
OF_ONE, OF_SEVERAL = 0.7, 0.8
#: Of that what the errors of codes, one by one, may add up to at first: they do so roughly.
AIM = 6 / 7
#: A plan that brings in less than the first share of what is asked for, and takes more than the
#: second of the step's time, is made anew with more: together, codes may do less than one by one,
#: or only the next ones be of use.
LITTLE, FAST = 0.5, 0.005
#: How much of what it may add up to a modelled error takes that was in the way.
BLOCKING = 0.8
#: How often a plan is made anew whose measured error is more, or less, than it may be.
ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class ErrorLimit:
    """What a user allows.

    Attributes:
        error: the relative error of the gradient.
        samples: arguments on which it is measured, flat, once or more.
    """

    error: float
    samples: tuple[tuple[Any, ...], ...]

    @property
    def measured(self) -> float:
        """What may be measured on the samples, so that it is kept on other data."""
        return self.error * (OF_SEVERAL if len(self.samples) > 1 else OF_ONE)


def samples_of(args: Sequence[Any], sample: Sequence[Any] | None) -> list[Sequence[Any]]:
    """What is given as a sample, one after the other: a list of tuples is several."""
    if sample and isinstance(sample, list) and all(isinstance(x, tuple) for x in sample):
        return sample
    return [args if sample is None else sample]


def limit_of(error: float, terms: Terms, call: Call, samples: Sequence[Call]) -> ErrorLimit:
    """The limit that the arguments of `plan` mean.

    Raises:
        ValueError: they mean none, nothing is lossy, or a sample is not one of such a call.
    """
    if not 0 < error < 1:
        raise ValueError(f"`error` must be between 0 and 1; got {error!r}.")
    if not any(x.kind.is_lossy for x in selected(terms.operators)):
        raise ValueError('`error` is about lossy operators; give `operators="lossy"` as well.')
    wanted, *given = (
        [(x.shape, x.dtype) for x in map(abstract_leaf, some.leaves)] for some in (call, *samples)
    )
    if any(shapes != wanted for shapes in given):
        raise ValueError(
            "`sample` must be a tuple of arguments of the same shapes and dtypes as `args`, or a "
            "list of such tuples."
        )
    if any(isinstance(x, jax.ShapeDtypeStruct) for sample in samples for x in sample.leaves):
        raise ValueError("`error` is measured on arrays: give some as `sample`.")
    return ErrorLimit(float(error), tuple(tuple(sample.leaves) for sample in samples))


def plan_within(
    limit: ErrorLimit, errors: Errors, find_plan: Callable[[ErrorBound], PlanRecord]
) -> PlanRecord:
    """The plan whose gradient is as right as a limit asks for, as measured on its samples.

    It is no slower than the one without lossy codes, or takes next to nothing.

    Arguments:
        limit: the limit.
        errors: measures them.
        find_plan: the plan for a bound of the modelled errors.

    Raises:
        InfeasibleBudget: for every bound there is none; that of the least minimum.
    """
    of_codes, best, most = errors.of_codes(), None, (AIM * limit.measured) ** 2
    refused: list[InfeasibleBudget] = []

    def settled(most: float) -> PlanRecord | None:
        try:
            return find_plan(ErrorBound(of_codes, most))
        except InfeasibleBudget as error:
            refused.append(error)
            return None

    for _ in range(ROUNDS):
        made = settled(most)
        if made is None:
            break
        regions = made.decisions.regions if made.decisions else ()
        error = errors.of_plan(regions) if made.decisions else 0.0
        is_right = error <= limit.measured
        # A higher bound allows what a lower one does, but its search may find less.
        if is_right and (best is None or made.overhead < best.overhead):
            best = dataclasses.replace(made, error=error, error_limit=limit.error)
        is_enough = error >= LITTLE * limit.error or made.overhead <= FAST
        if is_enough if is_right else best is not None:
            break
        modelled = errors.modelled(regions, ErrorBound(of_codes, most))
        wanted = _next_bound(limit, error, most, modelled)
        if is_right and wanted <= most:
            break
        most = wanted
    if best is None or best.overhead > FAST:
        # Among fewer plans a search may find a faster one.
        made = settled(0.0)
        if made is not None and (best is None or made.overhead < best.overhead):
            best = dataclasses.replace(made, error=0.0, error_limit=limit.error)
    if best is None:
        raise min(refused, key=lambda x: x.minimum_budget)
    return best


def _next_bound(limit: ErrorLimit, error: float, most: float, modelled: float) -> float:
    """What errors of a plan may add up to next.

    Arguments:
        limit: the limit.
        error: of the last plan, as measured.
        most: what its errors could add up to.
        modelled: what they do.
    """
    is_blocking = error > 0 and modelled >= BLOCKING * most
    if error > limit.measured or is_blocking:
        return most * (AIM * limit.measured / error) ** 2
    return limit.measured**2
