"""From a traced function and a budget to a plan that the compiled program keeps.

The planner works in model bytes; only the compiler knows the real ones. So every plan that is about
to be trusted is compiled, and what the compiler says about it corrects the model for the next: down
where the program is too large, up where memory is left unused and time could be won.

Here is the search; what the planner says is in `proposals`, what is known of each plan in
`compiled_plans`, and what becomes of plans that nearly fit in `repair`.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import planners
from planners.graph import Graph, Op
from planners.plan import Region
from planners.regions.simple_plans import left_alone, saving_all

from ..plans.record import PlanRecord
from ..plans.tables import describe_values, stage_rows, value_rows
from ..plans.timeline import Timeline, timeline_of
from ..tracing.trace import describe_inputs, fingerprint
from .compiled_plans import CompiledPlan, CompiledPlans, OtherOptions
from .proposals import Proposals, with_regions
from .repair import try_between, try_without_change

#: A plan that uses this much of its budget is not worth another compilation.
GOOD_USE = 0.97
#: Where a plan uses less than this, the other model is asked as well.
FAIR_USE = 0.95
#: Compilations of plans, at most; the unplanned program and the base come before.
MAX_COMPILATIONS = 6
#: Steps of the search, at most; a step that meets a plan again compiles nothing.
MAX_STEPS = 14
#: The search ends when this fraction of the budget is all that is undecided.
ENOUGH = 0.01
#: A budget is infeasible by no less than this: a search for this share of the minimum fails, too.
CLEARLY_LESS = 0.97
#: The steps towards the minimum, until one finds nothing; then they are of the former kind.
MUCH_LESS = 0.9
#: Operators stay where they save this share of the time: less than that a search leaves open, and
#: without them tangents may go forward.
WORTH = 1e-3
#: A plan may compile to this much of what is predicted.
MAY_BE_OFF = 0.9


class InfeasibleBudget(ValueError):
    """No plan brings the compiled program within the budget.

    Where arguments and results alone exceed the budget, no plan was looked for: then the first
    reading of `minimum_budget` plans and compiles to find it.
    """

    def __init__(self, message: str, minimum_budget: int | Callable[[], int]):
        super().__init__(message)
        self._minimum_budget = minimum_budget

    @property
    def minimum_budget(self) -> int:
        """Bytes; planning with it succeeds."""
        if callable(self._minimum_budget):
            self._minimum_budget = self._minimum_budget()
        return self._minimum_budget

    def __reduce__(self):
        return InfeasibleBudget, (str(self), self.minimum_budget)


class PlanSearch:
    """The search for plans of one traced function on one target.

    Budgets share what was compiled for earlier ones. Where no plan keeps one, and loops carry much,
    the function is planned with its loops in chunks (`tracing/nested_scans`), by a search of its
    own. So it is without operators, where these change it whatever a plan decides, and a plan takes
    longer than recomputing nothing: what they bring is then never less than nothing.

    Arguments:
        compiled_plans: of the function, on the target.
        planner: `(Graph, int) -> planners.Plan`.
    """

    def __init__(self, compiled_plans: CompiledPlans, planner: Any):
        self.compiled_plans, self.planner = compiled_plans, planner

    @property
    def stopped(self) -> planners.SolverStopped | None:
        """Why the planner had no answer at some point of the last search, if so."""
        stopped = (proposals.stopped for proposals in self._all_proposals)
        return next((error for error in stopped if error is not None), None)

    @property
    def _all_proposals(self) -> Iterator[Proposals]:
        for search in self._searches:
            for proposals in search.proposals:
                yield from proposals

    @property
    def _graph(self) -> Graph:
        return self.compiled_plans.graph

    @functools.cached_property
    def proposals(self) -> tuple[tuple[Proposals, ...], ...]:
        """Plans in which derivatives read what JAX has them read; then those with codes as well,
        the exact ones first.

        The former are found much sooner, a budget that one of them keeps for free needs no others,
        and no plan is slower for all the others that there are to choose from. (Where errors are
        limited, plans without lossy codes have a search of their own.)
        """
        graphs = [_with_alternatives(self._graph, lambda codes: False)]
        if self.compiled_plans.bound is None:
            lossy = self.compiled_plans.lossy_codes
            graphs.append(_with_alternatives(self._graph, lambda codes: codes.isdisjoint(lossy)))
        graphs.append(self._graph)
        return tuple(self._by_models(x) for n, x in enumerate(graphs) if x not in graphs[:n])

    def _by_models(self, graph: Graph) -> tuple[Proposals, ...]:
        """By what is known of the compiler; then by a model in which nothing is recomputed late.

        Where several stages that save little are run again as one, a compiler may hold more than
        recomputing late would: the second model has fewer of them. In plans by the first one, no
        iteration of a loop runs by itself: what takes a few percent more time takes what is
        predicted.
        """
        found = (Proposals(self.compiled_plans, self.planner, graph),)
        if graph.recomputes_late:
            other = dataclasses.replace(graph, recomputes_late=False, uniform_blocks=False)
            found += (Proposals(self.compiled_plans, self.planner, other),)
        return found

    def plan(
        self, budget: Callable[[Callable[[], int]], int], reserved_bytes: int = 0
    ) -> PlanRecord:
        """The fastest plan found whose compiled program keeps a budget.

        Arguments:
            budget: a function of a function that returns the unplanned bytes -> total bytes.
            reserved_bytes: the part of the budget that is for other things.

        Raises:
            InfeasibleBudget: no plan keeps it.
        """
        try:
            return self._searched(budget, reserved_bytes)
        except OtherOptions:  # so that bytes are compared which were measured alike
            self.__dict__ = vars(PlanSearch(self.compiled_plans.anew(), self.planner))
            return self._searched(budget, reserved_bytes)

    def _searched(
        self, budget: Callable[[Callable[[], int]], int], reserved_bytes: int
    ) -> PlanRecord:
        """The same, as long as all its programs are compiled under the same options.

        Raises:
            OtherOptions: they are not.
        """
        found = self._outcome(budget, reserved_bytes)
        search = (
            self._without_operators if isinstance(found, Exception) or found.overhead > 0 else None
        )
        if search is not None:
            found = _better(found, search._outcome(budget, reserved_bytes))
        if isinstance(found, Exception):
            raise found
        return found

    def _outcome(
        self, budget: Callable[[Callable[[], int]], int], reserved_bytes: int
    ) -> PlanRecord | InfeasibleBudget:
        """The plan, or why there is none, as far as operators are used as they were asked for."""
        try:
            return self._found(budget, reserved_bytes)
        except InfeasibleBudget as error:
            return error

    def _found(self, budget: Callable[[Callable[[], int]], int], reserved_bytes: int) -> PlanRecord:
        started = time.perf_counter()
        for proposals in self._all_proposals:
            proposals.restart()
        known = self._compilations
        total = budget(lambda: self.compiled_plans.unplanned.total_bytes)
        room = total - reserved_bytes
        try:
            by, best = self, self._best(room, reserved_bytes)
        except InfeasibleBudget as error:
            by, best = self._best_in_chunks(room, reserved_bytes, error)
        seconds = time.perf_counter() - started
        compilations = self._compilations - known
        return self._plan(total, reserved_bytes, by, best, seconds, compilations)

    @property
    def _searches(self) -> list["PlanSearch"]:
        """This search and, once they were needed, those without operators and in chunks."""
        others = (self.__dict__.get(name) for name in ("_without_operators", "_in_chunks"))
        return [self, *(search for search in others if search is not None)]

    @property
    def _compilations(self) -> int:
        return sum(len(search.compiled_plans) for search in self._searches)

    @functools.cached_property
    def _without_operators(self) -> "PlanSearch | None":
        """The search for plans of the function as it was before any operator."""
        compiled_plans = self.compiled_plans.without_operators()
        return None if compiled_plans is None else PlanSearch(compiled_plans, self.planner)

    @functools.cached_property
    def _in_chunks(self) -> "PlanSearch | None":
        """The search for plans with loops in chunks; None where these spare too little."""
        found = self.compiled_plans.as_nested_scans()
        if found is None:
            return None
        compiled_plans, spared = found
        least = self.compiled_plans.fixed_bytes + self.compiled_plans.temp_bytes(
            self.compiled_plans.smallest()
        )
        return (
            PlanSearch(compiled_plans, self.planner)
            if spared > (1 - CLEARLY_LESS) * least
            else None
        )

    def _best_in_chunks(
        self, room: int, reserved_bytes: int, error: InfeasibleBudget
    ) -> tuple["PlanSearch", CompiledPlan]:
        """The trial to settle on with loops in chunks, and the search that found it.

        Raises:
            InfeasibleBudget: neither keeps the budget; `error` where that has the lesser minimum.
        """
        search = self._in_chunks
        if search is None:
            raise error
        try:
            return search, search._verified(room - self.compiled_plans.fixed_bytes, reserved_bytes)
        except InfeasibleBudget as other:
            raise min(error, other, key=lambda x: x.minimum_budget) from None

    def _best(self, room: int, reserved_bytes: int) -> CompiledPlan | None:
        """The trial to settle on; None for the function as it is.

        What is planned through the user's checkpoints need not recompute what they do, so it may
        be the faster even where the function fits as it is.
        """
        is_enough = (
            not self.compiled_plans.pins and self.compiled_plans.unplanned.total_bytes <= room
        )
        if is_enough and not self.compiled_plans.traced.program.inlines_checkpoints:
            return None
        try:
            return self._verified(room - self.compiled_plans.fixed_bytes, reserved_bytes)
        except InfeasibleBudget:
            if is_enough:
                return None
            raise

    def _verified(self, room: int, reserved_bytes: int) -> CompiledPlan:
        """The fastest trial whose temporaries fit in `room` bytes."""
        best = self._search(room)
        if self.compiled_plans.temp_bytes(best) > room:
            best = self._least(best, reserved_bytes)
        if self.compiled_plans.temp_bytes(best) > room:
            raise self._infeasible(best, room, reserved_bytes)
        return best

    def _least(self, best: CompiledPlan, reserved_bytes: int) -> CompiledPlan:
        """The smallest trial once a search for clearly less than it finds nothing."""
        outside = self.compiled_plans.fixed_bytes + reserved_bytes
        for share in (MUCH_LESS, CLEARLY_LESS):
            fits = True
            while fits:
                room = int(share * (outside + self.compiled_plans.temp_bytes(best))) - outside
                found = self._search(room) if room > 0 else best
                fits = self.compiled_plans.temp_bytes(found) <= room
                best = min(best, found, key=self.compiled_plans.temp_bytes)
        return best

    def _search(self, room: int) -> CompiledPlan:
        """The fastest trial whose temporaries fit in `room` bytes; the smallest if none does."""
        for models in self.proposals:
            for proposals in models:
                self._search_by(proposals, room)
                best = self.compiled_plans.fastest_within(room)
                if best is not None and self._is_final(best, room):
                    break
            else:
                if best is None or best.decisions.regions == self.compiled_plans.base.regions:
                    self._try_small_plans(models)
                    if self._hoped_for(room) > self.compiled_plans.modelled_for(room):
                        for proposals in models:
                            self._search_by(proposals, room)
                        best = self.compiled_plans.fastest_within(room)
            if best is not None and self._is_free(best):
                break
        try_between(self.compiled_plans, room, self._max_rounds)
        return self.compiled_plans.fastest_within(room) or self.compiled_plans.smallest()

    def _is_free(self, compiled_plan: CompiledPlan) -> bool:
        return compiled_plan.decisions.seconds <= self._graph.seconds

    def _is_final(self, compiled_plan: CompiledPlan, room: int) -> bool:
        """Whether a trial that fits is fast, or fills enough of `room`, not to look further."""
        enough = self.compiled_plans.temp_bytes(compiled_plan) >= FAIR_USE * room
        is_planned = compiled_plan.decisions.regions != self.compiled_plans.base.regions
        return is_planned and (enough or self._is_free(compiled_plan))

    def _search_by(self, proposals: Proposals, room: int) -> None:
        """Compile plans until the fastest that fits in `room` bytes is among them, by one model."""
        low, high = 0, None  # modelled temporaries that fit, or have no plan, and that do not fit
        wanted, compiled = self.compiled_plans.modelled_for(room), 0
        for _ in range(MAX_STEPS):
            decisions = proposals.within(wanted)
            if decisions is None:
                hoped_for = self._hoped_for(room)
                if high is None and hoped_for > wanted:
                    low, wanted = wanted, hoped_for
                elif high is not None and high - wanted >= ENOUGH * room:
                    low, wanted = wanted, (wanted + high) // 2
                else:
                    break
                continue
            is_new = decisions not in self.compiled_plans
            if is_new and compiled == self._max_rounds:
                break
            compiled += is_new
            used = self.compiled_plans.temp_bytes(self.compiled_plans.of(decisions))
            modelled = proposals.modelled(decisions.regions)
            if used <= room:
                low = max(low, wanted, modelled)
                if used >= GOOD_USE * room or decisions.seconds <= self._graph.seconds:
                    break
            else:
                high = min(wanted, modelled, high or wanted)
            wanted = _next_wanted(room - (used - modelled), low, high, is_new)
            if high is not None and high - low < ENOUGH * room:
                break
        try_without_change(self.compiled_plans, room)

    @property
    def _max_rounds(self) -> int:
        return MAX_COMPILATIONS if self.compiled_plans.verify else 1

    def _try_small_plans(self, models: Sequence[Proposals]) -> None:
        """Compile plans with few bytes, and the smallest with its ends changed.

        Whether recomputing the first or the last stage costs memory or spares it is up to the
        compiler's schedule, and so is whether the last is better left alone or saved by name: a
        GPT-2 under a scan took 429 MiB by name and 576 otherwise.
        """
        for proposals in models:
            for decisions in proposals.small():
                self._try_for_less(decisions)
        least = self.compiled_plans.smallest().decisions
        for changed, ends in (
            (left_alone, (-1,)),
            (left_alone, (0,)),
            (left_alone, (0, -1)),
            (saving_all, (-1,)),
        ):
            regions = list(least.regions)
            for n in ends:
                regions[n] = changed(self._graph, regions[n])
            with contextlib.suppress(planners.InvalidPlan):  # something cannot be saved
                self._try_for_less(with_regions(self._graph, least, tuple(regions)))

    def _try_for_less(self, decisions: planners.Plan) -> None:
        """Compile a plan, if it may be smaller than all that are known.

        What is predicted rests on the base, of which the compiler may make less than of others.
        """
        predicted = self.compiled_plans.predicted_temp_bytes(decisions.regions) + self._least_off
        if MAY_BE_OFF * predicted <= self.compiled_plans.temp_bytes(self.compiled_plans.smallest()):
            self.compiled_plans.of(decisions)

    @property
    def _least_off(self) -> int:
        """What some plan takes over what is predicted, or under: so may others."""
        return min(
            self.compiled_plans.temp_bytes(t) - t.predicted_temp_bytes for t in self.compiled_plans
        )

    def _hoped_for(self, room: int) -> int:
        """Modelled temporaries of plans that fit, if they take as much less as some plan does.

        None are hoped for where nothing fits: then it is a small plan that is wanted.
        """
        fits = self.compiled_plans.fastest_within(room) is not None
        return self.compiled_plans.modelled_for(room - self._least_off) if fits else 0

    def _infeasible(self, least: CompiledPlan, room: int, reserved_bytes: int) -> InfeasibleBudget:
        """The error for a budget that leaves `room` for temporaries, too little for `least`."""
        fixed, origins = self.compiled_plans.fixed_bytes, self.compiled_plans.origins
        outside = fixed + reserved_bytes
        wanted, minimum = outside + room, outside + self.compiled_plans.temp_bytes(least)
        peak = planners.replay(self._graph, least.decisions).peak_values
        named = [name for name in peak if name in origins.values][:4]
        message = (
            f"No plan fits in {wanted:,} bytes; the smallest one found takes {minimum:,} bytes as "
            f"compiled for {self.compiled_plans.target.name}, of which {fixed:,} are arguments and "
            f"results. At its peak these values are live: {describe_values(origins, named)}. "
            f"Raise `budget` to {minimum:,}, or reduce the batch."
        )
        if others := self.compiled_plans.not_used():
            message += f" With {others} in a list of `operators`, it may take less."
        return InfeasibleBudget(message, minimum)

    def _plan(
        self,
        budget: int,
        reserved: int,
        by: "PlanSearch",
        best: CompiledPlan | None,
        seconds: float,
        compilations: int,
    ) -> PlanRecord:
        compiled_plans = self.compiled_plans
        decisions = best.decisions if best else None
        figures = best.figures if best else compiled_plans.unplanned
        program = compiled_plans.traced.program
        predicted = best.predicted_temp_bytes if best else compiled_plans.unplanned.temp_bytes
        return PlanRecord(
            decisions=decisions,
            fingerprint=fingerprint(program, compiled_plans.traced.derivative),
            inputs=describe_inputs(program),
            equations=len(program.equations),
            target=compiled_plans.target.name,
            compiler=(figures or compiled_plans.unplanned).compiler,
            jax_version=jax.__version__,
            budget_bytes=budget,
            reserved_bytes=reserved,
            predicted_bytes=compiled_plans.fixed_bytes + predicted,
            compiled_bytes=figures.total_bytes if figures else None,
            unplanned_bytes=compiled_plans.unplanned.total_bytes,
            base_seconds=self._graph.seconds,
            base_flops=planners.save_all(self._graph).flops,
            planning_seconds=seconds,
            compilations=compilations,
            values=value_rows(by.compiled_plans.origins, by._graph, decisions),
            stages=stage_rows(by._graph, decisions),
            next_faster=by._next_faster(best),
            devices=compiled_plans.devices,
            chunks=by.compiled_plans.chunks,
            fixed_bytes=compiled_plans.fixed_bytes,
            before=self._unplanned_timeline if decisions else None,
            after=by._timeline(decisions.regions) if decisions else self._unplanned_timeline,
            operators=compiled_plans.traced.terms.operators,
            checkpoints=compiled_plans.traced.terms.checkpoints,
        )

    @functools.cached_property
    def _unplanned_timeline(self) -> Timeline | None:
        """What is in memory over the step where nothing is recomputed."""
        return self._timeline(planners.save_all(self._graph).regions)

    def _timeline(self, regions: Sequence[Region]) -> Timeline | None:
        """What is in memory over the step as regions say."""
        return timeline_of(self._graph, self.compiled_plans.origins, regions)

    def _next_faster(self, best: CompiledPlan | None) -> tuple[float, int] | None:
        """The next faster plan that was compiled, which broke the budget."""
        if best is None:
            return None
        limit = best.decisions.seconds
        faster = [
            (
                t.decisions.seconds,
                self.compiled_plans.fixed_bytes + self.compiled_plans.temp_bytes(t),
            )
            for t in self.compiled_plans
            if t.figures is not None and t.decisions.seconds < limit
        ]
        return max(faster, default=None)


def _better(
    found: PlanRecord | InfeasibleBudget, without: PlanRecord | InfeasibleBudget
) -> PlanRecord | InfeasibleBudget:
    """The plan that is worth its operators, or that without, which took the time of both.

    Of two errors it is that of the lesser minimum.
    """
    if isinstance(found, InfeasibleBudget):
        is_less = isinstance(without, PlanRecord) or without.minimum_budget < found.minimum_budget
        return without if is_less else found
    if isinstance(without, InfeasibleBudget):
        return found
    best = found if found.seconds < (1 - WORTH) * without.seconds else without
    seconds = found.planning_seconds + without.planning_seconds
    return dataclasses.replace(
        best, planning_seconds=seconds, compilations=found.compilations + without.compilations
    )


def _with_alternatives(graph: Graph, is_one: Callable[[frozenset[int]], bool]) -> Graph:
    """A graph whose backward ops run in their own way, or in one of which the codes are wanted."""

    def open_to(op: Op) -> Op:
        return dataclasses.replace(
            op,
            alternatives=tuple(
                implementation
                for implementation in op.alternatives
                if is_one(op.codes(implementation))
            ),
        )

    stages = tuple(
        dataclasses.replace(stage, backward=tuple(map(open_to, stage.backward)))
        for stage in graph.stages
    )
    return dataclasses.replace(graph, stages=stages)


def _next_wanted(guess: int, low: int, high: int | None, is_new: bool) -> int:
    """Where to look next: where the compiler's answer points, else between what is known."""
    if high is None:
        return guess if is_new else guess + guess // 10
    return guess if is_new and low < guess < high else (low + high) // 2
