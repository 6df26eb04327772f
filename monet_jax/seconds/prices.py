"""The interface of all sources of seconds: a group of equations in, its price out."""

import abc
import dataclasses

from ..ir.costs import Work
from .group import Group
from .roofline import Roofline

#: Where seconds come from, as plans and reports name it.
ROOFLINE, MEASURED = "roofline", "measured"


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """What an op takes.

    Attributes:
        seconds: of one run.
        source: where they come from.
    """

    seconds: float
    source: str


class Prices(abc.ABC):
    """What ops take on one target.

    Attributes:
        roofline: of the target, for what has no better price.
        touch_seconds_per_byte: of a step's temporaries, where the device gives a step memory that
            was not touched before.
    """

    roofline: Roofline
    touch_seconds_per_byte: float = 0.0

    @abc.abstractmethod
    def of(self, group: Group) -> Price:
        """The price of an op."""

    def finish(self) -> str:
        """Called when all ops of a graph are priced; what the user has to know of it, if any."""
        return ""

    def of_work(self, work: Work, moved_bytes: int) -> float:
        """Seconds of work that has no equations of its own, by the roofline."""
        return self.roofline.seconds(work, moved_bytes)


class ByRoofline(Prices):
    """Prices by the roofline alone.

    Arguments:
        roofline: of the target.
    """

    def __init__(self, roofline: Roofline):
        self.roofline = roofline

    def of(self, group: Group) -> Price:
        """The price of an op."""
        seconds = self.roofline.seconds(group.work, group.moved_bytes)
        return Price(max(seconds, self.roofline.launch_seconds if seconds else 0.0), ROOFLINE)
