"""Sublinear memory: checkpoints at intervals, and segments that run again (Chen et al., 2016).

"Training Deep Nets with Sublinear Memory Cost" cuts a network into segments. The forward pass keeps
what goes from one segment to the next, to its last read. Just before a segment's backward its ops
run again from there, as far as that needs them; all that it reads of the segment is in memory then.
The last segment does not run again, for its backward follows its first run.

Segments end at articulation points, or where there are none at any op, and then all that is live
there is kept (`blocks`). Two rules choose among those places:

- `"sqrt"` ends a segment after every ceil(sqrt(n)) of the n blocks between them.
- `"greedy"` is the paper's Algorithm 3: a segment ends at the first place where the bytes of all
  values written since the last one exceed a size. Where the paper searches a few sizes around a
  guess, here a sweep tries `sizes` of them, from no bytes to all, and replay says which is fastest
  within the budget.
"""

import dataclasses
import itertools as it
import math
from collections.abc import Iterator
from typing import Literal

from ..graph import Graph
from ..schedules.orders import fastest_within, needed_ops
from ..schedules.planner import SchedulePlanner
from ..schedules.steps import Schedule
from .blocks import ChainBlocks


@dataclasses.dataclass(frozen=True)
class Chen(SchedulePlanner):
    """The planner.

    Attributes:
        kind: "sqrt" knows one schedule, whatever the budget; "greedy" chooses among many.
        sizes: how many sizes of segments "greedy" tries.
        linearized: end segments at any op, even where there are articulation points.
    """

    kind: Literal["sqrt", "greedy"] = "greedy"
    sizes: int = 100
    linearized: bool = False

    def __call__(self, graph: Graph, budget_bytes: int) -> Schedule:
        """Plans a step.

        Raises:
            InfeasibleBudget: no schedule of the rule fits; `minimum_bytes` is the smallest's peak.
        """
        blocks = ChainBlocks(graph, linearized=self.linearized)
        orders = (_order(blocks, starts) for starts in dict.fromkeys(self._segmentations(blocks)))
        return fastest_within(graph, orders, budget_bytes, planner=f"Chen ({self.kind})")

    def _segmentations(self, blocks: ChainBlocks) -> Iterator[tuple[int, ...]]:
        """Choices of the blocks with which a segment begins, the first one left out."""
        if self.kind == "sqrt":
            yield tuple(range(len(blocks)))[:: math.ceil(math.sqrt(len(blocks)))][1:]
            return
        values = blocks.graph.values
        written = [sum(values[i].nbytes for i in blocks.written(s)) for s in range(len(blocks))]
        for n in range(self.sizes):
            yield _starts(written, sum(written) * n / max(self.sizes - 1, 1))


def _starts(written: list[int], size: float) -> tuple[int, ...]:
    """Where segments begin that end as soon as more than `size` bytes were written."""
    found, since = [], 0
    for s, nbytes in enumerate(written[:-1]):
        since += nbytes
        if since > size:
            found.append(s + 1)
            since = 0
    return tuple(found)


def _order(blocks: ChainBlocks, starts: tuple[int, ...]) -> list[int]:
    """The step in which segments that begin with these blocks, and the first, run again."""
    graph, bounds = blocks.graph, [0, *starts, len(blocks)]
    available = {i for s in starts for i in blocks.inputs[s]}
    available |= {i for s in range(bounds[-2], len(blocks)) for i in blocks.written(s)}
    order = list(range(graph.forward_count))
    for first, end in reversed(list(it.pairwise(bounds))):
        backward = range(blocks.backward[end - 1].start, blocks.backward[first].stop)
        again = needed_ops(graph, (i for b in backward for i in graph.ops[b].inputs), available)
        available |= {i for o in again for i in graph.ops[o].outputs}
        order += [*again, *backward]
    return order
