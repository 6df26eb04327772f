"""Checkmate's integer program (Jain et al., MLSys 2020, sections 4.2 to 4.8), for reference.

Time is cut into as many stages as there are ops; stage `t` ends with the first run of op `t`
(section 4.6), and before that may run earlier ops again, in order. The paper's nodes are ops; an
op's outputs are kept and freed together.

| index | means |
|---|---|
| `t` | a stage of the schedule, and the op that runs there for the first time |
| `i`, `j`, `k` | an op |

| variable | is 1 where |
|---|---|
| `run[t, i]` (the paper's R) | op `i` runs in stage `t` |
| `keep[t, i]` (S) | the outputs of op `i` are in memory from stage `t - 1` into stage `t` |
| `free[t, i, k]` (FREE) | they are freed in stage `t` as soon as op `k` has run |
| `live[t, k]` (U, bytes) | is in memory once op `k` was reached in stage `t` |

Known limit: the program grows with the square of the ops. The paper gives up above 500; here, some
dozens are practical. Beside the paper: workspaces, and ops that must run once.
"""

import collections
import dataclasses
import itertools as it
from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from ..graph import Graph
from ..schedules.planner import SchedulePlanner
from ..schedules.steps import Execute, Free, Schedule, Step, certified_steps
from ..solver.deadline import NEVER, Deadline
from ..solver.highs import require_found, solve
from ..solver.sparse import at_least, matrix, numbered, total

_Row = dict[int, float]


@dataclasses.dataclass(frozen=True)
class Checkmate(SchedulePlanner):
    """The planner: the fastest schedule of its space within a budget.

    Attributes:
        time_limit: in seconds.
        gap: stop within this share of the step's seconds of the proven bound.
    """

    time_limit: float = 60.0
    gap: float = 1e-4

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no schedule of the space fits; `minimum_bytes` is the least that any
                schedule needs, for the op that takes most by itself.
            SolverStopped: `time_limit` passed without a schedule, or HiGHS failed.
        """
        deadline = Deadline.after(self.time_limit)
        program = CheckmateProgram(graph, budget_bytes, deadline=deadline.to_write())
        outcome = solve(program.problem, time_limit=deadline.left, absolute_gap=self.gap)
        require_found(
            outcome,
            budget_bytes,
            whose="Checkmate's",
            least_bytes=_largest_op(graph),
            time_limit=self.time_limit,
        )
        bound = outcome.bound * program.unit
        return certified_steps(graph, _steps(program), bound_seconds=bound, planner="Checkmate")


def _largest_op(graph: Graph) -> int:
    """Bytes in memory while one op runs, at least."""
    each = (
        sum(graph.values[i].nbytes for i in (*op.inputs, *op.outputs)) + op.workspace_bytes
        for op in graph.ops
    )
    return max(each, default=0)


class CheckmateProgram:
    """The program; one vector `x` holds the 0-1 variables, `live` the bytes over the budget.

    Not `boolean`, it is the linear relaxation: variables from 0 to 1.

    Raises:
        SolverStopped: the deadline passed while it was being written.
    """

    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        *,
        boolean: bool = True,
        deadline: Deadline = NEVER,
    ):
        self.graph, self.deadline = graph, deadline
        self.n = len(graph.ops)
        self.unit = graph.seconds or 1.0  # seconds enter as shares of this, bytes of the budget
        scale = max(budget_bytes, 1)
        self.nbytes = [sum(graph.values[i].nbytes for i in op.outputs) / scale for op in graph.ops]
        self.workspace = [op.workspace_bytes / scale for op in graph.ops]
        writer = {i: o for o, op in enumerate(graph.ops) for i in op.outputs}
        self.reads = [sorted({writer[i] for i in op.inputs}) for op in graph.ops]
        self.users = collections.defaultdict(list)
        for k, sources in enumerate(self.reads):
            for i in sources:
                self.users[i].append(k)
        self._number_variables()
        kind: Any = {"boolean": True} if boolean else {"bounds": [0, 1]}
        self.x = cp.Variable(self.width, **kind)
        self.live = cp.Variable(len(self.samples), nonneg=True)
        cost = np.zeros(self.width)
        for (_, i), column in self.run.items():
            cost[column] = graph.ops[i].seconds / self.unit
        self.problem = cp.Problem(cp.Minimize(cost @ self.x), list(self._constraints()))

    def _number_variables(self) -> None:
        ops = range(self.n)
        # In stage `t` op `k` may run, and what it reads and writes may be freed after it.
        samples = ((t, k) for t in ops for k in range(t + 1))
        self.samples = {sample: n for n, sample in enumerate(self.deadline.during(samples))}
        keys: Iterator[tuple[Any, ...]] = it.chain(
            (("run", *sample) for sample in self.samples),
            (("keep", t, i) for t in ops for i in range(t)),
            (("free", t, i, k) for t, k in self.samples for i in self._touched(k)),
        )
        self.run, self.keep, self.free = numbered(self.deadline.during(keys), "run", "keep", "free")
        self.width = len(self.run) + len(self.keep) + len(self.free)

    def _touched(self, k: int) -> list[int]:
        """Ops whose outputs op `k` reads or writes."""
        return [*self.reads[k], k]

    def _constraints(self) -> Iterator[Any]:
        yield from self._reads()
        yield from self._keeps()
        yield from self._frees()
        yield from self._first_runs()
        yield from self._single_runs()
        yield from self._memory()

    def _reads(self) -> Iterator[Any]:
        """(1b) What an op reads runs in its stage or is kept into it."""
        rows = (
            self._available(t, i) | {self.run[t, j]: -1.0}
            for t, j in self.deadline.during(self.samples)
            for i in self.reads[j]
        )
        yield from at_least(self.x, rows)

    def _keeps(self) -> Iterator[Any]:
        """(1c) What is kept into a stage ran or was kept in the one before."""
        keep = self.deadline.during(self.keep.items())
        rows = (self._available(t - 1, i) | {n: -1.0} for (t, i), n in keep)
        yield from at_least(self.x, rows)

    def _frees(self) -> Iterator[Any]:
        """(5) Nothing is freed where there is a hazard.

        The paper also frees whatever has none; a program that minimizes does so by itself.
        """
        keys = self.deadline.during(self.free)
        rows, right = zip(*(self._kept_by_hazards(*key) for key in keys), strict=True)
        yield from at_least(self.x, rows, right)

    def _first_runs(self) -> Iterator[Any]:
        """(4.6) Each stage ends with the first run of its op."""
        yield self.x[[self.run[t, t] for t in range(self.n)]] == 1

    def _single_runs(self) -> Iterator[Any]:
        """What must run once has no other run."""
        once = [c for (t, i), c in self.run.items() if i < t and not self.graph.may_rerun(i)]
        if once:
            yield self.x[once] == 0

    def _available(self, t: int, i: int) -> _Row:
        found = {self.run[t, i]: 1.0}
        if (t, i) in self.keep:
            found[self.keep[t, i]] = 1.0
        return found

    def _hazards(self, t: int, i: int, k: int) -> _Row:
        """What speaks against freeing `i` once `k` has run, less one: the paper's hazards.

        They are `1 - run[t, k]`, that it is kept into the next stage, and its later readers.
        """
        found = {self.run[t, j]: 1.0 for j in self.users[i] if k < j <= t}
        found[self.run[t, k]] = -1.0
        if (t + 1, i) in self.keep:
            found[self.keep[t + 1, i]] = 1.0
        return found

    def _kept_by_hazards(self, t: int, i: int, k: int) -> tuple[_Row, float]:
        hazards = self._hazards(t, i, k)
        most = float(len(hazards))
        row = {column: -x for column, x in hazards.items()}
        return row | {self.free[t, i, k]: -most}, 1.0 - most

    def _memory(self) -> Iterator[Any]:
        """`live` from sample to sample (4.5), and the budget."""
        steps, changes, workspaces = [], [], []
        for (t, k), n in self.deadline.during(self.samples.items()):
            terms = [(self.run[t, k], self.nbytes[k])]
            if k == 0:
                terms += [(self.keep[t, i], self.nbytes[i]) for i in range(t)]
            else:
                freed = self._touched(k - 1)
                terms += [(self.free[t, i, k - 1], -self.nbytes[i]) for i in freed]
            steps.append({n: 1.0} if k == 0 else {n: 1.0, n - 1: -1.0})
            changes.append(total(terms))
            workspaces.append({self.run[t, k]: self.workspace[k]})
        change = matrix(changes, self.width) @ self.x
        yield matrix(steps, len(self.samples)) @ self.live == change
        yield self.live + matrix(workspaces, self.width) @ self.x <= 1.0


def _steps(program: CheckmateProgram) -> Iterator[Step]:
    """The solution, step by step; what a stage no longer needs is freed at once."""
    x = np.asarray(program.x.value) > 0.5
    keep, held = program.keep, set[int]()
    for t in range(program.n):
        runs = [k for k in range(t + 1) if x[program.run[t, k]]]
        kept = {i for i in range(t + 1) if (t + 1, i) in keep and x[keep[t + 1, i]]}
        useless = held - kept - {i for k in runs for i in program.reads[k]}
        yield from _freed(program.graph, useless)
        held -= useless
        for k in runs:
            if k in held:
                yield from _freed(program.graph, {k})
            yield Execute(k)
            held.add(k)
            later = {i for j in runs if j > k for i in program.reads[j]}
            done = held - kept - later
            yield from _freed(program.graph, done)
            held -= done


def _freed(graph: Graph, ops: set[int]) -> Iterator[Step]:
    return (Free(i) for o in sorted(ops) for i in graph.ops[o].outputs)
