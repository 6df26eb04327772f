"""Proposes plans of one program by one model of it; each budget is solved once.

The planner bounds the peak of live values. A finished plan has a closer model of its compiled bytes
(`compiler/buffers/model`). So for one limit on modelled temporaries the planner is called several
times, and a local search follows. Where no budget of live bytes leads to the limit since much of
them lies in results, it is asked once more, and told when it does.
"""

import dataclasses
import functools

import planners
from planners.graph import Graph
from planners.regions.simple_plans import certified
from planners.regions.solved import SolvedBudgets
from planners.regions.uniform import (
    Regions,
    tidied,
    uniform_regions,
    with_regions,
    with_uniform_iterations,
)
from planners.transfers import keeps_host

from .compiled_plans import CompiledPlans
from .live_bytes import GOOD_USE, fastest_within, lending
from .worth import is_free

#: Plans that the local search after each plan of the planner may try.
POLISH_CANDIDATES = 20
#: Where less than this share of a limit lies in results, the planner need not know when.
MUCH = 0.1


class Proposals:
    """The planner's plans for one program by one model of it.

    Every plan is replayed in `compiled_plans.graph` before it is proposed.

    Arguments:
        compiled_plans: of the program.
        graph: the model: `compiled_plans.graph`, or a graph with other assumptions about the
            compiler.
        solved: the planner's plans for this graph.
    """

    def __init__(self, compiled_plans: CompiledPlans, graph: Graph, solved: SolvedBudgets):
        self.graph, self.solved = graph, solved
        self._compiled_plans = compiled_plans
        self._modelled: dict[Regions, int] = {}
        self._within: dict[int, planners.Plan | None] = {}

    def restart(self, most_seconds: float) -> None:
        """Count the planner's seconds from here."""
        self.solved.restart(most_seconds)
        if "_lending" in vars(self):
            self._lending[0].restart(most_seconds)

    def modelled(self, regions: Regions) -> int:
        """Temporaries of a plan by this model."""
        if regions not in self._modelled:
            self._modelled[regions] = self._compiled_plans.model.modelled(regions, self.graph)
        return self._modelled[regions]

    def predicted(self, regions: Regions) -> int:
        """Temporaries that a plan should compile to, by this model."""
        return self._compiled_plans.model.scale.compiled_for(self.modelled(regions))

    def error_bytes(self) -> int:
        """Summed absolute errors of this model, over the plans that did not calibrate it."""
        plans = self._compiled_plans
        return sum(
            abs(plans.temp_bytes(x) - self.predicted(x.decisions.regions))
            for x in plans
            if x.decisions.regions != plans.calibration_plan.regions
        )

    def within(self, limit: int) -> planners.Plan | None:
        """The fastest known plan whose modelled temporaries take at most `limit` bytes."""
        if limit not in self._within:
            self._within[limit] = self._fastest(limit)
        return self._within[limit]

    def smallest(self) -> planners.Plan:
        """The planner's smallest plan."""
        return self.checked(self.solved.smallest(self._compiled_plans.calibration_plan))

    def is_right(self, regions: Regions) -> bool:
        """Whether a plan keeps the limits on gradient error and host."""
        error = planners.error_of(self.graph, regions)
        return error <= self.graph.most_error and keeps_host(self.graph, regions)

    def checked(self, decisions: planners.Plan) -> planners.Plan:
        """A plan replayed in `compiled_plans.graph`, where the bound of another model is none."""
        graph = self._compiled_plans.graph
        decisions = tidied(self.graph, decisions, self.modelled)
        if self.graph is graph:
            return decisions
        planner = decisions.planner
        return certified(graph, decisions.regions, planner=planner, bound_seconds=graph.seconds)

    def _fastest(self, limit: int) -> planners.Plan | None:
        best = self._polished(self._planned(limit), limit)
        return None if best is None else self.checked(best)

    def _planned(self, limit: int) -> planners.Plan | None:
        """The fastest of the planner's plans that keeps a limit."""
        found = self._asked(self.solved, limit, limit)
        if self.solved.of_single_stages is None or (
            found is not None and self._is_done(found, limit)
        ):
            return found
        solved, more = self._lending
        other = self._asked(solved, limit, limit + more) if more >= MUCH * limit else None
        if other is None or (found is not None and found.seconds <= other.seconds):
            return found
        bound = min(other.seconds, self.solved.bound_seconds(other.peak_bytes))
        return certified(self.graph, other.regions, planner=other.planner, bound_seconds=bound)

    def _is_done(self, decisions: planners.Plan, limit: int) -> bool:
        """Whether a plan uses its limit, or is free."""
        return self.modelled(decisions.regions) >= GOOD_USE * limit or self._is_free(decisions)

    @functools.cached_property
    def _lending(self) -> tuple[SolvedBudgets, int]:
        """The plans of a graph in which what lies in results counts as nothing; see `lending`."""
        regions = planners.save_all(self.graph).regions
        nbytes = self._compiled_plans.model.bytes_in_results(regions, self.graph)
        graph, more = lending(self.graph, nbytes)
        return self.solved.of_graph(graph), more

    def _asked(self, solved: SolvedBudgets, limit: int, budget: int) -> planners.Plan | None:
        """The fastest of some plans that keeps a limit, the first one for a budget of live bytes.

        Plans of single stages come much sooner: they tell for how many live bytes to ask.
        """
        singles = solved.of_single_stages
        if singles is not None:
            first, budget = fastest_within(singles, self.modelled, limit, budget)
            if first is not None and self._is_free(first):
                return first
        return fastest_within(solved, self.modelled, limit, budget)[0]

    def _is_free(self, decisions: planners.Plan) -> bool:
        """Whether no plan of this model is faster, whatever memory it takes."""
        return is_free(decisions, self.solved.free_seconds)

    def _polished(self, decisions: planners.Plan | None, limit: int) -> planners.Plan | None:
        """A faster plan that keeps a limit on modelled temporaries, if local search finds one.

        Where the planner has none, it begins with the calibration plan. Its bound is the
        planner's for as many live bytes as it takes.
        """
        singles = self.solved.prepared.singles
        start = decisions or self._compiled_plans.calibration_plan
        if singles is None or self._is_free(start) or self.modelled(start.regions) > limit:
            return decisions
        regions = planners.polished(
            self.graph,
            start.regions,
            singles,
            lambda some: self._fits(uniform_regions(self.graph, some), limit),
            max_candidates=POLISH_CANDIDATES,
        )
        found = with_uniform_iterations(self.graph, with_regions(self.graph, start, regions))
        if found.seconds >= start.seconds or not self._fits(found.regions, limit):
            return start
        bound = self.solved.bound_seconds(max(found.peak_bytes, start.peak_bytes))
        return dataclasses.replace(found, bound_seconds=min(bound, found.seconds))

    def _fits(self, regions: Regions, limit: int) -> bool:
        """Whether a plan keeps the limits on gradient error, host and modelled temporaries."""
        return self.is_right(regions) and self.modelled(regions) <= limit
