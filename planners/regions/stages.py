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
- A region of several stages saves nothing, or what one multiplier on bytes chooses for all its
  stages; its inner regions are single stages. Its length is bounded, so that planning takes
  seconds.
- Where iterations must be uniform (`Graph.uniform_blocks`), each stage of an iteration need only
  equal its counterpart in one of the two iterations next to it; `with_uniform_blocks` changes the
  rest afterwards.
"""

import dataclasses
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..graph import Graph
from ..plan import Plan
from .effects.shapes import Shapes
from .planner import RegionPlanner

if TYPE_CHECKING:
    from .search.search import Search


@dataclasses.dataclass(frozen=True)
class Stages(RegionPlanner):
    """The planner: the fastest plan of its space within a budget.

    Attributes:
        time_limit: for one search, in seconds; where nothing fits, the search for the least
            feasible budget is included. Importing CVXPY, once, is not. When it has passed, the best
            plan known is returned, within a second where a few replays of the step take less than
            that.
        gap: stop within this share of the step's seconds of the proven bound.
        max_options: of a stage, beside leaving it alone.
        shapes: what is known of the graphs of one function, which have much in common; None where
            each graph is planned by itself.
    """

    time_limit: float = 10.0
    gap: float = 1e-3
    max_options: int = 12
    shapes: Shapes | None = dataclasses.field(default=None, compare=False, repr=False)

    def warm_up(self) -> None:
        """Begin to import CVXPY in a thread: it takes seconds, as a first compilation does."""
        if "cvxpy" not in sys.modules:
            threading.Thread(target=importlib.import_module, args=("cvxpy",)).start()

    def steps_ahead(self, graph: Graph) -> Iterator[None]:
        """Find a graph's candidates, where the graphs after it share what is known of them."""
        return iter(()) if self.shapes is None else self.prepare(graph).steps_ahead()

    def smallest(self, graph: Graph) -> Plan:
        """The plan of the space with the least peak, and then least seconds within that peak."""
        return self.prepare(graph).smallest()

    def prepare(self, graph: Graph) -> "Search":
        """The search of one graph, for several budgets: `.fastest(budget_bytes)`, `.smallest()`.

        What does not depend on the budget is done once, and `time_limit` holds for each call.
        """
        # Importing CVXPY takes seconds, and planning is all that needs it.
        from .search.search import search_of

        shapes = Shapes() if self.shapes is None else self.shapes
        return search_of(graph, shapes, self.time_limit, self.gap, self.max_options)


def one_function(time_limit: float) -> Stages:
    """The planner of the graphs of one function, which share what is known of them.

    Arguments:
        time_limit: as of `Stages`.
    """
    return Stages(time_limit, shapes=Shapes())
