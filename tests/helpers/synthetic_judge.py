"""A compiler without programs: bytes of plans by a rule, for tests of the search."""

import contextlib
import dataclasses
import functools
import itertools
import types
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

import planners
from monet_jax.candidates.judge import CompilationFailed, Judge
from monet_jax.compiler.buffers.model import predicted_temp_bytes
from monet_jax.compiler.compile import CompiledBytes
from planners.graph import Graph
from planners.plan import Plan, Region
from planners.regions.planner import PreparedPlanner, RegionPlanner
from planners.regions.simple_plans import certified, left_alone, minimal_region, saving_all

#: Of arguments and results, which no plan changes.
FIXED_BYTES = 1000

#: Modelled bytes and a number that depends on the plan -> compiled bytes; None where it fails.
Rule = Callable[[int, int], int | None]


def exact(nbytes: int, chance: int) -> int:
    return nbytes


def larger(nbytes: int, chance: int) -> int:
    return int(1.2 * nbytes)


def smaller(nbytes: int, chance: int) -> int:
    return int(0.8 * nbytes)


def noisy(nbytes: int, chance: int) -> int:
    return int((0.9 + 0.2 * (chance % 101) / 100) * nbytes)


def not_monotone(nbytes: int, chance: int) -> int:
    """Every third plan takes half as much again: it may take more than a larger one."""
    return int(1.5 * nbytes) if chance % 3 == 0 else nbytes


def failing(nbytes: int, chance: int) -> int | None:
    return None if chance % 4 == 0 else noisy(nbytes, chance)


class SyntheticJudge(Judge):
    """Judges the plans of a graph by a rule, and counts."""

    name = "a synthetic program"
    output_bytes: Mapping[str, int] = types.MappingProxyType({})
    lossy_codes: frozenset[int] = frozenset()

    def __init__(self, graph: Graph, rule: Rule, seed: int = 0):
        self._graph, self._rule, self._seed = graph, rule, seed
        self.compilations = 0

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def plain(self) -> "SyntheticJudge":
        return self

    def bytes_of(self, regions: tuple[Region, ...]) -> int | None:
        """Compiled temporaries of a plan, whether or not it is compiled; None where that fails."""
        # Plans that move nothing are drawn by what they decide without that.
        decided = str(regions).replace(", offloaded=(), ahead=0", "")
        chance = zlib.crc32(f"{self._seed}{decided}".encode())
        return self._rule(_modelled(self._graph, regions), chance)

    def unplanned_bytes(self) -> CompiledBytes:
        self.compilations += 1
        return _figures(_modelled(self._graph, planners.save_all(self._graph).regions))

    def planned_bytes(self, decisions: Plan) -> CompiledBytes:
        self.compilations += 1
        nbytes = self.bytes_of(decisions.regions)
        if nbytes is None:
            raise CompilationFailed("by the rule")
        return _figures(nbytes)


@functools.cache
def _modelled(graph: Graph, regions: tuple[Region, ...]) -> int:
    return predicted_temp_bytes(graph, regions, {})


def _figures(temp_bytes: int) -> CompiledBytes:
    return CompiledBytes(FIXED_BYTES, 0, temp_bytes, 0, "synthetic", "synthetic")


class Enumeration(RegionPlanner):
    """The best of all plans in which each stage is left alone, saves all or saves nothing."""

    def prepare(self, graph: Graph) -> PreparedPlanner:
        return Enumerated(plans_of(graph))


class WithLongRegions(RegionPlanner):
    """The same, and plans that recompute two stages together."""

    def prepare(self, graph: Graph) -> PreparedPlanner:
        return Enumerated((*plans_of(graph), *_joined(graph)), plans_of(graph))


@dataclasses.dataclass(frozen=True)
class Enumerated(PreparedPlanner):
    """The best of some plans of a graph; `single` are those of single stages."""

    plans: tuple[Plan, ...]
    single: tuple[Plan, ...] = ()

    @property
    def of_single_stages(self) -> "Enumerated | None":
        return Enumerated(self.single) if self.single else None

    def fastest(self, budget_bytes: int) -> Plan:
        fits = [plan for plan in self.plans if plan.peak_bytes <= budget_bytes]
        if not fits:
            least = self.smallest().peak_bytes
            raise planners.InfeasibleBudget("nothing fits", minimum_bytes=least, peak_values=())
        return min(fits, key=lambda plan: (plan.seconds, plan.peak_bytes))

    def smallest(self) -> Plan:
        return min(self.plans, key=lambda plan: (plan.peak_bytes, plan.seconds))


@functools.cache
def plans_of(graph: Graph) -> tuple[Plan, ...]:
    """All plans whose stages are left alone, save all or save nothing."""

    def choices(s: int) -> set[Region]:
        minimal = minimal_region(graph, s)
        return {minimal, left_alone(graph, minimal), saving_all(graph, minimal)}

    found, stages = [], range(len(graph.stages))
    for regions in itertools.product(*(sorted(choices(s), key=repr) for s in stages)):
        try:
            found.append(certified(graph, regions, planner="all", bound_seconds=graph.seconds))
        except planners.InvalidPlan:
            continue
    return tuple(found)


def _joined(graph: Graph) -> Iterator[Plan]:
    """Plans that recompute two stages together: what only the second reads need not be kept."""
    for plan in plans_of(graph):
        for n, (first, second) in enumerate(itertools.pairwise(plan.regions)):
            if first.alone or second.alone:
                continue
            region = Region(n, n + 1, first.saved + second.saved)
            regions = (*plan.regions[:n], region, *plan.regions[n + 2 :])
            with contextlib.suppress(planners.InvalidPlan):
                yield certified(graph, regions, planner="all", bound_seconds=graph.seconds)


def random_limit(graph: Graph, seed: int) -> int:
    """A limit from a little less than what saving nothing takes to a little more than all."""
    simple = planners.save_nothing(graph), planners.save_all(graph)
    least, most = (_modelled(graph, plan.regions) for plan in simple)
    share = np.random.default_rng(seed).uniform(-0.1, 1.05)
    return max(1, int(least + share * (most - least)))
