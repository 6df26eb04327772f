"""Says what the host's memory would bring where a step cannot keep its budget."""

from collections.abc import Sequence

from ...compiler.budget import format_bytes
from ...compiler.host import POOL_VARIABLE, HostMemory
from ...compiler.targets import Target
from .layout import HostLeaf, within_host


def hint(movable: Sequence[HostLeaf], memory: HostMemory | None, target: Target) -> str:
    """What to do about state that could live on the host, and may not; "" where there is none.

    Arguments:
        movable: leaves of the state that can live on the host.
        memory: what plans may use of it.
        target: of the plan.
    """
    if target.platform == "cpu" or not movable:
        return ""
    total = sum(leaf.nbytes for leaf in movable)
    if memory is None or not memory.allows("states"):
        return (
            f'With `host="states"` up to {format_bytes(total)} of its state may leave the device.'
        )
    if len(within_host(movable, memory)) == len(movable):
        return ""
    more = f", and {POOL_VARIABLE} (in GiB) before JAX starts" * (target.platform == "cuda")
    return (
        f"The host's memory may take {format_bytes(memory.budget_bytes)} of the "
        f"{format_bytes(total)} of its state that can leave the device: raise `host_budget`{more}."
    )
