"""The planner of regions agrees with exhaustive search by replay.

Three searches stand against the planner: every plan of its own candidates; every subset of savable
values of every single stage; and, for the stage program alone, every subset of one stage.
"""

import contextlib
import dataclasses
import functools as ft
import itertools as it
import json
import math
import pickle
import subprocess
import sys
import time
import types
from typing import Any

import graphs
import numpy as np
import pytest
from thinning import thinned

from planners import (
    Graph,
    Implementation,
    InfeasibleBudget,
    InvalidPlan,
    Loop,
    Plan,
    PlanningError,
    Region,
    SolverStopped,
    Stages,
    plan_from_json,
    polished,
    replay,
    save_all,
    save_nothing,
    saved_bytes,
)
from planners.regions.candidates import solving
from planners.regions.candidates.candidates import Candidates
from planners.regions.composition import memory, program, rows
from planners.regions.composition.program import Composition
from planners.regions.composition.variables import Variables
from planners.regions.effects import walk, walker
from planners.regions.effects.candidate import Candidate
from planners.regions.effects.gradients import Gradients
from planners.regions.effects.shapes import Shapes
from planners.regions.effects.walker import Walker
from planners.regions.search import search
from planners.regions.stage_program import options as options_module
from planners.runs import backward_runs, error_of
from planners.solver import highs

BARE = dict(first=0, last=0, saved=[], alone=False, inner=[], offloaded=[], ahead=0)
EXACT = Stages(gap=0.0, time_limit=60.0)
SEEDS = range(20)
#: Of the error of a plan.
LIMITS = (0.0, 1.5, 4.0, math.inf)
NAMED = {"chain": graphs.chain(), "pair": graphs.pair(), "skip": graphs.skip()}
CHOICES = {f"choice {seed}": graphs.random_choice(seed) for seed in (*range(15), 43)}


@dataclasses.dataclass(frozen=True)
class Space:
    """Every plan of some candidates, with what replay says of it."""

    graph: Graph
    costs: tuple[tuple[int, float], ...]  # peak bytes, seconds

    def best(self, budget_bytes: int) -> float | None:
        return min((s for nbytes, s in self.costs if nbytes <= budget_bytes), default=None)

    @property
    def least_bytes(self) -> int:
        return min(nbytes for nbytes, _ in self.costs)

    @property
    def budgets(self) -> list[int]:
        """Some that change the answer, one too small, and one that fits everything."""
        peaks = sorted({nbytes for nbytes, _ in self.costs})
        return [peaks[0] - 1, *peaks[:: 1 + len(peaks) // 5], save_all(self.graph).peak_bytes]


def space(graph: Graph, plans) -> Space:
    costs = []
    for plan in plans:
        try:
            found = replay(graph, plan)
        except InvalidPlan:
            continue
        costs.append((found.peak_bytes, found.seconds))
    return Space(graph, tuple(costs))


def candidates(graph: Graph, shapes: Shapes | None = None) -> list[Candidate]:
    forever = time.monotonic() + 60
    found = Candidates(graph, shapes or Shapes(), max_options=12, deadline=forever)
    return [x for some in found.singles for x in some] + found.intervals(forever)


def some_graph(seed: int, **more) -> Graph:
    """A random graph; every second one has codes, and in two of three saving takes time."""
    graph = graphs.random_graph(seed, **more)
    graph = graphs.with_codes(graph, seed) if seed % 2 else graph
    return graphs.with_saving(graph, seed) if seed % 3 else graph


@ft.cache
def declared(seed: int) -> Space:
    """The planner's own space over a random graph, or over a named one."""
    known = NAMED | CHOICES
    graph = known[seed] if seed in known else some_graph(seed)
    regions = [x.region for x in candidates(graph)]
    return space(graph, it.islice(graphs.tilings(regions, len(graph.stages)), 3000))


@pytest.mark.parametrize(
    "seed",
    thinned(
        [*NAMED, *CHOICES, *SEEDS], *NAMED, "choice 43", "choice 0", "choice 1", "choice 3", "2"
    ),
)
def test_the_plan_is_the_best_of_the_declared_space(seed):
    oracle = declared(seed)
    search = EXACT.prepare(oracle.graph)
    for budget in oracle.budgets:
        best = oracle.best(budget)
        if best is None:
            with pytest.raises(InfeasibleBudget) as error:
                search.fastest(budget)
            assert error.value.minimum_bytes == oracle.least_bytes
            continue
        plan = search.fastest(budget)
        assert plan.seconds == pytest.approx(best)
        assert plan.peak_bytes == replay(oracle.graph, plan).peak_bytes <= budget
        assert oracle.graph.seconds <= plan.bound_seconds <= best + 1e-9
        assert plan.planner == "stages"


@ft.cache
def looped() -> Graph:
    """Four equal iterations between a stem and a head."""
    graph = graphs.blocks(4, kinds=1, n_forward=3)
    return dataclasses.replace(graph, loops=(Loop(1, 1, 4),))


def has_a_lone_iteration(plan) -> bool:
    """Whether an iteration of `looped` does as neither of those next to it."""
    _, *iterations, _ = [(x.alone, sorted(name[2:] for name in x.saved)) for x in plan]
    return any(len(list(some)) == 1 for _, some in it.groupby(iterations))


def test_no_iteration_runs_by_itself_where_that_is_asked_for():
    graph = dataclasses.replace(looped(), uniform_blocks=True)
    plans = list(graphs.tilings([x.region for x in candidates(graph)], len(graph.stages)))
    oracle = space(graph, (plan for plan in plans if not has_a_lone_iteration(plan)))
    search, free = EXACT.prepare(graph), EXACT.prepare(looped())
    budgets = range(oracle.least_bytes, save_all(graph).peak_bytes, 1 << 20)
    for budget in budgets:
        plan = search.fastest(budget)
        assert not has_a_lone_iteration(plan.regions)
        assert plan.seconds == pytest.approx(oracle.best(budget))
    assert any(has_a_lone_iteration(free.fastest(budget).regions) for budget in budgets)


@pytest.mark.parametrize("seed", thinned(range(12), "0", "1", "2", "3", "4", "6", "8", "10", "11"))
def test_no_choice_of_saved_values_of_single_stages_is_faster(monkeypatch, seed):
    monkeypatch.setattr(options_module, "_ENUMERATED", 8)  # fronts leave out smaller transients
    graph = some_graph(seed, n_stages=2)
    singles = [
        [Region(s, s, alone=True), *(Region(s, s, saved=x) for x in graphs.subsets(names))]
        for s, names in enumerate(savable(graph))
    ]
    oracle = space(graph, it.product(*singles))
    search = EXACT.prepare(graph)
    for budget in oracle.budgets[1:]:
        assert search.fastest(budget).seconds <= oracle.best(budget) + 1e-9


def savable(graph: Graph) -> list[list[str]]:
    """For each stage the names that a region over it may save."""
    return [
        [graph.values[i].name for op in x.forward for i in op.outputs if graph.values[i].savable]
        for x in graph.stages
    ]


@pytest.mark.parametrize("seed", thinned(range(12), "0", "4", "8", "9", "11"))
def test_the_stage_program_finds_the_front_of_bytes_and_seconds(monkeypatch, seed):
    monkeypatch.setattr(options_module, "_ENUMERATED", 0)
    graph = some_graph(seed, n_stages=3)
    for s, names in enumerate(savable(graph)):
        options = options_module.options(
            graph, s, free=frozenset(), count=1000, deadline=time.monotonic() + 60
        )
        found = [held_and_seconds(graph, s, [graph.values[i].name for i in x]) for x in options]
        front = [held_and_seconds(graph, s, x) for x in graphs.subsets(names)]
        for nbytes, seconds in (x for x in front if x is not None):
            assert any(b <= nbytes and t <= seconds + 1e-9 for b, t in found)


@pytest.mark.parametrize("knees", [0, 1])
def test_a_stage_may_run_all_again_that_is_fast_and_nothing_slow(monkeypatch, knees):
    """Five products and what is cheap between them; evenly spaced limits are 65, 32 and 0 bytes."""
    monkeypatch.setattr(options_module, "_KNEES", knees)
    make = graphs.Builder()
    forward = [make.op("f", "", "n0:1")]
    for k in range(5):
        forward.append(make.op(f"p{k}", f"n{k}", f"p{k}:10", 100.0))
        forward.append(make.op(f"n{k}", f"p{k}", f"n{k + 1}:3"))
    backward = [make.op(f"b{k}", f"p{k} n{k + 1}", f"d{k}:1!") for k in range(4, -1, -1)]
    graph = make.graph([forward], [backward])
    options = options_module.options(
        graph, 0, free=frozenset(), count=3, deadline=time.monotonic() + 60
    )
    names = [{graph.values[i].name for i in x} for x in options]
    assert ({f"p{k}" for k in range(5)} in names) == bool(knees)


def held_and_seconds(graph: Graph, s: int, names) -> tuple[int, float] | None:
    """Bytes that stage `s` keeps from the first forward for recomputation, and its seconds."""
    try:
        found = backward_runs(graph, Region(s, s, saved=tuple(names)))
    except InvalidPlan:
        return None
    ran = [x.of(graph) for x in found]
    always = {i for op in graph.stages[s].backward for i in op.always_reads}
    earlier = {i for i, (home, _) in graph.forward_writer.items() if home != s}
    outside = {i for op in ran for i in op.inputs if i in earlier and i not in always}
    held = {graph.index[name] for name in names} | outside
    seconds = sum(op.seconds for op in ran) - sum(op.seconds for op in graph.stages[s].backward)
    encoded = {graph.forward_writer[graph.index[name]][1] for name in names}
    seconds += sum(op.seconds for o in encoded if (op := graph.stages[s].forward[o]).optional)
    seconds += sum(graph.values[i].saving_seconds for i in held)
    return sum(graph.values[i].nbytes for i in held), seconds


def disagreements(seed: int) -> int:
    """Budgets for which the integer program alone and exhaustive search differ."""
    oracle = declared(seed)
    program = Composition(oracle.graph, candidates(oracle.graph))
    count = 0
    for budget in oracle.budgets:
        outcome = program.fastest(budget, time_limit=60.0, gap=0.0)
        best = oracle.best(budget)
        if outcome.found and best is not None:
            found = replay(oracle.graph, program.regions())
            count += found.peak_bytes > budget or abs(found.seconds - best) > 1e-6
        else:
            count += outcome.found or best is not None
    return count


def whole(sets):
    """Of sets of names those that have both arrays of a code of `graphs.lossy`, or neither."""
    for names in sets:
        if all((f"m{x[1:]}" in names) == (f"c{x[1:]}" in names) for x in names if x[0] in "cm"):
            yield names


def wrong_by_errors(enumerated: int, limits: tuple[float, ...] = LIMITS) -> list[tuple[float, int]]:
    """Limits of the error and budgets for which a plan is not the best that keeps both."""
    found = []
    for most_error in limits:
        graph = graphs.lossy(most_error)
        singles = [
            [Region(s, s, alone=True), *(Region(s, s, x) for x in whole(graphs.subsets(names)))]
            for s, names in enumerate(savable(graph))
        ]
        allowed = []
        for regions in it.product(*singles):
            names = "".join(name for x in regions for name in x.saved)
            if names.count("c") + 3 * names.count("d") <= most_error:
                allowed.append(regions)
        oracle = space(graph, allowed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(options_module, "_ENUMERATED", enumerated)
            search = EXACT.prepare(graph)
            for budget in range(oracle.least_bytes, save_all(graph).peak_bytes + 1):
                try:
                    plan, best = search.fastest(budget), oracle.best(budget)
                except PlanningError:
                    found.append((most_error, budget))
                    continue
                saved = "".join(name for x in plan.regions for y in x.walk() for name in y.saved)
                error = saved.count("c") + 3 * saved.count("d")
                if error > most_error or plan.seconds > best + 1e-9:
                    found.append((most_error, budget))
    return found


@pytest.mark.parametrize("most_error", thinned(LIMITS, "1.5", "4.0"))
@pytest.mark.parametrize("enumerated", thinned([4, 0], "4"))
def test_plans_are_the_best_whose_errors_are_within_their_limit(enumerated, most_error):
    assert not wrong_by_errors(enumerated, (most_error,))


@pytest.mark.slow
def test_a_limit_of_errors_that_is_not_kept_is_noticed(monkeypatch):
    monkeypatch.setattr(walker, "error_of", lambda *_: 0.0)
    assert wrong_by_errors(4)


@pytest.mark.parametrize("most_error", [0.0, 1.0, 4.0, math.inf])
def test_options_of_a_stage_mix_codes_within_every_limit_of_the_error(monkeypatch, most_error):
    monkeypatch.setattr(options_module, "_ENUMERATED", 0)
    graph = graphs.lossy(most_error, stages=2, values=2)
    for s, names in enumerate(savable(graph)):
        options = options_module.options(
            graph, s, free=frozenset(), count=1000, deadline=time.monotonic() + 60
        )
        sets = [tuple(graph.values[i].name for i in x) for x in options]
        found, front = (
            [
                held_and_seconds(graph, s, x)
                for x in some
                if error_of(graph, [Region(s, s, x)]) <= most_error
            ]
            for some in (sets, whole(graphs.subsets(names)))
        )
        for nbytes, seconds in (x for x in front if x is not None):
            assert any(b <= nbytes and t <= seconds + 1e-9 for b, t in found)


def test_regions_of_several_stages_have_codes_of_small_errors():
    graph = graphs.lossy(4.0, more_seconds=1.0)
    found = {x.error for x in candidates(graph) if x.region.first < x.region.last}
    assert 2.0 in found and max(found) <= 4.0


def test_stages_that_differ_in_nothing_but_errors_have_options_of_their_own(monkeypatch):
    monkeypatch.setattr(options_module, "_ENUMERATED", 0)
    graph = graphs.lossy(0.5, stages=4)
    stages = list(graph.stages)
    stages[2] = dataclasses.replace(
        stages[2],
        forward=tuple(dataclasses.replace(op, error=op.error / 100) for op in stages[2].forward),
    )
    graph = dataclasses.replace(graph, stages=tuple(stages))
    found = Candidates(graph, Shapes(), max_options=12, deadline=time.monotonic() + 60).singles
    assert [max(x.error for x in some) for some in found] == [0.0, 0.0, 0.03, 0.0]


def test_what_an_op_takes_counts_once_however_much_it_writes():
    graph = graphs.lossy(math.inf)
    nothing = save_nothing(graph)
    for names in (("c10", "m10"), ("d10",)):
        region = Region(1, 1, names)
        more = Walker(graph).candidate(region).seconds
        more -= Walker(graph).candidate(nothing.regions[1]).seconds
        plan = (nothing.regions[0], region, nothing.regions[2])
        assert more == replay(graph, plan).seconds - nothing.seconds == 0.25 - 4.0


FAULTS = {
    "no forward rows": (memory, "forward_row", lambda *_: {}),
    "no backward rows": (memory, "backward_row", lambda *_: {}),
    "no bytes of earlier regions": (
        rows,
        "earlier",
        lambda variables: [{variables.count + t: 1.0} for t in range(variables.last + 1)],
    ),
    "no shared values": (Variables, "kept_during", lambda *_: {}),
    "shared values count once a region": (Variables, "_keep", lambda *_: []),
    "sums instead of either": (
        Variables,
        "_either",
        lambda _, terms, groups: terms | {c: 1.0 for group in groups for c in group},
    ),
    "all samples are the first": (
        Variables,
        "sample",
        lambda self, c, t, m: self.samples(c, t)[0],
    ),
    "shared values are saved in no time": (
        program,
        "_costs",
        lambda variables, seconds: np.array(
            [c.seconds / seconds for c in variables.candidates]
            + [0.0] * (variables.width - variables.count)
        ),
    ),
    "no gradients": (
        walker,
        "gradients_of",
        lambda graph: [Gradients(0, ((0, 0),) * len(x.backward)) for x in graph.stages],
    ),
    "gradients only of running ops": (
        walker,
        "gradients_of",
        lambda graph, right=walker.gradients_of: [
            dataclasses.replace(x, steady_bytes=0) for x in right(graph)
        ],
    ),
}


def test_local_search_only_ever_improves_a_plan_that_fits():
    for seed in range(8):
        graph = graphs.random_graph(seed, n_stages=4)
        search = EXACT.prepare(graph)
        start = search.smallest()
        limit = (start.peak_bytes + save_all(graph).peak_bytes) // 2

        def fits(regions, graph=graph, limit=limit):
            return replay(graph, regions).peak_bytes <= limit

        regions = polished(graph, start.regions, search.singles, fits, max_candidates=60)
        found = replay(graph, regions)
        assert found.peak_bytes <= limit and found.seconds <= start.seconds + 1e-9


def single(stage, seconds, retained=()):
    """What a stage may be by itself, as the local search knows it."""
    saved = tuple(f"v{i}" for i in retained)
    return Candidate(
        Region(stage, stage, saved=saved),
        seconds,
        0,
        frozenset(retained),
        {},
        (),
    )


def test_local_search_saves_more_and_more_at_once_while_that_fits():
    graph = graphs.random_graph(0, n_stages=4)
    singles = [[single(s, 2.0), single(s, 1.0, [0])] for s in range(100)]
    most = [60]  # stages that may save something

    def fits(regions):
        return sum(bool(region.saved) for region in regions) <= most[0]

    start = tuple(some[0].region for some in singles)
    found = polished(graph, start, singles, fits, max_candidates=16)
    assert [bool(region.saved) for region in found] == [False] * 40 + [True] * 60
    most[0] = 100
    assert all(region.saved for region in polished(graph, start, singles, fits, max_candidates=16))
    most[0] = 0
    assert polished(graph, start, singles, fits, max_candidates=16) == start


@pytest.mark.parametrize("seeds", thinned([SEEDS[:8], SEEDS[8:]], "range(0, 8)"))
def test_the_integer_program_agrees_with_exhaustive_search(seeds):
    assert [disagreements(seed) for seed in seeds] == [0] * len(seeds)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_does_not_pass_the_oracle(monkeypatch, fault):
    oracles = [declared(seed) for seed in SEEDS]  # before the fault
    assert oracles
    monkeypatch.setattr(*FAULTS[fault])
    assert any(disagreements(seed) for seed in SEEDS)


def test_branches_that_leave_nothing_behind_do_not_pass_the_oracle(monkeypatch):
    assert [declared(name) for name in CHOICES]  # before the fault
    monkeypatch.setattr(
        rows, "_left_by_branch", lambda variables, choice, *_: {variables.waits[choice]: 1.0}
    )
    assert any(disagreements(name) for name in CHOICES)


@pytest.mark.parametrize("graph", NAMED.values(), ids=NAMED)
def test_more_budget_is_never_slower(graph):
    search = EXACT.prepare(graph)
    most, least = save_all(graph).peak_bytes, search.smallest().peak_bytes
    seconds = [search.fastest(budget).seconds for budget in range(least, most + 2)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == graph.seconds


@pytest.mark.slow
def test_more_budget_is_never_slower_within_the_gap_on_a_long_graph():
    graph = graphs.blocks(8)
    search = Stages(time_limit=60.0).prepare(graph)
    budgets = np.linspace(search.smallest().peak_bytes, save_all(graph).peak_bytes, 6)
    plans = [search.fastest(int(budget)) for budget in budgets]
    assert all(plan.gap <= 1e-3 for plan in plans)
    for slower, faster in it.pairwise(plans):
        assert faster.seconds <= slower.seconds * (1 + 1e-3)


@pytest.mark.parametrize(
    "graph",
    [*NAMED.values(), pytest.param(graphs.blocks(6), marks=pytest.mark.slow)],
    ids=[*NAMED, "blocks"],
)
def test_the_smallest_feasible_budget_is_feasible_and_one_byte_less_is_not(graph):
    search = EXACT.prepare(graph)
    smallest = search.smallest()
    assert search.fastest(smallest.peak_bytes).peak_bytes == smallest.peak_bytes
    with pytest.raises(InfeasibleBudget, match=f"{smallest.peak_bytes:,} bytes") as error:
        search.fastest(smallest.peak_bytes - 1)
    assert error.value.minimum_bytes == smallest.peak_bytes
    assert error.value.peak_values == replay(graph, smallest).peak_values


@pytest.mark.parametrize("count", thinned([8, 16], "8"))
def test_intervals_reach_where_single_stages_do_not(count):
    graph = dataclasses.replace(graphs.blocks(count), recomputes_late=True)
    plan = Stages(time_limit=60.0).smallest(graph)
    assert any(region.last > region.first for region in plan.regions)
    assert plan.peak_bytes < 0.8 * save_nothing(graph).peak_bytes


def test_stages_of_a_short_step_are_run_again_in_any_number():
    graph, until = graphs.blocks(10), time.monotonic() + 60
    found = Candidates(graph, Shapes(), max_options=4, deadline=until).intervals(until)
    lengths = {x.region.last - x.region.first + 1 for x in found}
    assert lengths == {*range(2, len(graph.stages) + 1)}


def test_stages_are_run_again_as_one_but_for_products():
    """What is small saves most seconds for a byte, products fewer, and what is cheap the fewest.

    The first stage of each pair has statistics, a normalization, a product and an activation, the
    second the next product and the residual sum.
    """
    make, forward, backward = graphs.Builder(), [], []
    known = ""
    for s in range(0, 8, 2):
        small = [make.op(f"{t}{s}", known, f"{t}{s}:4", 30.0) for t in "tu"]
        normal = make.op(f"n{s}", f"{known} t{s} u{s}", f"n{s}:400")
        product = make.op(f"p{s}", f"n{s}", f"p{s}:400", 100.0)
        forward.append([*small, normal, product, make.op(f"g{s}", f"p{s}", f"g{s}:400")])
        known = f"a{s}"
        product = make.op(f"q{s}", f"g{s}", f"q{s}:400", 100.0)
        forward.append([product, make.op(known, f"q{s} n{s}", f"{known}:400")])
    for s in range(6, -1, -2):
        backward.append([make.op(f"c{s}", f"g{s}" + f" d{s + 2}" * (s < 6), f"c{s}:400!")])
        read = f"p{s} n{s} t{s} u{s} c{s}" + f" a{s - 2}" * (s > 0)
        backward.append([make.op(f"b{s}", read, f"d{s}:400!")])
    graph = make.graph(forward, backward[::-1])
    until = time.monotonic() + 60
    found = Candidates(graph, Shapes(), max_options=12, deadline=until).intervals(until)
    saved = {x.region.saved for x in found if (x.region.first, x.region.last) == (2, 3)}
    assert ("t2", "u2", "p2") in saved


def test_a_checkpoint_of_all_stages_is_for_compilers_that_recompute_late():
    # A stage is a product, which is slow to compute, and what follows it, which is not.
    make, forward, backward = graphs.Builder(), [], []
    known = ""
    for s in range(12):
        product = make.op(f"p{s}", known, f"p{s}:8", 10.0)
        forward.append([product, make.op(f"a{s}", f"p{s}", f"a{s}:8", 0.1)])
        known = f"a{s}"
    for s in reversed(range(12)):
        read = " ".join(
            [f"p{s}", *([f"a{s - 1}"] if s else []), *([f"d{s + 1}"] if s < 11 else [])]
        )
        backward.append([make.op(f"b{s}", read, f"d{s}:8!")])
    early = make.graph(forward, backward[::-1])
    late = dataclasses.replace(early, recomputes_late=True)
    budget_bytes = 12 * 8 + 24
    plan = Stages()(late, budget_bytes)
    assert plan.seconds < late.seconds + 12 * 0.1 + 1e-9
    assert replay(early, plan).peak_bytes > budget_bytes
    assert Stages()(early, budget_bytes).seconds > early.seconds + 10


def test_an_ample_budget_recomputes_nothing():
    graph = graphs.skip()
    plan = Stages()(graph, save_all(graph).peak_bytes)
    assert plan.seconds == plan.bound_seconds == graph.seconds
    assert all(region.alone for region in plan.regions)


def test_isomorphic_stages_share_one_stage_program(monkeypatch):
    solved = []
    right = options_module.options
    monkeypatch.setattr(
        "planners.regions.candidates.solving.options",
        lambda *x, **more: solved.append(x) or right(*x, **more),
    )
    Stages()(graphs.blocks(12, kinds=2), save_all(graphs.blocks(12, kinds=2)).peak_bytes // 2)
    # Stem, head and two kinds, of which the first block reads what no other stage's backward does.
    assert len(solved) <= 5


@pytest.mark.parametrize("seed", thinned(range(12), "0", "2", "3"))
def test_graphs_that_share_what_is_known_have_the_candidates_of_their_own(seed):
    graph, shapes = some_graph(seed), Shapes()
    stages = [dataclasses.replace(x, alone_bytes=x.alone_bytes + 1000) for x in graph.stages]
    graphs_of_one = [
        graph,
        dataclasses.replace(graph, stages=tuple(stages)),
        dataclasses.replace(graph, recomputes_late=not graph.recomputes_late),
        graphs.with_saving(graph, seed + 1),
    ]
    for some in graphs_of_one:
        known = len(shapes.effects)
        assert candidates(some, shapes) == candidates(some)
    assert 0 < known < len(shapes.effects)


def test_what_is_known_is_not_found_out_again(monkeypatch):
    graph, shapes = graphs.blocks(6), Shapes()
    found = candidates(graph, shapes)
    stages = [dataclasses.replace(x, alone_bytes=x.alone_bytes + 1000) for x in graph.stages]
    monkeypatch.setattr(walker, "walked", None)
    monkeypatch.setattr(solving, "options", None)
    assert candidates(graph, shapes) == found
    other = Walker(dataclasses.replace(graph, stages=tuple(stages)), shapes)
    assert all(map(other.allowed, (x.region for x in found if not has_alone(x.region))))


def has_alone(region: Region) -> bool:
    return any(leaf.alone for leaf in region.walk())


@pytest.mark.parametrize("share", thinned([0.7, 0.4, 0.2], "0.4"))
def test_planning_takes_seconds(share):
    graph = graphs.blocks(24)
    start = time.process_time()
    plan = Stages(time_limit=60.0)(graph, int(share * save_all(graph).peak_bytes))
    assert time.process_time() - start < 4.0  # 1.3 s on an idle core
    assert plan.gap <= 1e-3


def test_a_solver_that_finds_nothing_leaves_the_heuristic(monkeypatch):
    graph = graphs.blocks(6)
    nothing = highs.Outcome(found=False, infeasible=False, bound=float("-inf"))
    monkeypatch.setattr(program, "solve", lambda *_, **__: nothing)
    plan = Stages()(graph, int(0.6 * save_all(graph).peak_bytes))
    assert plan.planner == "stages (not proven in 10 s)"
    assert plan.bound_seconds == graph.seconds < plan.seconds
    with pytest.raises(SolverStopped, match="Raise `time_limit` or the budget"):
        Stages()(graph, 1000)


def test_no_time_still_gives_a_plan():
    graph = graphs.blocks(6)
    plan = Stages(time_limit=0.0)(graph, save_nothing(graph).peak_bytes)
    assert plan.peak_bytes <= save_nothing(graph).peak_bytes


def test_samples_are_merged_on_the_safe_side(monkeypatch):
    monkeypatch.setattr(walk, "MAX_SAMPLES", 1)
    for seed in SEEDS:
        oracle = declared(seed)
        budget = (oracle.least_bytes + save_all(oracle.graph).peak_bytes) // 2
        program = Composition(oracle.graph, candidates(oracle.graph))
        if program.fastest(budget, time_limit=60.0, gap=0.0).found:
            assert replay(oracle.graph, program.regions()).peak_bytes <= budget


def test_a_plan_survives_json():
    inner = (Region(0, 0, saved=("x", "h")), Region(1, 1, alone=True))
    regions = (Region(0, 1, saved=("h",), inner=inner), Region(2, 2), Region(3, 3, alone=True))
    plan = Plan(regions, 10, 1.5, 7, 1.25, "by hand")
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planner": 3}, "`planner`"),
        ({"extra": 1}, "has the fields"),
        ({"regions": 5}, "`regions`"),
        ({"regions": [{"first": 0}]}, "Region has the fields"),
        ({"peak_bytes": "10"}, "`peak_bytes`"),
        (
            {"regions": [dict(BARE, saved=[1])]},
            "must hold names",
        ),
    ],
)
def test_a_stored_plan_is_checked(change, message):
    data = save_all(graphs.chain()).to_json() | change
    with pytest.raises(ValueError, match=message):
        plan_from_json(data)


def test_an_infeasible_budget_survives_pickling():
    error = pickle.loads(pickle.dumps(InfeasibleBudget("no", minimum_bytes=3, peak_values=("x",))))
    assert (str(error), error.minimum_bytes, error.peak_values) == ("no", 3, ("x",))


def test_a_backward_op_may_not_read_a_later_forward():
    make = graphs.Builder()
    forward = [[make.op("f0", "", "a:1")], [make.op("f1", "a", "b:1")]]
    with pytest.raises(ValueError, match=r"`b0` of stage 0 reads `b`.*Move the op to stage 1"):
        make.graph(forward, [[make.op("b0", "b", "d:1!")], []])


def test_importing_planners_imports_neither_cvxpy_nor_jax():
    code = "import sys, planners; print([x for x in ('jax', 'cvxpy', 'scipy') if x in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_guess_that_beats_the_bound_of_all_candidates_is_the_plan(monkeypatch):
    """Uniform iterations may be regions that are no candidates: then none of these is of use."""
    beaten = 0
    for seed in range(20):
        graph = some_graph(seed)
        budget = int(0.95 * save_all(graph).peak_bytes)
        few: Any = Stages().prepare(graph)
        slowest = [max(some, key=lambda x: x.seconds) for some in few.singles]
        vars(few._spaces)["everything"] = slowest
        with contextlib.suppress(InfeasibleBudget):
            best = Stages().prepare(graph).fastest(budget)
            relaxed = few._spaces.of_everything.relaxed(budget, time_limit=9.0)
            if relaxed.infeasible or best.seconds - graph.seconds >= relaxed.bound:
                continue
            beaten += 1
            guesses = types.SimpleNamespace(fastest=lambda budget, best=best: best.regions)
            monkeypatch.setattr(few, "_guesses", lambda guesses=guesses: guesses)
            monkeypatch.setattr(few, "_attempt", _nothing_found)
            assert few.fastest(budget).regions == best.regions
    assert beaten > 2


def _nothing_found(*_):
    return search._Attempt(None, False, 0.0)


def test_saved_bytes_count_inner_regions():
    inner = (Region(0, 0), Region(1, 1, saved=("c", "l")))
    nested = (Region(0, 1, saved=("l",), inner=inner),)
    assert saved_bytes(graphs.chain(), nested) == 5 + 1 + 1


def test_what_another_stage_may_keep_as_a_code_need_not_be_kept_for_this_one():
    """Each of two stages reads a value that the other, by itself, would keep for it anyway."""
    make = graphs.Builder()
    parts = " ".join(f"n{k}:1" for k in range(5))
    names = parts.replace(":1", "")
    first = [
        make.op("f0", "", f"x:1 {parts}"),
        make.op("f1", f"x {names}", "y:16"),
        make.op("mask", "y", "m:1", 0.0, optional=True),
    ]
    second = [
        make.op("encode", "y", "c:1", 0.0, optional=True),
        make.op("f2", "y", "z:2"),
    ]
    third = [make.op("f3", "z", "w:40"), make.op("f4", "w", "l:1")]
    last = [make.op("b3", "w z l", "dz:2!")]
    product, result = make.op("b2", "dz y", "dy:2!"), make.op("b1", f"dy y {names}", "dx:1!")
    index = {value.name: i for i, value in enumerate(make.values)}

    def by(op, code):
        inputs = (*(i for i in op.inputs if i != index["y"]), index[code])
        return dataclasses.replace(op, alternatives=(Implementation(inputs, op.seconds, op.flops),))

    graph = make.graph([first, second, third], [[by(result, "m")], [by(product, "c")], last])
    coded = Region(0, 0, (*names.split(), "m")), Region(1, 1, ("c",)), Region(2, 2, alone=True)
    budget = replay(graph, coded).peak_bytes
    assert replay(graph, coded).seconds == pytest.approx(graph.seconds)
    assert save_all(graph).peak_bytes > budget
    assert Stages()(graph, budget).seconds == pytest.approx(graph.seconds)
