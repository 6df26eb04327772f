"""The search over sequences keeps its budget and finds what enumeration finds."""

import heapq
import itertools as it
import random

import graphs
import pytest
from thinning import thinned

from planners import Execute, Free, InfeasibleBudget, InvalidPlan, certified_steps, cost_of
from planners.schedules import timeline
from planners.schedules.sequence import Sequence, improved
from planners.schedules.steps import with_frees
from planners.schedules.timeline import SequenceTimeline

NO_LIMIT = 1e6  # seconds: the number of moves ends the search, on any machine the same way


def best_seconds(graph, budget, may_reorder):
    """The least seconds of any sequence within a budget, by looking at all; None if none fits.

    An op runs whenever what it reads is in memory and nothing of what it writes; a value may be
    freed at any time. First runs come in the graph's order unless they may be reordered.
    """
    ops = graph.ops
    nbytes = [value.nbytes for value in graph.values]
    seen, queue, barriers = set(), [(0.0, 0, frozenset(), frozenset())], it.count(1)
    while queue:
        seconds, _, ran, live = heapq.heappop(queue)
        if len(ran) == len(ops):
            return seconds
        if (ran, live) in seen:
            continue
        seen.add((ran, live))
        for i in live:
            heapq.heappush(queue, (seconds, next(barriers), ran, live - {i}))
        for o, op in enumerate(ops):
            may = graph.may_rerun(o) if o in ran else may_reorder or o == len(ran)
            if not may or not live >= set(op.inputs) or live & set(op.outputs):
                continue
            after = live | set(op.outputs)
            if sum(nbytes[i] for i in after) + op.workspace_bytes <= budget:
                heapq.heappush(queue, (seconds + op.seconds, next(barriers), ran | {o}, after))
    return None


def small_graph(seed):
    return graphs.without_extras(graphs.random_graph(seed, n_stages=1 + seed % 2, n_forward=3))


def unplanned_peak(graph):
    return cost_of(graph, with_frees(graph, range(len(graph.ops)))).peak_bytes


def budgets(graph):
    """From a little less than any sequence needs to what the graph's order takes."""
    return sorted({int(share * unplanned_peak(graph)) for share in (0.6, 0.75, 0.9, 1.0)})


def agrees(graph, budget, may_reorder, seed=0):
    """Whether the search finds what looking at all sequences finds, and nothing better."""
    expected = best_seconds(graph, budget, may_reorder)
    planner = Sequence(NO_LIMIT, may_reorder, seed, moves=1200)
    try:
        schedule = planner(graph, budget)
    except InfeasibleBudget as error:
        assert error.minimum_bytes > budget
        assert best_seconds(graph, error.minimum_bytes, may_reorder) is not None
        return expected is None
    assert cost_of(graph, schedule.steps).peak_bytes == schedule.peak_bytes <= budget
    assert schedule.bound_seconds == pytest.approx(graph.seconds)
    return schedule.seconds == pytest.approx(expected)


TINY = [seed for seed in range(50) if len(small_graph(seed).ops) <= 5]


@pytest.mark.parametrize(
    ("seed", "may_reorder"),
    thinned(
        it.product(TINY, [False, True]),
        *(f"{seed}-{may_reorder}" for seed in TINY[:8] for may_reorder in (False, True)),
    ),
)
def test_it_agrees_with_looking_at_all_sequences(seed, may_reorder):
    graph = small_graph(seed)
    assert all(agrees(graph, budget, may_reorder) for budget in budgets(graph))


def forward_only(seed, count=40):
    """Ops that may all run again, each reading two of those before."""
    rng = random.Random(seed)
    make = graphs.Builder()
    ops = []
    for o in range(count):
        reads = {f"v{rng.randrange(max(0, o - 12), o)}" for _ in range(2)} if o else set()
        write = f"v{o}:{rng.randint(1, 20)}"
        ops.append(make.op(f"f{o}", " ".join(sorted(reads)), write, float(rng.randint(1, 9))))
    return make.graph([ops], [[]])


@pytest.mark.parametrize("may_reorder", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_any_answer_runs_within_its_budget(seed, may_reorder):
    for graph in (forward_only(seed), small_graph(seed), graphs.blocks(3, n_forward=6, seed=seed)):
        budget = int(0.85 * unplanned_peak(graph))
        try:
            schedule = Sequence(NO_LIMIT, may_reorder, seed, moves=1500)(graph, budget)
        except InfeasibleBudget:
            continue
        assert cost_of(graph, schedule.steps).peak_bytes <= budget
        if not may_reorder:
            ran = (step.op for step in schedule.steps if isinstance(step, Execute))
            assert list(dict.fromkeys(ran)) == list(range(len(graph.ops)))


def wander(graph, seed, moves=300):
    """A timeline after random moves, most of them good for nothing."""
    rng = random.Random(seed)
    line = SequenceTimeline(graph, range(len(graph.ops)), budget_bytes=30)
    rerunnable = [o for o in range(len(graph.ops)) if graph.may_rerun(o)]
    for _ in range(moves if rerunnable else 0):
        kind = rng.choice(("insert", "remove", "shift", "reset"))
        op, place = rng.choice(rerunnable), rng.randrange(len(line.ops))
        after, before = line.bounds(op)
        if kind == "remove" and line.again:
            line.remove(rng.choice(line.again))
        elif kind == "reset" and rng.random() < 0.1:
            line.reset(line.order())
        elif line.ops[place] < 0 and kind == "insert" and place > line.first[op]:
            line.insert(op, place)
        elif line.ops[place] < 0 and kind == "shift" and after < place < before:
            line.shift(op, place)
    return line


def keeps_books(graph, line):
    """Whether a timeline says what running its ops on paper says."""
    cost = cost_of(graph, with_frees(graph, line.order()))
    during = [int(line.over[p]) + 30 for p, op in enumerate(line.ops) if op >= 0]
    same = during == list(cost.live_bytes) and line.peak_bytes() == cost.peak_bytes
    return same and line.seconds == pytest.approx(cost.seconds)


@pytest.mark.parametrize("seed", range(40))
def test_the_books_agree_with_running_on_paper(seed):
    for graph in (forward_only(seed, 12), small_graph(seed)):
        assert keeps_books(graph, wander(graph, seed))


@pytest.mark.parametrize("part", ["_read", "_unread", "_cut", "_shift_write"])
def test_without_any_part_of_the_books_they_do_not(part, monkeypatch):
    kept = getattr(timeline, part)

    def forgetful(line, *arguments):
        over = line.over.copy()
        kept(line, *arguments)
        line.over[:] = over

    monkeypatch.setattr(timeline, part, forgetful)
    assert not all(keeps_books(g, wander(g, s)) for s in range(5) for g in [forward_only(s, 12)])


def in_order(graph, order):
    return certified_steps(graph, with_frees(graph, order), bound_seconds=0.0, planner="test")


def test_what_need_not_run_again_is_taken_out():
    graph = graphs.blocks(3, n_forward=6)
    plain = list(range(len(graph.ops)))
    silly = in_order(graph, [*plain[:9], 4, *plain[9:15], 7, 8, *plain[15:]])
    better = improved(graph, silly, silly.peak_bytes, time_limit=NO_LIMIT, moves=0)
    assert silly.seconds > better.seconds == pytest.approx(graph.seconds)


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_never_becomes_worse(seed):
    graph = forward_only(seed)
    try:
        start = Sequence(NO_LIMIT, seed=seed, moves=300)(graph, int(0.8 * unplanned_peak(graph)))
    except InfeasibleBudget:
        return
    for moves in (0, 1, 1000):
        better = improved(graph, start, start.peak_bytes, time_limit=NO_LIMIT, moves=moves)
        assert better.seconds <= start.seconds and better.peak_bytes <= start.peak_bytes
        assert cost_of(graph, better.steps).seconds == better.seconds


def test_a_schedule_over_the_budget_is_refused():
    graph = graphs.chain()
    schedule = in_order(graph, range(len(graph.ops)))
    with pytest.raises(InvalidPlan, match="over its budget"):
        improved(graph, schedule, schedule.peak_bytes - 1)


def test_the_same_seed_finds_the_same():
    graph = forward_only(3)
    budget = int(0.8 * unplanned_peak(graph))
    planner = Sequence(NO_LIMIT, may_reorder=True, seed=5, moves=4000)
    assert planner(graph, budget) == planner(graph, budget)
    assert any(isinstance(step, Free) for step in planner(graph, budget).steps)
