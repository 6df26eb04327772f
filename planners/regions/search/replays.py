"""Plans by their regions, each replayed once."""

import dataclasses
import functools as ft
import sys
import time

from ...graph import Graph
from ...plan import Plan, Region
from ...runs import error_of
from ...transfers import keeps_host
from ..simple_plans import certified, save_all, save_nothing


class Replays:
    """The replayed plans of one graph."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._plans: dict[tuple[Region, ...], Plan] = {}

    def plan(self, regions: tuple[Region, ...]) -> Plan:
        """The plan of some regions."""
        if regions not in self._plans:
            self._plans[regions] = certified(
                self._graph, regions, planner="stages", bound_seconds=self._graph.seconds
            )
        return self._plans[regions]

    def peak_bytes(self, regions: tuple[Region, ...]) -> int:
        """The peak of a plan; larger than any budget where it exceeds another limit.

        These are on its error and on its bytes of the host's memory.
        """
        is_right = error_of(self._graph, regions) <= self._graph.most_error
        is_right = is_right and keeps_host(self._graph, regions)
        return self.plan(regions).peak_bytes if is_right else sys.maxsize

    def overhead(self, regions: tuple[Region, ...]) -> float:
        """Seconds of recomputation and of saving."""
        return self.plan(regions).seconds - self._graph.seconds

    @property
    def save_all(self) -> Plan:
        """The plan that recomputes nothing."""
        return self._timed_save_all[0]

    @property
    def seconds(self) -> float:
        """Seconds that a replay takes."""
        return self._timed_save_all[1]

    @ft.cached_property
    def _timed_save_all(self) -> tuple[Plan, float]:
        start = time.process_time()
        return self._known(save_all(self._graph)), time.process_time() - start

    @ft.cached_property
    def save_nothing(self) -> Plan:
        """The plan that saves nothing."""
        return self._known(save_nothing(self._graph))

    def _known(self, plan: Plan) -> Plan:
        """The plan, which need not be replayed again."""
        self._plans[plan.regions] = dataclasses.replace(plan, planner="stages")
        return plan
