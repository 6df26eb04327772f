"""Published baseline planners keep their budgets and do what their papers say."""

import graphs
import numpy as np
import pytest
from schedule_spaces import budgets, small_graph
from thinning import thinned

from planners import (
    CheckmateRounding,
    Chen,
    Execute,
    InfeasibleBudget,
    Knapsack,
    Revolve,
    Rotor,
    SaveAll,
    SaveNothing,
    SolverStopped,
    cost_of,
)
from planners.published import checkmate_rounding, knapsack
from planners.published.checkmate import Checkmate
from planners.schedules.orders import order_keeping
from planners.schedules.steps import with_frees
from planners.solver import highs

QUICK = [
    SaveAll(),
    SaveNothing(),
    Chen("sqrt"),
    Chen("greedy"),
    Chen("greedy", linearized=True),
    Revolve(),
    Revolve(linearized=True),
    Rotor(slots=50),
    Rotor(slots=50, linearized=True),
]
SLOW = [
    Knapsack(bounds=4, halvings=1),
    CheckmateRounding(epsilons=(0.0, 0.1)),
]  # they solve programs
AGAIN_WHATEVER_THE_BUDGET = (SaveNothing(), Chen("sqrt"), Revolve(), Revolve(linearized=True))
FREE_WHERE_THERE_IS_ROOM = [p for p in QUICK if p not in AGAIN_WHATEVER_THE_BUDGET]


def wide_graph(seed):
    """A graph of several stages with skips, and ops that must run once."""
    return graphs.without_extras(graphs.random_graph(seed))


def forward_only():
    """A graph whose backward reads nothing of the forward."""
    make = graphs.Builder()
    forward = [make.op("f0", "", "a:4"), make.op("f1", "a", "b:3")]
    return make.graph([forward], [[make.op("b1", "", "db:3!"), make.op("b0", "db", "da:4!")]])


GRAPHS = [
    forward_only(),
    graphs.chain(),
    graphs.chain(recomputable=False),
    graphs.pair(),
    graphs.skip(),
    *map(small_graph, range(15)),
    *map(wide_graph, range(15)),
]


def keeps(planner, graph, budget):
    """Whether a planner keeps a budget, or else one that it names, and refuses smaller ones."""
    try:
        schedule = planner(graph, budget)
    except InfeasibleBudget as error:
        return budget < error.minimum_bytes and keeps(planner, graph, error.minimum_bytes)
    cost = cost_of(graph, schedule.steps)
    assert (cost.peak_bytes, cost.seconds) == (schedule.peak_bytes, schedule.seconds)
    return schedule.peak_bytes <= budget and schedule.seconds >= graph.seconds


@pytest.mark.parametrize("planner", QUICK, ids=repr)
def test_budgets_are_kept_or_the_least_is_named(planner):
    for graph in GRAPHS:
        assert keeps(planner, graph, 0)
        assert all(keeps(planner, graph, budget) for budget in budgets(graph))


@pytest.mark.parametrize("planner", thinned(SLOW, str(SLOW[0])), ids=repr)
def test_so_they_are_by_planners_that_solve_programs(planner):
    for graph in GRAPHS[::4]:
        assert keeps(planner, graph, 0)
        assert all(keeps(planner, graph, budget) for budget in budgets(graph)[::2])


def test_a_planner_that_ignores_budgets_is_noticed():
    def careless(graph, _):
        return SaveAll()(graph, 10**9)

    assert not all(keeps(careless, graph, b) for graph in GRAPHS for b in budgets(graph))


@pytest.mark.parametrize("planner", FREE_WHERE_THERE_IS_ROOM, ids=repr)
def test_nothing_runs_twice_where_everything_has_room(planner):
    for graph in GRAPHS:
        room = SaveAll()(graph, 10**9).peak_bytes
        assert planner(graph, room).seconds == graph.seconds


def forward_runs(schedule, graph):
    ran = [step.op for step in schedule.steps if isinstance(step, Execute)]
    return [o for o in ran if o < graph.forward_count]


def tanh_chain(length):
    """A chain whose backward reads of each op its input."""
    make = graphs.Builder()
    forward = [make.op(f"f{s}", f"x{s - 1}" * (s > 0), f"x{s}:4") for s in range(length)]
    backward = []
    for s in range(length - 1, -1, -1):
        reads = f"x{s - 1} " * (s > 0) + f"d{s + 1}" * (s < length - 1)
        backward.append(make.op(f"b{s}", reads, f"d{s}:4!"))
    return make.graph([forward], [backward])


def test_chen_keeps_every_third_of_nine():
    """Segments of three; each but the last runs again up to its last input, which is enough."""
    graph = tanh_chain(9)
    runs = forward_runs(Chen("sqrt")(graph, 10**6), graph)
    assert runs == [*range(9), 3, 4, 0, 1]


def test_chen_keeps_all_that_is_live_where_nothing_is_alone():
    """`x` lives up to the last op, so that each checkpoint takes `x` and one more."""
    graph = graphs.skip()
    schedule = Chen("sqrt", linearized=True)(graph, 10**6)
    runs = forward_runs(schedule, graph)
    assert runs[:8] == list(range(8)) and 0 not in runs[8:]


def test_nothing_saved_runs_what_is_read_again_once():
    graph = tanh_chain(6)
    assert forward_runs(SaveNothing()(graph, 10**6), graph) == [*range(6), *range(5)]


def candidates(graph):
    """Forward values that may be made again."""
    ops = [op for op in graph.ops[: graph.forward_count] if op.recomputable]
    return [i for op in ops for i in op.outputs]


def seconds_keeping(graph, kept):
    return cost_of(graph, with_frees(graph, order_keeping(graph, kept))).seconds


def saves_most_seconds(graph, share):
    """Whether no values of so many bytes save more seconds than those that Knapsack saves."""
    nbytes = {i: graph.values[i].nbytes for i in candidates(graph)}
    read = {i for op in graph.ops[graph.forward_count :] for i in op.inputs}
    limit = share * sum(nbytes.get(i, 0) for i in read)
    saved = knapsack.KnapsackProgram(graph).saved(share, time_limit=10.0, gap=1e-9)
    subsets = (set(kept) for kept in graphs.subsets(sorted(nbytes)))
    fitting = [kept for kept in subsets if sum(nbytes[i] for i in kept) <= limit + 1e-6]
    best = min(seconds_keeping(graph, kept) for kept in fitting)
    return set(saved) in fitting and seconds_keeping(graph, saved) == best


KNAPSACKS = [(graph, share) for graph in map(wide_graph, range(12)) for share in (0.0, 0.3, 0.7)]


def test_knapsack_agrees_with_looking_at_all_that_could_be_saved():
    assert all(saves_most_seconds(graph, share) for graph, share in KNAPSACKS)


def test_without_what_is_needed_to_run_again_it_does_not(monkeypatch):
    def only_read(self):
        return ((self._available(i), 1.0) for i in sorted(self.read))

    monkeypatch.setattr(knapsack.KnapsackProgram, "_needs", only_read)
    assert not all(saves_most_seconds(graph, share) for graph, share in KNAPSACKS)


def single(seed):
    """A small graph whose ops write one value each: Checkmate frees those of an op together."""
    graph = small_graph(seed)
    return graph if all(len(op.outputs) == 1 for op in graph.ops) else single(seed + 1000)


def rounded_and_best(graph, budget):
    """Both planners' schedules, None where there is none."""
    found = []
    for planner in (CheckmateRounding(), Checkmate(gap=1e-9)):
        try:
            found.append(planner(graph, budget))
        except InfeasibleBudget:
            found.append(None)
    return found


@pytest.mark.parametrize("seed", thinned(range(10), "0", "1", "2", "3"))
def test_rounding_is_never_faster_than_checkmate_nor_than_its_bound(seed):
    graph = single(seed)
    for budget in budgets(graph)[:-1]:
        rounded, best = rounded_and_best(graph, budget)
        if rounded:
            assert best and rounded.bound_seconds <= best.seconds + 1e-6 <= rounded.seconds + 2e-6


def test_rounding_is_within_a_quarter_of_checkmate_on_a_chain():
    graph = tanh_chain(8)
    room = SaveAll()(graph, 10**9).peak_bytes
    for share in (0.5, 0.6, 0.75, 0.9):
        rounded, best = rounded_and_best(graph, int(share * room))
        assert rounded.seconds <= 1.25 * best.seconds, share


def literal_rounding(graph, kept):
    """Algorithm 2 as it is written: while a constraint is violated, run what it lacks."""
    ops, writer = graph.ops, {i: o for o, op in enumerate(graph.ops) for i in op.outputs}
    runs, before = {(t, t) for t in range(len(ops))}, set()
    while runs != before:
        before = set(runs)
        runs |= {(t - 1, i) for t, i in kept if not {(t - 1, i)} & (runs | kept)}
        reads = {(t, writer[v]) for t, j in runs for v in ops[j].inputs}
        runs |= reads - kept
    return [i for _, i in sorted(runs)]


@pytest.mark.parametrize("seed", range(20))
def test_the_fewest_runs_are_those_of_the_paper(seed):
    graph, rng = wide_graph(seed), np.random.default_rng(seed)
    count = len(graph.ops)
    kept = rng.random((count, count)) < 0.5
    once = {o for o in range(count) if not graph.may_rerun(o)}
    pairs = {(t, i) for t in range(count) for i in range(t) if kept[t, i] or i in once}
    assert checkmate_rounding._order(graph, kept) == literal_rounding(graph, pairs)


@pytest.mark.parametrize("planner", SLOW, ids=repr)
def test_a_solver_without_an_answer_is_no_infeasible_budget(planner, monkeypatch):
    outcome = highs.Outcome(found=False, infeasible=False, bound=float("-inf"))
    monkeypatch.setattr(highs, "solve", lambda *_, **__: outcome)
    for budget in (1, SaveAll()(graphs.chain(), 10**9).peak_bytes - 1):
        with pytest.raises(SolverStopped):
            planner(graphs.chain(), budget)
