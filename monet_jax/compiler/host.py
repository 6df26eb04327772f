"""The host's memory as plans may use it: what may lie there, its bytes, and the link to a device.

What is moved saves bytes of the device and takes seconds of the link. A link has two directions,
each with its own bandwidth (GH200: 170 GB/s out, 411 back), which work at the same time.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

from .budget import parse_bytes
from .target_table import Target

#: What may live in the memory of the host, by the words of the option `host`.
KINDS = ("activations", "states", "parameters")
#: Kinds that plans can move. The others are refused, so that no option is ignored in silence.
MOVABLE: frozenset[str] = frozenset({"activations", "states"})
#: Slots of the stack in which an array waits by itself, where it must wait in one: a stack of one
#: slot would be simplified away.
STACK_SLOTS = 2
#: Sets how much memory XLA:GPU pins, in GiB; and what it pins otherwise.
POOL_VARIABLE, POOL_GIB = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", 64

#: Bytes a second, both ways, or out to the host and back.
type Bandwidth = int | float | Sequence[int | float]


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """The host's memory, as plans for a target may use it.

    Attributes:
        kinds: what may live there, some of `KINDS`.
        budget_bytes: how many bytes of it may be taken.
        out_bytes_per_second, back_bytes_per_second: of the link from the device and to it.
    """

    kinds: tuple[str, ...]
    budget_bytes: int
    out_bytes_per_second: float
    back_bytes_per_second: float

    def allows(self, kind: str) -> bool:
        """Whether what is of that kind may live there."""
        return kind in self.kinds


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """What a user allows of the host's memory, checked but for the target.

    Attributes:
        kinds: some of `KINDS`, in that order; none where nothing may live there.
        budget_bytes: None for what the platform pins.
        bandwidth: bytes a second out to the host and back; None for the target's.
    """

    kinds: tuple[str, ...] = ()
    budget_bytes: int | None = None
    bandwidth: tuple[float, float] | None = None

    @staticmethod
    def of(
        host: str | Sequence[str],
        host_budget: int | str | None = None,
        host_bandwidth: Bandwidth | None = None,
    ) -> "HostOptions":
        """The options, checked.

        Raises:
            TypeError, ValueError: one of them is not what it must be.
        """
        kinds = _kinds(host)
        if not kinds and (host_budget is not None or host_bandwidth is not None):
            raise ValueError(
                "`host_budget` and `host_bandwidth` are about what may live on the host, and "
                '`host` is "never". Give `host`, as in `host="activations"`, or leave them out.'
            )
        return HostOptions(kinds, _budget_bytes(host_budget), _bandwidth(host_bandwidth))

    def on(self, target: Target) -> HostMemory | None:
        """The memory that plans for a target may use; None where there is none to use.

        Raises:
            ValueError: the target's compiler knows no host memory, or its link is not known.
        """
        if not self.kinds:
            return None
        if target.platform == "cpu":
            raise ValueError(
                '`host` is for GPUs and TPUs; the target is "cpu". There the device\'s memory is '
                "the host's, and XLA:CPU ignores host memory kinds: nothing would be saved. Leave "
                "`host` out, or give a `target`."
            )
        bandwidth = self.bandwidth or target.host_bytes_per_second
        if bandwidth is None:
            raise ValueError(
                f"No source names the bandwidth between {target.name} and its host. Measure it, "
                "and give it as `host_bandwidth`, in bytes a second: one number, or a pair, out to "
                "the host and back, as in `host_bandwidth=(15e9, 15e9)`."
            )
        return HostMemory(self.kinds, self._budget_on(target), *bandwidth)

    def _budget_on(self, target: Target) -> int:
        if self.budget_bytes is None and target.platform != "cuda":
            raise ValueError(
                f"The size of the host's memory of {target.name} is not known here. Give the bytes "
                'that a plan may take of it for each device, as in `host_budget="64GiB"`.'
            )
        pool = pinned_pool_bytes() if target.platform == "cuda" else math.inf
        if self.budget_bytes is not None and self.budget_bytes > pool:
            raise ValueError(
                f"`host_budget` is {self.budget_bytes:,} bytes, and XLA:GPU pins {pool:,}. Set "
                f"{POOL_VARIABLE} (in GiB) before JAX starts, or give less."
            )
        return int(pool) if self.budget_bytes is None else self.budget_bytes


def pinned_pool_bytes() -> int:
    """The host memory that XLA:GPU pins for a process.

    Raises:
        ValueError: the environment says no number.
    """
    text = os.environ.get(POOL_VARIABLE) or str(POOL_GIB)
    try:
        return int(text) * 2**30
    except ValueError:
        raise ValueError(f"{POOL_VARIABLE} must be a whole number of GiB; got {text!r}.") from None


def _kinds(host: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(host, str):
        words = {"never": (), "auto": tuple(MOVABLE) or KINDS}.get(host, (host,))
    elif isinstance(host, Sequence):
        words = tuple(host)
    else:
        raise TypeError(f"`host` must be a word or a tuple of words; got {host!r}.")
    if wrong := [word for word in words if word not in KINDS]:
        names = ", ".join(f'"{kind}"' for kind in KINDS)
        raise ValueError(f'`host` must be "never", "auto", or some of {names}; got {wrong[0]!r}.')
    if missing := [word for word in words if word not in MOVABLE]:
        raise ValueError(
            f'`host="{missing[0]}"` cannot be planned yet: nothing moves {missing[0]} to the host. '
            f"What can: {', '.join(sorted(MOVABLE)) or 'nothing so far'}. Leave it out."
        )
    return tuple(kind for kind in KINDS if kind in words)


def _budget_bytes(host_budget: int | str | None) -> int | None:
    if host_budget is None:
        return None
    if isinstance(host_budget, bool) or not isinstance(host_budget, int | str):
        raise TypeError(f'`host_budget` must be bytes or an amount ("64GiB"); got {host_budget!r}.')
    try:
        nbytes = parse_bytes(host_budget)
    except ValueError:
        raise ValueError(
            f'`host_budget` must be a positive number of bytes or an amount ("64GiB"); got '
            f"{host_budget!r}."
        ) from None
    return nbytes


def _bandwidth(given: Bandwidth | None) -> tuple[float, float] | None:
    if given is None:
        return None
    pair = tuple(given) if isinstance(given, Sequence) else (given, given)
    if len(pair) != 2 or any(isinstance(x, bool) or not isinstance(x, int | float) for x in pair):
        raise TypeError(
            "`host_bandwidth` must be bytes a second, or a pair of them, out to the host and "
            f"back; got {given!r}."
        )
    if not all(0 < x < math.inf for x in pair):
        raise ValueError(f"`host_bandwidth` must be positive and finite; got {given!r}.")
    return float(pair[0]), float(pair[1])
