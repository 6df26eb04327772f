"""The search keeps budgets and caps whatever a compiler makes of the model's predictions."""

import collections
import dataclasses
import functools
import itertools
import statistics

import pytest
from graphs import random_graph, with_saving
from synthetic_judge import (
    FIXED_BYTES,
    Enumerated,
    Enumeration,
    SyntheticJudge,
    WithLongRegions,
    exact,
    failing,
    larger,
    noisy,
    not_monotone,
    plans_of,
    random_limit,
    smaller,
)
from thinning import thinned

import planners
from monet_jax.candidates import movable
from monet_jax.candidates.calibration import calibration_plan_of
from monet_jax.candidates.cap import Cap, CapReached
from monet_jax.candidates.compiled_plans import CompiledPlans
from monet_jax.candidates.programs import Programs
from monet_jax.candidates.worth import CLEARLY_FASTER, WORTH
from monet_jax.search.search import Found, find
from planners.graph import Graph, Link
from planners.regions.planner import PreparedPlanner
from planners.regions.simple_plans import certified, moving_inputs

RULES = (exact, larger, smaller, noisy, not_monotone, failing)
#: Random cases of each rule; together they are more than 1,000.
CASES = 170
#: As many as always run.
FEW = 40
CAP = 6


@functools.cache
def cases(count: int = CASES) -> list[Graph]:
    """Random graphs that have some plans."""
    graphs = (random_graph(seed, n_stages=4) for seed in range(2 * CASES))
    return [*itertools.islice((graph for graph in graphs if len(plans_of(graph)) > 30), count)]


def searched(judge: SyntheticJudge, limit: int, cap: Cap | None = None) -> Found:
    """The result for a limit on temporaries."""
    plans = CompiledPlans(judge, cap or Cap(CAP))
    return find(Programs(plans, None, lambda: None, Enumeration()), FIXED_BYTES + limit)


@pytest.mark.parametrize(
    ("rule", "count"),
    thinned(itertools.product(RULES, [FEW, CASES]), *(f"{x.__name__}-{FEW}" for x in RULES)),
)
def test_budgets_and_caps_are_kept(rule, count):
    """In random cases; and where a simple plan keeps the budget, one is mostly found."""
    outcomes = collections.Counter()
    for seed, graph in enumerate(cases(count)):
        judge, limit = SyntheticJudge(graph, rule, seed), random_limit(graph, seed)
        bytes_of = {plan.regions: judge.bytes_of(plan.regions) for plan in plans_of(graph)}
        is_possible = any(nbytes is not None and nbytes <= limit for nbytes in bytes_of.values())
        try:
            found = searched(judge, limit)
        except CapReached:
            outcomes["no plan compiled"] += 1
            continue
        assert judge.compilations <= 2 * CAP
        assert found.fits == (_taken(judge, found) <= limit)
        outcomes["found" if found.fits else "missed" if is_possible else "none"] += 1
    assert outcomes["found"] >= 0.95 * (outcomes["found"] + outcomes["missed"]), outcomes
    assert outcomes["no plan compiled"] <= 3 * (rule is failing), outcomes
    assert sum(outcomes.values()) == count


def _taken(judge: SyntheticJudge, found: Found) -> int:
    """The temporaries of what was found, by the rule and not by what the search knows."""
    if found.plan is None:
        return judge.unplanned_bytes().temp_bytes
    taken = judge.bytes_of(found.plan.decisions.regions)
    assert taken is not None
    return taken


@pytest.mark.parametrize("compilations", [1, 2, 3])
def test_a_search_that_is_cut_short_says_so(compilations):
    cut_short = 0
    for seed, graph in enumerate(cases(FEW)):
        judge, limit = SyntheticJudge(graph, not_monotone, seed), random_limit(graph, seed)
        cap = Cap(compilations)
        plans = CompiledPlans(judge, cap)
        programs = Programs(plans, None, lambda: None, Enumeration())
        try:
            found = find(programs, FIXED_BYTES + limit)
        except CapReached:
            assert judge.compilations <= compilations and cap.reached
            cut_short += 1
            continue
        assert judge.compilations <= 2 * compilations
        assert found.cut_short or not cap.reached
        cut_short += bool(found.cut_short)
    assert cut_short > 5


def test_seconds_are_capped():
    """By a clock that stands still while nothing is compiled."""
    graph, seconds = cases(FEW)[3], [0.0]
    judge, announced = SyntheticJudge(graph, noisy), []
    cap = Cap(
        max_seconds=2.5,
        clock=lambda: seconds[0],
        announce=lambda what: (announced.append(what), seconds.__setitem__(0, seconds[0] + 1.0)),
    )
    with pytest.raises(CapReached, match=r"2\.5 s had passed"):
        for n in range(10):
            cap.spend(f"program {n}")
    assert len(announced) == 3 and judge.compilations == 0


def test_no_planner_is_asked_when_the_seconds_are_over():
    class Clocked(Enumeration):
        def prepare(self, graph):
            raise AssertionError("a planner was asked")

    seconds, judge = [0.0], SyntheticJudge(cases(FEW)[3], exact)
    plans = CompiledPlans(judge, Cap(max_seconds=1.0, clock=lambda: seconds[0]))
    limit = int(0.7 * plans.unplanned.temp_bytes)
    seconds[0] = 2.0
    with pytest.raises(CapReached, match="1 s had passed"):
        find(Programs(plans, None, lambda: None, Clocked()), FIXED_BYTES + limit)


@pytest.mark.parametrize("rule", thinned([exact, noisy], "noisy"))
def test_a_plan_that_is_clearly_faster_is_taken_where_the_function_fits_as_it_is(rule):
    """As where saving takes time; without that nothing but the function is compiled."""
    outcomes = collections.Counter()
    for seed, graph in enumerate(cases(100)):
        judge = SyntheticJudge(with_saving(graph, seed, 12.0) if seed % 4 else graph, rule, seed)
        plain = planners.save_all(judge.graph).seconds
        limit = judge.unplanned_bytes().temp_bytes
        judge.compilations = 0
        fits = (x for x in plans_of(judge.graph) if judge.bytes_of(x.regions) <= limit)
        gain = 1 - min((x.seconds for x in fits), default=plain) / plain
        found = searched(judge, limit)
        assert found.fits
        if gain < CLEARLY_FASTER or seed % 4 == 0:
            assert found.plan is None
            assert judge.compilations == 1 or seed % 4
        elif found.plan is not None:
            assert found.plan.decisions.seconds <= (1 - CLEARLY_FASTER) * plain
        outcomes[gain >= CLEARLY_FASTER, found.plan is not None] += 1
    assert outcomes[True, True] > 25 and outcomes[True, True] > 19 * outcomes[True, False], outcomes


@pytest.mark.parametrize("share, stay", [(0.99, True), (0.9999, False), (1.01, False)])
def test_operators_stay_where_they_save_time(share, stay):
    """The same graph twice, once with all seconds changed, within what all plans but one break."""
    plain = cases(FEW)[5]
    faster = _with_seconds(plain, share)
    cap = Cap()
    plans = CompiledPlans(SyntheticJudge(faster, exact), cap)
    without = CompiledPlans(SyntheticJudge(plain, exact), cap, like=plans, calibrates=False)
    limit = random_limit(plain, 11)
    found = find(Programs(plans, without, lambda: None, Enumeration()), FIXED_BYTES + limit)
    assert found.fits and found.plan is not None and found.plan.decisions.seconds > 0
    assert (found.plans is plans) == stay


class _MoreForLongRegions(SyntheticJudge):
    """Plans that recompute stages together take twice what the model says, others a little less."""

    def bytes_of(self, regions):
        nbytes = super().bytes_of(regions)
        assert nbytes is not None
        is_long = any(region.first != region.last for region in regions)
        return int((2.0 if is_long else 0.85) * nbytes)


class _UndoneWhereNothingIsSaved(SyntheticJudge):
    """The calibration plan takes nearly what saving all takes, others what the model says."""

    def bytes_of(self, regions):
        is_undone = regions == calibration_plan_of(self.graph).regions
        return super().bytes_of(planners.save_all(self.graph).regions if is_undone else regions)


@pytest.mark.slow
def test_a_calibration_plan_that_is_undone_says_nothing_of_others():
    found, tried, compilations = 0, 0, []
    for seed, graph in enumerate(cases()):
        judge, limit = _UndoneWhereNothingIsSaved(graph, exact, seed), random_limit(graph, seed)
        fits = [x for x in plans_of(graph) if judge.bytes_of(x.regions) <= limit]
        unplanned = judge.unplanned_bytes().temp_bytes
        result = searched(judge, limit)
        if not fits or unplanned <= limit:
            continue
        tried += 1
        compilations.append(judge.compilations)
        least = min(plan.seconds for plan in fits)
        found += result.fits and result.plan.decisions.seconds <= (1 + WORTH) * least
    assert tried > 100 and found >= 0.95 * tried, (found, tried)
    assert statistics.median(compilations) <= 4


@pytest.mark.slow
def test_plans_of_single_stages_are_found_where_others_take_more():
    """What a compiler makes of long regions says nothing of plans of single stages."""
    found, tried = 0, 0
    for seed, graph in enumerate(cases()):
        judge, limit = _MoreForLongRegions(graph, exact, seed), random_limit(graph, seed)
        fits = [x for x in plans_of(graph) if (judge.bytes_of(x.regions) or 0) <= limit]
        cap = Cap(CAP)
        programs = Programs(CompiledPlans(judge, cap), None, lambda: None, WithLongRegions())
        result = find(programs, FIXED_BYTES + limit)
        if not fits or result.plan is None:
            continue
        tried += 1
        least = min(plan.seconds for plan in fits)
        found += result.fits and result.plan.decisions.seconds <= (1 + WORTH) * least
    assert tried > 100 and found >= 0.95 * tried, (found, tried)


class _WithMoves(Enumeration):
    """The same plans, and a slow one that moves the inputs of stages to the host's memory."""

    def prepare(self, graph):
        prepared = super().prepare(graph)
        if graph.link is None:
            return prepared
        moving = certified(graph, moving_inputs(graph), planner="moves", bound_seconds=0.0)
        return dataclasses.replace(prepared, plans=(*prepared.plans, moving))


def _with_slow_link(graph: Graph) -> Graph:
    """The graph, of which what one stage reads may move, at a byte a second."""
    readers = movable._readers(graph)
    values = [dataclasses.replace(x, reader=readers.get(i)) for i, x in enumerate(graph.values)]
    return dataclasses.replace(graph, values=tuple(values), link=Link(1.0, 1.0, 10**12))


def test_what_may_move_makes_no_plan_slower():
    """Also where only the search for small plans finds one that fits."""
    counted = collections.Counter()
    for seed, graph in enumerate(cases(60)):
        limit, seconds = random_limit(graph, seed), []
        for some in (graph, _with_slow_link(graph)):
            plans = CompiledPlans(SyntheticJudge(some, noisy, seed), Cap(2))
            programs = Programs(plans, None, lambda: None, _WithMoves())
            try:
                found = find(programs, FIXED_BYTES + limit)
            except CapReached:
                break
            seconds.append(found.plan.decisions.seconds if found.fits and found.plan else None)
        if None not in seconds and len(seconds) == 2:
            counted["planned"] += 1
            assert seconds[1] <= seconds[0]
    assert counted["planned"] > 10


def _with_seconds(graph: Graph, share: float) -> Graph:
    def changed(ops):
        return tuple(dataclasses.replace(op, seconds=share * op.seconds) for op in ops)

    stages = (
        dataclasses.replace(stage, forward=changed(stage.forward), backward=changed(stage.backward))
        for stage in graph.stages
    )
    return dataclasses.replace(graph, stages=tuple(stages))


class _OnlySmallest(Enumerated):
    """The smallest of all plans, and none within any budget."""

    def fastest(self, budget_bytes: int) -> planners.Plan:
        least = self.smallest().peak_bytes
        raise planners.InfeasibleBudget("none", minimum_bytes=least, peak_values=())


class OnlySmallest(Enumeration):
    """A planner that has no more."""

    def prepare(self, graph: Graph) -> PreparedPlanner:
        return _OnlySmallest(plans_of(graph))


def test_a_plan_that_was_compiled_for_less_does_not_hide_a_faster_one():
    """Where the planner has nothing, a second search is as good as one of its own."""
    faster = 0
    for seed, graph in enumerate(cases(FEW)):
        judge = SyntheticJudge(graph, exact, seed)
        least = _taken(judge, find(_without_proposals(judge), FIXED_BYTES))
        programs = _without_proposals(judge)
        smallest = find(programs, FIXED_BYTES + least)
        for share in (1.1, 1.2, 1.3):
            limit = FIXED_BYTES + int(share * least)
            of_its_own, found = find(_without_proposals(judge), limit), find(programs, limit)
            assert found.fits and _seconds(graph, found) <= _seconds(graph, of_its_own)
            faster += _seconds(graph, of_its_own) < _seconds(graph, smallest)
    assert faster > FEW


def _without_proposals(judge: SyntheticJudge) -> Programs:
    plans = CompiledPlans(judge, Cap(CAP))
    return Programs(plans, None, lambda: None, OnlySmallest())


def _seconds(graph: Graph, found: Found) -> float:
    return graph.seconds if found.plan is None else found.plan.decisions.seconds
