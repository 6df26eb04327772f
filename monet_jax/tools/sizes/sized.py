"""A function, or a step, at one size of its arguments: its bytes as written, and as planned."""

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..._plan import Plan
from ...compiler.targets import Target, resolve_target
from ...planning.failures import InfeasibleBudget
from ...planning.judge import compiled_plans_of
from ...planning.mistakes import refuse, refuse_reserved
from ...planning.options import PlanOptions
from ...planning.plan_search import PlanSearch
from ...planning.reserved import reserved_bytes
from ...step.jit import PlannedStep
from ...step.questions import StepNow
from ...step.step_plan import StepPlan
from ...tracing.marked import name_of
from ...tracing.modules import on_arrays
from ..arguments import arguments_of


class Probe(abc.ABC):
    """The programs of one size; each is compiled once."""

    @property
    @abc.abstractmethod
    def plain_bytes(self) -> int:
        """Compiled bytes of the program as it is written."""

    @abc.abstractmethod
    def plan(self, limit_bytes: int) -> Plan | StepPlan:
        """The plan for some bytes.

        Raises:
            InfeasibleBudget: none keeps them.
        """

    @abc.abstractmethod
    def least_bytes(self, limit_bytes: int) -> int:
        """Compiled bytes of the smallest known program; one is searched for where none fits."""


@dataclasses.dataclass
class FunctionProbe(Probe):
    """The value and gradient of a function.

    Attributes:
        search: for its plans.
        reserved_bytes: bytes of the budget for other things.
    """

    search: PlanSearch
    reserved_bytes: int

    @property
    def plain_bytes(self) -> int:
        """Compiled bytes of the program as it is written."""
        return self.search.compiled_plans.unplanned.total_bytes

    def plan(self, limit_bytes: int) -> Plan:
        """The plan for some bytes."""
        budget = limit_bytes + self.reserved_bytes
        return Plan.of(self.search.plan(lambda _: budget, self.reserved_bytes))

    def least_bytes(self, limit_bytes: int) -> int:
        """Compiled bytes of the smallest known program; one is searched for where none fits."""
        plans = self.search.compiled_plans
        taken = plans.fixed_bytes + plans.temp_bytes(plans.of(plans.calibration_plan))
        if taken <= limit_bytes:  # the search for the fastest plan is left for later
            return taken
        try:
            found = self.plan(limit_bytes).compiled_bytes
        except InfeasibleBudget as error:
            return error.minimum_budget - self.reserved_bytes
        assert found is not None  # `CompiledPlans` verifies every plan
        return min(found, plans.fixed_bytes + min(map(plans.temp_bytes, plans)))


@dataclasses.dataclass
class StepProbe(Probe):
    """A step that `monet_jax.jit` made.

    Attributes:
        now: the step, traced.
    """

    now: StepNow

    @property
    def plain_bytes(self) -> int:
        """Compiled bytes of the step as it is written."""
        return self.now.search.unplanned().total_bytes

    def plan(self, limit_bytes: int) -> StepPlan:
        """The plan for some bytes."""
        return self.now.planned(limit_bytes)

    def seconds(self, plan: StepPlan | None) -> float:
        """Roofline seconds of the step as planned, or as it is."""
        return self.now.costs(self.now.trace_of(plan)).seconds

    @functools.cached_property
    def plain_seconds(self) -> float:
        """Roofline seconds of the step as it is written."""
        return self.seconds(None)

    def least_bytes(self, limit_bytes: int) -> int:
        """Compiled bytes of the smallest known program; one is searched for where none fits."""
        small = min(self.plain_bytes, self.now.search.small_bytes() or self.plain_bytes)
        if small <= limit_bytes:
            return small
        try:
            return self.plan(limit_bytes).compiled_bytes or limit_bytes
        except InfeasibleBudget as error:
            return error.minimum_budget


@dataclasses.dataclass(frozen=True)
class Sized:
    """A function, or a step, whose arguments have a size.

    Attributes:
        fun: the function, or the step.
        make_args: makes its arguments from sizes.
        keywords: of the sizes.
        options: of its plans; of a step, its own with a budget and a target.
    """

    fun: Callable[..., Any]
    make_args: Callable[..., Any]
    keywords: tuple[str, ...]
    options: PlanOptions

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.make_args).bind(**dict.fromkeys(self.keywords, 1))
        except TypeError as error:
            names = " and ".join(f"`{x}`" for x in self.keywords)
            raise TypeError(
                "The function that makes the arguments must take the size by the keyword "
                f"{names} ({error}); name another axis, or give it that parameter."
            ) from error
        if self.options.is_share:
            raise ValueError(
                f"The budget {self.options.budget!r} is a share of what the step takes, which "
                'grows with the size; give bytes, an amount such as "12GiB", or "auto".'
            )

    @functools.cached_property
    def target(self) -> Target:
        """The target to compile for."""
        return resolve_target(self.options.target)

    @functools.cached_property
    def budget_bytes(self) -> int:
        """The budget, `reserved` included."""
        return self.options.budget_bytes(self.target, lambda: 0)

    def reserved_bytes(self, *sizes: int) -> int:
        """The bytes to reserve; for an optimizer, of its state with the parameters of a size."""
        if isinstance(self.fun, PlannedStep):
            return 0
        flat = on_arrays(self.fun, *self._arguments(sizes), self.options.given)
        found = reserved_bytes(self.options.reserved, flat[1].params)
        refuse_reserved(self.budget_bytes, found)
        return found

    def function_probe(self, reserved: int, size: int) -> FunctionProbe:
        """The function with a size; nothing is compiled yet."""
        traced = self.options.traced(self.fun, *self._arguments((size,)))
        refuse(traced, name_of(self.fun))
        cap = self.options.cap()
        plans = compiled_plans_of(traced, self.target, self.options.pinned, cap=cap)
        return FunctionProbe(PlanSearch(plans, self.options.region_planner), reserved)

    def step_probe(self, *sizes: int) -> StepProbe:
        """The step with some sizes; nothing is compiled yet."""
        args, kwargs = self._arguments(sizes)
        return StepProbe(StepNow.of(self.fun, args, kwargs, self.options.target))

    def _arguments(self, sizes: tuple[int, ...]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return arguments_of(self.make_args(**dict(zip(self.keywords, sizes, strict=True))))
