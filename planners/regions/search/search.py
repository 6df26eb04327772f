"""The steps from single stages to the proven best plan of all candidates.

1. The composition of single stages: milliseconds, and mostly the best plan there is.
2. The linear relaxation over all candidates. It proves that plan, or a budget infeasible, or it
   says by reduced costs which candidates a faster plan could have.
3. The integer program over those, with the chain heuristic's plan to fall back on.

No step begins without time for it: stages then have options by multiplier instead of by a solve,
and the bound is the one of the steps that were taken. With less time than a few replays take, the
result is the plan that saves nothing, if that fits.

Every plan that leaves this file was replayed.
"""

import dataclasses
import itertools as it
from collections.abc import Iterator

from ...errors import InfeasibleBudget, SolverStopped
from ...graph import Graph
from ...plan import Plan, Region
from ...replay import replay
from ..composition.program import Composition
from ..effects.candidate import Candidate
from ..effects.shapes import Shapes
from ..planner import PreparedPlanner
from .clock import Clock
from .guesses import Guesses
from .replays import Replays
from .spaces import FIRST, SingleStageSpaces, Spaces

# Solves of one composition before giving up on a model that replay contradicts.
_SOLVES = 4
# A solver keeps a budget but for this share, which is rounding; replay keeps every byte of it.
_ROUNDING = 1e-7
# Equal costs and the solver's tolerances are no gap.
_LEAST_GAP = 1e-5
# Of the time left after single stages are known, for their composition at least.
_LEAST_SHARE = 0.2
# Finding single stages' candidates takes about as long as so many replays.
_WALKS = 4
# The smallest plan is sought again if there is so much more time than before.
_MORE = 1.5


def search_of(
    graph: Graph, shapes: Shapes, time_limit: float, gap: float, max_options: int
) -> "Search":
    """The search of one graph; see `Stages` for its arguments."""
    clock = Clock(time_limit)
    return Search(graph, clock, gap, Replays(graph), Spaces(graph, shapes, clock, max_options))


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """The result of one composition: a plan within the budget, or a proof that it has none."""

    regions: tuple[Region, ...] | None
    infeasible: bool
    bound_seconds: float


class Search(PreparedPlanner):
    """One graph's candidates and integer programs, made once for any number of budgets."""

    def __init__(self, graph: Graph, clock: Clock, gap: float, replays: Replays, spaces: Spaces):
        self._graph, self._clock, self._gap = graph, clock, gap
        self._replays, self._spaces = replays, spaces
        self._least: Plan | None = None
        self._least_seconds = 0.0  # that the search for it had; infinite if enough

    @property
    def singles(self) -> list[list[Candidate]]:
        """For each stage the regions that it may be by itself."""
        return self._spaces.candidates.singles

    @property
    def of_single_stages(self) -> "Search":
        """The same search, for plans whose regions are single stages."""
        clock = Clock(self._clock.limit_seconds)
        spaces = SingleStageSpaces(self._spaces, clock)
        return Search(self._graph, clock, self._gap, self._replays, spaces)

    def steps_ahead(self) -> Iterator[None]:
        """Find the candidates: of single stages, then all."""
        return self._spaces.steps_ahead()

    def fastest(self, budget_bytes: int) -> Plan:
        """The fastest plan within the budget; see `Stages`."""
        self._clock.restart()
        save_all = self._replays.save_all
        allowed = all(stage.may_be_alone for stage in self._graph.stages)
        first = save_all.regions if allowed and save_all.peak_bytes <= budget_bytes else None
        if first is not None and self._replays.overhead(first) <= self._tolerated:
            return self._certified(first, 0.0)
        if not self._finds_candidates():
            return self._certified(first, 0.0) if first else self._saving_nothing(budget_bytes)
        if self._clock.left() > 0:
            found = self._attempt(self._spaces.of_singles, budget_bytes, FIRST).regions
            first = min(filter(None, (found, first)), key=self._replays.overhead, default=None)
        if first is not None and self._replays.overhead(first) <= self._tolerated:
            return self._certified(first, 0.0)
        best = self._beyond(first, budget_bytes)
        if best.regions is not None:
            return self._certified(best.regions, best.bound_seconds)
        if best.infeasible:
            smallest = self._smallest()
            if smallest.peak_bytes <= budget_bytes:  # the budget is feasible after all
                return smallest
            raise _infeasible(self._graph, smallest, budget_bytes)
        least = self._smallest() if self._clock.left() > 0 else self._least  # HiGHS may miss it
        if least is not None and least.peak_bytes <= budget_bytes:
            return least
        raise _stopped(self._clock, budget_bytes)

    def bound_seconds(self, budget_bytes: int) -> float:
        """What the linear relaxation proves of all plans within the budget."""
        self._clock.restart()
        spaces = self._spaces
        if not self._finds_candidates() or spaces.is_late(spaces.everything):
            return self._graph.seconds
        relaxation = spaces.of_everything.relaxed(budget_bytes, time_limit=self._clock.left())
        return self._graph.seconds + relaxation.bound

    def smallest(self) -> Plan:
        """The plan with the least peak, and then least seconds within that peak."""
        self._clock.restart()
        return self._smallest()

    def _smallest(self) -> Plan:
        """The same, in the time left; the known one unless there is more time now."""
        if not self._finds_candidates():
            return self._certified(self._replays.save_nothing.regions, 0.0)
        left = max(self._clock.left(), 0.0)
        if self._least is None or left > _MORE * self._least_seconds:
            known = _smallest_known(self._replays, self._guesses(), self._spaces, self._clock)
            best = self._beyond(known, self._replays.peak_bytes(known))
            self._least = self._certified(best.regions or known, best.bound_seconds)
            self._least_seconds = float("inf") if self._clock.left() > 0 else left
        return self._least

    def _beyond(self, known: tuple[Region, ...] | None, budget_bytes: int) -> _Attempt:
        """The best plan of all candidates, `known` where that is within the gap of it."""
        spaces, overhead = self._spaces, self._replays.overhead
        if spaces.is_late(spaces.everything):
            return _Attempt(known or self._guesses().fastest(budget_bytes), False, 0.0)
        relaxation = spaces.of_everything.relaxed(budget_bytes, time_limit=self._clock.left())
        bound = relaxation.bound
        if relaxation.infeasible:
            return _Attempt(known, known is None, 0.0)
        if known is not None and overhead(known) - bound <= self._tolerated:
            return _Attempt(known, False, bound)
        guesses = (known, self._guesses().fastest(budget_bytes))
        known = min((x for x in guesses if x is not None), key=overhead, default=None)
        if known is None:
            return self._attempt(spaces.of_everything, budget_bytes, 1.0)
        seconds = overhead(known)
        if seconds - bound <= self._tolerated:  # uniform iterations may be no candidates
            return _Attempt(known, False, bound)
        useful = zip(spaces.everything, relaxation.least_seconds, strict=True)
        some = [x for x, least in useful if least < seconds or x.region in known]
        if spaces.is_late(some):
            return _Attempt(known, False, min(bound, seconds))
        attempt = self._attempt(spaces.composition(some), budget_bytes, 1.0)
        # What is left out takes no less than the known plan.
        bound = min(max(attempt.bound_seconds, bound), seconds)
        better = attempt.regions is not None and overhead(attempt.regions) < seconds
        return _Attempt(attempt.regions if better else known, False, bound)

    def _guesses(self) -> Guesses:
        # What the chain takes to set up comes before its time.
        return Guesses(self._graph, self._spaces.chain, self._replays, self._clock)

    def _finds_candidates(self) -> bool:
        """Whether the candidates of single stages are known, or there is time to find them."""
        return self._spaces.are_known or self._clock.left() >= _WALKS * self._replays.seconds

    def _attempt(self, composition: Composition, budget_bytes: int, share: float) -> _Attempt:
        """Solves until replay agrees that the plan keeps the budget."""
        limit, bound = budget_bytes, 0.0
        for _ in range(_SOLVES):
            seconds = max(self._clock.left(share), _LEAST_SHARE * self._clock.left())
            outcome = composition.fastest(limit, time_limit=seconds, gap=self._gap)
            bound = outcome.bound if limit == budget_bytes else bound  # of the budget itself
            if not outcome.found:
                is_proof = outcome.infeasible and limit >= (1 - _ROUNDING) * budget_bytes
                return _Attempt(None, is_proof, bound)
            regions = composition.regions()
            excess = self._replays.peak_bytes(regions) - budget_bytes
            if excess <= 0:
                return _Attempt(regions, False, bound)
            limit -= max(excess, int(_ROUNDING * budget_bytes))  # the solver sees no less
        return _Attempt(None, False, bound)

    def _saving_nothing(self, budget_bytes: int) -> Plan:
        """The plan that saves nothing, where there is no time for another; it has to fit."""
        if self._replays.save_nothing.peak_bytes > budget_bytes:
            raise _stopped(self._clock, budget_bytes)
        return self._certified(self._replays.save_nothing.regions, 0.0)

    @property
    def _tolerated(self) -> float:
        """Seconds that a plan may be from its bound."""
        return max(self._gap, _LEAST_GAP) * self._graph.seconds

    def _certified(self, regions: tuple[Region, ...], bound_seconds: float) -> Plan:
        plan = self._replays.plan(regions)
        bound = min(self._graph.seconds + max(bound_seconds, 0.0), plan.seconds)
        proven = plan.seconds - bound <= self._tolerated * (1 + 1e-9)
        limit = f"stages (not proven in {self._clock.limit_seconds:g} s)"
        planner = plan.planner if proven else limit
        return dataclasses.replace(plan, bound_seconds=bound, planner=planner)


def _smallest_known(
    replays: Replays, guesses: Guesses, spaces: Spaces, clock: Clock
) -> tuple[Region, ...]:
    """The smallest plan of the chain heuristic, or of the integer program in time."""
    peak_bytes = replays.peak_bytes
    every = it.chain([replays.save_nothing.regions], guesses.smaller())
    known = min(every, key=peak_bytes)  # which replays one before it asks for the next
    if not spaces.is_late(spaces.everything):
        outcome = spaces.of_everything.smallest(time_limit=clock.left())
        if outcome.found:
            known = min(known, spaces.of_everything.regions(), key=peak_bytes)
    return known


def _infeasible(graph: Graph, smallest: Plan, budget_bytes: int) -> InfeasibleBudget:
    """The error that says what is feasible."""
    names = replay(graph, smallest.regions).peak_values
    return InfeasibleBudget(
        f"No plan fits in {budget_bytes:,} bytes; {smallest.peak_bytes:,} bytes is the least "
        f"that a plan was found for. Raise the budget, or shrink what is in memory at its "
        f"peak: {', '.join(f'`{name}`' for name in names[:4])}.",
        minimum_bytes=smallest.peak_bytes,
        peak_values=names,
    )


def _stopped(clock: Clock, budget_bytes: int) -> SolverStopped:
    return SolverStopped(
        f"No plan within {budget_bytes:,} bytes was found in {clock.limit_seconds:g} s, "
        f"and none was ruled out. Raise `time_limit` or the budget."
    )
