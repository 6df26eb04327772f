"""A claim that a benchmark checks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, and whether the rows bear it out.

    Attributes:
      title: the claim in words.
      figure: what was found.
      holds: whether the claim holds; None where no row is about it.
      against: cells that contradict it.
    """

    title: str
    figure: str
    holds: bool | None
    against: tuple[str, ...] = ()
