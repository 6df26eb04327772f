"""How `Stages` searches: single stages first, regions of several where those do not do.

1. The composition of single stages: milliseconds, and mostly the best plan there is.
2. The linear relaxation over all candidates. It proves that plan, or a budget infeasible, or it
   says by reduced costs which candidates a faster plan could have.
3. The integer program over those, with the chain heuristic's plan to fall back on.

No step begins without time for it: stages then have options by price instead of by a solve, and
the bound is that of the steps that were taken. With less time than a few replays take, the answer
is the plan that saves nothing, if that fits.

Every plan that leaves this file was replayed.
"""

import dataclasses
import functools as ft
import itertools as it
import sys
import time
from collections.abc import Iterator, Sequence

from ..errors import InfeasibleBudget, SolverStopped
from ..graph import Graph
from ..plan import Plan, Region
from ..replay import replay
from ..runs import error_of
from .candidates.candidates import Candidates
from .chain import Chain
from .composition.program import Composition
from .effects.candidate import Candidate
from .iterations import rolled, with_uniform_blocks
from .simple_plans import certified, save_all, save_nothing

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
# Of what is left then, for the composition of single stages at least.
_LEAST_SHARE = 0.2
# Of what is left, for plans of the chain heuristic; and seconds where nothing is.
_GUESSES, _GRACE = 0.3, 0.3
# Finding single stages' candidates takes about as long as so many replays.
_WALKS = 4
# The smallest plan is sought again if there is so much more time than before.
_MORE = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """What one composition had to say: a plan within the budget, or a proof that it has none."""

    regions: tuple[Region, ...] | None
    infeasible: bool
    bound_seconds: float


class Search:
    """One graph's candidates and integer programs, made once for any number of budgets."""

    def __init__(self, graph: Graph, time_limit: float, gap: float, max_options: int):
        self._graph, self._time_limit = graph, time_limit
        self._gap, self._max_options = gap, max_options
        self._start = time.monotonic()
        self._plans: dict[tuple[Region, ...], Plan] = {}  # by their regions, as replayed
        self._least: Plan | None = None
        self._least_seconds = 0.0  # that were given to the search for it; infinite if enough
        self._seconds_per_candidate = 0.0  # that setting up a composition takes

    def fastest(self, budget_bytes: int) -> Plan:
        """The fastest plan within the budget; see `Stages`."""
        self._start = time.monotonic()
        allowed = all(stage.may_be_alone for stage in self._graph.stages)
        if allowed and self._save_all.peak_bytes <= budget_bytes:
            return self._certified(self._save_all.regions, 0.0)
        if not self._finds_candidates():
            if self._save_nothing.peak_bytes > budget_bytes:
                raise self._stopped(budget_bytes)
            return self._certified(self._save_nothing.regions, 0.0)
        first = None
        if self._left(1.0) > 0:
            first = self._attempt(self._of_singles, budget_bytes, _FIRST).regions
        if first is not None and self._overhead(first) <= self._tolerated:
            return self._certified(first, 0.0)
        best = self._beyond(first, budget_bytes)
        if best.regions is not None:
            return self._certified(best.regions, best.bound_seconds)
        if best.infeasible:
            return self._infeasible(budget_bytes)
        # Near the least budget, HiGHS's tolerances can hide what fits.
        least = self._smallest() if self._left(1.0) > 0 else self._least
        if least is not None and least.peak_bytes <= budget_bytes:
            return least
        raise self._stopped(budget_bytes)

    def _stopped(self, budget_bytes: int) -> SolverStopped:
        return SolverStopped(
            f"No plan within {budget_bytes:,} bytes was found in {self._time_limit:g} s, "
            f"and none was ruled out. Raise `time_limit` or the budget."
        )

    def smallest(self) -> Plan:
        """The plan with the least peak, and then least seconds within that peak."""
        self._start = time.monotonic()
        return self._smallest()

    def _smallest(self) -> Plan:
        """The same, in what is left of the time; what is known unless there is more of it now."""
        if not self._finds_candidates():
            return self._certified(self._save_nothing.regions, 0.0)
        given = max(self._left(1.0), 0.0)
        if self._least is None or given > _MORE * self._least_seconds:
            found = it.chain([self._save_nothing.regions], self._small_guesses(self._until()))
            known = min(found, key=self._peak_bytes)  # which asks replay before the next one
            if not self._is_late(self._all):
                outcome = self._of_everything.smallest(time_limit=self._left(1.0))
                if outcome.found:
                    known = min(known, self._of_everything.regions(), key=self._peak_bytes)
            best = self._beyond(known, self._peak_bytes(known))
            self._least = self._certified(best.regions or known, best.bound_seconds)
            self._least_seconds = float("inf") if self._left(1.0) > 0 else given
        return self._least

    def _beyond(self, known: tuple[Region, ...] | None, budget_bytes: int) -> _Attempt:
        """The best plan of all candidates, `known` where that is within the gap of it."""
        if self._is_late(self._all):
            return _Attempt(known or self._guess(budget_bytes), False, 0.0)
        relaxation = self._of_everything.relaxed(budget_bytes, time_limit=self._left(1.0))
        bound = relaxation.bound
        if relaxation.infeasible:
            return _Attempt(known, known is None, 0.0)
        if known is not None and self._overhead(known) - bound <= self._tolerated:
            return _Attempt(known, False, bound)
        guesses = (known, self._guess(budget_bytes))
        known = min((x for x in guesses if x is not None), key=self._overhead, default=None)
        if known is None:
            return self._attempt(self._of_everything, budget_bytes, 1.0)
        seconds = self._overhead(known)
        useful = zip(self._all, relaxation.least_seconds, strict=True)
        some = [x for x, least in useful if least < seconds or x.region in known]
        if self._is_late(some):
            return _Attempt(known, False, min(bound, seconds))
        attempt = self._attempt(Composition(self._graph, some), budget_bytes, 1.0)
        # What is left out takes no less than the known plan.
        bound = min(max(attempt.bound_seconds, bound), seconds)
        better = attempt.regions is not None and self._overhead(attempt.regions) < seconds
        return _Attempt(attempt.regions if better else known, False, bound)

    def _guess(self, budget_bytes: int) -> tuple[Region, ...] | None:
        """The fastest plan that the chain heuristic finds in time, if one fits."""
        until = self._until()
        limits = [int(budget_bytes * factor) for factor in _FACTORS]
        found = (x for x in self._chained(limits, until) if x is not None)
        fits = (
            x
            for x in it.chain(found, self._small_guesses(until))
            if self._peak_bytes(x) <= budget_bytes
        )
        guesses = list(it.islice(fits, len(_FACTORS)))
        if self._save_nothing.peak_bytes <= budget_bytes:
            guesses.append(self._save_nothing.regions)
        return min(guesses, key=self._overhead, default=None)

    def _small_guesses(self, until: float) -> Iterator[tuple[Region, ...]]:
        """Plans that the chain heuristic finds for less and less."""
        limit = self._save_nothing.peak_bytes * max(_FACTORS)
        for regions in self._chained([int(limit * _SHRINK**k) for k in range(_SHRINKS)], until):
            if regions is None:
                return
            yield regions

    def _chained(self, limits: Sequence[int], until: float) -> Iterator[tuple[Region, ...] | None]:
        """The chain heuristic's plan for each limit, up to a reading of `time.monotonic`."""
        for limit in limits:
            if time.monotonic() > until:
                return
            found = self._chain.fastest(limit)
            yield found and self._in_space(found)

    def _in_space(self, regions: tuple[Region, ...]) -> tuple[Region, ...]:
        """Regions without iterations that run by themselves, where that is asked for."""
        return (
            with_uniform_blocks(self._graph, rolled(self._graph, regions))
            if self._graph.uniform_blocks
            else regions
        )

    def _until(self) -> float:
        """When the chain heuristic has to stop, so that time is left for the rest."""
        _ = self._chain  # what it takes to set up comes first
        return time.monotonic() + max(_GUESSES * self._left(1.0), _GRACE)

    @property
    def singles(self) -> list[list[Candidate]]:
        """For each stage the regions that it may be by itself."""
        return self._candidates.singles

    @property
    def _save_all(self) -> Plan:
        return self._timed_save_all[0]

    @ft.cached_property
    def _timed_save_all(self) -> tuple[Plan, float]:
        """The plan that recomputes nothing, and the seconds that its replay took."""
        start = time.process_time()
        return self._kept(save_all(self._graph)), time.process_time() - start

    @ft.cached_property
    def _save_nothing(self) -> Plan:
        return self._kept(save_nothing(self._graph))

    def _kept(self, plan: Plan) -> Plan:
        """The plan, which need not be replayed again."""
        self._plans[plan.regions] = dataclasses.replace(plan, planner="stages")
        return plan

    def _finds_candidates(self) -> bool:
        """Whether the candidates of single stages are known, or there is time to find them."""
        known = "_candidates" in vars(self)
        return known or self._left(1.0) >= _WALKS * self._timed_save_all[1]

    @ft.cached_property
    def _candidates(self) -> Candidates:
        return Candidates(self._graph, max_options=self._max_options, deadline=self._at(_FIRST))

    @ft.cached_property
    def _singles(self) -> list[Candidate]:
        return [x for some in self._candidates.singles for x in some]

    @ft.cached_property
    def _of_singles(self) -> Composition:
        singles = self._singles
        start = time.process_time()
        composition = Composition(self._graph, singles)
        self._seconds_per_candidate = (time.process_time() - start) / len(singles)
        return composition

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
            seconds = max(self._left(share), _LEAST_SHARE * self._left(1.0))
            outcome = composition.fastest(limit, time_limit=seconds, gap=self._gap)
            # Only the first round is a bound: the others solve for less than the budget.
            bound = outcome.bound if limit == budget_bytes else bound
            if not outcome.found:
                return _Attempt(None, outcome.infeasible and limit == budget_bytes, bound)
            regions = composition.regions()
            excess = self._peak_bytes(regions) - budget_bytes
            if excess <= 0:
                return _Attempt(regions, False, bound)
            limit -= excess
        return _Attempt(None, False, bound)

    def _infeasible(self, budget_bytes: int) -> Plan:
        """Raises the error that says what is feasible, unless the budget is after all."""
        smallest = self._smallest()
        if smallest.peak_bytes <= budget_bytes:
            return smallest
        names = replay(self._graph, smallest.regions).peak_values
        raise InfeasibleBudget(
            f"No plan fits in {budget_bytes:,} bytes; {smallest.peak_bytes:,} bytes is the least "
            f"that a plan was found for. Raise the budget, or shrink what is in memory at its "
            f"peak: {', '.join(f'`{name}`' for name in names[:4])}.",
            minimum_bytes=smallest.peak_bytes,
            peak_values=names,
        )

    def _plan(self, regions: tuple[Region, ...]) -> Plan:
        """What replay says of regions, each asked once."""
        if regions not in self._plans:
            self._plans[regions] = certified(
                self._graph, regions, planner="stages", bound_seconds=self._graph.seconds
            )
        return self._plans[regions]

    def _peak_bytes(self, regions: tuple[Region, ...]) -> int:
        """Infinite, as it were, where the errors are more than they may be."""
        is_right = error_of(self._graph, regions) <= self._graph.most_error
        return self._plan(regions).peak_bytes if is_right else sys.maxsize

    def _overhead(self, regions: tuple[Region, ...]) -> float:
        """Seconds of recomputation."""
        return self._plan(regions).seconds - self._graph.seconds

    @property
    def _tolerated(self) -> float:
        """Seconds that a plan may be from its bound."""
        return max(self._gap, _LEAST_GAP) * self._graph.seconds

    def _certified(self, regions: tuple[Region, ...], bound_seconds: float) -> Plan:
        plan = self._plan(regions)
        bound = min(self._graph.seconds + max(bound_seconds, 0.0), plan.seconds)
        proven = plan.seconds - bound <= self._tolerated * (1 + 1e-9)
        limit = f"stages (not proven in {self._time_limit:g} s)"
        planner = plan.planner if proven else limit
        return dataclasses.replace(plan, bound_seconds=bound, planner=planner)

    def _is_late(self, candidates: Sequence[Candidate]) -> bool:
        """Whether there is no time to set up the composition of candidates."""
        # Twice, since the first solve sets up as much again.
        return self._left(1.0) <= 2 * self._seconds_per_candidate * len(candidates)

    def _at(self, share: float) -> float:
        return self._start + share * self._time_limit

    def _left(self, share: float) -> float:
        """Seconds until this share of the time has passed; negative once it has."""
        return self._at(share) - time.monotonic()
