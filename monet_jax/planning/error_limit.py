"""The search for a plan that keeps a limit on the gradient's error.

The errors of single codes (`gradient_error`) add up roughly. So a plan is made for a bound on their
sum, and its error is measured as a whole. Where that is over the limit, or far below, the bound
changes and another plan is made.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..operators import selected
from ..plans.record import PlanRecord
from ..tracing.signature import Call, abstract_leaf
from ..tracing.traced import Terms
from .failures import InfeasibleBudget
from .gradient_error import ErrorBound, Errors

#: Share of the error limit that may be measured, for the error is larger on other data: on one
#: sample, which does not show how it differs between batches and grows in training; and on several.
OF_ONE, OF_SEVERAL = 0.7, 0.8
#: Share of the measured limit that the errors of single codes may add up to at first.
AIM = 6 / 7
#: A plan with less than the first share of the error limit, and more than the second share of
#: overhead, is made anew with a higher bound: codes may do less together than one by one, or only
#: the next ones may be of use.
LITTLE, FAST = 0.5, 0.005
#: From this share of its bound on, a modelled error counts as having limited the plan.
BLOCKING = 0.8
#: Plans, at most, that are made one after the other for one error limit.
ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class ErrorLimit:
    """A limit on the relative error of the gradient.

    Attributes:
        error: the limit.
        samples: one or more flat lists of arguments, on which the error is measured.
    """

    error: float
    samples: tuple[tuple[Any, ...], ...]

    @property
    def measured(self) -> float:
        """The error that may be measured on the samples, so that other data keep the limit."""
        return self.error * (OF_SEVERAL if len(self.samples) > 1 else OF_ONE)


def samples_of(args: Sequence[Any], sample: Sequence[Any] | None) -> list[Sequence[Any]]:
    """The samples of the argument `sample`: a list of tuples is several."""
    if sample and isinstance(sample, list) and all(isinstance(x, tuple) for x in sample):
        return sample
    return [args if sample is None else sample]


def limit_of(error: float, terms: Terms, call: Call, samples: Sequence[Call]) -> ErrorLimit:
    """The limit for the arguments `error` and `sample` of `plan`.

    Raises:
        ValueError: the error is no share, nothing is lossy, or a sample does not fit the call.
    """
    if not 0 < error < 1:
        raise ValueError(f"`error` must be between 0 and 1; got {error!r}.")
    if not any(x.kind.is_lossy for x in selected(terms.operators)):
        raise ValueError('`error` is about lossy operators; give `operators="lossy"` as well.')
    shapes, *of_samples = (
        [(x.shape, x.dtype) for x in map(abstract_leaf, some.leaves)] for some in (call, *samples)
    )
    if any(found != shapes for found in of_samples):
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
    """The plan whose gradient keeps an error limit, as measured on its samples.

    It is no slower than the plan without lossy codes, or has next to no overhead.

    Arguments:
        limit: the limit.
        errors: of the function's codes.
        find_plan: the plan for a bound on the modelled errors.

    Raises:
        InfeasibleBudget: there is none for any bound; the error with the least minimum.
    """
    of_codes, best, most = errors.of_codes(), None, (AIM * limit.measured) ** 2
    refused: list[InfeasibleBudget] = []

    def plan_of(most: float) -> PlanRecord | None:
        try:
            return find_plan(ErrorBound(of_codes, most))
        except InfeasibleBudget as error:
            refused.append(error)
            return None

    for _ in range(ROUNDS):
        made = plan_of(most)
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
        bound = _next_bound(limit, error, most, modelled)
        if is_right and bound <= most:
            break
        most = bound
    if best is None or best.overhead > FAST:
        # In a smaller space a search may find a faster plan.
        made = plan_of(0.0)
        if made is not None and (best is None or made.overhead < best.overhead):
            best = dataclasses.replace(made, error=0.0, error_limit=limit.error)
    if best is None:
        raise min(refused, key=lambda x: x.minimum_budget)
    return best


def _next_bound(limit: ErrorLimit, error: float, most: float, modelled: float) -> float:
    """The next bound on the sum of a plan's modelled errors.

    Arguments:
        limit: the limit.
        error: of the last plan, as measured.
        most: its bound.
        modelled: the sum of its errors.
    """
    is_blocking = error > 0 and modelled >= BLOCKING * most
    if error > limit.measured or is_blocking:
        return most * (AIM * limit.measured / error) ** 2
    return limit.measured**2
