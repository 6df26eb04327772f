"""How `Stages` searches: single stages first, regions of several where those do not do."""

import dataclasses
import functools as ft
import time

from .candidates import Candidates
from .composition import Composition
from .effects import Candidate
from .errors import InfeasibleBudget, SolverStopped
from .graph import Graph
from .plan import Plan, Region
from .replay import replay
from .stages import Stages, certified, save_all, save_nothing

# Solves of one composition before giving up on a model that replay contradicts.
_ROUNDS = 4
# Uniform prices per byte that the heuristic tries.
_HEURISTIC_PRICES = 20
# The share of the time that solving single stages and their composition may take.
_FIRST = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """What one composition had to say: a plan within the budget, or a proof that it has none."""

    regions: tuple[Region, ...] | None
    infeasible: bool
    bound_seconds: float


class Search:
    """One graph's candidates and integer programs, made once for any number of budgets."""

    def __init__(self, graph: Graph, planner: Stages):
        self._graph, self._planner = graph, planner
        self._start = time.monotonic()

    def fastest(self, budget_bytes: int) -> Plan:
        """The fastest plan within the budget; see `Stages`."""
        self._start = time.monotonic()
        everything = save_all(self._graph)
        if everything.peak_bytes <= budget_bytes:
            return self._certified(everything.regions, 0.0)
        first = self._attempt(self._of_singles, budget_bytes, _FIRST)
        if first.regions is not None and self._overhead(first.regions) <= self._planner.gap:
            return self._certified(first.regions, 0.0)
        second = self._attempt(self._of_everything, budget_bytes, 1.0)
        found = [x.regions for x in (first, second) if x.regions is not None]
        if found:
            return self._certified(min(found, key=self._overhead), second.bound_seconds)
        if second.infeasible:
            return self._infeasible(budget_bytes)
        return self._heuristic(budget_bytes)

    def smallest(self) -> Plan:
        """The plan with the least peak, and then least seconds within that peak."""
        self._start = time.monotonic()
        composition = self._of_everything
        outcome = composition.smallest(time_limit=self._at(1.0) - time.monotonic())
        if not outcome.found:
            return save_nothing(self._graph)
        plan = self._certified(composition.regions(), 0.0)
        attempt = self._attempt(composition, plan.peak_bytes, 1.0)
        if attempt.regions is None:
            return plan
        return self._certified(attempt.regions, attempt.bound_seconds)

    @ft.cached_property
    def _candidates(self) -> Candidates:
        return Candidates(
            self._graph, max_options=self._planner.max_options, deadline=self._at(_FIRST)
        )

    @ft.cached_property
    def _singles(self) -> list[Candidate]:
        return [x for some in self._candidates.singles for x in some]

    @ft.cached_property
    def _of_singles(self) -> Composition:
        return Composition(self._graph, self._singles)

    @ft.cached_property
    def _of_everything(self) -> Composition:
        return Composition(self._graph, self._singles + self._candidates.intervals())

    def _attempt(self, composition: Composition, budget_bytes: int, share: float) -> _Attempt:
        """Solves until replay agrees that the plan keeps the budget."""
        limit, bound = budget_bytes, 0.0
        for _ in range(_ROUNDS):
            seconds = self._at(share) - time.monotonic()
            outcome = composition.fastest(limit, time_limit=seconds, gap=self._planner.gap)
            # Only the first round is a bound: the others solve for less than the budget.
            bound = outcome.bound if limit == budget_bytes else bound
            if not outcome.found:
                return _Attempt(None, outcome.infeasible and limit == budget_bytes, bound)
            regions = composition.regions()
            excess = replay(self._graph, regions).peak_bytes - budget_bytes
            if excess <= 0:
                return _Attempt(regions, False, bound)
            limit -= excess
        return _Attempt(None, False, bound)

    def _infeasible(self, budget_bytes: int) -> Plan:
        """Raises the error that says what is feasible, unless the budget is after all."""
        smallest = self.smallest()
        if smallest.peak_bytes <= budget_bytes:
            return smallest
        names = replay(self._graph, smallest).peak_values
        raise InfeasibleBudget(
            f"No plan fits in {budget_bytes:,} bytes; {smallest.peak_bytes:,} bytes is the least "
            f"that a plan was found for. Raise the budget, or shrink what is in memory at its "
            f"peak: {', '.join(f'`{name}`' for name in names[:4])}.",
            minimum_bytes=smallest.peak_bytes,
            peak_values=names,
        )

    def _heuristic(self, budget_bytes: int) -> Plan:
        """The fastest plan of one price per byte for all stages, where the solver had none."""
        tables = map(self._candidates.priced, self._candidates.prices(_HEURISTIC_PRICES))
        tried = [save_nothing(self._graph).regions]
        tried += [tuple(x.region for x in table) for table in tables]
        fits = [x for x in tried if replay(self._graph, x).peak_bytes <= budget_bytes]
        limit = self._planner.time_limit
        if not fits:
            raise SolverStopped(
                f"No plan within {budget_bytes:,} bytes was found in {limit:g} s, and none was "
                f"ruled out. Raise `time_limit` or the budget."
            )
        plan = self._certified(min(fits, key=self._overhead), 0.0)
        return dataclasses.replace(
            plan, planner=f"stages (heuristic: HiGHS had none in {limit:g} s)"
        )

    def _overhead(self, regions: tuple[Region, ...]) -> float:
        """Seconds of recomputation, as a share of the step's."""
        cost = replay(self._graph, regions)
        return (cost.seconds - self._graph.seconds) / (self._graph.seconds or 1.0)

    def _certified(self, regions: tuple[Region, ...], bound_seconds: float) -> Plan:
        bound = self._graph.seconds + bound_seconds
        return certified(self._graph, regions, planner="stages", bound_seconds=bound)

    def _at(self, share: float) -> float:
        return self._start + share * self._planner.time_limit
