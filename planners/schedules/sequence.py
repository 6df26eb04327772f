"""Local search over sequences of ops: simulated annealing (FastSA, Imanishi et al.).

An op is put in once more, taken out, or moved (`moves`), and the sequence is judged by its seconds
and a multiplier on the bytes that it has above the budget (`annealing`). Beside FastSA's moves
there is one that takes a recomputation out and puts another in at once. FastSA charges for the
peak; here the excess of all places is charged for.

Any op that may run again may do so anywhere after its first run, as often as it pays. Nothing is
proven about the sequence found: the bound is that each op runs at least once. Ops run in their
first implementation, and optional ops do not run.
"""

import dataclasses
from collections.abc import Sequence as SequenceOf

from ..errors import InfeasibleBudget, InvalidPlan
from ..graph import Graph
from .annealing import Annealing
from .planner import SchedulePlanner
from .steps import Schedule, certified_steps, cost_of, runs_of, with_frees

# Temperatures at which a round begins, in seconds of a mean op: of a search, and where a schedule
# is only improved, so that most of it stays.
_HOT, _WARM = 1.0, 0.2


@dataclasses.dataclass(frozen=True)
class Sequence(SchedulePlanner):
    """The planner: the fastest sequence within a budget that it comes upon.

    Attributes:
        time_limit: in seconds; used up, unless nothing runs twice before.
        may_reorder: whether first runs may change places; else they stay in the graph's order.
        seed: of the random choices.
        moves: changes to try, at most; None leaves only the time limit. With the limit out of
            reach, the same number finds the same sequence on any machine.
    """

    time_limit: float = 60.0
    may_reorder: bool = False
    seed: int = 0
    moves: int | None = None

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        `bound_seconds` is the sum of the seconds of all ops: each runs once or more in any
        schedule whatever.

        Raises:
            InfeasibleBudget: nothing found fits. That is no proof; `minimum_bytes` is the least
                peak that the search came upon.
        """
        order = [o for o, op in enumerate(graph.ops) if not op.optional]
        search = _annealed(self, graph, order, budget_bytes, _HOT)
        if search.best is None:
            raise InfeasibleBudget(
                f"Found no sequence of ops within {budget_bytes:,} bytes; the least peak found is "
                f"{search.least_peak:,} bytes. Raise the budget or `time_limit`.",
                minimum_bytes=search.least_peak,
            )
        steps = with_frees(graph, search.best)
        return certified_steps(graph, steps, bound_seconds=graph.least_seconds, planner="Sequence")


def improved(
    graph: Graph,
    schedule: Schedule,
    budget_bytes: int,
    *,
    time_limit: float = 10.0,
    seed: int = 0,
    moves: int | None = None,
) -> Schedule:
    """A schedule made faster where the search finds how; else the schedule itself.

    First runs keep their order. The result keeps the budget and never takes longer than the
    schedule. Its `bound_seconds` is still the schedule's, about the same space. A schedule in which
    an op does not run in its first implementation is returned as it is.

    Raises:
        InvalidPlan: the schedule does not run, or takes more than the budget.
    """
    cost = cost_of(graph, schedule.steps)
    if cost.peak_bytes > budget_bytes:
        raise InvalidPlan(
            f"A schedule to improve takes {cost.peak_bytes:,} bytes, over its budget of "
            f"{budget_bytes:,}. Plan for that budget first."
        )
    ran = runs_of(schedule)
    if any(run.implementation or graph.ops[run.op].optional for run in ran):
        return schedule
    planner = Sequence(time_limit=time_limit, seed=seed, moves=moves)
    search = _annealed(planner, graph, [run.op for run in ran], budget_bytes, _WARM)
    assert search.best is not None  # the schedule itself fits
    steps = with_frees(graph, search.best)
    bound = schedule.bound_seconds
    found = certified_steps(graph, steps, bound_seconds=bound, planner=schedule.planner)
    return found if found.seconds < cost.seconds else schedule


def _annealed(
    planner: Sequence, graph: Graph, order: SequenceOf[int], budget_bytes: int, hot: float
) -> Annealing:
    """The search from an order, after its last round."""
    search = Annealing(
        graph,
        order,
        budget_bytes,
        time_limit=planner.time_limit,
        move_limit=planner.moves,
        may_reorder=planner.may_reorder,
        seed=planner.seed,
    )
    search.run(hot)
    return search
