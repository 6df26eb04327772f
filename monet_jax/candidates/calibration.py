"""The model of compiled bytes, and the programs that calibrate it: one saves nothing, one all."""

import dataclasses
import functools

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import certified, left_alone, minimal_region

from ..compiler.buffers.model import (
    Scale,
    bytes_in_results,
    predicted_peak,
    predicted_temp_bytes,
    with_alone_bytes,
)
from ..ir.primitives import traits_of
from .judge import Judge

#: The calibration plan is undone where it takes this share of all that it should spare. XLA:TPU
#: did so to a GPT-2 in bfloat16, 806 MiB for 330, before its softmax's sums were kept.
UNDONE = 0.5


@dataclasses.dataclass(frozen=True)
class Model:
    """Predicts the compiled temporaries of a program's plans.

    Attributes:
        judge: of the program.
        calibration_plan: of the program.
        all_saved_bytes: temporaries where nothing is recomputed, on all devices.
        shift: compiled minus modelled temporaries of the calibration plan, on all devices; 0 before
            it is compiled.
    """

    judge: Judge
    calibration_plan: planners.Plan
    all_saved_bytes: int
    shift: int

    @functools.cached_property
    def graph(self) -> Graph:
        """The planning graph; stages left alone are charged with the unplanned program's excess.

        There the compiler keeps more than the backward needs, such as copies in another layout, or
        less than the model says: that is of stages left alone, too.
        """
        graph = self.judge.graph
        modelled = self.modelled(planners.save_all(graph).regions, graph)
        more = self.all_saved_bytes - modelled - self.shift
        alone = {region.first for region in self.calibration_plan.regions if region.alone}
        return with_alone_bytes(graph, more, alone)

    def modelled(self, regions: tuple[Region, ...], graph: Graph | None = None) -> int:
        """Temporaries of a plan on all devices, not yet on the compiler's scale."""
        return predicted_temp_bytes(graph or self.graph, regions, self.judge.output_bytes)

    def peak(self, regions: tuple[Region, ...], graph: Graph) -> tuple[int, int]:
        """The same, and the stage that runs when they are most."""
        return predicted_peak(graph, regions, self.judge.output_bytes)

    def bytes_in_results(self, regions: tuple[Region, ...], graph: Graph) -> list[int]:
        """For each stage, bytes of temporaries that lie in results throughout its backward."""
        return bytes_in_results(graph, regions, self.judge.output_bytes)

    @functools.cached_property
    def scale(self) -> Scale:
        """From modelled to compiled temporaries, by the calibration plan and by saving all."""
        small = self.modelled(self.calibration_plan.regions, self.judge.graph)
        least = small + self.shift
        large = self.modelled(planners.save_all(self.graph).regions)
        # What stages cannot be charged with, since it would lie in results there, no plan has.
        most = min(self.all_saved_bytes, large + self.shift)
        if large <= small or most <= least:  # saving all takes no more: one plan sets the scale
            large, most = small + 1, least + 1
        return Scale((small, large), (least, most), self.judge.devices)


def calibration_plan_of(graph: Graph) -> planners.Plan:
    """The plan that saves nothing, its last stage left alone.

    The backward of the last stage follows at once: recomputing the stage saves no bytes, and XLA
    may make one more copy for it (147 MiB of GPT-2's 540 on a GPU, where the vocabulary is padded),
    which no useful plan has.
    """
    regions = tuple(minimal_region(graph, s) for s in range(len(graph.stages)))
    if len(regions) > 1:
        regions = (*regions[:-1], left_alone(graph, regions[-1]))
    return certified(graph, regions, planner="save nothing", bound_seconds=graph.seconds)


def shift_of(modelled: int, compiled: int | None, all_saved: int) -> int:
    """What the temporaries of the calibration plan say of other plans: compiled minus modelled.

    0 where the compiler has undone its recomputation, for that says nothing of others.

    Arguments:
        modelled: temporaries of the calibration plan.
        compiled: the same as compiled; None where the compiler failed.
        all_saved: temporaries where nothing is recomputed.
    """
    if compiled is None:
        return 0
    shift, spared = compiled - modelled, all_saved - modelled
    return 0 if shift > UNDONE * spared > 0 else shift


def all_saved_bytes(judge: Judge, unplanned_temp_bytes: int) -> int:
    """Temporaries on all devices where nothing is recomputed: as compiled, or as modelled.

    Where operators change the program, the unplanned program is not what saves all: the model errs
    on both by as much. But it errs by what is in JAX's gradient of max pooling, if that is replaced
    (135 MiB of a VGG-16's 501 on an H100, and 6 where operators pool): then the model alone tells.
    """
    plain = judge.plain
    if plain is judge:
        return unplanned_temp_bytes
    excess = 0 if pools_otherwise(judge) else unplanned_temp_bytes - _modelled(plain)
    return _modelled(judge) + excess


def pools_otherwise(judge: Judge) -> bool:
    """Whether operators replace JAX's gradient of max pooling."""
    return _compares_windows(judge.plain.graph) and not _compares_windows(judge.graph)


def _compares_windows(graph: Graph) -> bool:
    ops = (op for stage in graph.stages for op in stage.backward)
    return any(traits_of(op.name).compares_windows for op in ops)


def _modelled(judge: Judge) -> int:
    regions = planners.save_all(judge.graph).regions
    return predicted_temp_bytes(judge.graph, regions, judge.output_bytes)
