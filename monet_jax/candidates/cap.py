"""The cap on compilations and seconds over everything that one call of `plan` does."""

import dataclasses
import math
import time
from collections.abc import Callable


class CapReached(Exception):
    """Another compilation, or another second, would exceed the cap."""


@dataclasses.dataclass
class Cap:
    """Counts compilations and seconds; the only state that all parts of a search share.

    Attributes:
        allowance: programs that may be compiled, the unplanned one included.
        max_seconds: seconds from `started`.
        started: the clock's reading when planning began.
        compilations: programs compiled so far.
        max_compilations: that they may come to.
        reached: why the search was cut short, in words; "" as long as it was not.
        clock: seconds from some point on.
        announce: is told what is compiled, and how long it took.
    """

    allowance: float = math.inf
    max_seconds: float = math.inf
    clock: Callable[[], float] = time.perf_counter
    announce: Callable[[str], None] = lambda text: None
    started: float = math.nan
    compilations: int = 0
    reached: str = ""
    max_compilations: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.max_compilations = self.allowance
        if math.isnan(self.started):
            self.started = self.clock()

    @property
    def seconds_left(self) -> float:
        """Seconds until the cap; never negative."""
        return max(0.0, self.started + self.max_seconds - self.clock())

    @property
    def compilations_left(self) -> float:
        """Compilations until the cap; infinite where there is none."""
        return self.max_compilations - self.compilations

    def spend(self, what: str) -> None:
        """Count one compilation before it begins.

        Raises:
            CapReached: none is left.
        """
        self.check_seconds()
        if self.compilations >= self.max_compilations:
            self._reach(f"{self.compilations} programs were compiled (`max_compilations`)")
        self.compilations += 1
        self.announce(f"compiling {what}, {self._count()}")

    def note(self, compile_seconds: float) -> None:
        """Tell how long the last compilation took."""
        self.announce(f"choosing a plan; {self._count()} took {compile_seconds:.1f} s")

    def check_seconds(self) -> None:
        """Check that there is time left.

        Raises:
            CapReached: there is none.
        """
        if self.seconds_left == 0.0:
            self._reach(f"{self.max_seconds:g} s had passed (`max_seconds`)")

    def renew(self) -> None:
        """Begin anew, for another budget."""
        self.started = self.clock()
        self.allow_again()

    def allow_again(self) -> None:
        """Allow as many more compilations from here on."""
        self.max_compilations = self.compilations + self.allowance
        self.reached = ""

    def _count(self) -> str:
        most = self.max_compilations
        return f"program {self.compilations}" + ("" if most == math.inf else f" of at most {most}")

    def _reach(self, why: str) -> None:
        self.reached = why
        raise CapReached(why)
