"""Plans of Rotor and Revolve are the best of their spaces of schedules on chains."""

import dataclasses
import functools as ft
import itertools as it
import math

import graphs
import numpy as np
import pytest

from planners import Execute, InfeasibleBudget, Revolve, Rotor, SolverStopped, cost_of
from planners.published import rotor_costs
from planners.published.blocks import ChainBlocks, Move
from planners.published.checkmate import Checkmate
from planners.schedules.steps import with_frees

BEST = Rotor(slots=10**6)  # one byte each, on graphs as small as these


def random_chain(seed, *, pairs=True):
    """A chain of up to six ops; their backward reads inputs, outputs, both or neither.

    With `pairs`, some ops write a second value, which only the backward reads.
    """
    rng = np.random.default_rng(seed)
    make, forward, backward = graphs.Builder(), [], []
    count = int(rng.integers(2, 7))
    for s in range(count):
        tape = f" r{s}:{rng.integers(1, 9)}" * (pairs and rng.random() < 0.5)
        reads = f"x{s - 1}" * (s > 0)
        writes = f"x{s}:{rng.integers(1, 9)}{tape}"
        workspace = int(rng.integers(0, 4))
        seconds = float(rng.integers(1, 9))
        forward.append(make.op(f"f{s}", reads, writes, seconds, workspace_bytes=workspace))
    for s in range(count - 1, -1, -1):
        own = [v.name for v in make.values if v.name in (f"x{s - 1}", f"x{s}", f"r{s}")]
        reads = [name for name in own if rng.random() < 0.5] + [f"d{s + 1}"] * (s < count - 1)
        backward.append(make.op(f"b{s}", " ".join(reads), f"d{s}:{rng.integers(0, 9)}!"))
    return make.graph([forward], [backward])


def walks(s, t):
    """Every walk over ops `s` to `t` of a chain and back: what runs, "f" or "b", and which op.

    The output of an op is kept until its backward, or an op's input until the ops from there to a
    later one were run and dropped, and the later part was walked.
    """
    if s == t:
        yield (("f", s), ("b", s))
        return
    for rest in walks(s + 1, t):
        yield (("f", s), *rest, ("b", s))
    for k in range(s + 1, t + 1):
        there = tuple(("f", j) for j in range(s, k))
        for behind, before in it.product(walks(k, t), walks(s, k - 1)):
            yield (*there, *behind, *before)


def backward_ops(graph):
    """For each op of a chain the backward ops that run after it.

    Each runs as early as it can: after the first op from the end of which, or of later ones, it
    reads what that op writes or is given.
    """
    first, s = graph.forward_count, graph.forward_count - 1
    last = {i: o for o, op in enumerate(graph.ops[:first]) for i in (*op.outputs, *op.inputs)}
    found = [[] for _ in range(first)]
    for b in range(first, len(graph.ops)):
        s = min([s, *(last[i] for i in graph.ops[b].inputs if i in last)])
        found[s].append(b)
    return found


def blocks_in_bytes(seed):
    """Residual blocks of a handful of ops in a chain, whose MiB are bytes."""
    graph = graphs.blocks(3, n_forward=4, seed=seed)
    values = (dataclasses.replace(v, nbytes=(v.nbytes >> 20) or 1) for v in graph.values)
    return dataclasses.replace(graph, values=tuple(values))


def block_moves(s, t):
    """Every walk over blocks `s` to `t`, as `walks` has them, in moves."""
    if s == t:
        yield (Move("turn", s),)
        return
    for rest in block_moves(s + 1, t):
        yield (Move("tape", s), *rest, Move("back", s))
    for k in range(s + 1, t + 1):
        there = tuple(Move("pass", j) for j in range(s, k))
        for behind, before in it.product(block_moves(k, t), block_moves(s, k - 1)):
            yield (*there, *behind, *before)


@pytest.mark.parametrize("seed", range(4))
def test_rotor_agrees_with_looking_at_all_walks_over_blocks_of_several_ops(seed):
    graph = blocks_in_bytes(seed)
    blocks = ChainBlocks(graph)
    assert [len(ops) for ops in blocks.ops] == [1, 4, 4, 4, 1]
    orders = (blocks.order(moves) for moves in block_moves(0, len(blocks) - 1))
    costs = {
        (c.peak_bytes, c.seconds) for c in (cost_of(graph, with_frees(graph, o)) for o in orders)
    }
    for budget in {peak for peak, _ in costs}:
        best = min(seconds for peak, seconds in costs if peak <= budget)
        assert found_seconds(BEST, graph, budget) == pytest.approx(best, rel=1e-12)


@ft.cache
def outcomes(graph):
    """Peak and seconds of every walk over a chain, runs that nothing reads left out."""
    found = set()
    backward = backward_ops(graph)
    for moves in walks(0, graph.forward_count - 1):
        order = [o for kind, s in moves for o in ([s] if kind == "f" else backward[s])]
        while (shorter := without_one_useless_run(graph, order)) is not None:
            order = shorter
        cost = cost_of(graph, with_frees(graph, order))
        found.add((cost.peak_bytes, cost.seconds))
    return found


def without_one_useless_run(graph, order):
    """The order without one run of an op that ran before, if nothing reads what it writes."""
    for k, o in enumerate(order):
        later = order[k + 1 :]
        later = later[: later.index(o)] if o in later else later
        read = {i for j in later for i in graph.ops[j].inputs}
        if o in order[:k] and not read & set(graph.ops[o].outputs):
            return order[:k] + order[k + 1 :]
    return None


def best_seconds(graph, budget):
    return min((seconds for peak, seconds in outcomes(graph) if peak <= budget), default=None)


def peaks(graph):
    return sorted({peak for peak, _ in outcomes(graph)})


def found_seconds(planner, graph, budget):
    try:
        schedule = planner(graph, budget)
    except InfeasibleBudget:
        return None
    assert schedule.peak_bytes <= budget
    return schedule.seconds


def agrees(graph):
    """Whether Rotor is as fast as the best of all walks at every peak, and knows the least."""
    least, *more = peaks(graph)
    with pytest.raises(InfeasibleBudget) as error:
        BEST(graph, least - 1)
    return error.value.minimum_bytes == least and all(
        found_seconds(BEST, graph, budget) == best_seconds(graph, budget)
        for budget in (least, *more)
    )


CHAINS = [random_chain(seed) for seed in range(20)]


@pytest.mark.parametrize("graph", CHAINS)
def test_rotor_agrees_with_looking_at_all_walks(graph):
    assert agrees(graph)


@pytest.mark.parametrize("fault", ["waits", "back", "input_bytes", "tapes"])
def test_with_a_wrong_count_it_does_not(fault, monkeypatch):
    """Counts that are all nothing: of gradients, of backward runs, of what is kept."""
    made = rotor_costs.MoveCosts.__init__

    def wrong(self, blocks):
        made(self, blocks)
        nothing = {"back": (0, 0), "tapes": frozenset()}.get(fault, 0)
        setattr(self, fault, [nothing] * len(blocks))

    monkeypatch.setattr(rotor_costs.MoveCosts, "__init__", wrong)
    assert not all(map(agrees, CHAINS))


@pytest.mark.parametrize("seed", range(8))
def test_rotor_is_never_faster_than_checkmate(seed):
    graph = random_chain(seed, pairs=False)
    for budget in peaks(graph)[:4]:
        best = Checkmate(gap=1e-9)(graph, budget)
        assert BEST(graph, budget).seconds >= best.seconds - 1e-6


def test_rotor_stops_at_its_time_limit_where_it_needs_a_table():
    graph = random_chain(0)
    everything = Rotor()(graph, 10**6)
    assert Rotor(time_limit=0.0)(graph, everything.peak_bytes) == everything
    with pytest.raises(SolverStopped, match="Raise `time_limit`"):
        Rotor(time_limit=0.0)(graph, everything.peak_bytes - 1)


@pytest.mark.parametrize("slots", [3, 10, 40])
def test_few_slots_cost_seconds_and_never_bytes(slots):
    for graph in CHAINS:
        for budget in peaks(graph):
            found = found_seconds(Rotor(slots=slots), graph, budget)
            assert found is None or found >= best_seconds(graph, budget)


def equal_chain(length):
    """A chain of equal ops, whose peak says how many of their outputs are kept in the backward.

    What only the backward of an op reads is too large to be in memory for two of them, and the
    backward's workspace is larger than all that a forward op needs.
    """
    make, forward, backward = graphs.Builder(), [], []
    for s in range(length):
        forward.append(make.op(f"f{s}", f"x{s - 1}" * (s > 0), f"x{s}:1 r{s}:100"))
    for s in range(length - 1, -1, -1):
        reads = f"x{s - 1} " * (s > 0) + f"r{s} " + f"d{s + 1}" * (s < length - 1)
        backward.append(make.op(f"b{s}", reads, f"d{s}:0!", 0.0, workspace_bytes=1000))
    return make.graph([forward], [backward])


def fewest_runs(length, checkpoints):
    """The fewest runs that reverse a chain, by recursion; those a backward follows do not count."""

    @ft.cache
    def t(length, c):
        if length == 1:
            return 0
        if c == 1:
            return length * (length - 1) // 2
        return min(k + t(length - k, c - 1) + t(k, c) for k in range(1, length))

    return t(length, checkpoints)


@pytest.mark.parametrize("length", [2, 3, 5, 8, 13])
def test_equal_chains_take_as_many_runs_as_griewank_and_walther_say(length):
    graph = equal_chain(length)
    for checkpoints in range(1, length + 1):
        revolve = Revolve(checkpoints=checkpoints)(graph, 10**6)
        ran = [step.op for step in revolve.steps if isinstance(step, Execute)]
        runs = sum(o < length for o in ran)
        r = next(r for r in range(99) if math.comb(checkpoints + r, r) >= length)
        formula = r * length - (math.comb(checkpoints + r, r - 1) if r else 0)
        assert runs - length == formula == fewest_runs(length, checkpoints)
        # In that memory Rotor finds nothing better.
        assert BEST(graph, revolve.peak_bytes).seconds == revolve.seconds
