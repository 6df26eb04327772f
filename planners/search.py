"""How `Stages` searches: single stages first, regions of several where those do not do.

1. The composition of single stages: milliseconds, and mostly the best plan there is.
2. The linear relaxation over all candidates. It proves that plan, or a budget infeasible, or it
   says by reduced costs which candidates a faster plan could have.
3. The integer program over those, with the chain heuristic's plan to fall back on.

Every plan that leaves this file was replayed.
"""

import dataclasses
import functools as ft
import itertools as it
import time
from collections.abc import Iterator

from .candidates import Candidates
from .chain import Chain
from .composition import Composition
from .effects import Candidate
from .errors import InfeasibleBudget, SolverStopped
from .graph import Graph
from .plan import Plan, Region
from .replay import replay
from .stages import Stages, certified, save_all, save_nothing

# Solves of one composition before giving up on a model that replay contradicts.
_ROUNDS = 4
# Of the budget, tried as limits of the chain heuristic, which counts some values twice.
_FACTORS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0)
# From one limit to the next, and how often, where the smallest plan is sought.
_SHRINK, _SHRINKS = 0.93, 60
# Ties and the solver's tolerances are no gap.
_LEAST_GAP = 1e-5
# Shares of the time: for single stages and their composition, and until all candidates are known.
_FIRST, _SECOND = 0.5, 0.8


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
        allowed = all(stage.may_be_alone for stage in self._graph.stages)
        if allowed and everything.peak_bytes <= budget_bytes:
            return self._certified(everything.regions, 0.0)
        first = self._attempt(self._of_singles, budget_bytes, _FIRST).regions
        if first is not None and self._overhead(first) <= self._tolerated:
            return self._certified(first, 0.0)
        best = self._beyond(first, budget_bytes)
        if best.regions is not None:
            return self._certified(best.regions, best.bound_seconds)
        if best.infeasible:
            return self._infeasible(budget_bytes)
        least = self._least  # near the least budget, HiGHS's tolerances can hide what fits
        if least.peak_bytes <= budget_bytes:
            return least
        raise SolverStopped(
            f"No plan within {budget_bytes:,} bytes was found in {self._planner.time_limit:g} s, "
            f"and none was ruled out. Raise `time_limit` or the budget."
        )

    def smallest(self) -> Plan:
        """The plan with the least peak, and then least seconds within that peak."""
        return self._least

    @ft.cached_property
    def _least(self) -> Plan:
        self._start = time.monotonic()
        found = [save_nothing(self._graph).regions, *self._small_guesses()]
        composition = self._of_everything
        outcome = composition.smallest(time_limit=self._at(1.0) - time.monotonic())
        if outcome.found:
            found.append(composition.regions())
        peaks = [replay(self._graph, regions).peak_bytes for regions in found]
        least = peaks.index(min(peaks))
        best = self._beyond(found[least], peaks[least])
        return self._certified(best.regions or found[least], best.bound_seconds)

    def _beyond(self, known: tuple[Region, ...] | None, budget_bytes: int) -> _Attempt:
        """The best plan of all candidates, `known` where that is within the gap of it."""
        relaxation = self._of_everything.relaxed(
            budget_bytes, time_limit=self._at(1.0) - time.monotonic()
        )
        bound = relaxation.bound
        if relaxation.infeasible:
            return _Attempt(known, known is None, 0.0)
        if known is not None and self._overhead(known) - bound <= self._tolerated:
            return _Attempt(known, False, bound)
        known = min(
            (x for x in (known, self._guess(budget_bytes)) if x is not None),
            key=self._overhead,
            default=None,
        )
        if known is None:
            return self._attempt(self._of_everything, budget_bytes, 1.0)
        seconds = self._overhead(known)
        useful = zip(self._all, relaxation.least_seconds, strict=True)
        some = [x for x, least in useful if least < seconds or x.region in known]
        attempt = self._attempt(Composition(self._graph, some), budget_bytes, 1.0)
        # What is left out takes no less than the known plan.
        bound = min(max(attempt.bound_seconds, bound), seconds)
        better = attempt.regions is not None and self._overhead(attempt.regions) < seconds
        return _Attempt(attempt.regions if better else known, False, bound)

    def _guess(self, budget_bytes: int) -> tuple[Region, ...] | None:
        """The fastest plan that the chain heuristic finds, if one fits."""
        limits = [int(budget_bytes * factor) for factor in _FACTORS]
        found = it.chain(map(self._chain.fastest, limits), self._small_guesses())
        fits = (
            x for x in found if x is not None and replay(self._graph, x).peak_bytes <= budget_bytes
        )
        return min(it.islice(fits, len(_FACTORS)), key=self._overhead, default=None)

    def _small_guesses(self) -> Iterator[tuple[Region, ...]]:
        """Plans that the chain heuristic finds for less and less."""
        limit = save_nothing(self._graph).peak_bytes * max(_FACTORS)
        for k in range(_SHRINKS):
            regions = self._chain.fastest(int(limit * _SHRINK**k))
            if regions is None:
                return
            yield regions

    @property
    def singles(self) -> list[list[Candidate]]:
        """For each stage the regions that it may be by itself."""
        return self._candidates.singles

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
    def _all(self) -> list[Candidate]:
        return self._singles + self._candidates.intervals(self._at(_SECOND))

    @ft.cached_property
    def _of_everything(self) -> Composition:
        return Composition(self._graph, self._all)

    @ft.cached_property
    def _chain(self) -> Chain:
        return Chain(self._graph, self._all)

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

    def _overhead(self, regions: tuple[Region, ...]) -> float:
        """Seconds of recomputation."""
        return replay(self._graph, regions).seconds - self._graph.seconds

    @property
    def _tolerated(self) -> float:
        """Seconds that a plan may be from its bound."""
        return max(self._planner.gap, _LEAST_GAP) * self._graph.seconds

    def _certified(self, regions: tuple[Region, ...], bound_seconds: float) -> Plan:
        bound = self._graph.seconds + bound_seconds
        plan = certified(self._graph, regions, planner="stages", bound_seconds=bound)
        proven = plan.seconds - plan.bound_seconds <= self._tolerated * (1 + 1e-9)
        limit = f"stages (not proven in {self._planner.time_limit:g} s)"
        return plan if proven else dataclasses.replace(plan, planner=limit)

    def _at(self, share: float) -> float:
        return self._start + share * self._planner.time_limit
