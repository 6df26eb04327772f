"""Small graphs and all their schedules, with which planners of schedules are compared."""

import heapq
import itertools as it

import graphs
import pytest

import planners
from planners import Execute, InfeasibleBudget, cost_of


def best_seconds(graph, budget):
    """The least seconds of any schedule of the space, by looking at all of them; None if none.

    Stage by stage: earlier ops may run again, in order, then the stage's own op runs for the first
    time. What is in memory may be freed at any time, an op's outputs together.
    """
    ops = graph.ops
    writer = {i: o for o, op in enumerate(ops) for i in op.outputs}
    reads = [frozenset(writer[i] for i in op.inputs) for op in ops]
    nbytes = [sum(graph.values[i].nbytes for i in op.outputs) for op in ops]
    seen, queue, barriers = set(), [(0.0, 0, 0, 0, frozenset())], it.count(1)
    while queue:
        seconds, _, t, k, live = heapq.heappop(queue)
        if t == len(ops):
            return seconds
        if (t, k, live) in seen:
            continue
        seen.add((t, k, live))

        def go(seconds, t, k, live):
            heapq.heappush(queue, (seconds, next(barriers), t, k, live))

        for o in live:
            go(seconds, t, k, live - {o})
        if k < t:
            go(seconds, t, k + 1, live)
        if k not in live and reads[k] <= live and (k == t or graph.may_rerun(k)):
            held = sum(nbytes[o] for o in live | {k})
            if held + ops[k].workspace_bytes <= budget:
                after = (t, k + 1) if k < t else (t + 1, 0)
                go(seconds + ops[k].seconds, *after, live | {k})
    return None


def small_graph(seed):
    return graphs.without_extras(graphs.random_graph(seed, n_stages=1 + seed % 2, n_forward=2))


def budgets(graph):
    """From a little less than any schedule needs to what keeping everything takes."""
    everything = cost_of(graph, [Execute(o) for o in range(len(graph.ops))]).peak_bytes
    return sorted({int(share * everything) for share in (0.45, 0.6, 0.75, 0.9, 1.0)})


def found_seconds(planner, graph, budget):
    """The planner's seconds, its schedule checked; None where it says that there is none."""
    try:
        schedule = planner(graph, budget)
    except InfeasibleBudget:
        return None
    assert schedule.peak_bytes <= budget
    assert schedule.bound_seconds <= schedule.seconds + 1e-9
    return schedule.seconds


def is_same(found, expected):
    """Whether both are the same seconds, or both None."""
    if found is None or expected is None:
        return found is expected
    return found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def fails_somewhere(agrees, some=None):
    """Whether a planner disagrees, or its schedule is refused, on some small graph."""
    some = map(small_graph, range(200)) if some is None else some

    def fails(graph, budget):
        try:
            return not agrees(graph, budget)
        except (planners.InvalidPlan, planners.SolverStopped, AssertionError):
            return True

    return any(fails(g, b) for g in some for b in budgets(g))


class Space:
    """The space of the program on backward events, by looking at every schedule of it."""

    def __init__(self, graph, budget):
        self.graph, self.budget = graph, budget
        self.forward = [op for stage in graph.stages for op in stage.forward]
        self.backward = [op for stage in reversed(graph.stages) for op in stage.backward]
        self.own = [i for op in self.forward for i in op.outputs]
        self.written = {i: o for o, op in enumerate(self.forward) for i in op.outputs}
        self.reader = {
            i: max([o for o, op in enumerate(self.forward) if i in read(op)] + [self.written[i]])
            for i in self.own
        }
        later = set()
        for op in self.backward:
            later |= read(op) & set(self.own)
        for op in reversed(self.forward):
            if later & set(op.outputs) and op.recomputable:
                later |= read(op)
        self.needed = sorted(later)
        self.again = [
            o for o, op in enumerate(self.forward) if op.recomputable and later & set(op.outputs)
        ]

    def nbytes(self, values):
        return sum(self.graph.values[i].nbytes for i in values)

    def implementations(self, o, again):
        """How a forward op may run."""
        return [
            implementation
            for implementation in self.forward[o].implementations
            if (again or not implementation.only_again)
            and all(self.reader[i] == o for i in implementation.overwrites)
        ]

    def best(self):
        """The least seconds; None where nothing fits."""
        states = dict(self.after_forward())
        alive = set()
        for b, op in enumerate(self.backward):
            before = self.nbytes(alive)
            during = self.nbytes(alive | set(op.outputs))
            states = self.event(states, op, before, during)
            rest = {i for later in self.backward[b + 1 :] for i in read(later)}
            alive = (alive | set(op.outputs)) & rest
        return min(states.values(), default=None)

    def after_forward(self):
        """What may wait for the backward pass, and the least seconds until then."""
        found = {}
        choices = [
            [*self.implementations(o, False), *([None] if op.optional else [])]
            for o, op in enumerate(self.forward)
        ]
        for implementations in it.product(*choices):
            seconds = sum(
                implementation.seconds for implementation in implementations if implementation
            )
            lost = {
                i
                for implementation in implementations
                if implementation
                for i in implementation.overwrites
            }
            lost |= {
                i
                for op, implementation in zip(self.forward, implementations, strict=True)
                if not implementation
                for i in op.outputs
            }
            for carried in graphs.subsets(sorted(set(self.needed) - lost)):
                if self.waits(carried, implementations):
                    key = frozenset(carried)
                    found[key] = min(seconds, found.get(key, seconds))
        return found

    def waits(self, carried, implementations):
        """Whether the forward pass fits where these values wait for the backward pass."""
        ran = [o for o, implementation in enumerate(implementations) if implementation]
        for o, implementation in enumerate(implementations):
            live = {i for i in self.own if self.written[i] <= o and self.reader[i] >= o}
            live = {i for i in live if self.written[i] in ran}
            waiting = {i for i in carried if self.written[i] <= o}
            workspace = implementation.workspace_bytes if implementation else 0
            if self.nbytes(live | waiting) + workspace > self.budget:
                return False
        return True

    def event(self, states, op, before, during):
        """Values held during an event -> the least seconds so far."""
        found = {}
        for state, seconds in states.items():
            for carried in map(set, graphs.subsets(sorted(state))):
                for runs in self.runs():
                    written = {i for o in runs for i in self.forward[o].outputs}
                    cost = seconds + sum(implementation.seconds for implementation in runs.values())
                    given = (carried | written) & set(self.needed)
                    for held in map(set, graphs.subsets(sorted(given))):
                        if not self.may_run(runs, carried, held, given, before):
                            continue
                        for implementation in op.implementations:
                            needs = set(implementation.inputs) & set(self.own)
                            peak = self.nbytes(held) + during + implementation.workspace_bytes
                            if needs <= held and peak <= self.budget:
                                key = frozenset(held)
                                found[key] = min(cost + implementation.seconds, found.get(key, 1e9))
        return found

    def runs(self):
        """Forward ops that run again, each with its way."""
        for some in graphs.subsets(self.again):
            for implementations in it.product(*(self.implementations(o, True) for o in some)):
                yield dict(zip(some, implementations, strict=True))

    def may_run(self, runs, carried, held, given, before):
        passed = {i for implementation in runs.values() for i in implementation.inputs} - held
        if not passed <= given or held & {
            i for implementation in runs.values() for i in implementation.overwrites
        }:
            return False
        for o in self.again:
            live = {i for i in carried if self.written[i] >= o}
            live |= {i for i in held if self.written[i] < o}
            live |= {i for i in passed if self.written[i] < o and self.reader[i] >= o}
            own = self.forward[o].outputs if o in runs else ()
            workspace = runs[o].workspace_bytes if o in runs else 0
            if before + self.nbytes(live) + self.nbytes(own) + workspace > self.budget:
                return False
        return True


def read(op):
    """What an op may read."""
    return {i for implementation in op.implementations for i in implementation.inputs}


def quick(seeds, most=8):
    """Seeds of small graphs with few enough schedules to look at them all."""
    return [seed for seed in seeds if len(small_graph(seed).ops) <= most]


def varied_graphs(seeds):
    """Graphs of up to 7 ops that run in several ways."""
    found = (graphs.with_alternatives(small_graph(seed), seed) for seed in seeds)
    return [graph for graph in found if len(graph.ops) <= 7]
