"""The largest batch, or longest sequence, with which a step fits a budget: planned, and as written.

Compiled bytes are nearly linear in such a size, so two programs say where to look. The size that is
found, and the next one up, are then confirmed by their own compiled bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

from .._plan import Plan
from ..compiler.budget import format_bytes
from ..planning.failures import InfeasibleBudget
from ..planning.options import PlanOptions
from ..planning.progress import progress
from ..planning.reserved import Optimizer
from ..step.jit import PlannedStep
from ..step.questions import step_options
from ..step.step_plan import StepPlan
from .fit_result import Fit, FitSize
from .sizes.accumulation import STEPS, accumulated
from .sizes.accumulation_result import AccumulatedFit
from .sizes.largest import ends, largest, undecided
from .sizes.probes import Probe
from .sizes.sized import Sized


@overload
def fit(
    fun: Callable[..., Any],
    make_args: Callable[..., Any],
    *,
    accumulate: None = None,
    **options: Any,
) -> Fit:
    """The largest size that fits."""


@overload
def fit(
    fun: Callable[..., Any], make_args: Callable[..., Any], *, accumulate: int, **options: Any
) -> AccumulatedFit:
    """The fastest micro-batch that fits."""


def fit(  # pyright: ignore[reportInconsistentOverload]: the options are those below
    fun: Callable[..., Any],
    make_args: Callable[..., Any],
    *,
    axis: str = "batch",
    budget: int | str | None = None,
    accumulate: int | None = None,
    target: str | None = None,
    reserved: int | str | Optimizer = 0,
    step: int = 1,
    limit: int = 1 << 20,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    time_limit: float | None = None,
) -> Fit | AccumulatedFit:
    """The largest size of an axis with which a planned step fits a budget.

    Sizes are taken to need more the larger they are: of larger ones only the next is looked at.

    With `accumulate` it is the fastest way to take one step for so large a batch: the pair of a
    micro-batch and a number of accumulation steps, whose product is `accumulate`, with the least
    roofline seconds of those that fit as planned.

    Arguments:
        fun: the function; or a step that `monet_jax.jit` made, whose own options say what is
            planned.
        make_args: called with the size by keyword, `make_args(batch=8)` for the axis "batch"; it
            returns a tuple of arguments, or `(args, kwargs)`. `jax.ShapeDtypeStruct`s suffice:
            nothing is run. With `accumulate` it is also given `accumulation_steps`, and the
            arguments must tell the step how many these are: by the length of the axis that it
            scans, as in `[accumulation_steps, batch, ...]`, or by a static argument.
        axis: the keyword.
        budget: bytes, an amount such as "12GiB", or "auto"; no share, for the step grows. None is
            the budget of the step that `monet_jax.jit` made.
        accumulate: the size that all accumulation steps have together (the global batch); only for
            a step that `monet_jax.jit` made.
        target: what to compile for, as in `remat`.
        reserved: bytes of the budget for what lives outside; or an optimizer, for the bytes of its
            state, as in `remat`, with the smallest size.
        step: sizes are multiples of it.
        limit: the largest size to consider.
        argnums, static_argnums, static_argnames, operators, checkpoints, time_limit: as in `remat`,
            and not for steps.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        InfeasibleBudget: not even the smallest size fits.
        TargetUnavailable: the target's compiler is not installed.
    """
    options = PlanOptions(
        budget="auto" if budget is None else budget,
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=operators,
        checkpoints=checkpoints,
        reserved=reserved,
        time_limit=time_limit,
    )
    _check_sizes(step, limit)
    if isinstance(fun, PlannedStep):
        options = step_options(fun, budget, options)
    elif budget is None:
        raise TypeError('`fit` of a function needs a budget: bytes, an amount, or "auto".')
    if accumulate is None:
        return _fitted(Sized(fun, make_args, (axis,), options), step, limit)
    if not isinstance(fun, PlannedStep):
        raise TypeError(
            "`accumulate` is about a step of `monet_jax.jit` that adds up the gradients of its "
            f"micro-batches; got {fun!r}."
        )
    return accumulated(Sized(fun, make_args, (axis, STEPS), options), accumulate, step, limit)


def _fitted(sized: Sized, unit: int, limit: int) -> Fit:
    """The largest size of a step, of the multiples of `unit` up to `limit`."""
    reserved, count = sized.reserved_bytes(unit), limit // unit
    with progress() as say:
        probes = _Probes(sized, sized.budget_bytes - reserved, reserved, say)
        planned, above = _largest_planned(probes, count, unit)
        if planned is None:
            raise _nothing_fits(sized, unit, probes)
        known = {n: probes.plain(n) for n in sorted(probes.found)[:2]}
        plain, plain_above = largest(probes.plain, probes.limit_bytes, count, unit, known)
        plan = probes.plan(planned)
    assert plan.compiled_bytes is not None  # the search verifies every plan
    return Fit(
        sized.keywords[0],
        FitSize(planned, plan.compiled_bytes),
        _size(above, lambda size: probes.planned[size]),
        _size(plain, probes.plain),
        _size(plain_above, probes.plain),
        plan,
        sized.budget_bytes,
        reserved,
        sized.target.name,
        count * unit,
    )


def _size(size: int | None, need: Callable[[int], int]) -> FitSize | None:
    return None if size is None else FitSize(size, need(size))


def _largest_planned(probes: "_Probes", count: int, unit: int) -> tuple[int | None, int | None]:
    """The largest size that fits as planned, and the next one, as in `largest`.

    Sizes are tried with one small plan each. At the first one that does not fit with it, small
    plans are searched for; the smallest is the small plan of other sizes from then on. Where the
    next size does not fit with that, a search there says whether it does with another.
    """
    limit, found = probes.limit_bytes, dict[int, int]()
    while True:
        while (n := undecided(found, limit, count)) is not None:
            found[n] = probes.small(n * unit)
            if found[n] <= limit or not probes.has_to_learn:
                continue
            found[n] = probes.least(n * unit)
            found = {n: found[n] for n in (min(found), n)}  # others took plans that are larger
        low, high = ends(found, limit)
        if high is None or probes.least(high * unit) > limit:
            return low * unit or None, high and high * unit
        found = {n: probes.planned[n * unit] for n in (min(found), high)}


class _Probes:
    """The bytes of a step at each size that was tried.

    Arguments:
        sized: the step.
        limit_bytes: bytes that it may take.
        reserved: bytes of the budget for other things.
        say: shows the progress.

    Attributes:
        found: size -> its programs.
        planned: size -> compiled bytes of the smallest program so far.
    """

    def __init__(self, sized: Sized, limit_bytes: int, reserved: int, say: Callable[[str], None]):
        self.sized, self.limit_bytes, self.reserved, self.say = sized, limit_bytes, reserved, say
        self.found: dict[int, Probe] = {}
        self.planned: dict[int, int] = {}
        self._like: Probe | None = None
        self._searched: set[int] = set()

    def plain(self, size: int) -> int:
        """Compiled bytes of the step as it is written."""
        return self._at(size).plain_bytes

    def plan(self, size: int) -> Plan | StepPlan:
        """The plan for a size that fits."""
        return self._at(size).plan(self.limit_bytes)

    def small(self, size: int) -> int:
        """Compiled bytes of a small plan; it is not searched for."""
        self.planned[size] = self._at(size).small_bytes(self._like)
        return self.planned[size]

    @property
    def has_to_learn(self) -> bool:
        """Whether small plans are still to be searched for, at some size."""
        return self._like is None and not isinstance(self.sized.fun, PlannedStep)

    def least(self, size: int) -> int:
        """Compiled bytes of the smallest plan that a search finds, or of one that fits."""
        if size not in self._searched:
            probe = self._at(size)
            self.planned[size] = probe.least_bytes(self.limit_bytes, self._like)
            self._searched.add(size)
            self._like = probe
        return self.planned[size]

    def _at(self, size: int) -> Probe:
        self.say(f"{self.sized.keywords[0]} {size}")
        if size not in self.found:
            is_step = isinstance(self.sized.fun, PlannedStep)
            made = self.sized.step_probe if is_step else self._function_probe
            self.found[size] = made(size)
        return self.found[size]

    def _function_probe(self, size: int) -> Probe:
        return self.sized.function_probe(self.reserved, size)


def _check_sizes(step: int, limit: int) -> None:
    for name, value in (("step", step), ("limit", limit)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a number of 1 or more; got {value!r}.")
    if limit < step:
        raise ValueError(f"`limit` is {limit}, less than one `step` of {step}.")


def _nothing_fits(sized: Sized, size: int, probes: _Probes) -> InfeasibleBudget:
    least = probes.planned[size] + probes.reserved
    return InfeasibleBudget(
        f"No plan fits in {format_bytes(sized.budget_bytes)} with `{sized.keywords[0]}={size}`; "
        f"the smallest one found takes {format_bytes(least)}, of which "
        f"{format_bytes(probes.reserved)} are reserved. Raise `budget` to {least:_} bytes.",
        least,
    )
