"""Plans in two levels: options of single stages, then the best choice among them.

Rockmate plans a network as a chain of blocks: each block alone, for several budgets, and then
rotor's recursion over the blocks' options; HiRemate does so again for blocks of blocks. The
automatic planner of torchtitan solves identical layers once, and bounds the peak at every backward
position. Here `stage_program` finds a stage's options, `candidates` adds regions of several stages,
`effects` says what each costs, `composition` chooses among all of them at once, and `search` puts
it together.

Known limits, which make the space that `bound_seconds` is about:

- The options of a stage with more than a few savable values lie on the front of bytes against
  seconds; the one of smallest transient peak may be missing.
- A region of several stages saves nothing, or what one price per byte chooses for all its stages;
  its inner regions are single stages. Its length is bounded, so that planning takes seconds.
- Where iterations are asked to do as one next to them (`Graph.evens`), stages of an iteration may
  do so on either side: the rest `rolling.evened` changes afterwards.
"""

import dataclasses
from typing import TYPE_CHECKING

from .graph import Graph
from .plan import Plan, Region
from .replay import replay

if TYPE_CHECKING:
    from .search import Search


@dataclasses.dataclass(frozen=True)
class Stages:
    """The planner: the fastest plan of its space within a budget.

    Attributes:
        time_limit: for one search, in seconds, that for the least feasible budget included where
            nothing fits. Importing CVXPY, once, is not. When it has passed, the best plan known is
            the answer, within a second where a few replays of the step take less than that.
        gap: stop within this share of the step's seconds of the proven bound.
        max_options: of a stage, beside leaving it alone.
    """

    time_limit: float = 10.0
    gap: float = 1e-3
    max_options: int = 12

    def __call__(self, graph: Graph, budget_bytes: int) -> Plan:
        """Plans a step.

        Arguments:
            graph: the step.
            budget_bytes: bounds the `peak_bytes` of the plan's replay.

        Raises:
            InfeasibleBudget: no plan of the space fits; says how many bytes do.
            SolverStopped: `time_limit` passed without a plan or a proof that there is none, or
                HiGHS failed.
        """
        return self.prepare(graph).fastest(budget_bytes)

    def smallest(self, graph: Graph) -> Plan:
        """The plan of the space with the least peak, and then least seconds within that peak."""
        return self.prepare(graph).smallest()

    def prepare(self, graph: Graph) -> "Search":
        """The search of one graph, for several budgets: `.fastest(budget_bytes)`, `.smallest()`.

        What does not depend on the budget is done once, and `time_limit` holds for each call.
        """
        # Importing CVXPY takes seconds, and planning is all that needs it.
        from .search import Search

        return Search(graph, self)


def save_all(graph: Graph) -> Plan:
    """The plan that recomputes nothing: every stage is left alone."""
    regions = tuple(Region(s, s, alone=True) for s in range(len(graph.stages)))
    return certified(graph, regions, planner="save all", bound_seconds=graph.seconds)


def save_nothing(graph: Graph) -> Plan:
    """The plan that saves only what crosses stages, and what must not run again."""
    regions = tuple(bare(graph, s) for s in range(len(graph.stages)))
    return certified(graph, regions, planner="save nothing", bound_seconds=graph.seconds)


def certified(
    graph: Graph, regions: tuple[Region, ...], *, planner: str, bound_seconds: float
) -> Plan:
    """A plan whose figures come from replay."""
    cost = replay(graph, regions)
    return Plan(
        regions=regions,
        peak_bytes=cost.peak_bytes,
        seconds=cost.seconds,
        flops=cost.flops,
        bound_seconds=min(max(bound_seconds, graph.seconds), cost.seconds),
        planner=planner,
    )


def left_alone(graph: Graph, region: Region) -> Region:
    """A region whose stages are left alone; the same where one of them may not be."""
    stages = graph.stages[region.first : region.last + 1]
    if not all(stage.may_be_alone for stage in stages):
        return region
    return Region(region.first, region.last, alone=True)


def saving_all(graph: Graph, region: Region) -> Region:
    """A region that saves by name what its backward reads of its forward, as far as it may."""
    kept = graph.kept(region.first, region.last)
    return Region(region.first, region.last, tuple(value.name for value in kept if value.savable))


def saving_codes(graph: Graph) -> tuple[Region, ...]:
    """Regions that save the codes of optional ops and what must not run again, and nothing else."""
    regions = []
    for s, stage in enumerate(graph.stages):
        values = (graph.values[i] for op in stage.forward if op.optional for i in op.outputs)
        codes = tuple(value.name for value in values if value.nbytes)
        region = bare(graph, s)
        regions.append(region if region.alone else Region(s, s, (*region.saved, *codes)))
    return tuple(regions)


def whole_iterations(graph: Graph) -> Plan:
    """The plan that saves nothing, each iteration of a loop in one region.

    It is what `jax.checkpoint` round the body of a loop does.
    """
    regions: list[Region] = []
    for first, stop in graph.spans:
        whole = bare(graph, first, stop - 1)
        is_one = first in graph.looped and not whole.alone
        regions += [whole] if is_one else [bare(graph, s) for s in range(first, stop)]
    return certified(graph, tuple(regions), planner="whole iterations", bound_seconds=graph.seconds)


def bare(graph: Graph, first: int, last: int | None = None) -> Region:
    """A region that saves only outputs of ops that must run once; alone where that will not do.

    It has the stages from `first` to `last`, or only that one.
    """
    last = first if last is None else last
    forward = [op for stage in graph.stages[first : last + 1] for op in stage.forward]
    backward = [op for stage in graph.stages[first : last + 1] for op in stage.backward]
    writer = {i: op for op in forward for i in op.outputs}
    pending = [i for op in backward for i in op.inputs if i in writer]
    seen, saved = set(pending), set()
    while pending:
        i = pending.pop()
        if not writer[i].recomputable:
            saved.add(i)
            continue
        new = {u for u in writer[i].inputs if u in writer} - seen
        seen |= new
        pending += new
    if not all(graph.values[i].savable for i in saved):
        return Region(first, last, alone=True)
    return Region(first, last, saved=tuple(graph.values[i].name for i in sorted(saved)))
