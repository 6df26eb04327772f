"""The time limit of a search, and shares of it."""

import time


class Clock:
    """How much of a time limit is left.

    Attributes:
        limit_seconds: the time limit.
    """

    def __init__(self, limit_seconds: float):
        self.limit_seconds = limit_seconds
        self._start = time.monotonic()

    def restart(self) -> None:
        """Begins to count anew."""
        self._start = time.monotonic()

    def at(self, share: float) -> float:
        """The reading of `time.monotonic` at which a share of the time has passed."""
        return self._start + share * self.limit_seconds

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time has passed; negative once it has."""
        return self.at(share) - time.monotonic()
