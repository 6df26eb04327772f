"""Reads the clock: medians of functions run in turns, their spread, and intervals of ratios."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

#: Runs whose middle half spreads over more than this share of their median are of a busy device.
MOST_SPREAD = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of several runs of one function.

    Attributes:
        runs: seconds of each.
    """

    runs: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """The width of the middle half of the runs over their median; 0 of a single one."""
        if len(self.runs) < 2 or not self.seconds:
            return 0.0
        low, _, high = statistics.quantiles(self.runs, n=4, method="inclusive")
        return (high - low) / self.seconds


def timed(run: Callable[[], Any], least_runs: int, most_seconds: float) -> Timing:
    """Times a function, which has run before.

    Arguments:
        run: the function; its results are awaited.
        least_runs: runs at least, however long they take.
        most_seconds: no further run begins after so many.
    """
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < least_runs or (
        time.perf_counter() - began < most_seconds and len(seconds) < 100
    ):
        seconds.append(_seconds(run))
    return Timing(tuple(seconds))


def in_turns(runs: Sequence[Callable[[], Any]], turns: int) -> list[Timing]:
    """Times functions in turns, so that all see the same load; the first turn is not counted."""
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(turns):
        for run, seconds in zip(runs, taken, strict=True):
            found = _seconds(run)
            if turn:
                seconds.append(found)
    return [Timing(tuple(seconds)) for seconds in taken]


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """How one function's seconds compare with another's, run in the same turns.

    Attributes:
        median: of the ratios of single turns.
        low, high: an interval that holds the median of all such ratios in 95 of 100 cases; of
            fewer than six turns, the extremes.
    """

    median: float
    low: float
    high: float

    @property
    def is_slower(self) -> bool:
        """Whether it is slower beyond the interval."""
        return self.low > 1

    @property
    def is_faster(self) -> bool:
        """Whether it is faster beyond the interval."""
        return self.high < 1

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio(timing: Timing, base: Timing) -> Ratio:
    """The paired ratio of two functions that ran in the same turns.

    The interval is that of the sign test: it assumes nothing of how the ratios are distributed.
    """
    pairs = sorted(a / b for a, b in zip(timing.runs, base.runs, strict=True))
    out = _outside(len(pairs))
    return Ratio(statistics.median(pairs), pairs[out], pairs[-1 - out])


def _outside(count: int) -> int:
    """How many ordered values lie outside the interval of the median on each side."""
    tails = (sum(math.comb(count, k) for k in range(n + 1)) / 2**count for n in range(count))
    return max(0, sum(1 for tail in tails if tail <= 0.025) - 1)


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began
