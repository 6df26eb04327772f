"""A function, or a step, whose arguments have a size."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ...compiler.targets import Target, resolve_target
from ...planning.judge import compiled_plans_of
from ...planning.mistakes import refuse, refuse_reserved
from ...planning.options import PlanOptions
from ...planning.plan_search import PlanSearch
from ...planning.progress import say
from ...planning.reserved import reserved_bytes
from ...step.jit import PlannedStep
from ...step.questions import StepNow
from ...tracing.marked import name_of
from ...tracing.modules import on_arrays
from ..arguments import arguments_of
from .probes import FunctionProbe, StepProbe


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
        axis = self.keywords[0]
        cap = self.options.cap(announce=lambda text: say(f"{axis} {size}: {text}"))
        plans = compiled_plans_of(traced, self.target, self.options.pinned, cap=cap)
        return FunctionProbe(PlanSearch(plans, self.options.region_planner), reserved)

    def step_probe(self, *sizes: int) -> StepProbe:
        """The step with some sizes; nothing is compiled yet."""
        args, kwargs = self._arguments(sizes)
        return StepProbe(StepNow.of(self.fun, args, kwargs, self.options.target))

    def _arguments(self, sizes: tuple[int, ...]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return arguments_of(self.make_args(**dict(zip(self.keywords, sizes, strict=True))))
