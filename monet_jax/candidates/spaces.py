"""The spaces of plans that a search proposes from, as data, in order."""

import contextlib
import dataclasses
import functools
import itertools as it
import math
from collections.abc import Callable, Iterator, Sequence

import planners
from planners.errors import SolverStopped
from planners.graph import Graph, Op
from planners.regions.planner import RegionPlanner
from planners.regions.solved import SolvedBudgets

from .compiled_plans import CompiledPlans
from .proposals import Proposals
from .worth import is_free


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A plan that a space proposes.

    Attributes:
        plans: of its program.
        decisions: the plan.
        predicted_bytes: its temporaries by the model that proposed it.
        seconds: what it is compared by.
        is_free: whether no plan of the program is faster, whatever memory it takes.
    """

    plans: CompiledPlans
    decisions: planners.Plan
    predicted_bytes: int
    seconds: float
    is_free: bool

    @property
    def is_of_single_stages(self) -> bool:
        """Whether no stages are recomputed together."""
        return all(region.first == region.last for region in self.decisions.regions)


@dataclasses.dataclass(frozen=True)
class Space:
    """Plans of one program, of which some implementations may be left out.

    Attributes:
        plans: of the program.
        models: proposals by each model of the compiler.
        handicap: the share of time by which a plan must be faster than one of another space.
        known: aims so far -> seconds of the proposal, infinite where there was none.
    """

    plans: CompiledPlans
    models: tuple[Proposals, ...]
    handicap: float = 0.0
    known: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether its plans may move values to the host's memory."""
        return any(model.graph.link is not None for model in self.models)

    @functools.cached_property
    def of_single_stages(self) -> "Space | None":
        """The plans whose regions are single stages; None where the planner has no such space."""
        solved = ((model.graph, model.solved.of_single_stages) for model in self.models)
        models = tuple(Proposals(self.plans, graph, x) for graph, x in solved if x is not None)
        return Space(self.plans, models, self.handicap) if models else None

    @property
    def free_seconds(self) -> float:
        """Seconds of its fastest plan, whatever memory it takes."""
        return self.models[0].solved.free_seconds

    def propose(self, aim_bytes: int, free_seconds: float) -> Proposal | None:
        """The fastest plan that should compile to at most `aim_bytes`; None where there is none.

        It is by the model that has erred least on what was compiled so far. One that takes
        `free_seconds` is free.

        Raises:
            CapReached: there is no time left.
        """
        self.plans.cap.check_seconds()
        model = min(self.models, key=Proposals.error_bytes)
        found = model.within(self.plans.model.scale.modelled_for(aim_bytes))
        if found is None:
            self.known[aim_bytes] = math.inf
            return None
        predicted, seconds = model.predicted(found.regions), found.seconds / (1 - self.handicap)
        proposal = Proposal(self.plans, found, predicted, seconds, is_free(found, free_seconds))
        self.known[aim_bytes] = proposal.seconds
        return proposal

    def least_seconds(self, aim_bytes: int) -> float:
        """A bound on what is proposed for an aim: less memory takes no less time."""
        return max((s for aim, s in self.known.items() if aim >= aim_bytes), default=0.0)


def free_seconds_of(spaces: Sequence[Space]) -> float:
    """Seconds of the fastest plan of all spaces, whatever memory it takes.

    The first space of a program stands for the others: what they have besides saves bytes.
    """
    firsts = {space.plans: space for space in reversed(spaces)}
    return min((space.free_seconds for space in firsts.values()), default=0.0)


def propose(
    spaces: Sequence[Space], aim_bytes: int, free_seconds: float | None = None
) -> Proposal | None:
    """The fastest proposal of several spaces.

    The most promising space comes first, and the earlier ones where nothing is known. A space is
    left out where a proposal is as fast as its bound, and all are where one is free.

    Arguments:
        spaces: in order.
        aim_bytes: of predicted temporaries.
        free_seconds: of a plan that is free; None for what the spaces say.
    """
    best = None
    free_seconds = free_seconds_of(spaces) if free_seconds is None else free_seconds
    for space in sorted(spaces, key=lambda x: x.least_seconds(aim_bytes)):
        if best is not None and (best.is_free or best.seconds <= space.least_seconds(aim_bytes)):
            break
        found = space.propose(aim_bytes, free_seconds)
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
    return best


def spaces_of(
    plans: CompiledPlans, planner: RegionPlanner, handicap: float = 0.0
) -> tuple[Space, ...]:
    """The spaces of one program, from the smallest to the whole.

    First are plans in which derivatives read what JAX has them read; then plans with codes as well,
    the exact codes before the lossy ones; last are those that move values to the host. The first
    space is searched much sooner, and a budget that one of its plans keeps for free needs no other.
    """
    graphs = _graphs_of(plans.model.graph, plans)
    return tuple(Space(plans, _models_of(x, plans, planner), handicap) for x in graphs)


def _graphs_of(whole: Graph, plans: CompiledPlans) -> list[Graph]:
    """The graphs of the spaces, in order, given the one of all plans."""
    graph, lossy = without_host(whole), plans.judge.lossy_codes
    graphs = [
        without_alternatives(graph),
        _with_alternatives(graph, lambda codes: codes.isdisjoint(lossy)),
        graph,
        without_alternatives(whole),
        whole,
    ]
    return [x for n, x in enumerate(graphs) if x not in graphs[:n]]


def steps_ahead(every: Sequence[CompiledPlans], planner: RegionPlanner) -> Iterator[None]:
    """Find out, a step at a time, what plans of some programs need, whatever calibrates them."""
    graphs = (_graphs_of(plans.uncalibrated.graph, plans) for plans in every)
    for some in it.zip_longest(*graphs):
        for graph in filter(None, some):
            with contextlib.suppress(SolverStopped):
                yield from planner.steps_ahead(graph)


def _models_of(graph: Graph, plans: CompiledPlans, planner: RegionPlanner) -> tuple[Proposals, ...]:
    """Proposals by the model of the compiler, then by a model in which nothing is recomputed late.

    Where several stages that save little are run again as one, a compiler may hold more than
    recomputing late would: the second model has fewer of them. In plans by the first model, no
    iteration of a loop runs by itself: plans that take a few percent more time then take the
    predicted bytes.
    """
    graphs = [graph]
    if graph.recomputes_late:
        graphs.append(dataclasses.replace(graph, recomputes_late=False, uniform_blocks=False))
    return tuple(Proposals(plans, x, SolvedBudgets(planner, x)) for x in graphs)


def without_alternatives(graph: Graph) -> Graph:
    """The graph in which derivatives read what JAX has them read."""
    return _with_alternatives(graph, lambda codes: False)


def without_host(graph: Graph) -> Graph:
    """The graph whose plans move nothing to the host's memory."""
    if graph.link is None:
        return graph
    values = tuple(dataclasses.replace(value, reader=None) for value in graph.values)
    return dataclasses.replace(graph, values=values, link=None)


def _with_alternatives(graph: Graph, is_open: Callable[[frozenset[int]], bool]) -> Graph:
    """A graph whose backward ops have fewer implementations besides JAX's own.

    Arguments:
        graph: with all implementations.
        is_open: whether an implementation that reads some codes stays.
    """

    def restricted(op: Op) -> Op:
        open_ones = (x for x in op.alternatives if is_open(op.codes(x)))
        return dataclasses.replace(op, alternatives=tuple(open_ones))

    stages = tuple(
        dataclasses.replace(stage, backward=tuple(map(restricted, stage.backward)))
        for stage in graph.stages
    )
    return dataclasses.replace(graph, stages=stages)
