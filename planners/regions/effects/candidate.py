"""Candidates: regions with their effects on the rest of a plan.

The effect of a region is the seconds that it adds, the values that it makes the first forward leave
in memory, and the bytes that its backward holds while it runs.

| index | means |
|---|---|
| `s` | a stage of the graph |
| `i` | a value of the graph |
| `k` | a sample of a region's backward: one of its runs |
"""

import dataclasses

from ...plan import Region


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A time in the backward of a stage at which a candidate may be at its peak.

    Attributes:
        nbytes: in memory then: gradients, workspace and the region's own values; without the
            values that the first forward of other regions left.
        reads: the values of other regions that the region reads from then on, at this stage for
            the last time.
    """

    nbytes: int
    reads: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A region and its effect on the rest of the plan.

    Attributes:
        region: the region.
        seconds, flops: of recomputation, of optional ops, of slower implementations, of saving what
            no other region reads, and of copies to the host and back that the device waits for.
        retained: its own values that the first forward leaves for its backward.
        reads: value of an earlier region that its backward reads -> the last stage that reads it.
        samples: for each of its stages, first to last, the times that may set the peak.
        aliased: of `retained`, the values that reuse output buffers (`Graph.aliased`).
        alone_bytes: bytes, beside `retained`, that its forward leaves where it is left alone.
        error: sum over its optional ops (`Op.error`).
        host_bytes: of the host's memory that it takes, at most.
        in_flight: bytes of these that come back at once, and are there while the stages behind it,
            up to `fetched_before`, run their backward.
        fetched_before: its last stage where there are none.
    """

    region: Region
    seconds: float
    flops: int
    retained: frozenset[int]
    reads: dict[int, int]
    samples: tuple[tuple[Sample, ...], ...]
    aliased: frozenset[int] = frozenset()
    alone_bytes: int = 0
    error: float = 0.0
    host_bytes: int = 0
    in_flight: int = 0
    fetched_before: int = 0
