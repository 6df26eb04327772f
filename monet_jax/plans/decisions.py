"""The decision of a plan for each value, and the seconds that computing it again takes."""

import dataclasses
import functools
from collections.abc import Hashable, Sequence

from planners.errors import InvalidPlan
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import saving_all
from planners.runs import backward_runs, first_forward, runs

#: Decisions that can be turned round, from computing a value again to saving it or back.
TURNABLE = ("saved", "kept", "recomputed")


@dataclasses.dataclass(frozen=True)
class Decisions:
    """What some regions do with each value.

    Attributes:
        graph: the step.
        regions: they cover its stages in order.
    """

    graph: Graph
    regions: Sequence[Region]

    @functools.cached_property
    def by_stage(self) -> tuple[Region, ...]:
        """For each stage, the outermost region that covers it."""
        return tuple(r for r in self.regions for _ in range(r.first, r.last + 1))

    @functools.cached_property
    def moved(self) -> frozenset[str]:
        """Names of the values that wait in the host's memory."""
        return frozenset(name for region in self.regions for name in region.offloaded)

    @functools.cached_property
    def in_backward(self) -> tuple[dict[int, int], frozenset[int]]:
        """Values that the backward reads as they were first written, and those that run again.

        Of the former, with the first stage for whose backward, or new forward, they are read.
        """
        schedule = runs(self.graph, self.regions)
        waiting, again = dict[int, int](), set[int]()
        for run in schedule[first_forward(schedule) :]:
            op = run.of(self.graph)
            read = (i for i in op.inputs if i not in again)
            waiting |= {i: min(run.stage, waiting.get(i, run.stage)) for i in read}
            if run.phase == "forward":
                again.update(op.outputs)
        return waiting, frozenset(again)

    def of(self, stage: int, value: int) -> str:
        """The decision for a value that a stage's forward writes, as in `ValueRow`."""
        name, region = self.graph.values[value].name, self.by_stage[stage]
        if name in self.moved:
            return "host"
        if name in region.saved:
            return "saved"
        reader, (_, again) = self.reader(value), self.in_backward
        if reader is not None:
            return "kept" if reader <= region.last else "passed"
        return "recomputed" if value in again else "unread"

    def reader(self, value: int) -> int | None:
        """The first stage for whose backward a value waits; None where it does not."""
        return self.in_backward[0].get(value)

    def recompute_seconds(self, stage: int, value: int) -> float | None:
        """Seconds of a step that computing a value again takes, with all that it alone needs.

        None where its decision cannot be turned round: it must be written once, or cannot be saved.
        """
        if self.of(stage, value) not in TURNABLE or not self.graph.values[value].savable:
            return None
        region = self.by_stage[stage]
        like = *self._kind(region), self._place(value, region)
        if like not in self._found:
            self._found[like] = self._turned(region, self.graph.values[value].name)
        return self._found[like]

    @functools.cached_property
    def _found(self) -> dict[Hashable, float | None]:
        """The seconds by kind of region and place: those of equal regions are equal."""
        return {}

    def _kind(self, region: Region) -> tuple[Hashable, ...]:
        """Equal for regions of isomorphic stages with equal decisions."""
        stages = range(region.first, region.last + 1)
        keys = tuple(self.graph.stages[s].key or s for s in stages)
        if region.inner:
            return keys, region
        saved = (self._place(self.graph.index[name], region) for name in region.kept)
        return keys, region.alone, frozenset(saved)

    def _place(self, value: int, region: Region) -> tuple[int, ...]:
        """Where a value is written, counted from the beginning of a region."""
        stage, op = self.graph.forward_writer[value]
        outputs = self.graph.stages[stage].forward[op].outputs
        return stage - region.first, op, outputs.index(value)

    def _turned(self, region: Region, name: str) -> float | None:
        """What the backward of a region takes without a saved value, beyond what it takes with."""
        if region.alone:  # else whatever its backward reads could not be named one by one
            region = saving_all(self.graph, region)
        others = tuple(x for x in region.saved if x != name)
        try:
            without = self._seconds(dataclasses.replace(region, saved=others))
            return without - self._seconds(dataclasses.replace(region, saved=(*others, name)))
        except InvalidPlan:
            return None

    def _seconds(self, region: Region) -> float:
        return sum(run.of(self.graph).seconds for run in backward_runs(self.graph, region))
