"""How the updates of a step run, and which leaves of its state live on the host, as frozen data."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...compiler.budget import format_bytes
from ...compiler.host import HostMemory


@dataclasses.dataclass(frozen=True)
class HostLeaf:
    """A leaf of a step's state that lives on the host.

    Attributes:
        path: where it stands in the arguments, as `args[0]['w']`.
        argument: its position among the leaves of the arguments.
        result: the position among the results of what it becomes.
        nbytes: its bytes, on one device.
    """

    path: str
    argument: int
    result: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class UpdateLayout:
    """How the updates of a step run.

    Attributes:
        is_ordered: whether one update follows the other, in the order of their gradients. No
            gradient then waits for others.
        on_host: the leaves that live on the host. Their updates are ordered in any case.
        in_rows: whether the updates of these run in loops over rows, where they can.
    """

    is_ordered: bool = False
    on_host: tuple[HostLeaf, ...] = ()
    in_rows: bool = False

    @property
    def changes_the_step(self) -> bool:
        """Whether the step runs other than as it was traced."""
        return self.is_ordered or bool(self.on_host)

    @property
    def host_bytes(self) -> int:
        """Bytes on the host, of one device."""
        return sum(leaf.nbytes for leaf in self.on_host)


#: The step as it was traced.
AS_TRACED = UpdateLayout()


def described(layout: UpdateLayout) -> str:
    """What lives on the host, a line for each leaf, the first updates' first."""
    how = "in loops over rows" if layout.in_rows else "whole, one update after the other"
    head = f"On the host: {format_bytes(layout.host_bytes)}, updated on the device {how}."
    leaves = (f"  {format_bytes(leaf.nbytes)}  {leaf.path}" for leaf in layout.on_host)
    return "\n".join([head, *leaves])


def layout_from_json(data: Any) -> UpdateLayout:
    """The layout from what `dataclasses.asdict` made of it.

    Raises:
        TypeError, KeyError: a field is missing or unknown.
    """
    return UpdateLayout(**{**data, "on_host": tuple(HostLeaf(**x) for x in data["on_host"])})


def within_host(leaves: Sequence[HostLeaf], memory: HostMemory) -> tuple[HostLeaf, ...]:
    """The first leaves, as many as fit in the host's memory."""
    found, left = [], memory.budget_bytes
    for leaf in leaves:
        left -= leaf.nbytes
        if left < 0:
            break
        found.append(leaf)
    return tuple(found)
