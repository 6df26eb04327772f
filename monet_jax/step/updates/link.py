"""Seconds of the copies between host and device of a step's state, and how many of them hide.

Updates run one after the other (`emission`): the state of one is fetched once that of the update
before is back on the host, while the backward computes further gradients. Ops and copies are taken
to run one by one on engines of their own; the seconds of ops are the target's. Beside a loop over
rows (`rows`) nothing else runs, and its copies do not hide.
"""

import dataclasses
import itertools as it
from collections.abc import Mapping

from ...analyzer.step_costs import fusions_of, price_of
from ...compiler.backend import Backend
from ...compiler.host import HostMemory
from ...ir.program import Program
from ...seconds.prices import Prices
from .groups import updates_of
from .layout import UpdateLayout


@dataclasses.dataclass(frozen=True)
class CopySeconds:
    """Seconds of the copies of a step's state.

    Attributes:
        copied_seconds: of all copies, out and back, on an idle link.
        exposed_seconds: by which the step is longer for them.
        step_seconds: of the step without them.
    """

    copied_seconds: float
    exposed_seconds: float
    step_seconds: float

    @property
    def exposed_share(self) -> float:
        """By which share of the step's own seconds it is longer."""
        return self.exposed_seconds / self.step_seconds if self.step_seconds else 0.0


@dataclasses.dataclass(frozen=True)
class Gradients:
    """When the gradients of a step are there, by the model.

    Attributes:
        ready_seconds: of each result that an update writes: when its gradients are computed.
        seconds: of the whole step.
    """

    ready_seconds: Mapping[int, float]
    seconds: float


def gradients_of(program: Program, prices: Prices, backend: Backend) -> Gradients:
    """When the gradients of a step's program are there."""
    fusions = fusions_of(program, prices, backend)
    ops = [*fusions.all()]
    taken = [price_of(fusions, op, prices).seconds for op in ops]
    ends = {
        fusions.position[op.outputs[0]]: end
        for op, end in zip(ops, it.accumulate(taken), strict=True)
        if op.outputs
    }
    found = {}
    for update in updates_of(program):
        ready = max((end for n, end in ends.items() if n <= update.position[0]), default=0.0)
        found.update(dict.fromkeys(update.results, ready))
    return Gradients(found, sum(taken))


def copy_seconds(layout: UpdateLayout, gradients: Gradients, memory: HostMemory) -> CopySeconds:
    """The seconds of the copies of a layout."""
    sizes: dict[float, int] = {}
    for leaf in layout.on_host:
        ready = gradients.ready_seconds[leaf.result]
        sizes[ready] = sizes.get(ready, 0) + leaf.nbytes
    moments = sorted({*gradients.ready_seconds.values()})
    free, copied = 0.0, 0.0
    for before, ready in it.pairwise([moments[0], *moments] if moments else ()):
        back = sizes.get(ready, 0) / memory.back_bytes_per_second
        out = sizes.get(ready, 0) / memory.out_bytes_per_second
        free = max(max(free, before) + back, ready) + out
        copied += back + out
    exposed = copied if layout.in_rows else max(0.0, free - gradients.seconds)
    return CopySeconds(copied, exposed, gradients.seconds)
