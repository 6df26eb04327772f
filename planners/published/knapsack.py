"""Saved values by a knapsack, as in PyTorch: the most seconds avoided for so many saved bytes.

The min-cut partitioner of PyTorch takes an `activation_memory_budget` (pytorch/pytorch#126320): a
knapsack over ops' outputs, with their bytes as weights and their ops' seconds as worth, says which
to save within a share of the bytes that are saved without recomputation; a minimum cut then
decides the rest. Here one program does both, so that an op does not run again only if nothing needs
it.
What is not saved runs again once, just before the first backward op that needs it, as there.

| variable, 0 or 1 | is 1 where |
|---|---|
| `save[i]` | forward value `i` is kept for the backward pass |
| `again[o]` | forward op `o` runs again |

Saved bytes are not the peak, and the peak does not always fall with them: what runs again stays
until it is read (in pytorch/pytorch#197838 a budget of 5 % takes four times what one of 15 % does).
So the bound on saved bytes is searched: evenly spaced ones from the largest down to the first whose
replayed peak keeps the budget, and then between that and the one before by halving. What ops that
must run once write is kept in any case and not counted.

Known limit: `bound_seconds` is the step's own.
"""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import SolverStopped
from ..graph import Graph
from ..schedules.orders import needed_ops, order_keeping, schedule_of
from ..schedules.planner import SchedulePlanner
from ..schedules.steps import Schedule, infeasible
from ..solver.deadline import Deadline

if TYPE_CHECKING:
    import cvxpy as cp

_Row = dict[int, float]


@dataclasses.dataclass(frozen=True)
class Knapsack(SchedulePlanner):
    """The planner.

    Attributes:
        bounds: how many bounds on saved bytes to try, from all that the backward reads to none.
        halvings: how often to halve between the first of them that fits and the one before.
        time_limit: in seconds, for all programs together, but for importing CVXPY, once.
        gap: stop each within this share of the step's seconds of its own bound.
    """

    bounds: int = 24
    halvings: int = 4
    time_limit: float = 60.0
    gap: float = 1e-4

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no bound leads to a peak within the budget; `minimum_bytes` is the
                least peak of any that was tried.
            SolverStopped: `time_limit` passed before a bound was found that does, or HiGHS failed.
        """
        search = _Search(graph, self, budget_bytes)
        share = search.first_fitting()
        if share is None:
            raise infeasible(graph, search.smallest, budget_bytes)
        search.halve(share, self.halvings)
        return search.fastest


class _Search:
    """The schedules found so far, by their share of the bytes that could be saved."""

    def __init__(self, graph: Graph, planner: Knapsack, budget_bytes: int):
        self.graph, self.planner, self.budget_bytes = graph, planner, budget_bytes
        self.deadline = Deadline.after(planner.time_limit)
        self.program = KnapsackProgram(graph)
        self.found: dict[float, Schedule] = {}

    @property
    def smallest(self) -> Schedule:
        """The schedule of least peak."""
        return min(self.found.values(), key=lambda x: x.peak_bytes)

    @property
    def fastest(self) -> Schedule:
        """The fastest schedule within the budget."""
        fitting = (x for x in self.found.values() if x.peak_bytes <= self.budget_bytes)
        return min(fitting, key=lambda x: (x.seconds, x.peak_bytes))

    def first_fitting(self) -> float | None:
        """The largest of evenly spaced shares that fits; None if none does."""
        last = max(self.planner.bounds - 1, 1)
        shares = (n / last for n in range(last, -1, -1))
        return next((share for share in shares if self.fits(share)), None)

    def halve(self, share: float, times: int) -> None:
        """Tries shares between one that fits and the next larger one, which does not."""
        low, high = share, min((x for x in self.found if x > share), default=share)
        with contextlib.suppress(SolverStopped):  # one that fits is known
            for _ in range(times if high > low else 0):
                middle = (low + high) / 2
                low, high = (middle, high) if self.fits(middle) else (low, middle)

    def fits(self, share: float) -> bool:
        """Whether the schedule that saves such a share keeps the budget."""
        left = self.deadline.left
        kept = self.program.saved(share, time_limit=left, gap=self.planner.gap)
        order = order_keeping(self.graph, kept)
        self.found[share] = schedule_of(self.graph, order, planner="Knapsack")
        return self.found[share].peak_bytes <= self.budget_bytes


class KnapsackProgram:
    """The program, for any share of bytes to save; `x` holds `save` and then `again`."""

    def __init__(self, graph: Graph):
        self.graph, self.writer = graph, graph.forward_writer_number
        backward = graph.ops[graph.forward_count :]
        self.read = {i for op in backward for i in op.inputs if self._may_be_made_again(i)}
        self.again = needed_ops(graph, self.read, ())
        inputs = {i for o in self.again for i in graph.ops[o].inputs}
        self.values = sorted(self.read | set(filter(self._may_be_made_again, inputs)))
        self.column = {("save", i): n for n, i in enumerate(self.values)}
        self.column |= {("again", o): len(self.column) + n for n, o in enumerate(self.again)}

    def _may_be_made_again(self, i: int) -> bool:
        return i in self.writer and self.graph.may_rerun(self.writer[i])

    def saved(self, share: float, *, time_limit: float, gap: float) -> frozenset[int]:
        """The values to save.

        Arguments:
            share: of the bytes of all that the backward pass reads and that can be made again.
            time_limit: in seconds.
            gap: as a share of the step's seconds.

        Raises:
            SolverStopped: the time is over and nothing found, or HiGHS failed.
        """
        if not self.values:
            return frozenset()
        # Importing CVXPY takes seconds, and other planners need none of it.
        from ..solver.highs import solve

        problem, x, limit = self.problem
        limit.value = share
        outcome = solve(problem, time_limit=time_limit, absolute_gap=gap)
        if not outcome.found:
            raise SolverStopped(
                f"HiGHS found no values to save for {share:.1%} of the bytes in the time left. "
                "Raise `time_limit` or take fewer `bounds`."
            )
        found: Any = x.value
        return frozenset(i for i in self.values if found[self.column["save", i]] > 0.5)

    @ft.cached_property
    def problem(self) -> "tuple[cp.Problem, cp.Variable, cp.Parameter]":
        """The problem, its variables, and the share of bytes that it may save."""
        import cvxpy as cp
        import numpy as np

        from ..solver.sparse import at_least

        x, share = cp.Variable(len(self.column), boolean=True), cp.Parameter(nonneg=True)
        seconds, nbytes = np.zeros(x.size), np.zeros(x.size)
        unit, most = self.graph.seconds or 1.0, sum(map(self._bytes, self.read)) or 1
        for o in self.again:
            seconds[self.column["again", o]] = self.graph.ops[o].seconds / unit
        for i in self.values:
            nbytes[self.column["save", i]] = self._bytes(i) / most
        rows, right = zip(*self._needs(), strict=True)
        problem = cp.Problem(
            cp.Minimize(seconds @ x), [*at_least(x, rows, right), nbytes @ x <= share]
        )
        return problem, x, share

    def _needs(self) -> Iterator[tuple[_Row, float]]:
        """What the backward reads, or an op that runs again, is saved or its own op runs again."""
        for i in sorted(self.read):
            yield self._available(i), 1.0
        for o in self.again:
            for i in sorted(set(self.graph.ops[o].inputs) & set(self.values)):
                yield self._available(i) | {self.column["again", o]: -1.0}, 0.0

    def _available(self, i: int) -> _Row:
        return {self.column["save", i]: 1.0, self.column["again", self.writer[i]]: 1.0}

    def _bytes(self, i: int) -> int:
        return self.graph.values[i].nbytes
