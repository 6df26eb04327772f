"""What does the planner say of a program by one model of it, each question asked once?

The planner bounds the peak of live values. What a plan takes as compiled is modelled more closely
once the plan is finished (`compiler/buffer_model`), so for a plan of so many modelled temporaries
the planner is asked several times, and a local search follows.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import certified, left_alone

from .compiled_plans import CompiledPlans

#: Times that the planner's budget is corrected by the model of the assignment, for one question.
MODEL_ROUNDS = 8
#: A plan that takes this much of the modelled temporaries that it may take is good enough.
GOOD_USE = 0.98
#: The search ends when this fraction of them is all that is undecided.
ENOUGH = 0.01
#: A budget whose answer takes too much is lowered by this fraction of them at least.
STEP = 0.005
#: Time limits of the solver that the search for one budget may use up in all.
SOLVES = 4
#: Where a plan takes less than so much of its live values, others that do are looked for.
CLEARLY_LESS = 0.98
#: For that, budgets of the planner are up to so many times what is wanted, in steps by so much.
REACH, STRIDE = 1.25, 1.04
#: Plans that the local search after each answer of the planner may look at.
POLISH_CANDIDATES = 60
#: What it counts, of bytes that may lie in the memory of results: all of them, and next to none, as
#: they take nothing until the results are full.
ALIASED_SHARES = (1.0, 0.1)
#: Shares of the way from the smallest plan to saving all, of plans to try where nothing fits.
LARGER = (0.05, 0.1, 0.3, 0.6)

_Regions = tuple[Region, ...]


class Proposals:
    """The planner's plans for one program by one model of it.

    Every plan that it gives is replayed in `compiled_plans.graph`.

    Arguments:
        compiled_plans: of the program. planner: `(Graph, int) -> planners.Plan`. graph: the model;
        `compiled_plans.graph`, or that with something else assumed of the compiler.
    """

    def __init__(self, compiled_plans: CompiledPlans, planner: Any, graph: Graph):
        self.graph, self._compiled_plans, self._planner = graph, compiled_plans, planner
        self._most_seconds = SOLVES * getattr(planner, "time_limit", 10.0)
        self._seconds = 0.0  # spent in the planner since `restart`
        self._known: dict[int, planners.Plan | None] = {}  # model budget -> the planner's plan
        self._modelled: dict[_Regions, int] = {}
        self._floor = 0  # model budgets below it are known to be infeasible
        #: Why the planner had no answer at some point since `restart`, if so.
        self.stopped: planners.SolverStopped | None = None

    @functools.cached_property
    def _space(self) -> Any:
        return _prepared(self._planner, self.graph)

    def restart(self) -> None:
        """Count the planner's seconds from here, and forget that it was stopped."""
        self._seconds, self.stopped = 0.0, None

    def modelled(self, regions: _Regions) -> int:
        """Temporaries of a plan by this model."""
        if regions not in self._modelled:
            self._modelled[regions] = self._compiled_plans.modelled(regions, self.graph)
        return self._modelled[regions]

    def within(self, wanted: int) -> planners.Plan | None:
        """The fastest plan whose modelled temporaries are within `wanted`, as far as is known."""
        best = self._polished(self._bisected(wanted), wanted)
        if best is not None and self._takes_less(best) and best.seconds > self.graph.seconds:
            others = [x for x in self._with_more_live(wanted) if self.modelled(x.regions) <= wanted]
            other = min(others, key=lambda x: x.seconds, default=best)
            if other.seconds < best.seconds:
                best = self._polished(other, wanted) or other
        return None if best is None else self._checked(best)

    def _bisected(self, wanted: int) -> planners.Plan | None:
        """The fastest of the planner's plans that it gives for fewer and fewer live bytes."""
        best, low, high, budget = None, 0, None, max(wanted, self._floor)
        for _ in range(MODEL_ROUNDS):
            if self._seconds > self._most_seconds:
                break
            decisions = self._fastest(budget)
            if decisions is None:
                if self._floor <= budget:
                    break  # the solver stopped without an answer
                low, budget = max(low, budget), self._floor
                if high is not None and budget >= high:
                    break
                continue
            modelled = self.modelled(decisions.regions)
            if modelled <= wanted:
                low = max(low, budget)
                if best is None or decisions.seconds < best.seconds:
                    best = decisions
                if modelled >= GOOD_USE * wanted or decisions.seconds <= self.graph.seconds:
                    break
            else:
                high = min(budget, high or budget)
            over = modelled - wanted
            # Answers that are over by next to nothing would creep towards what fits.
            guess = budget - (max(over, int(STEP * wanted)) if over > 0 else over)
            budget = guess if high is None or low < guess < high else (low + high) // 2
            budget = max(budget, self._floor)
            if high is not None and high - low < ENOUGH * wanted:
                break
        return best

    def _takes_less(self, decisions: planners.Plan) -> bool:
        """Whether some live values take no memory of their own, as where the results will be."""
        return self.modelled(decisions.regions) < CLEARLY_LESS * decisions.peak_bytes

    def _with_more_live(self, wanted: int) -> Iterator[planners.Plan]:
        """Plans with more live values than `wanted`, of which some may take no more.

        How many take nothing differs between plans, so that these are looked for all along the way,
        while there is time; at the same budgets whatever is wanted, so that each is solved once.
        """
        first = math.ceil(math.log(max(wanted, self._floor, 1), STRIDE))
        for n in range(first, int(math.log(max(REACH * wanted, 1), STRIDE)) + 1):
            if self._seconds > self._most_seconds / 2:
                break
            decisions = self._fastest(int(STRIDE**n))
            if decisions is not None:
                yield decisions

    def small(self) -> Iterator[planners.Plan]:
        """Plans with few bytes, and some larger ones.

        What a recomputation takes that the model does not know of is up to the compiler's schedule:
        a plan that saves a little more may be the smaller one.
        """
        smallest = self._compiled_plans.base
        try:
            smallest = self._space.smallest()
        except planners.SolverStopped as error:
            self.stopped = error
        yield self._checked(smallest)
        if self.graph.loops:
            yield self._checked(planners.whole_iterations(self.graph))
        least, most = smallest.peak_bytes, planners.save_all(self.graph).peak_bytes
        for share in LARGER:
            decisions = self._fastest(int(least + share * (most - least)))
            if decisions is not None:
                yield self._checked(decisions)

    def _polished(self, decisions: planners.Plan | None, wanted: int) -> planners.Plan | None:
        """A faster plan whose modelled temporaries are within `wanted`, if local search finds one.

        Its bound is the planner's for as many live bytes as it takes.
        """
        singles = getattr(self._space, "singles", None)
        starts = [
            x
            for x in (decisions, self._compiled_plans.base)
            if x and self.modelled(x.regions) <= wanted
        ]
        if singles is None or not starts or starts[0].seconds <= self.graph.seconds:
            return decisions
        found = starts[0]
        for start, aliased_share in itertools.product(starts, ALIASED_SHARES):
            regions = planners.polished(
                self.graph,
                start.regions,
                singles,
                lambda some: self._fits(self._uniform_regions(some), wanted),
                compiled_plans=POLISH_CANDIDATES,
                aliased_share=aliased_share,
            )
            plan = self._with_uniform_blocks(with_regions(self.graph, start, regions))
            if self._fits(plan.regions, wanted):
                found = min(found, plan, key=lambda x: x.seconds)
        if found is decisions:
            return decisions
        bound = self._bound_seconds(max(found.peak_bytes, starts[0].peak_bytes))
        return dataclasses.replace(found, bound_seconds=min(bound, found.seconds))

    def _bound_seconds(self, budget: int) -> float:
        """What no plan within a model budget undercuts, as far as the solver got."""
        like = self._fastest(budget)
        return like.bound_seconds if like else self.graph.seconds

    def _fastest(self, budget: int) -> planners.Plan | None:
        """The planner's plan for a model budget; None where it has none.

        If it says that none exists, that raises the floor; if it was stopped, other plans remain.
        """
        if budget not in self._known:
            started = time.perf_counter()
            try:
                self._known[budget] = self._with_uniform_blocks(self._space.fastest(budget))
            except planners.InfeasibleBudget as error:
                self._known[budget] = None
                self._floor = max(self._floor, error.minimum_bytes, budget + 1)
            except planners.SolverStopped as error:
                self.stopped = error
                self._known[budget] = None
            self._seconds += time.perf_counter() - started
        return self._known[budget]

    def _fits(self, regions: _Regions, wanted: int) -> bool:
        """Whether a plan's errors and its modelled temporaries are within what they may be."""
        is_right = planners.error_of(self.graph, regions) <= self.graph.most_error
        return is_right and self.modelled(regions) <= wanted

    def _with_uniform_blocks(self, decisions: planners.Plan) -> planners.Plan:
        """The plan, without iterations that run by themselves where that is asked for."""
        regions = self._uniform_regions(decisions.regions)
        same = regions == decisions.regions
        return decisions if same else with_regions(self.graph, decisions, regions)

    def _uniform_regions(self, regions: _Regions) -> _Regions:
        """The same of its regions.

        Unless codes of another iteration would bring in more of an error than there may be.
        """
        if (
            not self.graph.uniform_blocks
            or planners.with_uniform_blocks(self.graph, regions) == regions
        ):
            return regions
        rolled = planners.rolled(self.graph, regions)
        for from_last in (False, True):
            found = planners.with_uniform_blocks(self.graph, rolled, from_last=from_last)
            if planners.error_of(self.graph, found) <= self.graph.most_error:
                return found
        return regions

    def _tidied(self, decisions: planners.Plan) -> planners.Plan:
        """The plan as a compiler likes it best of those that are equal by the model.

        Its iterations are in order, so that loops have few runs. The last stage, whose backward
        comes at once, is left alone rather than have the same values saved by name: for that XLA
        may take a copy (147 MiB of a GPT-2's logits and weights on a GPU).
        """
        decisions = self._with_uniform_blocks(decisions)
        rolled = planners.rolled(self.graph, decisions.regions)
        for regions in (rolled, (*rolled[:-1], left_alone(self.graph, rolled[-1]))):
            if regions == decisions.regions or self._uniform_regions(regions) != regions:
                continue
            tidied = with_regions(self.graph, decisions, regions)
            takes_more = self.modelled(regions) > self.modelled(decisions.regions)
            if not takes_more and math.isclose(tidied.seconds, decisions.seconds):
                decisions = tidied
        return decisions

    def _checked(self, decisions: planners.Plan) -> planners.Plan:
        """A plan with its cost in `compiled_plans.graph`, where what bounds others is no bound."""
        graph, decisions = self._compiled_plans.graph, self._tidied(decisions)
        if self.graph is graph:
            return decisions
        planner = decisions.planner
        return certified(graph, decisions.regions, planner=planner, bound_seconds=graph.seconds)


def with_regions(graph: Graph, like: planners.Plan, regions: _Regions) -> planners.Plan:
    """A plan of these regions, with the planner and the bound of another."""
    return certified(graph, regions, planner=like.planner, bound_seconds=like.bound_seconds)


class _Unprepared:
    """A plain planner function behind the interface of a prepared search."""

    def __init__(self, planner: Callable[[Graph, int], planners.Plan], graph: Graph):
        self.planner, self.graph = planner, graph

    def fastest(self, budget_bytes: int) -> planners.Plan:
        return self.planner(self.graph, budget_bytes)

    def smallest(self) -> planners.Plan:
        return planners.save_nothing(self.graph)


def _prepared(planner: Any, graph: Graph) -> Any:
    """A planner that shares its preparation between budgets, where it can."""
    return planner.prepare(graph) if hasattr(planner, "prepare") else _Unprepared(planner, graph)
