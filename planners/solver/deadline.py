"""Deadlines of planners."""

import dataclasses
import time
from collections.abc import Iterable, Iterator

from ..errors import SolverStopped

_EVERY = 64  # items between two looks at the clock, where each takes microseconds


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """A time after which nothing new is begun.

    Attributes:
        until: a reading of `time.monotonic`, in seconds.
    """

    until: float = float("inf")

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.until - time.monotonic()

    def to_write(self) -> "Deadline":
        """Until when a program may be written: half of the time is for handing it over and solving.

        CVXPY takes about as long to hand a program over as writing it took, and is not interrupted.
        """
        return Deadline.after(self.left / 2)

    def during[T](self, items: Iterable[T], every: int = _EVERY) -> Iterator[T]:
        """The items, while there is time; it looks at the clock before each `every` of them.

        Raises:
            SolverStopped: there is none left.
        """
        for n, item in enumerate(items):
            if n % every == 0 and self.left < 0:
                raise SolverStopped(
                    "The time limit passed while the planner's program was being written. "
                    "Raise `time_limit`, or use a planner for large graphs."
                )
            yield item


NEVER = Deadline()
