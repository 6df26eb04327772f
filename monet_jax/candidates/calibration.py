"""The programs that calibrate the model of compiled bytes: one saves nothing, one saves all."""

import planners
from planners.graph import Graph
from planners.regions.simple_plans import certified, left_alone, minimal_region

from ..compiler.buffer_model import predicted_temp_bytes
from .judge import Judge


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


def all_saved_bytes(judge: Judge, unplanned_temp_bytes: int) -> int:
    """Temporaries where nothing is recomputed: as compiled, or what the model says they are.

    Where operators change the program, the unplanned program is not what saves all: the model errs
    on both by as much.
    """
    plain = judge.plain
    if plain is judge:
        return unplanned_temp_bytes
    return _modelled(judge) + unplanned_temp_bytes - _modelled(plain)


def _modelled(judge: Judge) -> int:
    regions = planners.save_all(judge.graph).regions
    return predicted_temp_bytes(judge.graph, regions, judge.output_bytes)
