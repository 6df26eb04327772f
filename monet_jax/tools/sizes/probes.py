"""The programs of a function, or of a step, at one size of its arguments, and their bytes."""

import abc
import dataclasses
import functools
from typing import Self

from ..._plan import Plan
from ...candidates.programs import smallest_compiled
from ...compiler.waiting import meanwhile
from ...planning.failures import InfeasibleBudget
from ...planning.plan_search import PlanSearch
from ...step.questions import StepNow
from ...step.step_plan import StepPlan
from .small import begin_small, compile_like, compile_within


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
    def small_bytes(self, like: Self | None = None) -> int:
        """Compiled bytes of a small program; no search is made for it.

        Arguments:
            like: another size, where small programs were searched for.
        """

    @abc.abstractmethod
    def least_bytes(self, limit_bytes: int, like: Self | None = None) -> int:
        """Compiled bytes of the smallest program that is found, or of one that fits.

        Arguments:
            limit_bytes: bytes that fit.
            like: another size, where small programs were searched for.
        """


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

    def small_bytes(self, like: Self | None = None) -> int:
        """Compiled bytes of the plan that is the smallest at another size, or saves little."""
        self.search.comparable(lambda: self._compile_small(like))
        return self._known_bytes()

    def least_bytes(self, limit_bytes: int, like: Self | None = None) -> int:
        """Compiled bytes of the smallest program that is found, or of one that fits."""
        temps = limit_bytes - self.search.compiled_plans.fixed_bytes
        known = like is not None
        self.search.comparable(lambda: compile_within(self.search.programs, temps, known))
        return self._known_bytes()

    def _compile_small(self, like: Self | None) -> None:
        plans, known = self.search.compiled_plans, like and smallest_compiled(like.search.programs)
        with meanwhile(begin_small(plans, known and known[1].key)):  # both programs are needed
            _ = plans.unplanned
        if known is None or not compile_like(self.search.programs, *known):
            plans.of(plans.calibration_plan)

    def _known_bytes(self) -> int:
        """Compiled bytes of the smallest program so far."""
        found = smallest_compiled(self.search.programs)
        if found is None:
            return self.plain_bytes
        plans, plan = found
        return min(self.plain_bytes, plans.fixed_bytes + plans.temp_bytes(plan))


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

    def small_bytes(self, like: Self | None = None) -> int:
        """Compiled bytes of the step as it is, or where one mark saves little."""
        return min(self.plain_bytes, self.now.search.small_bytes() or self.plain_bytes)

    def least_bytes(self, limit_bytes: int, like: Self | None = None) -> int:
        """Compiled bytes of a plan for some bytes, or the least that its search has found."""
        try:
            return self.plan(limit_bytes).compiled_bytes or limit_bytes
        except InfeasibleBudget as error:
            return error.minimum_budget
